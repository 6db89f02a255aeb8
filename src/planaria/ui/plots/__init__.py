"""Pictures: of steps, runs, simulations, sweeps and traces.

- `schedule_picture`: a step, as text and SVG; `cells`: what is drawn of it.
- `step_trace`: steps as they ran, for Perfetto.
- `rehearsal_plot`, `simulation_plot`, `sweep_plot`, `trace_plot`: with matplotlib, which is an extra.
- `picture_file`: whether a picture can be drawn at all.
"""
