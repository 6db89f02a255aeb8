"""Schedules in which a node computes wrong, with some other trouble beside, each drawn from one seed."""

from __future__ import annotations

from random import Random

import msgspec

from tests.testkit.schedules.faults import FaultKind
from tests.testkit.schedules.manners import when
from tests.testkit.schedules.schedule import Schedule, schedule

BESIDE = (FaultKind.JOIN, FaultKind.CRASH, FaultKind.SAVE, FaultKind.SWITCH)
"""Trouble that leaves each group as many replicas as it had."""

MOST_STEPS = 12
"""Steps beyond which nothing new happens."""


def corrupted(seed: int) -> Schedule:
    """Returns the schedule of a seed with a node that computes wrong, and without what costs other nodes.

    With two replicas to spare, one other node dies as well.
    """
    base, draw = schedule(seed), Random(f"corruption {seed}")
    setup = msgspec.structs.replace(base.setup, fault_tolerance=max(1, base.setup.fault_tolerance))
    setup = msgspec.structs.replace(setup, num_nodes=max(setup.num_nodes, setup.needed_nodes), bad=())
    setup = msgspec.structs.replace(setup, num_microbatches=max(setup.num_nodes, setup.num_microbatches))
    setup = msgspec.structs.replace(setup, steps=min(setup.steps, MOST_STEPS))
    faults = [fault for fault in base.faults if fault.kind in BESIDE and not fault.cut]
    wrong, other = draw.sample(range(setup.num_nodes), 2)
    strike = when(draw, setup, wrong, kind=FaultKind.CORRUPT, nodes=(wrong,))
    what = draw.choice(["rest", "rest", "apply", "sync"])
    faults.append(msgspec.structs.replace(strike, what=what, times=draw.choice([1, 1, 2, 3])))
    if setup.fault_tolerance > 1 and draw.random() < 0.5:
        faults.append(when(draw, setup, other, kind=FaultKind.KILL, nodes=(other,)))
    return msgspec.structs.replace(base, setup=setup, faults=tuple(faults), calm=None)
