"""The first hour: a job to begin with, and whether a machine is fit to train.

- `jobs`: writes a commented job of a kind, with data to try it on; its texts are in `templates/`.
- `doctor`: checks a machine, and says what to mend.

A new kind of job is a TOML file in `templates/` and a line in `jobs.KINDS`.
"""
