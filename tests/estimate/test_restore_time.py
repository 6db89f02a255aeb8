"""The cost of going back to a checkpoint, by hand."""

from __future__ import annotations

import math

import pytest

from planaria.estimate.restore_time import Storage, morph_time, restore_time
from planaria.plan.plan import Group, Pipeline, Plan, Stage, WorkerId


def plan_of(*stages: tuple[int, int, int], per_node: int = 1) -> Plan:
    """One pipeline a (worker, first, end); three layers of 100, 200 and 400 bytes, and AdamW's twice as much."""
    return Plan(
        generation=1,
        num_layers=3,
        num_microbatches=1,
        devices_per_node=per_node,
        groups=tuple(Group(layers=(layer,), size_bytes=size) for layer, size in enumerate((100, 200, 400))),
        pipelines=tuple(
            Pipeline(stages=(Stage(worker=WorkerId(worker), first_layer=first, end_layer=end),))
            for worker, first, end in stages
        ),
        routes=(),
        sync_epochs=(1, 1, 1),
    )


def test_the_node_that_reads_most_is_waited_for() -> None:
    found = restore_time(plan_of((0, 0, 2), (1, 2, 3)), Storage(node_bytes_per_s=100.0, latency_s=0.5))
    assert (found.busiest_bytes, found.total_bytes) == (1200, 2100)
    assert found.time_s == pytest.approx(12.5)


def test_workers_of_one_node_share_its_way() -> None:
    found = restore_time(plan_of((0, 0, 2), (1, 2, 3), per_node=2), Storage(node_bytes_per_s=100.0))
    assert found.time_s == pytest.approx(21.0)


def test_what_all_share_may_be_the_limit() -> None:
    """Every replica is read: a wide grid reads the model as often as it has pipelines."""
    storage = Storage(node_bytes_per_s=1000.0, shared_bytes_per_s=200.0)
    assert restore_time(plan_of((0, 0, 3), (1, 0, 3)), storage).time_s == pytest.approx(2 * 2100 / 200)


def test_a_morph_is_load_change_and_what_is_trained_again() -> None:
    plan = plan_of((0, 0, 3))
    cost = morph_time(plan, Storage(node_bytes_per_s=2100.0), lost_steps=2.5, step_time_s=4.0, change_s=0.25)
    assert (cost.load_s, cost.change_s, cost.redone_s) == pytest.approx((1.0, 0.25, 10.0))
    assert cost.transition_s == pytest.approx(11.25)


@pytest.mark.parametrize(
    "numbers",
    [{"node_bytes_per_s": 0.0}, {"shared_bytes_per_s": math.nan}, {"latency_s": -1.0}, {"latency_s": math.nan}],
)
def test_storage_that_cannot_be_is_refused(numbers: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(numbers))} is"):
        Storage(**numbers)
