"""The folder of a run, claimed for as long as it is written."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from planaria.checkpoint.weights import with_weights_here
from planaria.job.errors import UserError
from planaria.job.parse import changed_numbers, job_from_json, job_json
from planaria.job.settings import Job
from planaria.runtime.observers.secret_urls import without_secrets
from planaria.runtime.run_folder.claim import claimed
from planaria.runtime.run_folder.recorder import write_atomically
from planaria.runtime.run_folder.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFolder:
    """A job, and the folder of its run with its job.json.

    Attributes:
        job: it bears the run's name.
        folder: the run's folder.
        earlier: as what the folder's job was trained before, if that goes on.
    """

    job: Job
    folder: RunFolder
    earlier: Job | None


@contextlib.contextmanager
def job_folder(job: Job, name: str, *, resume: bool) -> Iterator[JobFolder]:
    """Makes the folder of a new run, or opens one that goes on; no other process may write it until the block ends.

    A new folder goes away again when the job is refused or interrupted before its first record: the name stays free.

    Raises:
        UserError: there is one already, or none to go on with, or it is of another job, or another process writes it.
    """
    job = msgspec.structs.replace(job, run=msgspec.structs.replace(job.run, name=name))
    if resume:
        path = Path(job.run.folder) / name
        if not path.exists():
            raise UserError(f"run folder {path} does not exist. Correct the name, or train first, without --resume.")
        folder = RunFolder.reopen(path)
        earlier = job_from_json(folder.job.read_bytes())
        job = with_weights_here(job, earlier)
        job = _with_start(job, earlier.train.start_from, earlier.train.start_steps)
        _refuse_other_job(folder, earlier, job)
    else:
        earlier = None
        job = with_weights_here(job)
        if job.train.start_from:
            from planaria.checkpoint.start import start_of  # and with it torch

            start = start_of(job.train, verify=True)
            assert start is not None
            # The checkpoint itself: a run that still goes on has a newer one by the time others look.
            place = start.folder.absolute() if isinstance(start.folder, Path) else start.folder
            job = _with_start(job, str(place), start.steps if job.train.start_optimizer else 0)
        folder = RunFolder.create(job.run.folder, name)
    recorded = _size(folder.events)
    with claimed(folder.claim):
        try:
            write_atomically(folder.job, job_json(without_secrets(job)))
            yield JobFolder(job=job, folder=folder, earlier=earlier)
        except (ValueError, KeyboardInterrupt):
            if _size(folder.events) == recorded:
                if earlier is not None:
                    write_atomically(folder.job, job_json(earlier))
                elif not recorded:
                    shutil.rmtree(folder.path, ignore_errors=True)
            raise


def _with_start(job: Job, start_from: str, start_steps: int) -> Job:
    train = msgspec.structs.replace(job.train, start_from=start_from, start_steps=start_steps)
    return msgspec.structs.replace(job, train=train)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _refuse_other_job(folder: RunFolder, earlier: Job, job: Job) -> None:
    changed = changed_numbers(earlier, job)
    if changed:
        raise UserError(
            f"run folder {folder.path} was trained with another {', '.join(changed)}, "
            "which determines the numbers. Go on with the same job, or start a new run by --name NAME."
        )
