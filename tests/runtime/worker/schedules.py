"""Random jobs and random deaths, each from one seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from planaria.job.parse import job_from_table, validated
from planaria.job.registry import PolicyName
from planaria.job.sections.cluster import OptimizerState, StageDevices
from planaria.job.sections.resilience import WhenExhausted
from planaria.job.sections.run import RunSection
from planaria.job.settings import Job
from planaria.plan.plan import Redundancy
from tests.runtime.worker.cluster import Crash, Kill, Switch, Visit, Weather

INSTRUCTIONS = ("load", "forward", "backward", "send", "recv", "sync", "vote", "transfer")
HAPPENINGS = (
    "Ready", "Vote", "NodeGone", "Report", "Saved", "WorkerJoined",
    "PlanTaken", "StepCommitted", "NodeLost", "Recovered", "Restored", "CheckpointSaved",
)  # fmt: skip

FATAL = (
    "Vote", "Vote", "Vote", "NodeGone", "Report", "Ready", "WorkerJoined", "Returned", "Restarted", "PlanTaken",
    "StepCommitted", "Saved", "ManifestWritten", "CheckpointSaved", "NodeLost", "NodeLeaving", "Restored", "RunEnded",
)  # fmt: skip
"""Happenings at the coordinator, in or after which it may die."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A job and what happens to it."""

    seed: int
    job: Job
    kills: tuple[Kill, ...]
    weather: Weather
    stop_at_s: float | None
    visits: tuple[Visit, ...] = ()
    crashes: tuple[Crash, ...] = ()
    shortages: tuple[Kill, ...] = ()
    switches: tuple[Switch, ...] = ()

    @property
    def needed_nodes(self) -> int:
        resilience = self.job.resilience
        return (resilience.fault_tolerance + 1) * resilience.min_nodes_per_pipeline


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule that once failed, and why."""

    why: str
    schedule: Schedule

    def schedule_with(self, source: str) -> Schedule:
        data = msgspec.structs.replace(self.schedule.job.data, source=source)
        return replace(self.schedule, job=msgspec.structs.replace(self.schedule.job, data=data))


def job_of(
    *,
    nodes: int = 4,
    devices: int = 1,
    depth: int = 2,
    steps: int = 3,
    microbatches: int = 6,
    fault_tolerance: int = 1,
    smallest: int = 1,
    checkpoint_every: int = 0,
    tied: bool = True,
    source: str = "unused.npy",
    order: str = "eager-1f1b",
    skip: float = 0.0,
    bad: float = 0.0,
    when_exhausted: str = "exit",
    policy: str = "templates",
    redundancy: str = "eager-lazy",
    allow_drop: bool = False,
    **train: Any,
) -> Job:
    """A job with the tiny model."""
    return validated(
        job_from_table(
            {
                "model": {
                    "type": "tests.runtime.worker.tiny_model:layers",
                    "config": {"depth": depth, "tied": tied, "skip": skip, "bad": bad},
                },
                "data": {"source": source},
                "train": {
                    "steps": steps,
                    "global_batch": microbatches,
                    "microbatch": 1,
                    "sequence_length": 4,
                    "learning_rate": 0.01,
                    **train,
                },
                "cluster": {"nodes": nodes, "devices_per_node": devices, "schedule": order},
                "resilience": {
                    "fault_tolerance": fault_tolerance,
                    "min_nodes_per_pipeline": smallest,
                    "when_exhausted": when_exhausted,
                    "policy": policy,
                    "redundancy": redundancy,
                    "allow_drop": allow_drop,
                },
                "run": {"checkpoint_every": checkpoint_every, "keep_checkpoints": 100},
            }
        )
    )


def _order(seed: int, whole: str) -> str:
    """In a third of the schedules, which are otherwise the same, backwards are split."""
    draw = random.Random(f"order {seed}")
    return draw.choice(["zb-h1", "zb-h2"]) if draw.random() < 1 / 3 else whole


def schedule(seed: int, source: str) -> Schedule:
    """The schedule of a seed."""
    draw = random.Random(seed)
    depth = draw.choice([0, 0, 1, 2, 2, 3, 4, 6])
    layers = depth + 2
    devices = 2 if layers >= 4 and draw.random() < 0.25 else 1
    smallest = draw.randint(1, min(3, layers // devices))
    fault_tolerance = draw.choice([0, 1, 1, 1, 2])
    needed = smallest * (fault_tolerance + 1)
    nodes = needed + draw.choice([0, 1, 2, 3, 6])
    steps = draw.randint(2, 4)
    job = job_of(
        nodes=nodes,
        devices=devices,
        depth=depth,
        steps=steps,
        microbatches=max(nodes, draw.choice([2, 4, 8, 16])),
        fault_tolerance=fault_tolerance,
        smallest=smallest,
        checkpoint_every=draw.choice([0, 0, 0, 1, 2]),
        tied=draw.random() < 0.7,
        source=source,
        order=_order(seed, draw.choice(["eager-1f1b", "eager-1f1b", "1f1b", "gpipe"])),
        activation_checkpointing=draw.random() < 0.2,
        skip=draw.choice([0.0, 0.0, 0.0, 0.6]),
    )
    victims = draw.sample(range(nodes), draw.randint(1, min(nodes, needed - smallest + 3)))
    weather = Weather(
        compute_s=draw.choice([1e-4, 1e-3, 3e-3]),
        network_s=draw.choice([1e-4, 1e-3, 3e-3]),
        control_s=draw.choice([1e-4, 1e-3, 3e-3]),
        detect_s=draw.choice([1e-4, 3e-3, 2e-2]),
        slow=draw.randrange(nodes * devices) if draw.random() < 0.3 else None,
        one_host=draw.random() < 0.5,
    )
    stop_at_s = draw.uniform(0, 0.3) if draw.random() < 0.1 else None
    return Schedule(seed=seed, job=job, kills=_kills(draw, victims, steps), weather=weather, stop_at_s=stop_at_s)


def comings_and_goings(seed: int, source: str) -> Schedule:
    """The schedule of a seed, with more steps, nodes that come or give notice, and waiting where too few are left."""
    draw = random.Random(seed)
    plain = schedule(seed, source)
    job = plain.job
    nodes, steps = job.cluster.nodes, draw.randint(4, 7)
    train = msgspec.structs.replace(job.train, steps=steps)
    patience = draw.choice(list(WhenExhausted))
    resilience = msgspec.structs.replace(job.resilience, when_exhausted=patience)
    visits = []
    for late in range(draw.choice([0, 1, 1, 2, 3])):
        visits.append(_visit(draw, nodes + late, None))
    for node in draw.sample(range(nodes), draw.choice([0, 0, 1, 2]) if nodes > 1 else 0):
        visits.append(_visit(draw, node, draw.choice([1e-3, 2e-2, 0.2, 1.0])))
    return replace(
        plain,
        job=msgspec.structs.replace(job, train=train, resilience=resilience),
        kills=plain.kills[: draw.choice([0, 0, 1, len(plain.kills)])],
        visits=tuple(visits),
        stop_at_s=None,
    )


def on_devices(plain: Schedule, devices: int, of_stage: int | StageDevices | None = None) -> Schedule:
    """The schedule on nodes with so many times the devices, so many to a stage; None: as many. In half of them these
    spread the optimizer's state."""
    cluster, spreads = plain.job.cluster, random.Random(f"optimizer {plain.seed}").random() < 0.5
    cluster = msgspec.structs.replace(
        cluster,
        devices_per_node=devices * cluster.devices_per_node,
        devices_per_stage=devices if of_stage is None else of_stage,
        optimizer_state=OptimizerState.SPREAD if spreads else OptimizerState.WHOLE,
    )
    return replace(plain, job=msgspec.structs.replace(plain.job, cluster=cluster))


def with_devices_alone(plain: Schedule) -> Schedule:
    """The schedule with some of the nodes' deaths in a device of theirs alone, and others beside."""
    draw, devices = random.Random(f"devices {plain.seed}"), plain.job.cluster.devices_per_node
    kills = [replace(kill, device=draw.randrange(devices)) if draw.random() < 0.6 else kill for kill in plain.kills]
    for kill in plain.kills[: draw.choice([0, 1, 2])]:
        node = draw.randrange(plain.job.cluster.nodes)
        kills.append(replace(kill, node=node, device=draw.randrange(devices), delay_s=_delay_s(draw)))
    return replace(plain, kills=tuple(kills))


def restarts(seed: int, source: str) -> Schedule:
    """The schedule of a seed, in which the coordinator dies too: at any command of any batch."""
    return _with_crashes(seed, source, is_dark=False)


def power_losses(seed: int, source: str) -> Schedule:
    """The coordinator's machine dies with it, so that the end of the journal is lost."""
    return _with_crashes(seed, source, is_dark=True)


def _with_crashes(seed: int, source: str, *, is_dark: bool) -> Schedule:
    draw = random.Random(~seed)
    usual = comings_and_goings(seed, source) if draw.random() < 0.5 else schedule(seed, source)
    if draw.random() < 0.3:
        usual = replace(usual, kills=(), visits=(), stop_at_s=None)
    elif usual.kills and draw.random() < 0.6:
        *kills, last = usual.kills
        at = "after " + draw.choice(["Restarted", "Returned", "CoordinatorRestarted", "CoordinatorRestarted"])
        nth = draw.randint(1, 6) if at == "after Returned" else 1
        usual = replace(usual, kills=(*kills, replace(last, at=at, nth=nth, delay_s=_delay_s(draw))))
    crashes = tuple(_crash(draw, is_dark=is_dark) for _ in range(draw.choice([1, 2, 2, 3, 5])))
    return replace(usual, crashes=crashes)


def _crash(draw: random.Random, *, is_dark: bool) -> Crash:
    after = draw.choice(("StepCommitted", "PlanTaken", "NodeLost", "Vote", "Returned") if is_dark else FATAL)
    often = after in ("Vote", "Ready", "Returned", "WorkerJoined")
    return Crash(
        after=after,
        nth=draw.randint(1, 12) if often else draw.choice([1, 1, 2, 3]),
        commands=draw.choice([0, 0, 1, 2, 3, draw.randint(0, 12), draw.randint(0, 60)]),
        down_s=draw.choice([0.0, 1e-3, 1e-2, draw.uniform(0, 5e-2)]),
        cut=draw.choice([1, 1, 2, 3, draw.randint(1, 12)]) if is_dark else 0,
    )


def any_policy(seed: int, source: str) -> Schedule:
    """The schedule of a seed, with losses alone or with all that comes and goes, under one of the other policies."""
    draw = random.Random(f"policy {seed}")
    plain = draw.choice([schedule, comings_and_goings])(seed, source)
    return under(draw.choice([name for name in PolicyName if name is not PolicyName.TEMPLATES]), plain, draw)


def under(policy: PolicyName, plain: Schedule, draw: random.Random | None = None) -> Schedule:
    """The schedule under a policy; with checkpoints, where that needs them."""
    if policy is PolicyName.REDUNDANCY:
        return shadowed(draw or random.Random(plain.seed), plain)
    resilience = msgspec.structs.replace(plain.job.resilience, policy=policy)
    job = msgspec.structs.replace(plain.job, resilience=resilience, run=_with_checkpoints(plain.job.run, policy))
    return replace(plain, job=job)


def _with_checkpoints(run: RunSection, policy: PolicyName) -> RunSection:
    """A job that begins under morph writes some, or is refused."""
    if policy is not PolicyName.MORPH:
        return run
    return msgspec.structs.replace(run, checkpoint_every=max(1, run.checkpoint_every))


def switching(seed: int, source: str) -> Schedule:
    """The schedule of a seed, under any policy that changes on the way: at random points, among all that may happen."""
    draw = random.Random(f"switch {seed}")
    plain = draw.choice([schedule, comings_and_goings, restarts])(seed, source)
    policy = draw.choice([*PolicyName])
    resilience = msgspec.structs.replace(plain.job.resilience, policy=policy, allow_drop=True)
    switches = []
    for _ in range(draw.choice([1, 1, 2, 3])):
        after = draw.choice(["StepCommitted", "StepCommitted", "Vote", "NodeLost", "Report", "PlanTaken", "Waiting"])
        nth = draw.choice([1, 1, 2, 3]) if after != "Vote" else draw.randint(1, 12)
        name = draw.choice([*PolicyName]).value
        switches.append(Switch(policy=name, after=after, nth=nth, delay_s=_delay_s(draw)))
    job = msgspec.structs.replace(plain.job, resilience=resilience, run=_with_checkpoints(plain.job.run, policy))
    return replace(plain, job=job, switches=tuple(switches))


def shadowed(draw: random.Random, plain: Schedule) -> Schedule:
    """The schedule under the policy of redundancy, in one of its modes; some nodes die in what they shadow."""
    resilience = msgspec.structs.replace(
        plain.job.resilience, policy=PolicyName.REDUNDANCY, redundancy=draw.choice([*Redundancy])
    )
    kills = tuple(replace(k, at="shadow") if k.at in INSTRUCTIONS and draw.random() < 0.3 else k for k in plain.kills)
    return replace(plain, job=msgspec.structs.replace(plain.job, resilience=resilience), kills=kills)


def _visit(draw: random.Random, node: int, grace_s: float | None) -> Visit:
    after = draw.choice(["StepCommitted", "StepCommitted", "Vote", "NodeLost", "Ready", "PlanTaken", "Report"])
    nth = draw.choice([1, 1, 2, 3]) if after != "Vote" else draw.randint(1, 12)
    return Visit(node=node, after=after, nth=nth, delay_s=_delay_s(draw), grace_s=grace_s)


def shortages(seed: int, source: str) -> Schedule:
    """The schedule of a seed, in which nodes run out of memory: in place of dying, or beside others that die."""
    draw = random.Random(seed)
    plain = schedule(seed, source)
    steps = draw.choice([3, 16])  # within a few steps of each other, or far from it
    job = msgspec.structs.replace(plain.job, train=msgspec.structs.replace(plain.job.train, steps=steps))
    victims = draw.sample(range(job.cluster.nodes), min(job.cluster.nodes, draw.choice([1, 1, 1, 2, 3])))
    at = draw.choice([*INSTRUCTIONS, "apply"])
    short = tuple(Kill(node=node, at=draw.choice([at, *INSTRUCTIONS]), step=draw.randint(1, steps)) for node in victims)
    kills = tuple(kill for kill in plain.kills if kill.node not in victims)[: draw.choice([0, 0, 1])]
    return replace(plain, job=job, kills=kills, shortages=short, stop_at_s=None)


def all_holders_die(seed: int, source: str, holders: Callable[[Job], list[list[int]]]) -> Schedule:
    """All nodes that hold some layer die in one step, when others have gone far ahead of the last checkpoint.

    Args:
        seed: of the schedule.
        source: of the tokens.
        holders: for a job, the nodes that hold each layer under its first plan.
    """
    draw = random.Random(seed)
    every = draw.choice([0, 2, 3])
    steps = every + 3 if every else 3
    job = job_of(
        nodes=draw.choice([7, 8, 9]),
        depth=draw.choice([2, 4]),
        steps=steps,
        microbatches=draw.choice([9, 12]),
        smallest=2,
        checkpoint_every=every,
        source=source,
    )
    victims = draw.choice(holders(job))
    at, step = draw.choice(INSTRUCTIONS[:-1]), draw.randint(every + 1, steps) if every else 1
    weather = Weather(
        compute_s=draw.choice([1e-4, 1e-3, 3e-3]),
        network_s=draw.choice([1e-4, 1e-3]),
        control_s=draw.choice([1e-4, 3e-3, 1e-2]),
        detect_s=draw.choice([1e-4, 3e-3]),
    )
    kills = tuple(Kill(node=node, at=at, step=step, delay_s=draw.uniform(0, 2e-3)) for node in victims)
    return Schedule(seed=seed, job=job, kills=kills, weather=weather, stop_at_s=None)


def _kills(draw: random.Random, victims: list[int], steps: int) -> tuple[Kill, ...]:
    """Independent deaths, a burst at one kind of instruction, or one death upon another."""
    manner = draw.random()
    if manner < 0.5:
        return tuple(_kill(draw, node, steps) for node in victims)
    if manner < 0.7:
        at, step = draw.choice(INSTRUCTIONS), draw.randint(1, steps)
        return tuple(Kill(node=node, at=at, step=step, delay_s=_delay_s(draw)) for node in victims)
    first, *others = victims
    chain = [_kill(draw, first, steps)]
    for nth, node in enumerate(others, 1):
        at = draw.choice(["after NodeGone", "after NodeLost", "after Report", "after Ready", "transfer"])
        chain.append(Kill(node=node, at=at, nth=nth if "Node" in at else draw.randint(1, 12), delay_s=_delay_s(draw)))
    return tuple(chain)


def _delay_s(draw: random.Random) -> float:
    return draw.choice([0.0, draw.uniform(0, 3e-3), draw.uniform(0, 2e-2)])


def _kill(draw: random.Random, node: int, steps: int) -> Kill:
    kind = draw.random()
    if kind < 0.2:
        return Kill(node=node, at="start", delay_s=draw.uniform(0, 0.4))
    if kind < 0.6:
        return Kill(node=node, at=draw.choice(INSTRUCTIONS), step=draw.randint(1, steps), delay_s=_delay_s(draw))
    nth = draw.choice([1, 1, 2, 3, draw.randint(1, 20)])
    return Kill(node=node, at=f"after {draw.choice(HAPPENINGS)}", nth=nth, delay_s=_delay_s(draw))
