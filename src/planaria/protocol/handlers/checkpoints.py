"""Ordering of checkpoints: which worker writes what, beside training or while all wait, and what is given up.

Nothing here decides what follows a checkpoint; see `boundary` and `saved`.
"""

from __future__ import annotations

from collections.abc import Collection

from planaria.plan.plan import WorkerId
from planaria.protocol.messages.events import Command, Discard, Publish, Send
from planaria.protocol.messages.journal import JournalDistrust
from planaria.protocol.messages.records import Note, NoteSubject
from planaria.protocol.messages.to_worker import Save
from planaria.protocol.phases import Phase
from planaria.protocol.run.run import Run
from planaria.protocol.step.checkpoint import NobodyHolds


def order_beside(run: Run, committed: int) -> dict[WorkerId, Save]:
    """Returns what each voter writes of the committed step beside training; nothing while an earlier one is written.

    A degraded plan that lasts is one for which the user need not have asked for checkpoints. One step beside which the
    state for a full plan moves does not last.
    """
    lasts_degraded = run.is_degraded and not run.plan_validity.is_warming
    time_to_failure_s = run.failures.time_to_next_s(run.now)
    cadence = run.checkpoints.cadence
    is_wanted = run.checkpoints.is_wished or run.evaluations.saves(committed)
    is_due = is_wanted or cadence.is_due(committed, run.now, time_to_failure_s, is_degraded=lasts_degraded)
    if not is_due or run.checkpoints.under_way is not None:
        return {}
    saving = run.checkpoints.begin(committed, len(run.plan.groups), run.exponents, run.now, run.counts.dropped)
    cadence.ordered(run.now)
    try:
        return saving.assign({worker: run.plan.kept_of[worker] for worker in run.attempt.votes.voters})
    except NobodyHolds:
        run.checkpoints.give_up("a node was lost that holds a part of it")
        return {}


def order_rest(run: Run) -> list[Command]:
    """Orders the unassigned groups of the checkpoint under way, each from one holder. Raises NobodyHolds."""
    assert run.checkpoints.under_way is not None
    parts = run.checkpoints.under_way.assign(run.holders())
    return [Send(worker, save) for worker, save in parts.items()]


def lose_writers(run: Run, workers: Collection[WorkerId]) -> list[Command]:
    """Gives up the checkpoint beside training if the lost workers were still writing parts of it."""
    saving = run.checkpoints.under_way
    if saving is None:
        return []
    saving.forget(workers)
    return give_up(run, "a worker was lost that wrote it") if saving.has_orphans else []


def distrust(run: Run) -> list[Command]:
    """Gives up what was saved of the state that is found to be wrong somewhere, on disk or under way."""
    saving, commands = run.checkpoints.under_way, list[Command]()
    if saving is not None and saving.step == run.step - 1:
        commands += give_up(run, "what it is made of may be wrong")
    found = run.checkpoints.distrust(is_earlier_kept=run.settings.keep_checkpoints > 1)
    if found is None:
        return commands
    text = f"the checkpoint of step {found.step} is removed: what it is made of may be wrong"
    note = Note(level="warning", text=text, subject=NoteSubject.CHECKPOINT)
    return [*commands, JournalDistrust(step=found.step, records=(note,)), Discard(found.folder), Publish(note)]


def give_up(run: Run, why: str) -> list[Command]:
    """Gives up the checkpoint written beside training; the last whole one stays the last. Not while all wait for it."""
    saving = run.checkpoints.under_way
    if saving is None or run.phase is Phase.SAVING:
        return []
    run.checkpoints.give_up(why)
    text = f"the checkpoint of step {saving.step} is given up: {why}"
    note = Note(level="warning", text=text, subject=NoteSubject.CHECKPOINT)
    return [Discard(saving.folder), Publish(note)]
