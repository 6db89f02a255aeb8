"""The page of a run in a browser: views over the run folder's records that decide nothing.

- `series`: any number of steps in a bounded number of points.
- `accounts`: decisions with their regret, costs, evaluations; `nodes`: their lives.
- `view`: records folded into what the page shows; `runs`: the views of a folder's runs, kept up to date.
- `recorded_steps`: what workers have written of steps; `schedule`: a step as planned and as it ran.
- `access`: who may see and do what; `commands`: what the page asks of a live run.
- `thresholds`: how much a page shows, and how often.
- `server`, `listen`: the pages and their streams (an extra). `planaria.ui.report` has the same in one file.
- `static/`: the pages themselves, without a build step: `draw.js` draws for both.
"""
