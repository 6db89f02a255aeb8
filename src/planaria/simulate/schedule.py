"""Schedules: a job, a cluster and what happens to it, each drawn from one seed, as a replayable file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import msgspec

from planaria.job.settings import PolicyName, TrainSection, WhenNotFinite
from planaria.plan.plan import Group, ScheduleKind
from planaria.plan.profile import DeviceKind, LayerCost, LayerTimes, LinkCost, Links, ModelProfile
from planaria.plan.settings import PlannerSettings
from planaria.simulate.faults import Fault, FaultKind
from planaria.simulate.weather import Weather


class Setup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job and the cluster that it starts on.

    Attributes:
        num_layers: of the model.
        is_tied: its first and last layer share a parameter group.
        is_large: its groups are so large that parts of them are worth moving apart.
        num_nodes: at the start.
        devices_per_node: workers on each.
        fault_tolerance: f.
        min_nodes: n0.
        num_microbatches: of a step.
        steps: of the job.
        checkpoint_every: steps; 0: only when it ends.
        order: of forwards and backwards.
        waits: for nodes, when too few are left.
        bad: microbatches, as (step, microbatch), whose loss is not a number.
        skips: steps that are not finite; else they end the run.
        done: steps of an earlier run, from whose checkpoint this one begins.
        policy: that makes the plans.
    """

    num_layers: int
    is_tied: bool
    is_large: bool
    num_nodes: int
    devices_per_node: int
    fault_tolerance: int
    min_nodes: int
    num_microbatches: int
    steps: int
    checkpoint_every: int
    order: ScheduleKind
    waits: bool
    bad: tuple[tuple[int, int], ...] = ()
    skips: bool = False
    done: int = 0
    policy: PolicyName = PolicyName.TEMPLATES

    @property
    def needed_nodes(self) -> int:
        return (self.fault_tolerance + 1) * self.min_nodes

    @property
    def train(self) -> TrainSection:
        return TrainSection(
            steps=self.steps,
            global_batch=self.num_microbatches,
            microbatch=1,
            sequence_length=1,
            clip_norm=1.5,
            when_not_finite=WhenNotFinite.SKIP if self.skips else WhenNotFinite.STOP,
        )

    @property
    def planner(self) -> PlannerSettings:
        return PlannerSettings(
            num_microbatches=self.num_microbatches,
            fault_tolerance=self.fault_tolerance,
            num_nodes=self.num_nodes,
            devices_per_node=self.devices_per_node,
            min_nodes=self.min_nodes,
            schedule=self.order,
        )

    @property
    def profile(self) -> ModelProfile:
        """Uneven layers."""
        draw = Random(31 * self.num_layers + self.num_nodes)
        size_bytes = 3_000_000 if self.is_large else 100
        layers = tuple(
            LayerCost(
                name=f"layer.{number}",
                times=(
                    LayerTimes(
                        forward_s=draw.randint(1, 9) * 1e-3,
                        backward_input_s=(half := draw.randint(1, 9) * 1e-3),
                        backward_weight_s=half,
                    ),
                ),
                parameter_bytes=size_bytes,
                gradient_bytes=size_bytes,
                optimizer_bytes=2 * size_bytes,
                activation_bytes=100,
                recompute_activation_bytes=50,
                output_bytes=draw.choice([0, 100_000]),
            )
            for number in range(self.num_layers)
        )
        groups = [Group(layers=(number,), size_bytes=size_bytes) for number in range(self.num_layers)]
        if self.is_tied:
            groups.append(Group(layers=(0, self.num_layers - 1), size_bytes=size_bytes))
        link = LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=1e9)
        return ModelProfile(
            layers=layers,
            groups=tuple(groups),
            links=Links(within_node=link, between_nodes=link),
            device=DeviceKind(name="virtual"),
        )


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One history: the same one whenever it is run.

    Attributes:
        seed: of every delay.
        why: it is kept; for people.
    """

    seed: int
    setup: Setup
    weather: Weather
    faults: tuple[Fault, ...]
    why: str = ""


INSTRUCTIONS = ("load", "forward", "backward", "send_activation", "recv_activation", "recv_gradient", "sync", "vote")
ORDERS = ("Adopt", "Apply", "SendReport", "SendVote", "Write", "write")
OFTEN = ("Ready", "Vote", "WorkerJoined", "JournalCommit", "Send PlanMessage", "Send Commit", "StepCommitted")
SELDOM = (
    "NodeGone", "NodeLost", "Report", "Send Halt", "JournalPlan", "PlanTaken", "Recovered", "Send Save", "Saved",
    "JournalNode", "JournalRestart", "Returned", "CheckpointSaved", "ManifestWritten",
    "Restored", "Waiting", "NodeLeaving", "NodeReleased",
)  # fmt: skip
"""What happens at the coordinator in every run, and in some."""


def schedule(seed: int) -> Schedule:
    """The schedule of a seed."""
    draw = Random(seed)
    setup = _setup(draw)
    manner = draw.choices(_MANNERS, _WEIGHTS)[0]
    if manner is _slowness:
        setup = _longer(draw, setup)
    elif manner is _damages:
        setup = msgspec.structs.replace(setup, is_large=draw.random() < 0.6)
    weather = Weather(
        compute_s=draw.choice([1e-4, 1e-3, 3e-3]),
        network_s=draw.choice([1e-4, 1e-3, 3e-3]),
        control_s=draw.choice([1e-4, 1e-3, 3e-3]),
        detect_s=draw.choice([1e-4, 3e-3, 2e-2]),
        start_s=draw.choice([1e-3, 1e-2]),
        is_one_host=draw.random() < 0.4,
        is_remote=draw.random() < 0.4,
        is_as_profiled=manner is _slowness or draw.random() < 0.1,
        is_wired=draw.random() < 0.3,
        writes_later=draw.random() < 0.5,
    )
    faults = manner(draw, setup)
    if draw.random() < 0.08:
        faults.append(_when(draw, setup, -1, kind=FaultKind.STOP))
    return Schedule(seed=seed, setup=setup, weather=weather, faults=tuple(faults))


def _setup(draw: Random) -> Setup:
    num_layers = draw.choice([2, 2, 3, 4, 4, 5])
    devices = 2 if num_layers >= 4 and draw.random() < 0.2 else 1
    min_nodes = draw.randint(1, min(3, num_layers // devices))
    fault_tolerance = draw.choice([0, 1, 1, 1, 1, 2])
    num_nodes = max(2, min_nodes * (fault_tolerance + 1) + draw.choice([0, 1, 1, 2, 3]))
    num_microbatches = max(num_nodes, draw.choice([2, 4, 6, 8]))
    steps = draw.randint(2, 4)
    bad: tuple[tuple[int, int], ...] = ()
    skips = draw.random() < 0.7
    if draw.random() < 0.1:
        bad = ((draw.randint(1, steps), draw.randrange(num_microbatches)),)
    return Setup(
        num_layers=num_layers,
        is_tied=draw.random() < 0.5,
        is_large=draw.random() < 0.2,
        num_nodes=num_nodes,
        devices_per_node=devices,
        fault_tolerance=fault_tolerance,
        min_nodes=min_nodes,
        num_microbatches=num_microbatches,
        steps=steps,
        checkpoint_every=draw.choice([0, 0, 1, 1, 2]),
        order=draw.choice([*ScheduleKind, ScheduleKind.EAGER_ONE_F_ONE_B]),
        waits=draw.random() < 0.5,
        bad=bad,
        skips=skips,
        done=draw.randint(1, steps - 1) if draw.random() < 0.1 else 0,
        policy=draw.choice([*PolicyName]),
    )


def _longer(draw: Random, setup: Setup) -> Setup:
    """Steps enough for a slow node to be found, and in some for it to rest and come back; few of everything else."""
    num_layers = min(3, setup.num_layers)
    min_nodes = min(2, setup.min_nodes)
    tolerance = min(1, setup.fault_tolerance)
    num_nodes = max(2, min_nodes * (tolerance + 1) + draw.choice([0, 1, 1, 2]))
    return msgspec.structs.replace(
        setup,
        num_layers=num_layers,
        devices_per_node=1,
        fault_tolerance=tolerance,
        min_nodes=min_nodes,
        num_nodes=num_nodes,
        num_microbatches=max(num_nodes, draw.choice([4, 6])),
        steps=draw.choice([7, 9, 9, 12, 12, 30]),
        bad=(),
        done=0,
    )


# Manners


def _losses(draw: Random, setup: Setup) -> list[Fault]:
    """Independent deaths, or one upon another."""
    victims = _some_nodes(draw, setup)
    if draw.random() < 0.6:
        return [_when(draw, setup, node, kind=_death(draw), nodes=(node,)) for node in victims]
    first, *others = victims
    chain = [_when(draw, setup, first, kind=_death(draw), nodes=(first,))]
    for nth, node in enumerate(others, 1):
        at = draw.choice(["NodeGone", "NodeLost", "Report", "Ready", "Send Halt", "JournalPlan", "Adopt"])
        nth = nth if "Node" in at else draw.randint(1, 8)
        chain.append(Fault(kind=_death(draw), nodes=(node,), at=at, nth=nth, delay_s=_delay_s(draw)))
    return chain


def _bursts(draw: Random, setup: Setup) -> list[Fault]:
    """Several die at once, at any point."""
    nodes = tuple(_some_nodes(draw, setup))
    faults = [_when(draw, setup, nodes[0], kind=_death(draw), nodes=nodes)]
    if draw.random() < 0.3:
        faults.append(_when(draw, setup, -1, kind=FaultKind.JOIN))
    return faults


def _holders(draw: Random, setup: Setup) -> list[Fault]:
    """All owners of a group die, or all but one, between the journal's commit and the apply, or about then."""
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
    """Nodes come, go with notice, and die."""
    faults = _visitors(draw, setup, draw.choice([0, 1, 1, 2, 3]))
    for node in draw.sample(range(setup.num_nodes), min(setup.num_nodes, draw.choice([0, 1, 1, 2]))):
        kind = draw.choice([FaultKind.NOTICE, FaultKind.NOTICE, FaultKind.DRAIN])
        grace_s = draw.choice([1e-3, 2e-2, 0.2, 1.0])
        faults.append(_when(draw, setup, node, kind=kind, nodes=(node,), for_s=grace_s))
    for node in _some_nodes(draw, setup)[: draw.choice([0, 0, 1, 2])]:
        faults.append(_when(draw, setup, node, kind=_death(draw), nodes=(node,)))
    return faults


def _slowness(draw: Random, setup: Setup) -> list[Fault]:
    """Nodes of less speed, for a while or for good, and some other trouble beside."""
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
        faults.append(_when(draw, setup, node, kind=kind, nodes=nodes, for_s=draw.choice([1e-2, 0.3])))
    return faults


def _damages(draw: Random, setup: Setup) -> list[Fault]:
    """Messages between workers that arrive other than they were sent, state on its way most of all."""
    faults = []
    for node in _some_nodes(draw, setup)[: draw.choice([1, 1, 2])]:
        times = draw.choice([1, 1, 2, 3, 6])
        kind, what = FaultKind.DAMAGE, draw.choice(["", "state", "state", "sum", "activation", "gradient"])
        fault = _when(draw, setup, node, kind=kind, nodes=(node,))
        faults.append(msgspec.structs.replace(fault, what=what, times=times))
    for node in _some_nodes(draw, setup)[: draw.choice([0, 1, 1, 2])]:
        faults.append(_when(draw, setup, node, kind=_death(draw), nodes=(node,)))
    return faults + _visitors(draw, setup, draw.choice([0, 1, 1, 2]))


def _shortages(draw: Random, setup: Setup) -> list[Fault]:
    """Memory runs out on one node, or on one after the other."""
    faults = []
    for node in _some_nodes(draw, setup)[: draw.choice([1, 1, 1, 2, 3])]:
        faults.append(_when(draw, setup, node, kind=FaultKind.SHORT, nodes=(node,)))
    for node in _some_nodes(draw, setup)[: draw.choice([0, 0, 1])]:
        kind = draw.choice([_death(draw), FaultKind.NOTICE, FaultKind.CRASH])
        faults.append(_when(draw, setup, node, kind=kind, nodes=(node,), for_s=2e-2))
    return faults + _visitors(draw, setup, draw.choice([0, 0, 1]))


def _hangs(draw: Random, setup: Setup) -> list[Fault]:
    """Nodes that live and do nothing, or little."""
    kinds = [FaultKind.HANG, FaultKind.HANG, FaultKind.FREEZE, FaultKind.STUCK, FaultKind.SLOW, FaultKind.DAMAGE]
    faults = []
    for node in _some_nodes(draw, setup)[: draw.choice([1, 1, 2])]:
        kind = draw.choice(kinds)
        for_s = draw.choice([0.3, 1.05, 2.0, 5.0])
        factor = draw.choice([2.0, 10.0, 50.0]) if kind is FaultKind.SLOW else 1.0
        faults.append(_when(draw, setup, node, kind=kind, nodes=(node,), for_s=for_s, factor=factor))
    if draw.random() < 0.5:
        node = draw.randrange(setup.num_nodes)
        faults.append(_when(draw, setup, node, kind=_death(draw), nodes=(node,)))
    return faults + _visitors(draw, setup, draw.choice([0, 0, 1]))


def _partitions(draw: Random, setup: Setup) -> list[Fault]:
    """Some nodes are apart for a while, fewer than half of them or more."""
    nodes = tuple(_some_nodes(draw, setup))
    for_s = draw.choice([0.01, 0.5, 1.5, 3.0])
    faults = [_when(draw, setup, nodes[0], kind=FaultKind.PARTITION, nodes=nodes, for_s=for_s)]
    if draw.random() < 0.4:
        node = draw.randrange(setup.num_nodes)
        faults.append(_when(draw, setup, node, kind=_death(draw), nodes=(node,)))
    return faults


def _crashes(draw: Random, setup: Setup) -> list[Fault]:
    """The coordinator dies, once or again and again, and nodes with it; now and then its journal loses its end."""
    faults = []
    for _ in range(draw.choice([1, 1, 2, 3])):
        when = _when(draw, setup, -1, kind=FaultKind.CRASH, for_s=draw.choice([0.0, 1e-3, 2e-2, 0.3]))
        faults.append(msgspec.structs.replace(when, cut=draw.choice([0, 0, 0, 0, 1, 2, 4])))
    for node in _some_nodes(draw, setup)[: draw.choice([0, 1, 1, 2])]:
        kind = draw.choice([_death(draw), _death(draw), FaultKind.HANG, FaultKind.NOTICE])
        faults.append(_when(draw, setup, node, kind=kind, nodes=(node,), for_s=draw.choice([2e-2, 0.3, 2.0])))
    return faults + _visitors(draw, setup, draw.choice([0, 0, 1]))


def _mixture(draw: Random, setup: Setup) -> list[Fault]:
    """A little of everything."""
    faults: list[Fault] = []
    for manner in draw.sample(_MANNERS[:-1], 2):
        faults += manner(draw, setup)[:2]
    if draw.random() < 0.3:
        faults.append(_when(draw, setup, -1, kind=FaultKind.FULL, for_s=draw.choice([0.01, 0.1, 10.0])))
    if draw.random() < 0.3:
        node = draw.randrange(setup.num_nodes)
        faults.append(_when(draw, setup, node, kind=FaultKind.REPLAY, nodes=(node,)))
    if draw.random() < 0.05:
        node = draw.randrange(setup.num_nodes)
        faults.append(_when(draw, setup, node, kind=FaultKind.RAISE, nodes=(node,)))
    return faults


Manner = Callable[[Random, Setup], list[Fault]]
_MANNERS: Sequence[Manner] = (
    _losses,
    _bursts,
    _holders,
    _visits,
    _hangs,
    _partitions,
    _crashes,
    _slowness,
    _damages,
    _shortages,
    _mixture,
)
_WEIGHTS = (20, 8, 16, 12, 7, 7, 18, 4, 8, 6, 12)


def _some_nodes(draw: Random, setup: Setup) -> list[int]:
    return draw.sample(range(setup.num_nodes), draw.randint(1, min(setup.num_nodes, setup.fault_tolerance + 2)))


def _visitors(draw: Random, setup: Setup, number: int) -> list[Fault]:
    return [_when(draw, setup, -1, kind=FaultKind.JOIN) for _ in range(number)]


def _death(draw: Random) -> FaultKind:
    return FaultKind.DARK if draw.random() < 0.07 else FaultKind.KILL


def _delay_s(draw: Random) -> float:
    return draw.choice([0.0, 0.0, draw.uniform(0, 3e-3), draw.uniform(0, 2e-2)])


def _when(
    draw: Random,
    setup: Setup,
    node: int,
    *,
    kind: FaultKind,
    nodes: tuple[int, ...] = (),
    for_s: float = 0.0,
    factor: float = 1.0,
) -> Fault:
    """A fault at a random point: of time, of all events, of one node's work, or of the coordinator's."""
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
