"""Reports: one HTML file of a run, a drill, a comparison or a simulation, to keep, send or print.

- `report`: finds out what there is, and writes the file; a run is drawn by the page's own code.
- `sheets`: what charts, tables and shares of the other reports are made of, as values.
- `rehearsals`: of drills and comparisons; `simulations`: of scenarios and sweeps. Their tables are the terminal's, too.
- `report.js`: draws both in the file.
"""
