"""Prepares the data of a run: its tokens, and the history of what its steps were and will be trained on."""

from __future__ import annotations

from dataclasses import dataclass

from planaria.data.tokens import TokensAbout, data_hash, prepare
from planaria.job.history import KEYED, History, JobInterval, continued
from planaria.protocol.messages.checkpoint_ref import CheckpointRef
from planaria.protocol.messages.records import Note
from planaria.runtime.component_settings import is_emulated
from planaria.runtime.launch.training.request import TrainRequest
from planaria.runtime.launch.training.resumption import Resumption, data_identity
from planaria.runtime.run_folder.claim import say


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """The data that a run begins with.

    Attributes:
        checkpoint: that it goes on from; None: it is new.
        history: of its samples and rates, with what is to come.
        data_hash: of the tokens, as every node must have them; "": an emulated device, which has none.
        notes: what people are to be told first.
    """

    checkpoint: CheckpointRef | None
    history: History
    data_hash: str
    notes: tuple[Note, ...]


def prepared(request: TrainRequest, resumption: Resumption | None) -> RunData:
    """Prepares the tokens, and checks whether they are those that the checkpoint was trained on.

    Raises:
        UserError: they cannot be made, or are others.
    """
    job, folder = request.job, request.folder
    say(folder.claim, "starting: the data are read")

    def tell(text: str) -> None:
        say(folder.claim, f"starting: the data are read: {text}")

    def check(about: TokensAbout) -> None:
        if resumption is not None:
            resumption.check_data(data_identity(job, about))

    tokens, identity, hashed = None, None, ""
    if not is_emulated(job):
        tokens = prepare(job, folder.data, check, KEYED if resumption is None else resumption.order, tell)
        identity, hashed = data_identity(job, tokens.about), data_hash(folder.data)
    checkpoint = resumption.checkpoint if resumption is not None else None
    now = JobInterval(since=checkpoint.step if checkpoint else 0, steps=job.train.steps, data=identity)
    history = continued(resumption.history if resumption is not None else (), now)
    notes = () if resumption is None else tuple(_notes(resumption, now))
    if tokens is not None and (num_bad := tokens.about.bad_rows):
        text = f"data.on_bad_row: {num_bad} rows are left out; the first is {tokens.about.first_bad_row}"
        notes = (*notes, Note(level="warning", text=text))
    return RunData(checkpoint=checkpoint, history=history, data_hash=hashed, notes=notes)


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
