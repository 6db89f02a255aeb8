"""Schedules: a job, a cluster and what happens to it, each drawn from one seed, as a replayable file."""

from __future__ import annotations

from random import Random

import msgspec

from planaria.job.registry import PolicyName
from planaria.plan.plan import Redundancy, ScheduleKind
from tests.testkit.schedules.devices import on_devices, with_devices_alone
from tests.testkit.schedules.faults import Fault, FaultKind
from tests.testkit.schedules.manners import MANNERS, WEIGHTS, damages, failovers, slowness, when
from tests.testkit.schedules.setup import Setup
from tests.testkit.schedules.swarm import Calm, releases, swarm
from tests.testkit.schedules.weather import Weather

SWARM_SHARE = 0.5
"""Of schedules whose faults are drawn kind by kind, not in one of the manners."""

LEAD_SHARE = 0.2
"""Of schedules in which the lead passes to another coordinator."""

STAGES_SHARE = 0.05
"""Of schedules whose stages are on two devices each."""

SPREAD_SHARE = 0.5
"""Of those, in which the two spread the optimizer's state."""

SHARING_SHARE = 0.4
"""Of those, in which the two share each microbatch."""

ALONE_SHARE = 0.6
"""Of schedules with several devices a node, in which some are lost alone."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A history of one cluster: the same one whenever it is run.

    Attributes:
        seed: of every delay.
        why: it is kept; for people.
        calm: when all of it is over; None: at the end.
    """

    seed: int
    setup: Setup
    weather: Weather
    faults: tuple[Fault, ...]
    why: str = ""
    calm: Calm | None = None


def schedule(seed: int) -> Schedule:
    """Returns the schedule of a seed."""
    draw = Random(seed)
    num_zones, is_slow = Random(f"zones of {seed}").choice([0, 0, 2, 3]), Random(f"links of {seed}").random() < 0.5
    is_tight = Random(f"budget of {seed}").random() < 0.25
    setup = msgspec.structs.replace(_setup(draw), num_zones=num_zones, is_slow=is_slow, is_tight=is_tight)
    manner = draw.choices(MANNERS, WEIGHTS)[0]
    if manner is slowness:
        setup = _longer(draw, setup)
    elif manner is damages:
        setup = msgspec.structs.replace(setup, is_large=draw.random() < 0.6)
    weather = Weather(
        compute_s=draw.choice([1e-4, 1e-3, 3e-3]),
        network_s=draw.choice([1e-4, 1e-3, 3e-3]),
        control_s=draw.choice([1e-4, 1e-3, 3e-3]),
        detect_s=draw.choice([1e-4, 3e-3, 2e-2]),
        start_s=draw.choice([1e-3, 1e-2]),
        is_one_host=draw.random() < 0.4,
        is_remote=draw.random() < 0.4,
        is_as_profiled=manner is slowness or draw.random() < 0.1,
        is_wired=draw.random() < 0.3,
        writes_later=draw.random() < 0.5,
    )
    faults = manner(draw, setup)
    if draw.random() < 0.08:
        faults.append(when(draw, setup, -1, kind=FaultKind.STOP))
    setup, switches = _policies(Random(f"policies {seed}"), setup)
    allowed = Random(f"allowed {seed}")
    setup = msgspec.structs.replace(setup, may_drop=allowed.random() < 0.3, may_restore=allowed.random() < 0.5)
    faults += switches
    leads = Random(f"leads {seed}")
    if leads.random() < LEAD_SHARE and not any(fault.cut for fault in faults):  # etcd's members lose nothing
        faults += failovers(leads, setup)
    setup = _evaluated(Random(f"evaluation {seed}"), setup)
    drawn, calm = Random(f"swarm {seed}"), None
    if drawn.random() < SWARM_SHARE:
        setup, weather, faults, calm = swarm(drawn, setup, weather)
        faults += releases(Random(f"releases {seed}"), setup)
    alone = Random(f"devices {seed}")
    if alone.random() < STAGES_SHARE:
        setup = on_devices(setup, 2, spreads_optimizer=Random(f"optimizer {seed}").random() < SPREAD_SHARE)
        if Random(f"sharing {seed}").random() < SHARING_SHARE:
            setup = msgspec.structs.replace(setup, share_microbatches=True)
    if setup.devices_per_node > 1 and alone.random() < ALONE_SHARE:
        faults = with_devices_alone(alone, setup, faults)
    return Schedule(seed=seed, setup=setup, weather=weather, faults=tuple(faults), calm=calm)


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
        checkpoint_every=draw.choice([0, None, 1, 1, 2]),
        order=draw.choice([*ScheduleKind, ScheduleKind.EAGER_ONE_F_ONE_B]),
        waits=draw.random() < 0.5,
        bad=bad,
        skips=skips,
        done=draw.randint(1, steps - 1) if draw.random() < 0.1 else 0,
        policy=draw.choice([PolicyName.TEMPLATES, PolicyName.REROUTE, PolicyName.ADAPTIVE]),
        redundancy=[*Redundancy][(num_layers + num_nodes + steps) % len(Redundancy)],
    )


def _policies(draw: Random, setup: Setup) -> tuple[Setup, list[Fault]]:
    """Returns the setup, now and then with another policy, and switches to others on the way."""
    if draw.random() < 0.5:
        policy = draw.choice([PolicyName.DROP, PolicyName.MORPH, PolicyName.REDUNDANCY])
        setup = msgspec.structs.replace(setup, policy=policy)
    if setup.policy is PolicyName.MORPH:  # which has something to go back to
        setup = msgspec.structs.replace(setup, checkpoint_every=setup.checkpoint_every or 1)
    switches = []
    for _ in range(draw.choice([0, 0, 0, 1, 2]) if draw.random() < 0.5 else 0):
        switch = when(draw, setup, -1, kind=FaultKind.SWITCH)
        switches.append(msgspec.structs.replace(switch, what=draw.choice([*PolicyName]).value))
    return setup, switches


def _evaluated(draw: Random, setup: Setup) -> Setup:
    """Returns the setup, in a third of all with evaluations, and a target that some runs reach."""
    if draw.random() < 0.65:
        return setup
    return msgspec.structs.replace(
        setup,
        eval_every=draw.choice([1, 1, 2, 3]),
        num_evaluated=draw.choice([1, 2, 5, 12]),
        eval_target=draw.choice([0.0, 0.0, 0.0, 0.6]),
    )


def _longer(draw: Random, setup: Setup) -> Setup:
    """Returns a setup of steps enough for a slow node to be found, and in some for it to rest and come back."""
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
