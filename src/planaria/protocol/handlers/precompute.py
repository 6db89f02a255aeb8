"""Decisions in advance: while a step is in progress and nothing else is to be done. No command follows from them."""

from __future__ import annotations

from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.messages.events import Command, Idle, PieceTook
from planaria.protocol.phases import Phase
from planaria.protocol.run.run import Run


def thinks(run: Run, now: float) -> bool:
    """Whether there is something to prepare, and time for a piece of it."""
    if run.phase is not Phase.TRAINING or run.attempt.unready:
        return False
    if run.recovery is not None and _next_at_once(run) is None:
        return False
    if not _look(run):
        return False
    return run.precomputed.hurries or run.precomputed.has_time(now, run.attempt.began, run.step_times.expected_step_s)


def think(run: Run, event: Idle) -> list[Command]:
    """One piece, if there is time for it."""
    if thinks(run, run.now):
        run.precomputed.think(run.plan_selector.policy, run.plan, _holders(run), _gone(run))
    return []


def took(run: Run, event: PieceTook) -> list[Command]:
    """A measurement, for whether there is time."""
    run.precomputed.took(event.seconds)
    return []


def _look(run: Run) -> bool:
    live, zones = len(run.members.addresses), run.members.zones
    sure = _next_at_once(run)
    return run.precomputed.look(run.plan_selector.policy, run.plan, live, _gone(run), zones, next_at_once=sure)


def _next_at_once(run: Run) -> bool | None:
    """Whether another plan follows this step at once, as nodes of this one are lost, or state moves beside the step; or
    is looked for, as nodes came. None: not as far as one knows."""
    if run.plan_validity.is_warming or (run.recovery is not None and not run.stands):
        return True
    return None if run.recovery is not None or not run.plan_validity.newcomers or _absent(run) else False


def _holders(run: Run) -> dict[WorkerId, tuple[int, ...]]:
    if _next_at_once(run) is not None:
        return run.holders()
    return {worker: run.plan.groups_of.get(worker, ()) for worker in run.members.workers}


def _gone(run: Run) -> frozenset[NodeId]:
    """Those who will not be planned with: they live, or another plan is made because they do not."""
    return _absent(run) | run.members.gone if _next_at_once(run) else _absent(run)


def _absent(run: Run) -> frozenset[NodeId]:
    return frozenset(run.members.leaving) | run.plan_selector.straggler_policy.resting
