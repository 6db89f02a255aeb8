"""The step in progress, or the evaluation before it: votes come in, and when they are enough it is concluded.

What is concluded is durable first, then told.
"""

from __future__ import annotations

import msgspec

from planaria.job.sections.train import WhenNotFinite
from planaria.protocol.handlers import boundary, checkpoints, end, joins, salvage
from planaria.protocol.handlers.adopt_plan import release
from planaria.protocol.messages.events import Command, Publish, Received, Send
from planaria.protocol.messages.from_worker import Ready, Vote
from planaria.protocol.messages.journal import JournalCommit, JournalEvaluation
from planaria.protocol.messages.records import AnyRecord, RunStatus
from planaria.protocol.messages.to_worker import Commit
from planaria.protocol.phases import ProtocolError
from planaria.protocol.run.announcements import not_finite, step_committed
from planaria.protocol.run.run import Run
from planaria.protocol.step.ballot import Ballot, VoteCount
from planaria.protocol.step.commit import Outcome, outcome
from planaria.protocol.step.evaluation import evaluated
from planaria.protocol.step.schedule import learning_rate


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
    """Records a worker's vote, sent when its program ran to its end; concludes the pass once votes are enough."""
    vote = event.message
    assert isinstance(vote, Vote)
    votes = run.attempt.votes
    if (vote.generation, vote.step) != (run.plan.generation, run.step):
        return []
    if event.worker in run.members.addresses:
        votes.cast(event.worker, vote)
    return conclude(run) if votes.is_enough(run.members.addresses) else []


def conclude(run: Run) -> list[Command]:
    """Concludes what all have voted for, the step or the evaluation before it, if all owners hold the same."""
    undoing = salvage.disagree(run)
    if undoing is not None:
        return undoing
    return commit(run) if run.plan.evaluation is None else _conclude_evaluation(run)


def _conclude_evaluation(run: Run) -> list[Command]:
    """Concludes the evaluation in progress. No worker has anything to apply: another plan follows, or the end."""
    tally = run.attempt.votes.tally()
    if tally.missing or tally.twice:
        raise ProtocolError(
            f"evaluation of step {run.step - 1}: {tally.missing} microbatches missing and {tally.twice} evaluated "
            f"twice; recent: {run.recent}"
        )
    record = evaluated(
        run.evaluations,
        tally.scores,
        step=run.step - 1,
        generation=run.plan.generation,
        duration_s=max(run.now - run.attempt.began, 1e-9),
    )
    run.evaluations.note(record)
    if run.recovery is not None:
        run.recovery.committed(run.now)
    entry = JournalEvaluation(evaluated=record, records=(record,), learnt=run.to_write())
    return [entry, Publish(record), *boundary.after_commit(run, run.step - 1)]


def commit(run: Run) -> list[Command]:
    """Commits the step; or ends the run, if the step cannot be applied and the user wants to know."""
    tally = run.attempt.votes.tally()
    _require_whole(run, tally)
    run.shortages.committed(run.plan)
    train = run.settings.train
    found = outcome(tally.norms, tally.losses, run.exponents, train.clip_norm, train.num_microbatches)
    may_skip = found.overflowed or train.when_not_finite is WhenNotFinite.SKIP
    if not found.is_applied and not may_skip:
        return boundary.save_then_end(run, RunStatus.FAILED, not_finite(run.step, found.loss, found.norm))
    if not found.is_applied:
        run.skipped_steps.add(run.step)
    run.exponents = found.exponents
    # What a step tells of speeds may make the next one's plan due, and so the commit hold.
    news: list[AnyRecord] = []
    if run.recovery is None:
        news += run.plan_selector.judge(run.step, tally.compute_s)
        news += run.plan_selector.correct_flows(run.plan, run.step, tally.flows)
        news += _correct_estimates(run, tally)
    if run.recovery is None and run.replan_trigger.is_due(run.failures.time_to_next_s(run.now)):
        run.plan_selector.straggler_policy.look_again(run.step + 1)
    given_back = joins.give_back(run)  # first, as the commit then holds
    if run.members.probation:
        run.members.worked({run.plan.node_of(hop.worker) for route in run.plan.routes for hop in route.hops})
    holds = _holds_after(run, run.step)
    message = Commit(
        generation=run.plan.generation,
        step=run.step,
        clip_factor=found.clip_factor,
        exponents=run.exponents,
        hold=holds,
        loss=found.loss,
        norm=found.norm,
        scale=found.scale,
        learning_rate=learning_rate(train, run.step, run.settings.ends, run.settings.rate_factors) * found.scale,
        dropped=run.plan.dropped,
        num_dropped=run.counts.dropped + len(run.plan.dropped),
        audits=() if holds else run.audits(run.step + 1),
    )
    run.counts.dropped = message.num_dropped
    told = [*given_back, *_tell(run, message, found, tuple(news))]
    run.step += 1
    run.attempt.begin(run.now)
    run.attempt.ballot = Ballot(run.plan)
    if run.recovery is not None:
        run.recovery.committed(run.now)
    if message.hold:
        return told + boundary.after_commit(run, message.step)
    return [*told, *end.close_recovery(run), *release(run)]


def _correct_estimates(run: Run, tally: VoteCount) -> list[AnyRecord]:
    """Corrects estimates by the plan's first steps; returns what to tell of it."""
    took_s = run.step_times.just_measured_s
    if took_s is None:
        return []
    news = run.plan_selector.correct_estimates(run.plan, run.step, took_s, tally.compute_s)
    return [] if news is None else [news]


def _require_whole(run: Run, tally: VoteCount) -> None:
    run.counts.skipped += tally.missing
    run.counts.duplicated += tally.twice
    if tally.missing or tally.twice:
        raise ProtocolError(
            f"step {run.step}: {tally.missing} contributions missing and {tally.twice} counted twice; "
            f"recent: {run.recent}"
        )


def _tell(run: Run, message: Commit, found: Outcome, news: tuple[AnyRecord, ...]) -> list[Command]:
    """Writes the commit down, then sends it to all voters, with what each is to save of it."""
    run.spending.count(run.members.in_zones, run.now)
    record = step_committed(
        run.settings.train,
        message,
        cost=run.spending.dollars,
        loss=found.loss,
        norm=found.norm,
        live_nodes=len(run.members.nodes),
        duration_s=max(run.now - run.attempt.began, 1e-9),
    )
    if run.recovery is None:
        run.step_times.committed(record.duration_s)
        run.checkpoints.cadence.committed(record.duration_s)
        if run.settings.shares_cores and run.plan_selector.measured.stretch is None:
            stretch = run.step_times.calibration()
            if stretch is not None:
                run.plan_selector.calibrate(stretch)
    parts = checkpoints.order_beside(run, message.step) if message.step < run.settings.train.steps else {}
    told = (record, *news)
    entry = JournalCommit(
        commit=message,
        records=told,
        learnt=run.to_write(),
        probation=dict(run.members.probation),
        suspects=tuple(sorted(run.suspects)),
    )
    with_part = {worker: msgspec.structs.replace(message, save=save) for worker, save in parts.items() if save}
    sends = [Send(worker, with_part.get(worker, message)) for worker in run.attempt.votes.voters]
    return [entry, *sends, *map(Publish, told)]


def _holds_after(run: Run, committed: int) -> bool:
    """Returns whether all workers wait for orders after this commit."""
    done = committed == run.settings.train.steps or run.evaluations.is_due(committed)
    is_ending = run.intent.is_stopping or run.fatal is not None or run.over_budget is not None
    return done or is_ending or not run.goes_on(committed + 1)
