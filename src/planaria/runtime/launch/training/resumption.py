"""Finds what `--resume` goes on from, and checks that the checkpoint is of this job, these numbers and this data."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import pairwise

from planaria.checkpoint.manifest import link_all, newest
from planaria.checkpoint.numerics import NUMERICS_VERSION
from planaria.checkpoint.store import check_writable, has_checkpoints
from planaria.data.job_data import token_identity
from planaria.data.tokens.token_set import read_about
from planaria.job.errors import UserError
from planaria.job.history import DataIdentity, History, JobInterval, order_of
from planaria.job.parse import job_fingerprint, job_from_json
from planaria.job.settings import Job
from planaria.protocol.messages.checkpoint_ref import CheckpointRef
from planaria.runtime.component_settings import is_emulated
from planaria.runtime.launch.training.request import TrainRequest
from planaria.runtime.run_folder.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """A checkpoint that a run goes on from.

    Attributes:
        folder: the run's folder.
        checkpoint: the newest that is whole.
        history: of the steps behind it.
        complaints: a line for each newer checkpoint that cannot be used.
        accepts_changed_data: whether the user said that other data are meant.
    """

    folder: RunFolder
    checkpoint: CheckpointRef
    history: History
    complaints: tuple[str, ...]
    accepts_changed_data: bool

    @property
    def order(self) -> str:
        """In which samples come, as the run began."""
        return order_of(self.history)

    def changes(self, now: DataIdentity) -> list[str]:
        """Describes for people what is different about the data."""
        before = self.history[-1].data
        return before.changes(now) if before is not None else []

    def check_data(self, now: DataIdentity) -> None:
        """Refuses data other than those that the checkpoint was trained on.

        Raises:
            UserError: the user did not accept them, or the model does not fit them.
        """
        before = self.history[-1].data
        if before is None or not (changes := before.changes(now)):
            return
        told = f"since run folder {self.folder.path} was trained, {', and '.join(changes)}"
        if before.unit == now.unit and before.vocab_size != now.vocab_size:
            raise UserError(
                f"data.tokenizer: {told}: the weights do not fit. "
                "Go on with the same tokenizer, or start a new run by --name NAME."
            )
        if not self.accepts_changed_data:
            raise UserError(
                f"data.source: {told}: every later sample would be another. Restore the data, go on with these by "
                "--accept-changed-data, or start a new run by --name NAME."
            )


def check_store(request: TrainRequest) -> None:
    """Checks the store that run.checkpoint_folder names, before anything is trained.

    Raises:
        UserError: it cannot be written, or has checkpoints of another run of this name.
    """
    run = request.job.run
    if not run.checkpoints_url:
        return
    named = f"run.checkpoint_folder = {run.checkpoint_folder!r}"
    check_writable(run.checkpoints_url, named)
    if not request.resume and has_checkpoints(run.checkpoints_url):
        raise UserError(
            f"{named}: checkpoints of a run named {run.name} are there already, under {run.checkpoints_url}. Choose "
            "another name by --name NAME, or remove them."
        )


def resumed(request: TrainRequest) -> Resumption | None:
    """Returns the newest whole checkpoint of the run folder; None: the run is a new one.

    Raises:
        UserError: there is none to go on from, it is of other numbers, or all steps are done.
    """
    if not request.resume:
        return None
    job, folder = request.job, request.folder
    if job.run.checkpoints_url:
        with contextlib.suppress(OSError):  # then those that the folder names are looked at
            link_all(folder.checkpoints, job.run.checkpoints_url)  # another host may have led the run meanwhile
    path, manifest, complaints = newest(folder.checkpoints, job_fingerprint(job))
    if manifest.numerics_version != NUMERICS_VERSION:
        raise UserError(
            f"checkpoint {path} was trained with numerics version {manifest.numerics_version}, and this Planaria has "
            f"version {NUMERICS_VERSION}: the numbers would be mixed. Go on with the version of Planaria that made it, "
            "or start a new run by --name NAME."
        )
    if manifest.step >= job.train.steps:
        raise UserError(
            f"run folder {folder.path}: all {manifest.step} steps are done. Raise train.steps to go on "
            f"(--set train.steps={2 * manifest.step})."
        )
    history = manifest.history or _first_history(folder, request.earlier or job)
    if job.train.steps < history[-1].steps:
        raise UserError(
            f"train.steps = {job.train.steps} is less than the {history[-1].steps} for which run folder {folder.path} "
            "was trained. It may be raised only; `planaria stop` ends a run early."
        )
    return Resumption(
        folder=folder,
        checkpoint=CheckpointRef(step=manifest.step, folder=str(path), exponents=manifest.exponents),
        history=history,
        complaints=tuple(complaints),
        accepts_changed_data=request.accept_changed_data,
    )


def _first_history(folder: RunFolder, earlier: Job) -> History:
    """Returns the history of a checkpoint of the first format: trained on the tokens in its run folder."""
    about = None if is_emulated(earlier) else read_about(folder.data)
    data = None if about is None else token_identity(earlier, [about])
    return (JobInterval(since=0, steps=earlier.train.steps, data=data),)


def history_of(folder: RunFolder, job: Job) -> History:
    """Returns the history of a run, to train the same again; empty: it saved nothing, so nobody went on from it.

    Args:
        folder: the run's folder.
        job: as what it is trained again.

    Raises:
        UserError: the run's data changed on the way, or the job has more steps than it.
    """
    try:
        _, manifest, _ = newest(folder.checkpoints, job_fingerprint(job))
    except UserError:
        return ()
    for before, after in pairwise(manifest.history):
        if before.data is not None and after.data is not None and before.data.changes(after.data):
            raise UserError(
                f"--replay {folder.path}: its data changed after step {after.since}, and those of before are not kept. "
                "Replay a run whose data stayed the same."
            )
    history = manifest.history or _first_history(folder, job_from_json(folder.job.read_bytes()))
    if job.train.steps > history[-1].steps:
        raise UserError(
            f"train.steps = {job.train.steps} is more than the {history[-1].steps} of --replay {folder.path}. "
            f"Set train.steps = {history[-1].steps}."
        )
    return history
