"""`planaria export`: a run's last checkpoint as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

from planaria.checkpoint.manifest import newest
from planaria.checkpoint.state import read_parameters
from planaria.job.errors import UserError
from planaria.job.parse import job_from_json
from planaria.launch.settings import is_emulated
from planaria.model.export import export
from planaria.observe.run_folder import RunFolder


def export_run(run: Path, target: Path) -> None:
    """Write the weights of the newest whole checkpoint of `run` into the folder `target`.

    Raises:
        UserError: no such run, no checkpoint, a model that is not Hugging Face's, or a target that exists or cannot
            be written.
    """
    folder = RunFolder.open(run)
    job = job_from_json(folder.job.read_bytes())
    if is_emulated(job):
        raise UserError(f"run folder {run} is of an emulated device: its weights are made up. Export another run.")
    checkpoint, manifest, _ = newest(folder.checkpoints)
    parameters = read_parameters(checkpoint, manifest)
    try:
        if target.exists() and any(target.iterdir()):
            raise UserError(f"--to {target}: the folder is not empty. Choose another.")
        export(job, parameters, target)
    except OSError as error:
        raise UserError(f"--to {target}: it cannot be written: {error.strerror or error}. Choose another.") from None
