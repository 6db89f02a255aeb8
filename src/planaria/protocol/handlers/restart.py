"""A coordinator that replaces one that died: it repeats the last decisions, awaits the workers, and goes on.

Who is awaited and where the job is, is `planaria.protocol.run.returning`'s to say; here it is acted upon.
"""

from __future__ import annotations

import msgspec

from planaria.protocol.handlers import boundary, end, joins, salvage, step
from planaria.protocol.handlers.fencing import lose
from planaria.protocol.messages.events import (
    Command,
    Evict,
    EvictDevice,
    Finish,
    NodeGone,
    Publish,
    Received,
    Release,
    Restarted,
    Send,
    WorkerJoined,
)
from planaria.protocol.messages.from_worker import Ready, Returned, Vote
from planaria.protocol.messages.journal import JournalRestart
from planaria.protocol.messages.records import CoordinatorRestarted, DeviceLost, NodeLost, RunEnded, RunStatus
from planaria.protocol.messages.to_worker import NOT_APPLIED, Recall
from planaria.protocol.phases import Phase
from planaria.protocol.run.returning import Position
from planaria.protocol.run.run import Run
from planaria.protocol.step.ballot import Ballot
from planaria.protocol.step.halt_reports import Salvage
from planaria.protocol.step.recovery import OpenRecovery
from planaria.protocol.thresholds import UNMEASURED_INSTRUCTION_S


def restarted(run: Run, event: Restarted) -> list[Command]:
    """Carries out the dead coordinator's last decisions again, as far as they may not have been."""
    past = run.past
    run.read_clock()
    run.returning.began = run.now
    run.attempt.begin(run.now if event.step_began is None else event.step_began)
    run.members.leaving = dict.fromkeys(past.leaving, run.now)
    for node, at_s in event.gone_at.items():
        if node not in past.lost:
            run.members.note_end(node, at_s)
    if past.losses:
        began = min((event.gone_at.get(loss.node, run.now) for loss in past.losses), default=run.now)
        run.recovery = OpenRecovery(step=run.step, policy=run.plan_selector.policy_switch.name, began=began)
        for loss in past.losses:
            told = (record for record in loss.records if isinstance(record, NodeLost | DeviceLost))
            detect_ms = next((record.detect_ms for record in told), None)
            run.recovery.add_loss(loss.node, loss.cause, detect_ms, loss.device)
        run.recovery.resumed = run.now if past.has_resumed else None
        run.recovery.steps_redone = past.steps_redone
    commands: list[Command] = [JournalRestart()]
    commands += [Evict(node) for node in sorted(past.lost)]
    commands += [EvictDevice(worker) for worker in sorted(run.members.lost_devices)]
    commands += [Release(node) for node in sorted(past.released)]
    commands += [Publish(record, again=True) for record in past.records]
    if past.end is not None:
        (ended,) = past.end.records
        assert isinstance(ended, RunEnded)
        run.step = ended.steps + 1
        return [*commands, Finish(ended.status, ended.message)]
    return commands + _go_on_when_returned(run)


# Who comes back


def came_back(run: Run, event: WorkerJoined) -> list[Command]:
    """Handles a returning worker's hello; the worker reports what it holds next."""
    return joins.join(run, event) + _go_on_when_returned(run)


def returned(run: Run, event: Received) -> list[Command]:
    """Records where a returning worker is and what it holds."""
    assert isinstance(event.message, Returned)
    if event.worker not in run.members.addresses:
        return []
    run.returning.report(event.worker, event.message)
    return _go_on_when_returned(run)


def lost_while_returning(run: Run, event: NodeGone) -> list[Command]:
    """Handles a loss while workers return: the node is no longer awaited."""
    if event.node in run.members.gone:
        return []
    return lose(run, event) + _go_on_when_returned(run)


def voted_while_returning(run: Run, event: Received) -> list[Command]:
    """Records the vote of a worker that had already come back."""
    assert isinstance(event.message, Vote)
    run.returning.vote(event.worker, event.message)
    return []


def ready_while_returning(run: Run, event: Received) -> list[Command]:
    """Records that a worker that had come back now has all of its state."""
    assert isinstance(event.message, Ready)
    run.returning.ready(event.worker, event.message)
    return []


# How it goes on


def _go_on_when_returned(run: Run) -> list[Command]:
    members = run.members
    if run.phase is Phase.RETURNING and run.returning.awaits_anybody(
        members.addresses, members.gone, members.lost_devices
    ):
        return []
    ask = run.returning.to_ask()
    if ask is not None:
        run.returning.ask(ask)
        return [Send(ask, Recall())]
    run.plan_selector.generation = max(0, run.returning.generation)
    run.checkpoints.number_from(run.returning.serial)
    position = run.returning.position()
    if position is not None and run.returning.awaits_replica(position, members.addresses):
        return []
    if position is not None:
        return go_on_from(run, position)
    run.phase = Phase.GATHERING
    if run.intent.is_stopping:
        return end.end(run, RunStatus.STOPPED, f"{end.STOPPED_BY_USER} before the first step")
    return joins.start_when_gathered(run)


def go_on_from(run: Run, position: Position) -> list[Command]:
    """Resumes the job at this position: workers are told what they missed, and the others go on undisturbed."""
    returning = run.returning
    run.current = position.message.plan
    run.phase = Phase.TRAINING
    run.step_times.patience_s = UNMEASURED_INSTRUCTION_S
    run.step = position.step
    run.exponents = position.exponents
    run.lineage = position.message.lineage
    commands: list[Command] = []
    for entry in returning.unwritten(position, run.settings.train, len(run.members.nodes), run.now):
        commands += [entry, *(Publish(record, again=True) for record in entry.records)]
    if position.commit is not None:
        run.counts.dropped = position.commit.num_dropped
    if position.commit is not None and position.commit.clip_factor == NOT_APPLIED:
        run.skipped_steps.add(position.commit.step)
    stale = {run.members.node_of(worker) for worker in returning.stale(position)}
    for node in sorted(stale):
        commands += lose(run, NodeGone(node, "what it holds is older than the job"))
    _take_up(run, position)
    commands += _untold(run, position)
    record = CoordinatorRestarted(
        step=run.step,
        returned=len(run.members.addresses),
        lag=returning.lag(position),
        seconds=run.now - returning.began,
    )
    return [*commands, Publish(record), *_go_on_within(run, position)]


def _take_up(run: Run, position: Position) -> None:
    """Restores the attempt at the step in progress, and the placement, from what returning workers reported."""
    returning, plan = run.returning, run.plan
    ballot = run.attempt.ballot = Ballot(plan)
    for worker, vote in returning.votes(position).items():
        ballot.cast(worker, vote)
    run.attempt.salvage = Salvage(returning.earlier(position), plan.num_sharing)
    run.attempt.unready = returning.unready(position)
    run.kept.note(run.step, returning.held(position))
    run.attempt.begun_in = position.message.begun
    known = run.past.plan
    run.attempt.is_void = run.past.is_void and known is not None and known.message.plan.generation == plan.generation
    run.plan_validity = returning.plan_validity(position, frozenset(run.members.nodes), run.members.leaving.keys())
    run.plan_selector.measured.speeds.expect(plan, run.plan_selector.policy.estimated(plan).compute_s)
    if not run.members.lost_devices.isdisjoint(plan.workers):
        run.plan_validity.lost_device()
    if not set(run.members.nodes) - run.plan_selector.straggler_policy.resting <= set(plan.nodes):
        run.plan_selector.straggler_policy.look_again(run.step + 1)  # one may rest, which nobody knows any more


def _untold(run: Run, position: Position) -> list[Command]:
    """Returns the last commit and the plan in force for the workers that missed them."""
    returning = run.returning
    commands: list[Command] = []
    for worker in returning.lacks_commit(position):
        assert position.commit is not None
        commands.append(Send(worker, position.commit))
    # Whoever is lost stays in the addresses: his peers learn of it with the next plan.
    addresses = {**position.message.addresses, **run.members.addresses}
    message = msgspec.structs.replace(
        position.message, addresses={worker: addresses[worker] for worker in run.plan.workers}
    )
    return commands + [Send(worker, message) for worker in returning.lacks_plan(position)]


def _go_on_within(run: Run, position: Position) -> list[Command]:
    """Goes on at the boundary after the last commit, or inside the step in progress."""
    is_evaluated = run.plan.evaluation is not None and not run.evaluations.is_due(run.step - 1)
    if position.is_boundary or is_evaluated:
        run.attempt.unready = set()
        return boundary.after_commit(run, position.step - 1)
    # What those have counted who share microbatches, and lack the plan, may be counted anew by others.
    run.attempt.is_void |= run.plan.shares_microbatches and bool(run.returning.lacks_plan(position))
    if run.attempt.is_void:
        return salvage.begin(run)
    if run.attempt.votes.is_enough(run.members.addresses):
        return step.conclude(run)
    is_whole = all(worker in run.members.addresses for worker in run.plan.workers)
    if is_whole and not run.returning.halted(position):
        return []
    if is_whole:
        run.attempt.is_void = True  # they were not halted for a loss: something came damaged
    return salvage.begin(run)
