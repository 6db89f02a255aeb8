"""Replicas are on different nodes, and hold their state."""

from __future__ import annotations

import msgspec

from planaria.plan.plan import Pipeline, Plan, Stage, Transfer, WorkerId
from planaria.plan.validate import lacking, num_replicas
from tests.plan.profiles import uniform_profile

GROUPS = uniform_profile(4).groups


def plan(*stages: tuple[int, int, int], devices_per_node: int = 1) -> Plan:
    """Each stage a pipeline of its own."""
    return Plan(
        generation=1, num_layers=4, num_microbatches=1, devices_per_node=devices_per_node, groups=GROUPS,
        pipelines=tuple(
            Pipeline(stages=(Stage(worker=WorkerId(w), first_layer=first, end_layer=end),)) for w, first, end in stages
        ),
        routes=(), sync_epochs=(1,) * len(GROUPS),
    )  # fmt: skip


def test_each_layer_counts_by_itself() -> None:
    made = plan((0, 0, 4), (1, 0, 2), (2, 1, 3))
    assert num_replicas(made) == (2, 3, 2, 1, 2)
    assert lacking(made, 0) == {}
    assert lacking(made, 1) == {3: 1}
    assert lacking(made, 2) == {0: 2, 2: 2, 3: 1}


def test_two_on_one_node_are_one() -> None:
    assert lacking(plan((0, 0, 4), (1, 0, 4), devices_per_node=2), 1) == dict.fromkeys(range(4), 1)


def test_a_shadow_counts_once_its_state_has_come() -> None:
    shadow = Stage(worker=WorkerId(5), first_layer=0, end_layer=4)
    made = msgspec.structs.replace(plan((0, 0, 4)), shadows=(shadow,))
    assert lacking(made, 1) == {}
    moves = (Transfer(group=2, source=WorkerId(0), target=WorkerId(5)),)
    moving = msgspec.structs.replace(made, transfers=moves)
    assert lacking(moving, 1) == {2: 1}
    assert lacking(moving, 1, arrived=True) == {}
