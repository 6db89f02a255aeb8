"""The step in progress: votes come in, and when they are enough it is committed: durable first, then told."""

from __future__ import annotations

import msgspec

from planaria.job.settings import WhenNotFinite
from planaria.protocol.handlers import boundary, checkpoints, end
from planaria.protocol.handlers.adopt_plan import release
from planaria.protocol.messages.events import Command, Publish, Received, Send
from planaria.protocol.messages.journal import JournalCommit
from planaria.protocol.messages.records import AnyRecord, RunStatus
from planaria.protocol.messages.worker import Commit, Ready, Vote
from planaria.protocol.phases import ProtocolError
from planaria.protocol.run.announcements import not_finite, step_committed
from planaria.protocol.run.run import Run
from planaria.protocol.step.ballot import Ballot, VoteCount
from planaria.protocol.step.commit import Outcome, learning_rate, outcome


def ready(run: Run, event: Received) -> list[Command]:
    """Records that all state that the plan gives the worker is in place."""
    assert isinstance(event.message, Ready)
    if event.message.generation == run.plan.generation:
        was_awaited = event.worker in run.attempt.unready
        run.attempt.unready.discard(event.worker)
        if was_awaited and not run.attempt.unready:
            run.loading.settled(run.now)
            if run.recovery is not None:
                run.recovery.settled(run.now)
        run.transition_times.ready(event.worker, run.now - event.message.since_s)
    return []


def voted(run: Run, event: Received) -> list[Command]:
    """Records a worker's vote, sent when its program ran to its end; commits the step once the votes are enough."""
    vote = event.message
    assert isinstance(vote, Vote)
    votes = run.attempt.votes
    if (vote.generation, vote.step) != (run.plan.generation, run.step):
        return []
    if event.worker in run.members.addresses:
        votes.cast(event.worker, vote)
    return commit(run) if votes.is_enough(run.members.addresses) else []


def commit(run: Run) -> list[Command]:
    """Commits the step; or ends the run, if the step cannot be applied and the user wants to know."""
    tally = run.attempt.votes.tally()
    _require_whole(run, tally)
    run.shortages.committed(run.plan)
    train = run.settings.train
    found = outcome(tally.norms, tally.losses, run.exponents, train.clip_norm, train.num_microbatches)
    if not found.is_applied and train.when_not_finite is not WhenNotFinite.SKIP:
        return boundary.save_then_end(run, RunStatus.FAILED, not_finite(run.step, found.loss, found.norm))
    if not found.is_applied:
        run.skipped_steps.add(run.step)
    run.exponents = found.exponents
    # What a step tells of speeds may make the next one's plan due, and so the commit hold.
    news = [] if run.recovery is not None else run.plan_selector.judge(run.step, tally.compute_s)
    if run.recovery is None and run.replan_trigger.is_due(run.failures.time_to_next_s(run.now)):
        run.plan_selector.straggler_policy.look_again(run.step + 1)
    message = Commit(
        generation=run.plan.generation,
        step=run.step,
        clip_factor=found.clip_factor,
        exponents=run.exponents,
        hold=_holds_after(run, run.step),
        loss=found.loss,
        norm=found.norm,
        scale=found.scale,
        learning_rate=learning_rate(train, run.step, run.settings.ends) * found.scale,
        dropped=run.plan.dropped,
        num_dropped=run.counts.dropped + len(run.plan.dropped),
    )
    run.counts.dropped = message.num_dropped
    told = _tell(run, message, found, tuple(news))
    run.step += 1
    run.attempt.begin(run.now)
    run.attempt.ballot = Ballot(run.plan)
    if run.recovery is not None:
        run.recovery.committed(run.now)
    if message.hold:
        return told + boundary.after_commit(run, message.step)
    return [*told, *end.close_recovery(run), *release(run)]


def _require_whole(run: Run, tally: VoteCount) -> None:
    run.counts.skipped += tally.missing
    run.counts.duplicated += tally.twice
    if tally.missing or tally.twice:
        raise ProtocolError(
            f"step {run.step}: {tally.missing} contributions missing and {tally.twice} counted twice; "
            f"recent: {'; '.join(run.history)}"
        )


def _tell(run: Run, message: Commit, found: Outcome, news: tuple[AnyRecord, ...]) -> list[Command]:
    """Writes the commit down, then sends it to all voters, with what each is to save of it."""
    record = step_committed(
        run.settings.train,
        message,
        loss=found.loss,
        norm=found.norm,
        live_nodes=len(run.members.nodes),
        duration_s=max(run.now - run.attempt.began, 1e-9),
    )
    if run.recovery is None:
        run.step_times.committed(record.duration_s)
        run.checkpoints.cadence.committed(record.duration_s)
        if run.settings.shares_cores and run.plan_selector.stretch is None:
            stretch = run.step_times.calibration()
            if stretch is not None:
                run.plan_selector.calibrate(stretch)
    parts = checkpoints.order_beside(run, message.step) if message.step < run.settings.train.steps else {}
    told = (record, *news)
    entry = JournalCommit(commit=message, records=told, learnt=run.to_write())
    with_part = {worker: msgspec.structs.replace(message, save=save) for worker, save in parts.items() if save}
    sends = [Send(worker, with_part.get(worker, message)) for worker in run.attempt.votes.voters]
    return [entry, *sends, *map(Publish, told)]


def _holds_after(run: Run, committed: int) -> bool:
    """Returns whether all workers wait for orders after this commit."""
    done = committed == run.settings.train.steps
    return done or run.intent.is_stopping or run.fatal is not None or not run.goes_on(committed + 1)
