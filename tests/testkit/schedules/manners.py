"""Manners in which a cluster is struck: each draws the faults of one kind of trouble, at random points of a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import msgspec

from tests.testkit.schedules.faults import APPLIED, DISCARD, Fault, FaultKind
from tests.testkit.schedules.setup import Setup

INSTRUCTIONS = (
    "load", "forward", "backward", "send_activation", "recv_activation", "send_gradient", "recv_gradient",
    "shadow_forward", "shadow_backward", "sync", "vote",
)  # fmt: skip
ORDERS = ("Adopt", "Apply", "SendReport", "SendVote", "Write", "write")
OFTEN = ("Ready", "Vote", "WorkerJoined", "JournalCommit", "Send PlanMessage", "Send Commit", "StepCommitted")
SELDOM = (
    "NodeGone", "NodeLost", "Report", "Send Halt", "JournalPlan", "PlanTaken", "Recovered", "Send Save", "Saved",
    "JournalNode", "JournalRestart", "Returned", "CheckpointSaved", "ManifestWritten",
    "Restored", "Waiting", "NodeLeaving", "NodeReleased",
)  # fmt: skip
"""Events at the coordinator that happen rarely: in every run, or in some."""
UNANSWERED = "Unanswered"
"""An append to the journal whose answer is late has been sent."""


def _losses(draw: Random, setup: Setup) -> list[Fault]:
    """Returns independent deaths, or one upon another."""
    victims = _some_nodes(draw, setup)
    if draw.random() < 0.6:
        return [when(draw, setup, node, kind=_death(draw), nodes=(node,)) for node in victims]
    first, *others = victims
    chain = [when(draw, setup, first, kind=_death(draw), nodes=(first,))]
    for nth, node in enumerate(others, 1):
        at = draw.choice(["NodeGone", "NodeLost", "Report", "Ready", "Send Halt", "JournalPlan", "Adopt"])
        nth = nth if "Node" in at else draw.randint(1, 8)
        chain.append(Fault(kind=_death(draw), nodes=(node,), at=at, nth=nth, delay_s=_delay_s(draw)))
    return chain


def _bursts(draw: Random, setup: Setup) -> list[Fault]:
    """Returns deaths of several nodes at once, at any point."""
    nodes = tuple(_some_nodes(draw, setup))
    faults = [when(draw, setup, nodes[0], kind=_death(draw), nodes=nodes)]
    if draw.random() < 0.3:
        faults.append(when(draw, setup, -1, kind=FaultKind.JOIN))
    return faults


def _holders(draw: Random, setup: Setup) -> list[Fault]:
    """Returns deaths of all owners of a group, or all but one, about the time from a journal's commit to the apply."""
    spare = draw.choice([0, 0, 1, 1, 1])
    at = draw.choice(["JournalCommit", "JournalCommit", "Send Commit", "Apply", "Vote", "forward", "Adopt", "Report"])
    often = setup.steps if at == "JournalCommit" else 2 * setup.num_nodes
    groups = setup.num_layers + setup.is_tied
    faults = []
    for _ in range(draw.choice([1, 1, 2])):
        faults.append(
            Fault(
                kind=_death(draw),
                group=draw.randrange(groups),
                spare=spare,
                at=at,
                nth=draw.randint(1, often),
                delay_s=_delay_s(draw),
            )
        )
    return faults + _visitors(draw, setup, draw.choice([0, 0, 1, 2]))


def _visits(draw: Random, setup: Setup) -> list[Fault]:
    """Returns nodes that come, go with notice, and die."""
    faults = _visitors(draw, setup, draw.choice([0, 1, 1, 2, 3]))
    for node in draw.sample(range(setup.num_nodes), min(setup.num_nodes, draw.choice([0, 1, 1, 2]))):
        kind = draw.choice([FaultKind.NOTICE, FaultKind.NOTICE, FaultKind.DRAIN])
        grace_s = draw.choice([1e-3, 2e-2, 0.2, 1.0])
        faults.append(when(draw, setup, node, kind=kind, nodes=(node,), for_s=grace_s))
    for node in _some_nodes(draw, setup)[: draw.choice([0, 0, 1, 2])]:
        faults.append(when(draw, setup, node, kind=_death(draw), nodes=(node,)))
    return faults


def slowness(draw: Random, setup: Setup) -> list[Fault]:
    """Returns nodes of less speed, for a while or for good, and some other trouble beside."""
    faults = []
    for node in draw.sample(range(setup.num_nodes), draw.choice([1, 1, 1, 2])):
        faults.append(
            Fault(
                kind=FaultKind.SLOW,
                nodes=(node,),
                delay_s=draw.choice([0.0, draw.uniform(0.0, 0.05 * setup.steps)]),
                for_s=draw.choice([0.4, 1.5, 1.5, 100.0, 100.0]),
                factor=draw.choice([1.6, 2.0, 3.0, 5.0, 8.0]),
            )
        )
    if draw.random() < 0.6:
        kind = draw.choice([_death(draw), _death(draw), FaultKind.NOTICE, FaultKind.JOIN, FaultKind.CRASH])
        node = -1 if kind in (FaultKind.JOIN, FaultKind.CRASH) else draw.randrange(setup.num_nodes)
        nodes = (node,) if node >= 0 else ()
        faults.append(when(draw, setup, node, kind=kind, nodes=nodes, for_s=draw.choice([1e-2, 0.3])))
    return faults


def damages(draw: Random, setup: Setup) -> list[Fault]:
    """Returns messages between workers that arrive other than they were sent, state on its way most of all."""
    faults = []
    for node in _some_nodes(draw, setup)[: draw.choice([1, 1, 2])]:
        times = draw.choice([1, 1, 2, 3, 6])
        kind, what = FaultKind.DAMAGE, draw.choice(["", "state", "state", "sum", "activation", "gradient"])
        fault = when(draw, setup, node, kind=kind, nodes=(node,))
        faults.append(msgspec.structs.replace(fault, what=what, times=times))
    for node in _some_nodes(draw, setup)[: draw.choice([0, 1, 1, 2])]:
        faults.append(when(draw, setup, node, kind=_death(draw), nodes=(node,)))
    return faults + _visitors(draw, setup, draw.choice([0, 1, 1, 2]))


def _shortages(draw: Random, setup: Setup) -> list[Fault]:
    """Returns shortages of memory on one node, or on one after the other."""
    faults = []
    for node in _some_nodes(draw, setup)[: draw.choice([1, 1, 1, 2, 3])]:
        faults.append(when(draw, setup, node, kind=FaultKind.SHORT, nodes=(node,)))
    for node in _some_nodes(draw, setup)[: draw.choice([0, 0, 1])]:
        kind = draw.choice([_death(draw), FaultKind.NOTICE, FaultKind.CRASH])
        faults.append(when(draw, setup, node, kind=kind, nodes=(node,), for_s=2e-2))
    return faults + _visitors(draw, setup, draw.choice([0, 0, 1]))


def _hangs(draw: Random, setup: Setup) -> list[Fault]:
    """Returns nodes that live and do nothing, or little."""
    kinds = [FaultKind.HANG, FaultKind.HANG, FaultKind.FREEZE, FaultKind.STUCK, FaultKind.SLOW, FaultKind.DAMAGE]
    faults = []
    for node in _some_nodes(draw, setup)[: draw.choice([1, 1, 2])]:
        kind = draw.choice(kinds)
        for_s = draw.choice([0.3, 1.05, 2.0, 5.0])
        factor = draw.choice([2.0, 10.0, 50.0]) if kind is FaultKind.SLOW else 1.0
        faults.append(when(draw, setup, node, kind=kind, nodes=(node,), for_s=for_s, factor=factor))
    if draw.random() < 0.5:
        node = draw.randrange(setup.num_nodes)
        faults.append(when(draw, setup, node, kind=_death(draw), nodes=(node,)))
    return faults + _visitors(draw, setup, draw.choice([0, 0, 1]))


def _partitions(draw: Random, setup: Setup) -> list[Fault]:
    """Returns partitions of some nodes for a while, fewer than half of them or more."""
    nodes = tuple(_some_nodes(draw, setup))
    for_s = draw.choice([0.01, 0.5, 1.5, 3.0])
    faults = [when(draw, setup, nodes[0], kind=FaultKind.PARTITION, nodes=nodes, for_s=for_s)]
    if draw.random() < 0.4:
        node = draw.randrange(setup.num_nodes)
        faults.append(when(draw, setup, node, kind=_death(draw), nodes=(node,)))
    return faults


def _crashes(draw: Random, setup: Setup) -> list[Fault]:
    """Returns deaths of the coordinator, one or several, and of nodes; now and then its journal loses its end."""
    faults = []
    for _ in range(draw.choice([1, 1, 2, 3])):
        crash = when(draw, setup, -1, kind=FaultKind.CRASH, for_s=draw.choice([0.0, 1e-3, 2e-2, 0.3]))
        faults.append(msgspec.structs.replace(crash, cut=draw.choice([0, 0, 0, 0, 1, 2, 4])))
    for node in _some_nodes(draw, setup)[: draw.choice([0, 1, 1, 2])]:
        kind = draw.choice([_death(draw), _death(draw), FaultKind.HANG, FaultKind.NOTICE])
        faults.append(when(draw, setup, node, kind=kind, nodes=(node,), for_s=draw.choice([2e-2, 0.3, 2.0])))
    return faults + _visitors(draw, setup, draw.choice([0, 0, 1]))


def failovers(draw: Random, setup: Setup) -> list[Fault]:
    """Returns coordinators that lose the lead, and appends to the journal that are answered late; both at once, too."""
    faults = []
    for _ in range(draw.choice([0, 1, 1, 2])):
        late = when(draw, setup, -1, kind=FaultKind.LATE, for_s=draw.choice([1e-3, 2e-2, 0.3]))
        faults.append(msgspec.structs.replace(late, what=draw.choice([APPLIED, ""])))
    for _ in range(draw.choice([1, 1, 2])):
        kind = draw.choice([FaultKind.DEPOSE] * 4 + [FaultKind.CRASH])
        fault = when(draw, setup, -1, kind=kind, for_s=draw.choice([0.0, 1e-3, 2e-2, 0.3]))
        if faults and draw.random() < 0.5:
            fault = msgspec.structs.replace(fault, at=UNANSWERED, nth=draw.choice([1, 1, 2]), delay_s=_delay_s(draw))
        if kind is FaultKind.DEPOSE:
            fault = msgspec.structs.replace(fault, pause_s=draw.choice([0.0, 0.0, 1e-2, 0.1, 0.5, 3.0]))
        faults.append(fault)
    return faults


def _mixture(draw: Random, setup: Setup) -> list[Fault]:
    """Returns a little of everything."""
    faults: list[Fault] = []
    for manner in draw.sample(MANNERS[:-1], 2):
        faults += manner(draw, setup)[:2]
    if draw.random() < 0.3:
        faults.append(when(draw, setup, -1, kind=FaultKind.FULL, for_s=draw.choice([0.01, 0.1, 10.0])))
    if draw.random() < 0.3:
        node = draw.randrange(setup.num_nodes)
        faults.append(when(draw, setup, node, kind=FaultKind.REPLAY, nodes=(node,)))
    if draw.random() < 0.3:
        nodes = tuple(draw.sample(range(setup.num_nodes + 2), draw.randint(1, setup.num_nodes)))
        faults.append(when(draw, setup, -1, kind=FaultKind.EARLIER, nodes=nodes))
    if draw.random() < 0.15:
        node = draw.randrange(setup.num_nodes)
        raised = when(draw, setup, node, kind=FaultKind.RAISE, nodes=(node,))
        faults.append(msgspec.structs.replace(raised, what=draw.choice(["holds", "holds", "ends"])))
    if draw.random() < 0.2:
        save = when(draw, setup, -1, kind=FaultKind.SAVE)
        faults.append(msgspec.structs.replace(save, what=draw.choice(["", "elsewhere"])))
    if draw.random() < 0.1:
        faults.append(msgspec.structs.replace(when(draw, setup, -1, kind=FaultKind.STOP), what=DISCARD))
    return faults


Manner = Callable[[Random, Setup], list[Fault]]
MANNERS: Sequence[Manner] = (
    _losses,
    _bursts,
    _holders,
    _visits,
    _hangs,
    _partitions,
    _crashes,
    slowness,
    damages,
    _shortages,
    _mixture,
)
WEIGHTS = (20, 8, 16, 12, 7, 7, 18, 4, 8, 6, 12)


def _some_nodes(draw: Random, setup: Setup) -> list[int]:
    return draw.sample(range(setup.num_nodes), draw.randint(1, min(setup.num_nodes, setup.fault_tolerance + 2)))


def _visitors(draw: Random, setup: Setup, number: int) -> list[Fault]:
    return [when(draw, setup, -1, kind=FaultKind.JOIN) for _ in range(number)]


def _death(draw: Random) -> FaultKind:
    return FaultKind.DARK if draw.random() < 0.07 else FaultKind.KILL


def _delay_s(draw: Random) -> float:
    return draw.choice([0.0, 0.0, draw.uniform(0, 3e-3), draw.uniform(0, 2e-2)])


def when(
    draw: Random,
    setup: Setup,
    node: int,
    *,
    kind: FaultKind,
    nodes: tuple[int, ...] = (),
    for_s: float = 0.0,
    factor: float = 1.0,
) -> Fault:
    """Returns a fault at a random point: of time, of all events, of one node's work, or of the coordinator's."""
    chance = draw.random()
    at, nth, delay_s = "start", 1, draw.uniform(0.0, 0.05 * setup.steps)
    if chance < 0.25:
        at, nth, delay_s = "event", draw.randint(1, 20 * setup.num_nodes * setup.steps), 0.0
    elif chance < 0.45 and node >= 0:
        at, nth, delay_s = f"{draw.choice(INSTRUCTIONS)}@{node}", draw.randint(1, 2 * setup.steps), _delay_s(draw)
    elif chance < 0.55 and node >= 0:
        at, nth, delay_s = f"{draw.choice(ORDERS)}@{node}", draw.choice([1, 1, 2]), _delay_s(draw)
    elif chance < 0.75:
        at, nth, delay_s = draw.choice(OFTEN), draw.randint(1, setup.num_nodes * setup.steps), _delay_s(draw)
    elif chance < 0.9:
        at, nth, delay_s = draw.choice(SELDOM), draw.choice([1, 1, 2, 3]), _delay_s(draw)
    return Fault(kind=kind, nodes=nodes, at=at, nth=nth, delay_s=delay_s, for_s=for_s, factor=factor)
