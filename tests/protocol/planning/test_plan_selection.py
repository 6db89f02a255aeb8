"""What of a plan's state is taken to be there."""

from __future__ import annotations

from planaria.protocol.planning.plan_selection import _is_kept
from tests.protocol.test_devices_alone import Job


def test_a_plan_is_kept_where_every_worker_holds_what_it_keeps_and_maybe_more() -> None:
    plan = Job().begin().machine.plan
    first = plan.workers[0]
    assert _is_kept(plan, plan.kept_of)
    assert _is_kept(plan, {worker: (*groups, 99) for worker, groups in plan.kept_of.items()})
    assert not _is_kept(plan, {**plan.kept_of, first: plan.kept_of[first][1:]})
