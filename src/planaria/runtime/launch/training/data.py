"""Prepares the data of a run, and the history of what its steps were and will be trained on."""

from __future__ import annotations

import time
from dataclasses import dataclass

from planaria.checkpoint.retries import Tries
from planaria.data.job_data import JobData
from planaria.data.opening import prepare
from planaria.job.history import KEYED, DataIdentity, History, JobInterval, continued
from planaria.job.users_code import look_in
from planaria.job.values import is_dataset
from planaria.protocol.messages.checkpoint_ref import CheckpointRef
from planaria.protocol.messages.records import Note
from planaria.runtime.component_settings import is_emulated
from planaria.runtime.launch.training.request import TrainRequest
from planaria.runtime.launch.training.resumption import Resumption
from planaria.runtime.run_folder.claim import say


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """The data that a run begins with.

    Attributes:
        checkpoint: that it goes on from; None: it is new.
        history: of its samples and rates, with what is to come.
        data_hash: of the data, as every node must have them; "": an emulated device, which has none.
        notes: what people are to be told first.
        opening_s: seconds that a dataset took to be opened, as it does in every worker; 0 of tokens.
        data: opened; None: an emulated device, which has none.
    """

    checkpoint: CheckpointRef | None
    history: History
    data_hash: str
    notes: tuple[Note, ...]
    opening_s: float = 0.0
    data: JobData | None = None

    def close(self) -> None:
        """Ends what reads the data while the run trains."""
        if self.data is not None:
            self.data.close()


def prepared(request: TrainRequest, resumption: Resumption | None) -> RunData:
    """Prepares the data, and checks whether they are those that the checkpoint was trained on.

    Raises:
        UserError: they cannot be made, or are others.
    """
    job, folder = request.job, request.folder
    say(folder.claim, "starting: the data are read")

    def tell(text: str) -> None:
        say(folder.claim, f"starting: the data are read: {text}")

    def check(identity: DataIdentity) -> None:
        if resumption is not None:
            resumption.check_data(identity)

    data, began = None, time.monotonic()
    if not is_emulated(job):
        look_in(request.import_path)
        data = prepare(job, folder.data, check, KEYED if resumption is None else resumption.order, tell, Tries)
    opening_s = time.monotonic() - began if is_dataset(job.data.source) else 0.0
    identity = None if data is None else data.identity
    checkpoint = resumption.checkpoint if resumption is not None else None
    if data is not None:
        try:
            data.wait(1 + (checkpoint.step if checkpoint else 0), tell)
        except BaseException:
            data.close()
            raise
    now = JobInterval(since=checkpoint.step if checkpoint else 0, steps=job.train.steps, data=identity)
    history = continued(resumption.history if resumption is not None else (), now)
    notes = () if resumption is None else tuple(_notes(resumption, now))
    if data is not None:
        notes = (*notes, *(Note(level="warning", text=text) for text in data.notes))
    hashed = "" if data is None else data.quick_hash()
    return RunData(
        checkpoint=checkpoint, history=history, data_hash=hashed, notes=notes, opening_s=opening_s, data=data
    )


def _notes(resumption: Resumption, now: JobInterval) -> list[Note]:
    """Notes what has changed about the data since the run before."""
    notes = [Note(level="warning", text=complaint) for complaint in resumption.complaints]
    if now.data is not None and (changes := resumption.changes(now.data)):
        text = f"from step {now.since + 1} on the data are others, as accepted: {', and '.join(changes)}"
        notes.append(Note(level="warning", text=text))
    before = resumption.history[-1].steps
    if before != now.steps:
        text = f"train.steps was {before}; from step {now.since + 1} on the schedule of the rates ends at {now.steps}"
        notes.append(Note(level="info", text=text))
    return notes
