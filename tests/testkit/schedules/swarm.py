"""Swarms: which kinds of faults exist at all is drawn first, then how often each comes; and when the storm is over.

Most of what goes wrong needs few kinds and many of each; a mixture of everything has too little of anything. (Groce,
Zhang, Eide, Chen and Regehr, "Swarm Testing", ISSTA 2012.)
"""

from __future__ import annotations

from random import Random

import msgspec

from planaria.job.registry import PolicyName
from tests.testkit.cluster.network import INWARDS, OUTWARDS, PEERS
from tests.testkit.schedules.faults import APPLIED, FOR_GOOD, Fault, FaultKind
from tests.testkit.schedules.manners import when
from tests.testkit.schedules.setup import Setup
from tests.testkit.schedules.weather import Weather

EXISTS = 0.25
"""Chance with which a kind of fault exists in a swarm."""

MOST = 12
"""Most faults of a swarm."""

CALM_SHARE = 0.5
"""Of swarms that are over before the job is."""

CALM_STEPS = 1000
"""Steps of a job that outlives its storm: more than there are before its user ends it."""

AT_CLUSTER = frozenset(
    {
        FaultKind.JOIN,
        FaultKind.RELEASE,
        FaultKind.FULL,
        FaultKind.CRASH,
        FaultKind.DEPOSE,
        FaultKind.LATE,
        FaultKind.SWITCH,
        FaultKind.SAVE,
        FaultKind.DECAY,
    }
)
"""Kinds that strike no node."""

SOLITARY = frozenset({FaultKind.STOP, FaultKind.RAISE, FaultKind.SHORT, FaultKind.DECAY})
"""Kinds of which there is one at most: a run seldom survives it."""

LASTING = (FaultKind.KILL, FaultKind.DARK, FaultKind.HANG, FaultKind.FREEZE, FaultKind.PARTITION, FaultKind.STUCK)
"""Kinds that stay when a storm is over."""

PARTED = ("", "", INWARDS, OUTWARDS, PEERS)


class Calm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end of a storm.

    Attributes:
        at_s: virtual seconds; from then on nothing befalls anybody, and what passes by itself is over.
        broken: what befalls the cluster at that moment, for good.
    """

    at_s: float
    broken: tuple[Fault, ...] = ()


def swarm(draw: Random, setup: Setup, weather: Weather) -> tuple[Setup, Weather, list[Fault], Calm | None]:
    """Returns the setup and the weather with wider ranges, the faults of a swarm, and the end of its storm."""
    setup, weather = _wider(draw, setup), _worse(draw, weather)
    # A device comes back that was lost before; other releases are drawn by themselves.
    known = (kind for kind in FaultKind if kind not in (FaultKind.BACK, FaultKind.RELEASE))
    kinds = [kind for kind in known if draw.random() < EXISTS] or [FaultKind.KILL]
    faults: list[Fault] = []
    for kind in kinds:
        number = 1 if kind in SOLITARY else draw.choice([1, 1, 2, 4])
        faults += [_fault(draw, setup, kind) for _ in range(number)]
    faults = draw.sample(faults, min(MOST, len(faults)))
    if any(fault.kind in (FaultKind.DEPOSE, FaultKind.LATE) for fault in faults):  # etcd's members lose nothing
        faults = [msgspec.structs.replace(fault, cut=0) for fault in faults]
    if draw.random() >= CALM_SHARE:
        return setup, weather, faults, None
    calm = Calm(at_s=draw.uniform(0.0, 0.1 * setup.steps), broken=tuple(_broken(draw, setup)))
    return msgspec.structs.replace(setup, steps=CALM_STEPS), weather, faults, calm


def releases(draw: Random, setup: Setup) -> list[Fault]:
    """Returns nodes with other releases that come, if there are any."""
    if draw.random() >= EXISTS:
        return []
    faults = [_fault(draw, setup, FaultKind.RELEASE) for _ in range(draw.choice([1, 1, 2, 4]))]
    return [msgspec.structs.replace(fault, times=draw.choice([0, 0, 1, 1, -1, 90])) for fault in faults]


def _wider(draw: Random, setup: Setup) -> Setup:
    """Returns the setup, now and then of more nodes or more steps."""
    num_nodes = setup.num_nodes + draw.choice([0, 0, 0, 1, 4])
    return msgspec.structs.replace(
        setup,
        num_nodes=num_nodes,
        num_microbatches=max(num_nodes, setup.num_microbatches),
        steps=setup.steps + draw.choice([0, 0, 2, 6]),
    )


def _worse(draw: Random, weather: Weather) -> Weather:
    return msgspec.structs.replace(
        weather,
        control_s=draw.choice([weather.control_s, weather.control_s, 1e-2]),
        network_s=draw.choice([weather.network_s, weather.network_s, 2e-2]),
        spread=draw.choice([4.0, 4.0, 16.0]),
        drift=draw.choice([0.0, 1e-4, 1e-2, 5e-2]),
        patience_s=draw.choice([0.0, 2.0, 10.0]) if weather.is_remote else 0.0,
    )


def _fault(draw: Random, setup: Setup, kind: FaultKind) -> Fault:
    nodes = () if kind in AT_CLUSTER else _nodes(draw, setup, kind)
    node = nodes[0] if nodes else -1
    fault = when(draw, setup, node, kind=kind, nodes=nodes, for_s=_lasts_s(draw, kind))
    return msgspec.structs.replace(fault, **_rest(draw, kind))


def _nodes(draw: Random, setup: Setup, kind: FaultKind) -> tuple[int, ...]:
    """Returns whom a fault strikes: one node most often; a partition any number; a clock's jump, perhaps nobody."""
    if kind is FaultKind.STOP or (kind is FaultKind.JUMP and draw.random() < 0.5):
        return ()
    most = setup.num_nodes if kind in (FaultKind.PARTITION, FaultKind.EARLIER) else 1 + (draw.random() < 0.2)
    return tuple(draw.sample(range(setup.num_nodes), draw.randint(1, most)))


def _lasts_s(draw: Random, kind: FaultKind) -> float:
    match kind:
        case FaultKind.CRASH | FaultKind.DEPOSE | FaultKind.LATE:
            return draw.choice([0.0, 1e-3, 2e-2, 0.3])
        case FaultKind.NOTICE:
            return draw.choice([1e-3, 2e-2, 0.2, 1.0])
        case FaultKind.JUMP:
            return draw.choice([0.3, 0.6, 6.0])  # what steps are measured to take is believed, and is not far off
        case FaultKind.SLOW:
            return draw.choice([0.1, 1.0, 30.0])
        case _:
            return draw.choice([1e-2, 0.3, 1.2, 5.0, 90.0])


def _rest(draw: Random, kind: FaultKind) -> dict[str, object]:
    """Returns the fields of a fault that only some kinds have."""
    match kind:
        case FaultKind.PARTITION:
            return {"what": draw.choice(PARTED)}
        case FaultKind.DAMAGE:
            return {
                "what": draw.choice(["", "state", "sum", "activation", "gradient"]),
                "times": draw.choice([1, 1, 3]),
            }
        case FaultKind.TWICE:
            return {"times": draw.choice([1, 5, 50])}
        case FaultKind.DECAY:
            return {"times": draw.choice([1, 3])}
        case FaultKind.SLOW:
            return {"factor": draw.choice([1.6, 3.0, 8.0, 50.0])}
        case FaultKind.RAISE:
            return {"what": draw.choice(["holds", "ends"])}
        case FaultKind.SWITCH:
            return {"what": draw.choice([*PolicyName]).value}
        case FaultKind.SAVE:
            return {"what": draw.choice(["", "elsewhere"])}
        case FaultKind.CRASH:
            return {"cut": draw.choice([0, 0, 0, 1, 2, 4, 12])}
        case FaultKind.DEPOSE:
            return {"pause_s": draw.choice([0.0, 0.0, 1e-2, 0.1, 0.5, 3.0])}
        case FaultKind.LATE:
            return {"what": draw.choice([APPLIED, ""])}
        case _:
            return {}


def _broken(draw: Random, setup: Setup) -> list[Fault]:
    """Returns what stays broken: nothing, or up to half of the nodes."""
    number = draw.randint(0, setup.num_nodes // 2)
    faults = []
    for node in draw.sample(range(setup.num_nodes), number):
        kind = draw.choice(LASTING)
        what = draw.choice(PARTED) if kind is FaultKind.PARTITION else ""
        faults.append(Fault(kind=kind, nodes=(node,), for_s=FOR_GOOD, what=what))
    return faults
