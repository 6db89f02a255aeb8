"""The end of a run, and of a recovery: which records and commands belong to it. No event follows the end of a run."""

from __future__ import annotations

from planaria.protocol.messages.events import Command, DecisionTook, Finish, Publish, Send, StopRequested
from planaria.protocol.messages.journal import JournalEnd, JournalRecovery, JournalStop
from planaria.protocol.messages.records import Note, Recovered, RunEnded, RunStatus
from planaria.protocol.messages.to_worker import Stop
from planaria.protocol.phases import Phase
from planaria.protocol.run.run import Run

STOPPED_BY_USER = "stopped by the user"


def stop_requested(run: Run, event: StopRequested) -> list[Command]:
    """Stops the run at the user's request: after the step in progress, or at once where there is none."""
    is_known, run.intent.is_stopping = run.intent.is_stopping, True
    run.intent.discards |= event.discards
    if run.phase is Phase.GATHERING:
        return end(run, RunStatus.STOPPED, f"{STOPPED_BY_USER} before the first step")
    if run.phase is Phase.WAITING:
        return end(run, RunStatus.STOPPED, STOPPED_BY_USER)
    if run.phase is Phase.SAVING and run.intent.ending is None:
        run.intent.ending = (RunStatus.STOPPED, STOPPED_BY_USER)
    if run.phase is Phase.SAVING and run.intent.discards:
        return unsaved(run)
    if is_known:  # asked again, or told to a coordinator that read it in the journal
        return []
    what = f"step {run.step} is finished and saved"
    if run.is_evaluating:
        what = f"the evaluation is finished, and step {run.step - 1} saved"
    text = f"stopping: {what}; a second Ctrl-C ends it at once"
    return [JournalStop(), Publish(Note(level="info", text=text))]


def unsaved(run: Run) -> list[Command]:
    """Ends the run and tells why its last state is not on disk; such a run never counts as complete."""
    assert run.intent.ending is not None
    if run.checkpoints.under_way is not None:
        run.checkpoints.give_up("the user does without it")
    status, message = run.intent.ending
    why = run.intent.unsaved or f"step {run.step - 1} is not saved, as the user does without it"
    status = RunStatus.FAILED if status is RunStatus.COMPLETED else status
    return end(run, status, f"{message}; {why}".removeprefix("; "))


def end(run: Run, status: RunStatus, message: str) -> list[Command]:
    """Ends the run: stops all workers and tells how it ended."""
    run.phase = Phase.ENDED
    run.spending.count(run.members.in_zones, run.now)
    stop = Stop(reason=status.value)
    ended = RunEnded(
        status=status,
        steps=run.step - 1,
        message=message,
        skipped_microbatches=run.counts.skipped,
        duplicated_microbatches=run.counts.duplicated,
        skipped_steps=len(run.skipped_steps),
        dropped_microbatches=run.counts.dropped,
        cost=run.spending.dollars,
    )
    stops: list[Command] = [Send(worker, stop) for worker in run.members.workers]
    return [
        *close_recovery(run),
        JournalEnd(records=(ended,)),
        *stops,
        *close_timing(run),
        Publish(ended),
        Finish(status, message),
    ]


def decision_took(run: Run, event: DecisionTook) -> list[Command]:
    """Records how long a decision took, for the account of the recovery and for estimates; may close the recovery."""
    run.step_times.decided(event.seconds)
    run.transition_times.decided(event.seconds)
    if run.recovery is not None:
        run.recovery.decide_s += event.seconds
    return close_recovery(run)


def close_recovery(run: Run) -> list[Command]:
    """Closes the recovery if a step was committed since the losses and a plan for the remaining nodes is in force."""
    recovery = run.recovery
    if recovery is None or recovery.resumed is None:
        return []
    run.recovery = None
    record = Recovered(recovery=recovery.close(run.settings.train.num_microbatches))
    return [JournalRecovery(records=(record,)), Publish(record)]


def close_timing(run: Run) -> list[Command]:
    """Ends the measurement of the plan in force and returns its record."""
    record = None if run.current is None else run.step_times.close(run.plan.generation)
    if record is None:
        return []
    if run.step_times.late_s is not None:
        run.transition_times.changed(record.generation, run.step_times.late_s)
    return [Publish(record)]
