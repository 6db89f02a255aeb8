"""Passes on what a run tells: to its folder, to observers, callbacks and views; and to the run, that it is to end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from signal import Signals

from planaria.protocol.messages.records import AnyRecord, Note, Restored, RunEnded, StepCommitted, StepSkipped
from planaria.runtime.coordinator.executor import Observer
from planaria.runtime.coordinator.supervisor_link import Finished
from planaria.runtime.launch.callbacks import Callbacks, LiveRun
from planaria.runtime.launch.supervisor import Supervisor
from planaria.runtime.launch.training.ending import RunOutcome
from planaria.runtime.launch.training.request import TrainRequest
from planaria.runtime.observers.view import View, ViewedRun
from planaria.runtime.observers.view_thread import Views
from planaria.runtime.progress.output import OutputClosed
from planaria.runtime.run_folder.recorder import Recorder


class Told:
    """Collects what records and signals say while the run goes on.

    Attributes:
        callbacks: the user's.
        views: where else the run is shown.
        observers: each is told of every record; callbacks and views are among them.
        supervisor: of the run, once there is one.
        last: the last step that was applied.
        last_number: of the last step, or of the checkpoint that the run goes on from.
        skipped_steps: that were not applied.
        ended: the last record. The observers get it once the weights' hash is known.
        signal: the first one that asked for the end.
        stopped_because: why a callback stopped the run; "": none did.
    """

    def __init__(self, request: TrainRequest, recorder: Recorder, views: Sequence[View], last_number: int) -> None:
        live = LiveRun(job=request.job, folder=request.folder.path, stop=self.stop)
        self.callbacks = Callbacks(request.callbacks, live, self.is_hurried)
        name = request.job.run.name or request.folder.path.name
        viewed = ViewedRun(name=name, job=request.job, folder=request.folder, step=last_number)
        self.views = Views(views, viewed, self.is_hurried)
        self.observers: tuple[Observer, ...] = (recorder, *request.observers, self.callbacks, self.views)
        self.supervisor: Supervisor | None = None
        self.last: StepCommitted | None = None
        self.last_number = last_number
        self.skipped_steps: set[int] = set()
        self.ended: RunEnded | None = None
        self.signal: Signals | None = None
        self.stopped_because = ""
        self._is_hurried = False

    def record(self, record: AnyRecord, time_s: float) -> None:
        match record:
            case StepCommitted(step=step):
                self.last, self.last_number = record, step
            case StepSkipped(step=step):
                self.last_number = step
                self.skipped_steps.add(step)
            case Restored(to_step=step):
                self.last_number = step
            case RunEnded():
                self.ended = record
                return
            case _:
                pass
        for observer in self.observers:
            try:
                observer(record, time_s)
            except OutputClosed:
                self.heed(Signals.SIGPIPE, insists=False)
        self._tell_of_callbacks()

    def catch_up(self) -> None:
        """Waits until callbacks have seen every record up to the last but one."""
        self.callbacks.catch_up(lambda text: self.record(Note(level="info", text=text), time.time()))
        self._tell_of_callbacks()

    def _tell_of_callbacks(self) -> None:
        for note in (*self.callbacks.notes(), *self.views.notes()):
            self.record(note, time.time())

    def is_hurried(self) -> bool:
        """Returns whether the user wants the end at once."""
        return self._is_hurried

    def stop(self, reason: str) -> None:
        """Has the run finish its step, save and end. Safe from any thread."""
        self.stopped_because = self.stopped_because or reason
        if self.supervisor is not None:
            self.supervisor.request_stop()

    def heed(self, number: Signals, insists: bool) -> None:
        """Has the run finish its step, save and end; ends it at once if the signal insists."""
        self.signal = self.signal or number
        self._is_hurried = self._is_hurried or insists
        if self.supervisor is None:
            return
        if insists:
            self.supervisor.abort()
        else:
            self.supervisor.request_stop()

    def outcome(self, recorder: Recorder, finished: Finished | None) -> RunOutcome:
        """Returns what came of the run; `finished`: what its coordinator said last, None: it was ended at once."""
        return RunOutcome(
            folder=recorder.folder,
            recorder=recorder,
            observers=self.observers,
            ended=self.ended,
            last=self.last,
            last_number=self.last_number,
            num_skipped=len(self.skipped_steps),
            checkpoint=finished.checkpoint if finished is not None else None,
            signal=self.signal,
            stopped_because=self.stopped_because,
        )
