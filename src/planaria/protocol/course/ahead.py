"""Decisions in advance: while a step is in progress and nothing else is to be done. No command follows from them."""

from __future__ import annotations

from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.course.run import Run
from planaria.protocol.events import Command, Idle, PieceTook
from planaria.protocol.phases import Phase


def thinks(run: Run, now: float) -> bool:
    """Whether there is something to prepare, and time for a piece of it."""
    is_busy = run.attempt.unready or run.recovery is not None or run.standing.is_warming
    if run.phase is not Phase.TRAINING or is_busy:
        return False
    if not run.foresight.has_time(now, run.attempt.began, run.timing.expected_step_s):
        return False
    return run.foresight.look(run.placing.policy, run.plan, len(run.members.addresses), _gone(run), run.members.zones)


def think(run: Run, event: Idle) -> list[Command]:
    """One piece, if there is time for it."""
    if thinks(run, run.now):
        run.foresight.think(run.placing.policy, run.plan, _holders(run), _gone(run))
    return []


def took(run: Run, event: PieceTook) -> list[Command]:
    """A measurement, for whether there is time."""
    run.foresight.took(event.seconds)
    return []


def _holders(run: Run) -> dict[WorkerId, tuple[int, ...]]:
    return {worker: run.plan.groups_of.get(worker, ()) for worker in run.members.workers}


def _gone(run: Run) -> frozenset[NodeId]:
    """Those who live and will not be planned with."""
    return frozenset(run.members.leaving) | run.placing.pacing.resting
