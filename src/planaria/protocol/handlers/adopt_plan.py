"""Taking a plan: it is put in force for the step in progress, written down, and sent to its workers.

Whoever takes one has decided on it before: nothing here chooses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import msgspec

from planaria.plan.plan import WorkerId
from planaria.policy.interface import Candidate
from planaria.protocol.handlers import end
from planaria.protocol.messages.events import Command, Publish, Release, Send
from planaria.protocol.messages.journal import Fate, JournalNode, JournalPlan
from planaria.protocol.messages.records import AnyRecord, NodeReleased
from planaria.protocol.messages.to_worker import PlanMessage, StateSource, Stop
from planaria.protocol.phases import PLACING, Phase, Purpose
from planaria.protocol.run.announcements import plan_taken, replicas_note
from planaria.protocol.run.replay import decision_of
from planaria.protocol.run.run import Run
from planaria.protocol.step.ballot import Ballot
from planaria.protocol.step.halt_reports import Salvage
from planaria.protocol.step.telling_order import who_acts


def take(
    run: Run,
    proposal: Candidate,
    purpose: Purpose,
    source: StateSource,
    folder: str = "",
    told: tuple[AnyRecord, ...] = (),
) -> list[Command]:
    """Puts a plan in force for the step in progress. Where the state before it is to be evaluated, that comes first.

    Args:
        run: the run that takes the plan.
        proposal: the plan.
        purpose: why it is taken.
        source: where its workers get state from that they lack.
        folder: of the checkpoint, if that is the source.
        told: records about what led to it.
    """
    if purpose is not Purpose.FINISH_STEP:
        proposal = _evaluating(run, proposal)
    plan = proposal.plan
    others: Collection[WorkerId] = ()  # who waits for any other plan waits for it as all do
    if purpose is Purpose.FINISH_STEP:
        others = set(plan.workers) - who_acts(run.plan, plan, run.attempt.salvage.halted)
    measured = put_in_force(run, proposal, purpose, source)
    message = PlanMessage(
        plan=plan,
        step=run.step,
        addresses=dict(zip(plan.workers, map(run.members.addresses.__getitem__, plan.workers), strict=True)),
        exponents=run.exponents,
        source=source,
        folder=folder,
        afresh=run.attempt.is_void,
        begun=run.attempt.begun_in,
        lineage=run.lineage,
        audits=() if purpose is Purpose.FINISH_STEP else run.audits(run.step),
        wire_bytes_per_s=run.plan_selector.measured.links.wire_bytes_per_s,
    )
    run.attempt.is_void = run.attempt.is_given_up = False
    told += _told(run, proposal, purpose)
    entry = JournalPlan(
        message=message,
        stand=run.plan_validity.stand,
        step_time_s=run.step_times.step_s,
        longest_s=run.step_times.instruction_s,
        records=told,
        learnt=run.to_write(),
    )
    sends: list[Command] = [Send(worker, message, worker in others) for worker in plan.workers]
    return [*measured, entry, *sends, *map(Publish, told)]


def _evaluating(run: Run, proposal: Candidate) -> Candidate:
    """Returns the proposal with an evaluation before its step, if one is due. After it, the step's messages get names
    that none of the evaluation's had, which were of the same step."""
    plan = proposal.plan.of_step
    if run.evaluations.is_due(run.step - 1):
        plan = plan.evaluating(run.evaluations.num_microbatches)
    elif run.current is not None and run.current.evaluation is not None:
        plan = plan.renewed(routes=tuple(msgspec.structs.replace(r, born=plan.generation) for r in plan.routes))
    return proposal if plan is proposal.plan else dataclasses.replace(proposal, plan=plan)


def put_in_force(run: Run, proposal: Candidate, purpose: Purpose, source: StateSource) -> list[Command]:
    """Makes the plan the run's from now on, before anybody is told; returns what to tell of the plan before it."""
    if source is StateSource.LIVE:
        run.kept.note(run.step, run.plan.kept_of, run.attempt.salvage.held, proposal.plan.transfers)
    else:
        run.kept.forget()
        run.lineage = proposal.plan.generation
    if source is StateSource.CHECKPOINT:
        run.loading.begin(proposal.plan, run.now)
    else:
        run.loading.give_up()
    measured = end.close_timing(run) if purpose is not Purpose.GO_ON else []
    if purpose is Purpose.FINISH_STEP:
        run.attempt.leave(run.plan, run.now)
    else:
        run.attempt.begin(run.now)
    plan = run.current = proposal.plan
    run.failures.begin(run.now)
    run.checkpoints.cadence.begin(run.now)
    run.phase = Phase.TRAINING
    _begin_attempt(run, proposal, purpose, moves_state=source is not StateSource.LIVE or bool(plan.transfers))
    if purpose in (Purpose.RECONFIGURE, Purpose.RESTORE) and plan.evaluation is None:
        is_restore = purpose is Purpose.RESTORE
        run.transition_times.begin(plan, run.now, proposal.transfer_s, _wait_s(run, proposal), is_restore=is_restore)
    else:
        run.transition_times.stop()
    if purpose is not Purpose.GO_ON:
        _expect(run, proposal, purpose)
    if purpose is not Purpose.FINISH_STEP:
        run.attempt.usual_s = run.step_times.step_s
    return measured


def _wait_s(run: Run, proposal: Candidate) -> float | None:
    """Returns by how much the first step under the proposal should be longer because state moves; None: unknown."""
    if not proposal.plan.transfers:
        return 0.0
    return None if proposal.transition_s is None else max(0.0, proposal.transition_s - run.transition_times.change_s)


def _begin_attempt(run: Run, proposal: Candidate, purpose: Purpose, *, moves_state: bool) -> None:
    plan, attempt = run.plan, run.attempt
    attempt.ballot = Ballot(plan)
    is_within = purpose is Purpose.FINISH_STEP
    attempt.salvage = (
        attempt.salvage.again(plan.of_pass.dropped) if is_within else Salvage(num_sharing=plan.num_sharing)
    )
    attempt.unready = set(plan.workers) if moves_state else set()
    if purpose is not Purpose.FINISH_STEP:
        attempt.begun_in = plan.generation
        run.plan_validity.warm(is_warming=purpose is Purpose.WARM_UP, left_bytes=proposal.left_bytes)
    if purpose in PLACING:
        # Other placements are made of all nodes; whether those that leave can be done without is found out after
        # a step.
        is_tried = purpose is Purpose.RECONFIGURE
        run.plan_validity.place(plan.nodes, run.members.leaving.keys() if is_tried else frozenset())


def _expect(run: Run, proposal: Candidate, purpose: Purpose) -> None:
    """Tells the run's measurements what the plan is expected to take."""
    run.step_times.expect(
        proposal.step_time_s,
        proposal.longest_s,
        is_weighed=bool(proposal.candidates),
        transition_s=proposal.transition_s,
        is_beside=purpose is Purpose.WARM_UP,
    )
    if proposal.candidates:
        run.replan_trigger.chosen(run.failures.time_to_next_s(run.now))
    elif purpose in PLACING:
        run.replan_trigger.forget()
    run.plan_selector.measured.speeds.expect(proposal.plan, proposal.compute_s)


def _told(run: Run, proposal: Candidate, purpose: Purpose) -> tuple[AnyRecord, ...]:
    """Returns the records announcing the proposal."""
    told: tuple[AnyRecord, ...] = ()
    if purpose is not Purpose.GO_ON:
        plan_hash = proposal.plan.of_step.content_hash if run.settings.hashes_plans else ""
        told += (plan_taken(proposal, run.step, purpose.value, run.plan_selector.policy_switch.name, plan_hash),)
        run.decision = decision_of(told) or run.decision
    becomes_degraded = proposal.is_degraded and not run.is_degraded
    if purpose in PLACING or (purpose is Purpose.WARM_UP and becomes_degraded):
        told += _replicas_told(run, proposal)
    return told


def _replicas_told(run: Run, proposal: Candidate) -> tuple[AnyRecord, ...]:
    """Returns a record when the policy goes on with fewer than f + 1 replicas, or when there are enough again."""
    before, run.is_degraded = run.is_degraded, proposal.is_degraded
    settings = run.settings
    note = replicas_note(
        proposal, settings.fault_tolerance, was_degraded=before, writes_checkpoints=run.checkpoints.cadence.is_on
    )
    return () if note is None else (note,)


def same_again(run: Run) -> list[Command]:
    """Lets all held workers go on under the plan in force."""
    proposal = run.plan_selector.unchanged(run.plan)
    return [*take(run, proposal, Purpose.GO_ON, StateSource.LIVE), *release(run)]


def release(run: Run) -> list[Command]:
    """Releases the nodes that gave notice and that the plan does without."""
    commands: list[Command] = []
    for node in sorted(run.members.leaving.keys() - set(run.plan.nodes)):
        noticed_at = run.members.leaving[node]
        workers = run.members.lose(node)
        run.spending.count(run.members.in_zones, run.now)
        run.plan_selector.forget(node, run.step)
        released = NodeReleased(
            node=node,
            step=run.step,
            live_nodes=len(run.members.nodes),
            seconds=run.now - noticed_at,
        )
        commands.append(JournalNode(node=node, fate=Fate.RELEASED, records=(released,), learnt=run.to_write()))
        commands += [Send(worker, Stop(reason="its work is handed over")) for worker in workers]
        commands += [Release(node), Publish(released)]
    return commands
