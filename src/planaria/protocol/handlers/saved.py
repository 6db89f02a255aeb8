"""Answers to orders to save: parts that are on disk, and what could not be written."""

from __future__ import annotations

from planaria.protocol.handlers import boundary, checkpoints
from planaria.protocol.messages.events import Command, ManifestFailed, ManifestWritten, Publish, Received, WriteManifest
from planaria.protocol.messages.from_worker import NotSaved, Saved
from planaria.protocol.messages.journal import JournalCheckpoint
from planaria.protocol.messages.records import AnyRecord, CheckpointSaved, Note
from planaria.protocol.phases import Phase
from planaria.protocol.run.run import Run


def saved(run: Run, event: Received) -> list[Command]:
    """Records that a worker wrote its groups; once all are written, the checkpoint is made whole."""
    message = event.message
    assert isinstance(message, Saved)
    saving = run.checkpoints.answered_by(message)
    if saving is None:
        return []
    saving.written(message.groups)
    if not saving.is_whole:
        return []
    best = run.evaluations.best_saved
    return [WriteManifest(saving.step, saving.folder, saving.groups, saving.exponents, best)]


def not_saved(run: Run, event: Received) -> list[Command]:
    """Handles a worker that could not write its groups."""
    message = event.message
    assert isinstance(message, NotSaved)
    return [] if run.checkpoints.answered_by(message) is None else _failed(run, message.text)


def manifest_failed(run: Run, event: ManifestFailed) -> list[Command]:
    """Handles a checkpoint whose parts are all on disk, but whose manifest could not be written."""
    return _failed(run, event.text) if run.checkpoints.is_made_whole(event.step, event.folder) else []


def _failed(run: Run, why: str) -> list[Command]:
    if run.phase is Phase.SAVING:
        return boundary.could_not_save(run, why)
    run.checkpoints.cadence.written(run.now)  # else each step would try again what cannot be
    return checkpoints.give_up(run, why)


def manifest_written(run: Run, event: ManifestWritten) -> list[Command]:
    """Records that the checkpoint is whole: it is now the last one."""
    if not run.checkpoints.is_made_whole(event.step, event.folder):
        return []  # given up while it was made whole: a later one was wanted, or the job went back
    saving = run.checkpoints.complete(run.now)
    run.checkpoints.unproven = event.step if event.step == run.step - 1 else None
    record = CheckpointSaved(step=event.step, folder=event.folder, seconds=run.now - saving.began)
    run.evaluations.saved(event.step)
    assert run.checkpoints.last is not None
    excess = run.checkpoints.cadence.excess()
    told: tuple[AnyRecord, ...] = (record,)
    if excess is not None:
        told += (Note(level="warning", text=excess),)
    entry = JournalCheckpoint(checkpoint=run.checkpoints.last, records=told)
    return [entry, *map(Publish, told), *(boundary.after_saving(run) if run.phase is Phase.SAVING else [])]
