"""The memory that a worker's device must hold under a plan, by what holds it."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from planaria.estimate.memory_walk import Moment, Stretch, Walk, add_messages, stretch_of, with_holes
from planaria.plan.costs.byte_counts import held_bytes, message_bytes
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import Group, Plan, Route, ScheduleKind, WorkerId
from planaria.plan.program.audits import audit_turns
from planaria.plan.program.instructions import Instruction, Op, cut_tail, instructions_of
from planaria.plan.program.programs import cut_orders
from planaria.plan.program.routes import sorted_routes
from planaria.plan.program.units import Phase, Unit
from planaria.plan.thresholds import AUDITS_BEYOND


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes on one device at its fullest moment of a step.

    Attributes:
        parameters: of the groups that the worker owns, frozen ones, and copies of weights that it makes in each step.
        gradients: accumulators of these groups, and sums of those that it keeps.
        optimizer: state of those that it keeps.
        activations: kept for backwards to come.
        workspace: of the layer that runs: gradients before they are added, and what kernels allocate.
        messages: that have arrived and wait.
        process: taken before there is any work.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    workspace: int
    messages: int
    process: int

    @property
    def state(self) -> int:
        return self.parameters + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        return self.state + self.activations + self.workspace + self.messages + self.process


def memory_use(plan: Plan, profile: ModelProfile, worker: WorkerId, audit: float = 0.0) -> MemoryUse:
    """Returns what each device of the worker's stage holds at most. A stage of d devices spreads all but the process.

    Args:
        plan: the plan that runs.
        profile: costs as the job runs, see `ModelProfile.recomputed`.
        worker: who owns layers in the plan.
        audit: share of all forwards and backwards that other workers run again. What nodes on probation need beyond
            that is not counted.

    Raises:
        KeyError: the worker owns no layers in the plan.
    """
    turns = audit_turns(plan).get(worker, {}) if audit else {}
    return _use(plan, profile, worker, _with_audits(plan, profile, _moment(plan, profile, worker), turns, audit))


def _with_audits(
    plan: Plan, profile: ModelProfile, moment: Moment, turns: Mapping[tuple[int, int], float], share: float
) -> Moment:
    """Returns a worker's fullest moment where it also audits: what is to be run again waits, on copies of its inputs,
    until the worker's own work is done; then it is run, and what a layer's backward adds to sums is counted apart.

    Args:
        plan: the plan that runs.
        profile: what layers cost.
        moment: without audits.
        turns: what it may be asked to run again, see `audit_turns`.
        share: of all computation that is audited.
    """
    if not turns:
        return moment
    activations, workspace, messages = moment
    possible = sum(turns.values())
    most = share * possible + AUDITS_BEYOND * math.sqrt(share * (1.0 - share) * possible)
    inner = range(1, plan.num_layers)
    each = max(sum(message_bytes(profile, at) for at in piece if at in inner) for piece in turns)
    again = max((_run_again(plan.schedule, plan.groups, profile, *piece) for piece in turns), key=sum)
    if sum(again) > activations + workspace:
        activations, workspace = again
    return activations, workspace, messages + math.ceil(min(most, possible)) * each


@lru_cache(maxsize=1 << 10)
def _run_again(
    schedule: ScheduleKind, groups: tuple[Group, ...], profile: ModelProfile, first: int, end: int
) -> tuple[int, int]:
    """Returns bytes of activations, and of workspace with what is counted apart, while a piece is run again."""
    walk, layers = Walk(profile), tuple(range(first, end))
    for op in (Op.FORWARD, Op.BACKWARD):
        walk.run(Instruction(op=op, first_layer=first, end_layer=end, counted=layers, keeps=True))
    activations, workspace, _ = with_holes(schedule, profile, walk.most, 0)
    counted = dict.fromkeys(layers, 0)
    for group in groups:
        for layer in counted.keys() & {*group.layers}:
            counted[layer] += held_bytes(profile, group).counted
    return activations, workspace + max(counted.values())


def _moment(plan: Plan, profile: ModelProfile, worker: WorkerId) -> Moment:
    """Returns the worker's fullest moment. Units of one phase of a hop differ in the microbatch alone, so each one's
    instructions are walked once."""
    order = cut_orders(plan, [worker])[worker]
    walk = Walk(profile)
    stretches: dict[tuple[int, Phase, bool], Stretch] = {}
    ways: dict[tuple[Op, WorkerId | None], int] = {}

    def note(units: Sequence[Unit]) -> None:
        for unit in units:
            phase, leg, microbatch, _ = unit
            key = id(leg), phase, (leg.born, microbatch, phase) in order.cut
            stretch = stretches.get(key)
            if stretch is None:
                instructions = tuple(instructions_of(unit, by_layer=key[2]))
                stretch = stretches[key] = stretch_of(profile, instructions)
                add_messages(ways, profile, instructions)
            walk.pass_through(stretch)

    note(order.units[: order.end])
    for instruction in cut_tail(order):
        walk.run(instruction)
    note(order.units[order.own_end :])
    return with_holes(plan.schedule, profile, walk.most, sum(ways.values()))


def _use(plan: Plan, profile: ModelProfile, worker: WorkerId, moment: Moment) -> MemoryUse:
    devices = plan.devices_of[worker]
    gradients = optimizer = 0
    parameters = sum(profile.layers[layer].constant_bytes for layer in _layers_run(plan, worker))
    kept = plan.kept_of[worker]
    for number in plan.groups_of[worker]:
        held = held_bytes(profile, plan.groups[number])
        parameters += held.parameters
        gradients += held.accumulator + held.sum if number in kept else held.counted
        optimizer += held.optimizer if number in kept else 0
        if plan.redundancy is not None and plan.redundancy.runs_backwards and _is_shadowed(plan, worker, number):
            gradients += held.counted  # copies are counted apart
    activations, workspace, messages = moment
    parts = {
        "parameters": parameters,
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": activations,
        "workspace": workspace,
        "messages": messages,
    }
    return MemoryUse(
        **{name: -(-size // devices) for name, size in parts.items()}, process=profile.device.process_bytes
    )


def _layers_run(plan: Plan, worker: WorkerId) -> set[int]:
    """Returns the layers that the worker runs, as owner or shadow."""
    return set(plan.layers_of.get(worker, ())).union(*(s.layers for s in plan.shadows if s.worker == worker))


def _is_shadowed(plan: Plan, worker: WorkerId, group: int) -> bool:
    layers = set(plan.groups[group].layers)
    return any(shadow.worker == worker and not layers.isdisjoint(shadow.layers) for shadow in plan.shadows)


def worker_memory_bytes(plan: Plan, profile: ModelProfile, worker: WorkerId, audit: float = 0.0) -> int:
    """Returns the sum of `memory_use`."""
    return memory_use(plan, profile, worker, audit).total


def fullest_device_bytes(plan: Plan, profile: ModelProfile, audit: float = 0.0) -> int:
    """Returns the bytes on a device of the worker whose devices must hold most.

    What microbatches need follows from the ways they take, and is remembered: of pipelines that run nothing but their
    own, for each kind of them, wherever they are; of others, for all ways together. State is added to it.
    """
    moments: dict[WorkerId, Moment] = {}
    for workers, kind in _kinds(plan) if plan.redundancy is None else _kinds_of_rings(plan):
        known = _KINDS.find((profile, kind), partial(_moments, plan, profile, workers))
        moments |= zip(workers, known, strict=True)
    others = sorted({hop.worker for route in plan.routes for hop in route.hops} - moments.keys())
    if others:
        ways = (profile, plan.schedule, plan.spare_in_flight, plan.layer_units, plan.redundancy, _ways(plan))
        known = _MIXED.find(ways, partial(_moments, plan, profile, others))
        moments |= zip(others, known, strict=True)
    turns = audit_turns(plan) if audit else {}
    if plan.redundancy is not None or turns:
        asked = plan.workers  # what is shadowed has copies; and others audit other pieces
    else:
        # Of workers that hold the same, and need as much for what passes, one is asked.
        layers, groups, kept = plan.layers_of, plan.groups_of, plan.kept_of
        alike = {
            (groups[w], kept[w], layers.get(w, ()), plan.devices_of[w], moments.get(w, _IDLE)): w for w in plan.workers
        }
        asked = tuple(alike.values())
    found = {w: _with_audits(plan, profile, moments.get(w, _IDLE), turns.get(w, {}), audit) for w in asked}
    return max(_use(plan, profile, worker, moment).total for worker, moment in found.items())


def _moments(plan: Plan, profile: ModelProfile, workers: Sequence[WorkerId]) -> tuple[Moment, ...]:
    return tuple(_moment(plan, profile, worker) for worker in workers)


_IDLE: Moment = (0, 0, 0)
"""The moment of a worker through which no microbatch goes."""


class _Remembered:
    """A cache of so many moments."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[Hashable, tuple[Moment, ...]] = {}

    def find(self, key: Hashable, find_out: Callable[[], tuple[Moment, ...]]) -> tuple[Moment, ...]:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = find_out()
            while len(self._known) > self._most:
                del self._known[next(iter(self._known))]
        return found


_KINDS, _MIXED = _Remembered(1024), _Remembered(32)


def _ways(plan: Plan) -> Hashable:
    """Returns where microbatches go, as a key. Of generations, only their order counts."""
    turn_of = {born: turn for turn, born in enumerate(sorted({route.born for route in plan.routes}))}
    routes = tuple((turn_of[r.born], r.hops, r.microbatches, r.counted, r.reached) for r in plan.routes)
    return plan.pipelines, routes, () if plan.redundancy is None else plan.shadows


_Kind = tuple[Hashable, ...]


def _kinds_of_rings(plan: Plan) -> list[tuple[tuple[WorkerId, ...], _Kind]]:
    """Returns workers of pipelines with redundant compute, with all that their memory depends on beside the state; none
    where a step is gone on with."""
    found: list[tuple[tuple[WorkerId, ...], _Kind]] = []
    for path in sorted_routes(plan).pipelines:
        routes = (*path.routes, *path.shadowed_routes)
        if len(path.routes) > 1 or len(path.shadowed_routes) > 1 or any(route.reached is not None for route in routes):
            continue
        kind = (
            plan.schedule,
            plan.redundancy,
            tuple((hop.first_layer, hop.end_layer) for hop in path.hops),
            tuple(worker is not None for worker in path.redundant_workers),
            tuple((len(route.microbatches), route.counted) for route in routes),
        )
        found.append((tuple(hop.worker for hop in path.hops), kind))
    return found


def _kinds(plan: Plan) -> list[tuple[tuple[WorkerId, ...], _Kind]]:
    """Returns workers of pipelines that run only whole steps of their own microbatches, each worker one stage, by one
    route; and all that their memory depends on beside the state."""
    at_of: dict[WorkerId, int] = {}
    others: set[int] = set()
    for at, pipeline in enumerate(plan.pipelines):
        for worker in pipeline.workers:
            if worker in at_of:
                others |= {at, at_of[worker]}
            at_of[worker] = at
    own: dict[int, Route] = {}
    for route in plan.routes:
        passed = {at_of.get(hop.worker, -1) for hop in route.hops}
        at = min(passed)
        is_own = len(passed) == 1 and at >= 0 and route.hops == plan.pipelines[at].stages
        if is_own and route.reached is None and at not in own:
            own[at] = route
        else:
            others |= passed
    return [
        (
            tuple(hop.worker for hop in route.hops),
            (
                plan.schedule,
                tuple((stage.first_layer, stage.end_layer) for stage in route.hops),
                (len(route.microbatches), route.counted),
            ),
        )
        for at, route in own.items()
        if at not in others
    ]
