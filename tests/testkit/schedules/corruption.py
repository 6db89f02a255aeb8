"""Schedules in which a node computes wrong, with some other trouble beside, each drawn from one seed."""

from __future__ import annotations

from random import Random

import msgspec

from planaria.plan.plan import ScheduleKind
from tests.testkit.schedules.faults import Fault, FaultKind
from tests.testkit.schedules.manners import when
from tests.testkit.schedules.schedule import Schedule, schedule
from tests.testkit.schedules.setup import Setup
from tests.testkit.schedules.weather import Weather

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


UNSEEN = (FaultKind.JOIN, FaultKind.SAVE)
"""Trouble beside which all that a step computes is audited."""


def audited(seed: int) -> Schedule:
    """Returns the schedule of a seed whose every computation is audited, with a node that computes wrong or audits
    wrong."""
    base, draw = corrupted(seed), Random(f"audits {seed}")
    setup = msgspec.structs.replace(base.setup, audit=1.0, may_drop=False)
    faults = [fault for fault in base.faults if fault.kind in UNSEEN]
    (strike,) = (fault for fault in base.faults if fault.kind is FaultKind.CORRUPT)
    what = draw.choice(["forward", "backward", "send", "way", "audit"])
    faults.append(msgspec.structs.replace(strike, what=what))
    return msgspec.structs.replace(base, setup=setup, faults=tuple(faults))


def watched(seed: int) -> Schedule:
    """Returns the schedule of a seed, whatever befalls it, with audits of a drawn share of its computation."""
    base = schedule(seed)
    audit = Random(f"watched {seed}").choice([0.1, 0.5, 1.0])
    setup = msgspec.structs.replace(base.setup, audit=audit)
    return msgspec.structs.replace(base, setup=setup)


def succeeded(seed: int) -> Schedule:
    """Returns a schedule in which a node computes wrong, others come on its host, and coordinators die: the
    first when nobody knows yet who is wrong."""
    draw = Random(f"succeeded {seed}")
    steps, wrong = 16, draw.randrange(4)
    setup = Setup(
        num_layers=2,
        is_tied=False,
        is_large=False,
        num_nodes=4,
        devices_per_node=1,
        fault_tolerance=1,
        min_nodes=2,
        num_microbatches=4,
        steps=steps,
        checkpoint_every=1,
        order=ScheduleKind.ONE_F_ONE_B,
        waits=True,
    )
    what = draw.choice(["apply", "sync"])
    strike = Fault(kind=FaultKind.CORRUPT, nodes=(wrong,), what=what, at="StepCommitted", nth=draw.randint(1, 2))
    at = draw.choice(["JournalDisputes", "JournalDisputes", "JournalVoid", "JournalPlan"])
    crashes = [Fault(kind=FaultKind.CRASH, at=at, nth=2 if at == "JournalPlan" else 1, for_s=1e-3)]
    for nth in draw.sample(range(4, steps), 2):
        at = draw.choice(["StepCommitted", "JournalCommit", "Vote"])
        crashes.append(Fault(kind=FaultKind.CRASH, at=at, nth=nth, for_s=draw.choice([0.0, 1e-3, 2e-2])))
    joins = [Fault(kind=FaultKind.JOIN, at="ComputedWrong"), Fault(kind=FaultKind.JOIN, at="ComputedWrong")]
    return Schedule(seed=seed, setup=setup, weather=Weather(), faults=(strike, *crashes, *joins))
