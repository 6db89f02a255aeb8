"""`python run_job.py JOB.json NAME [FAULT ...]`: one Planaria run, without display."""

from __future__ import annotations

import sys
from pathlib import Path

import planaria
from planaria.job.parse import job_from_json

if __name__ == "__main__":
    job_file, name, *faults = sys.argv[1:]
    result = planaria.train(job_from_json(Path(job_file).read_bytes()), name=name, faults=faults)
    print(result.status.value, result.message)
