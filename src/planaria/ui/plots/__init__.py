"""Pictures: of steps, runs, simulations, sweeps and traces.

schedule_picture, cells: a step, as text and SVG · picture_file: whether a picture can be drawn at all
rehearsal_plot, simulation_plot, sweep_plot, trace_plot: with matplotlib
"""
