"""A run that is given, not lived through: simulations begin with one. From then on events alone change it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from planaria.plan.plan import NodeId, WorkerId
from planaria.plan.validate import lacking
from planaria.planner.placement.zones import Zones
from planaria.policy.interface import Candidate, Policy
from planaria.protocol.handlers.adopt_plan import put_in_force
from planaria.protocol.messages.checkpoint_ref import CheckpointRef
from planaria.protocol.messages.to_worker import StateSource
from planaria.protocol.phases import Purpose
from planaria.protocol.planning.failure_rate import Failures
from planaria.protocol.run.run import Run
from planaria.protocol.run.settings import RunSettings


def given_run(settings: RunSettings, policy: Policy, *, failures: Failures, decision_s: float) -> Run:
    """Returns a run that no node has joined, to which losses and a decision's seconds are foretold, and that saves by
    steps alone."""
    run = Run(settings, policy, None, None)
    run.failures = failures
    run.step_times.decision_s = decision_s
    run.checkpoints.cadence.begin(math.inf)
    return run


def at_work(
    run: Run,
    proposal: Candidate,
    *,
    step: int,
    saved_step: int,
    leaving: Iterable[NodeId],
    lost_devices: Collection[WorkerId] = (),
    zones: Zones,
    chosen_for_s: float | None,
) -> Run:
    """Returns a run that was just made, now at work: its nodes, from 0 on, have all joined and train undisturbed.

    Args:
        run: the run that no node has joined.
        proposal: the plan in force.
        step: in progress.
        saved_step: of the last checkpoint.
        leaving: nodes that gave notice.
        lost_devices: of nodes that go on without them.
        zones: of nodes that are known to be in one.
        chosen_for_s: for how far a next loss the plan was chosen; None: it was not weighed.
    """
    run.step = step
    run.checkpoints.last = CheckpointRef(step=saved_step, folder="", exponents=run.exponents)
    if zones:
        run.members.zones = dict(zones)
        run.plan_selector.locate(zones)
    run.members.enrol(map(NodeId, range(run.settings.num_nodes)), "-")
    run.members.leaving = dict.fromkeys(leaving, 0.0)
    for worker in lost_devices:
        run.members.lose_device(worker)
    if lost_devices:
        run.plan_selector.lack(run.members.lost_devices)
    plan = run.current = proposal.plan
    run.plan_selector.generation = plan.generation
    run.is_degraded = bool(lacking(plan, run.settings.fault_tolerance))
    put_in_force(run, proposal, Purpose.RECONFIGURE, StateSource.LIVE)
    run.replan_trigger.chosen_for_s = chosen_for_s
    return run
