"""The job file's sections, a file each: a frozen struct with defaults and units, and what makes its values impossible.

- `model`, `train`, `data`, `eval`, `cluster`, `resilience`, `run`, `budget`, `observe`: the section of that name.
- `section`: what each of them is.

A new field goes into its section's struct, with a line in the docstring (docs/reference is made of it), and what it
excludes there into the function `check_...` below. None knows of another; what concerns several is in
`planaria.job.checks`.
"""
