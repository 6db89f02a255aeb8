"""Precomputed decisions: made while a step is in progress and nothing else is to be done. They give no command."""

from __future__ import annotations

from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.messages.events import Command, Idle, PieceTook
from planaria.protocol.phases import Phase
from planaria.protocol.run.run import Run


def thinks(run: Run, now: float) -> bool:
    """Returns whether there is a decision to prepare, and time for a piece of it."""
    if run.phase is not Phase.TRAINING or run.attempt.unready:
        return False
    if run.recovery is not None and _next_at_once(run) is None:
        return False
    if not _look(run):
        return False
    return run.precomputed.hurries or run.precomputed.has_time(now, run.attempt.began, run.step_times.expected_step_s)


def think(run: Run, event: Idle) -> list[Command]:
    """Prepares one piece of a decision, if there is time for it."""
    if thinks(run, run.now):
        run.precomputed.think(run.plan_selector.policy, run.plan.of_step, _holders(run), _gone(run))
    return []


def took(run: Run, event: PieceTook) -> list[Command]:
    """Records how long the last piece took, to judge whether there is time for another."""
    run.precomputed.took(event.seconds)
    return []


def _look(run: Run) -> bool:
    live, zones = len(run.members.addresses), run.members.zones
    sure = _next_at_once(run)
    return run.precomputed.look(run.plan_selector.policy, run.plan.of_step, live, _gone(run), zones, next_at_once=sure)


def _next_at_once(run: Run) -> bool | None:
    """Returns whether another plan follows this step at once (nodes of it are lost, or state moves beside it), or is
    looked for because nodes joined (False). None: neither is certain."""
    if run.plan_validity.follows_at_once or (run.recovery is not None and not run.stands):
        return True
    return None if run.recovery is not None or not run.plan_validity.newcomers or _absent(run) else False


def _holders(run: Run) -> dict[WorkerId, tuple[int, ...]]:
    if _next_at_once(run) is not None:
        return run.holders()
    return {worker: run.plan.kept_of.get(worker, ()) for worker in run.members.workers}


def _gone(run: Run) -> frozenset[NodeId]:
    """Returns the nodes that the next plan does without: those absent, and those gone if a plan follows at once."""
    return _absent(run) | run.members.gone if _next_at_once(run) else _absent(run)


def _absent(run: Run) -> frozenset[NodeId]:
    return frozenset(run.members.leaving) | run.plan_selector.straggler_policy.resting
