"""Losses one upon another within a step: whoever need not act is told the newest plan, and none of those before it."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest

from planaria.plan.plan import WorkerId
from planaria.protocol.handlers import adopt_plan
from planaria.protocol.messages.to_worker import PlanMessage
from planaria.protocol.step.telling_order import WaitingPlans
from tests.testkit.schedules.faults import Fault, FaultKind
from tests.testkit.schedules.schedule import Schedule, schedule
from tests.testkit.schedules.search import error_of
from tests.testkit.server import server

NODES = 12


def losses_upon_losses(seed: int) -> Schedule:
    """Four nodes of a cluster of several pipelines are killed: the others, as soon as there is a plan without one."""
    which, draw = schedule(seed), Random(seed)
    setup = msgspec.structs.replace(
        which.setup,
        num_nodes=NODES,
        devices_per_node=1,
        devices_per_stage=1,
        min_nodes=2,
        num_microbatches=2 * NODES,
        steps=3,
        is_tight=False,
    )
    first, *others = draw.sample(range(NODES), 4)
    at = draw.choice(["forward", "backward", "Vote"])
    faults = [Fault(kind=FaultKind.KILL, nodes=(first,), at=at, nth=draw.randint(5, 60))]
    for nth, node in enumerate(others, 2):
        delay_s = draw.choice([0.0, 1e-4, 1e-3, 3e-3, 1e-2])
        faults.append(Fault(kind=FaultKind.KILL, nodes=(node,), at="JournalPlan", nth=nth, delay_s=delay_s))
    return msgspec.structs.replace(which, setup=setup, faults=tuple(faults))


@pytest.mark.proof
def test_a_worker_goes_from_any_plan_to_any_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here all but the halted wait, and longer than a real coordinator would let them."""
    seen = Counter[str]()

    class Counted(WaitingPlans):
        def wait(self, worker: WorkerId, message: PlanMessage) -> None:
            seen["left out"] += worker in self._plans
            super().wait(worker, message)

    monkeypatch.setattr(server, "WaitingPlans", Counted)
    monkeypatch.setattr(server, "WAITS", 8.0)
    monkeypatch.setattr(adopt_plan, "who_acts", lambda before, after, halted: set(halted))
    for seed in range(500, 512):
        assert error_of(losses_upon_losses(seed)) is None
    assert seen["left out"] > 10
