"""Ends a run: tells what its last records say to everybody, and as the result to its caller."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from signal import Signals

import msgspec

from planaria.checkpoint.manifest import read_manifest, weights_sha256
from planaria.protocol.handlers.end import STOPPED_BY_USER
from planaria.protocol.messages.checkpoint_ref import CheckpointRef
from planaria.protocol.messages.records import RunEnded, RunStatus, StepCommitted
from planaria.runtime.coordinator.executor import Observer
from planaria.runtime.launch.training.result import TrainResult
from planaria.runtime.progress.output import OutputClosed
from planaria.runtime.run_folder.recorder import Recorder
from planaria.runtime.run_folder.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The outcome of a run.

    Attributes:
        folder: the run's folder.
        recorder: what writes the run's records.
        observers: that are to be told of the end, the recorder among them.
        ended: its last record; None: it was ended at once, without one.
        last: the last step that was applied.
        last_number: of the last step, or of the checkpoint that it went on from.
        num_skipped: steps that were not applied.
        checkpoint: the last that is whole.
        signal: that asked for the end; None: none did.
        stopped_because: why a callback stopped the run; "": none did.
    """

    folder: RunFolder
    recorder: Recorder
    observers: tuple[Observer, ...]
    ended: RunEnded | None
    last: StepCommitted | None
    last_number: int
    num_skipped: int
    checkpoint: CheckpointRef | None
    signal: Signals | None
    stopped_because: str = ""


def result_of(outcome: RunOutcome) -> TrainResult:
    """Tells everybody of the end, and returns the result."""
    ended = outcome.ended or RunEnded(
        status=RunStatus.INTERRUPTED,
        steps=outcome.last_number,
        message="ended at once by the user; what was not saved is lost",
        skipped_microbatches=0,
        duplicated_microbatches=0,
        skipped_steps=outcome.num_skipped,
    )
    if outcome.stopped_because and ended.status is RunStatus.STOPPED:
        message = ended.message.replace(STOPPED_BY_USER, f"stopped by a callback: {outcome.stopped_because}")
        ended = msgspec.structs.replace(ended, message=message)
    elif outcome.signal is not None and ended.status is RunStatus.STOPPED:
        message = ended.message.replace(STOPPED_BY_USER, _interruption(outcome.signal))
        ended = msgspec.structs.replace(ended, status=RunStatus.INTERRUPTED, message=message)
    saved, digest = outcome.checkpoint, None
    if saved is not None and saved.step == ended.steps:
        digest = weights_sha256(saved.folder, read_manifest(saved.folder, verify=False))
    result = finish_run(outcome.recorder, outcome.observers, outcome.folder, ended, outcome.last, digest)
    return replace(result, signal=outcome.signal if ended.status is RunStatus.INTERRUPTED else None)


def _interruption(number: Signals) -> str:
    """Describes for people what interrupted a run."""
    match number:
        case Signals.SIGINT:
            return "interrupted by Ctrl-C"
        case Signals.SIGPIPE:
            return "interrupted, as nobody reads its output any more"
        case _:
            return f"interrupted by {number.name}"


def finish_run(
    recorder: Recorder,
    observers: Sequence[Observer],
    folder: RunFolder,
    ended: RunEnded,
    last: StepCommitted | None,
    digest: str | None,
) -> TrainResult:
    """Tells everybody of the end, and makes the result."""
    recorder.finish(weights_sha256=digest)
    for observer in observers:
        with suppress(OutputClosed):
            observer(ended, time.time())
    return TrainResult(
        status=ended.status,
        steps=ended.steps,
        final_loss=last.loss if last is not None else None,
        weights_sha256=digest,
        recoveries=recorder.recoveries,
        folder=folder.path,
        message=ended.message,
    )
