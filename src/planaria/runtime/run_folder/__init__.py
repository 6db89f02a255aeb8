"""The run folder: what lies where in runs/NAME, who writes it, and what is told in it.

- `run_folder`: names of files, and a free name for a new run; `claim`: the lock of who writes it.
- `recorder`: writes events, metrics and the summary; `lines`: files of a record a line.
- `step_lines`: lines of steps, read many at a time; `step_blocks`: the index by which a long run's are passed over.
- `overview`: a run at a glance, for `planaria ls`; `process_logs`: what its processes logged, for `planaria logs`.
- `sentences`: records as sentences, the same words everywhere; `tables`: plans and candidates as small tables.
"""
