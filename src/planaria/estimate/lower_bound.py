"""A certified lower bound of a plan's step time: from sums over its routes, without its programs.

Never above `planaria.estimate.step_time.step_time_s`: it says how far from the best an order of work can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from planaria.estimate.conditions import AS_PROFILED, Conditions
from planaria.estimate.cores import least_step_s
from planaria.estimate.durations import Durations
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import Pipeline, Plan, ScheduleKind, Stage, WorkerId
from planaria.plan.program.hops import RouteHop, route_hops
from planaria.plan.program.instructions import Instruction, Op
from planaria.plan.program.routes import sorted_routes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """A route in seconds; each list has an entry for each hop.

    Attributes:
        legs: its legs, in their order.
        num_microbatches: how many microbatches take it.
        forward_s: seconds of its forward.
        backward_s: of the leg: whole, or the input's half; 0 where there is none.
        weight_s: the weights' half where backwards are split; else 0.
        up_s: the activation's message to the next leg; 0 at the last.
        down_s: the gradient's message to the leg below; 0 where none goes.
        before_s: from the microbatch's start to the leg's forward.
        below_s: from the end of the leg's backward to the end of what must follow on lower legs.
    """

    legs: tuple[RouteHop, ...]
    num_microbatches: int
    forward_s: Sequence[float]
    backward_s: Sequence[float]
    weight_s: Sequence[float]
    up_s: Sequence[float]
    down_s: Sequence[float]
    before_s: Sequence[float]
    below_s: Sequence[float]

    def round_trip_s(self, place: int) -> float:
        """Returns seconds from the hop's forward to the end of its backward."""
        above = sum(self.forward_s[place:]) + sum(self.up_s[place:])
        return above + sum(self.backward_s[place:]) + sum(self.down_s[place + 1 :])

    @property
    def all_forward_s(self) -> float:
        """Returns when all forwards of the last hop can be done."""
        return max(
            self.before_s[place]
            + self.num_microbatches * forward
            + sum(self.forward_s[place + 1 :])
            + sum(self.up_s[place:])
            for place, forward in enumerate(self.forward_s)
        )

    def rest_s(self, place: int) -> float:
        """Returns seconds from the hop's forward to the end of everything."""
        lowest = max(place, next(at for at, leg in enumerate(self.legs) if leg.keeps))
        up = sum(self.forward_s[place:lowest]) + sum(self.up_s[place:lowest])
        return up + self.round_trip_s(lowest) + max(self.weight_s[lowest], self.below_s[lowest])


def lower_bound_s(plan: Plan, profile: ModelProfile, conditions: Conditions = AS_PROFILED) -> float:
    """Returns the seconds that a step under the plan takes at least.

    The longest of: every worker's way to its first work, all its work, and what must follow its last; every link's,
    likewise; a pipeline's way down from its busiest stage, and through the cycles that its stages' limits on
    microbatches in flight impose; then each worker's reads and sums of gradients that cannot be whole before; then vote
    and apply.

    Raises:
        PlanError: a stage has more or fewer devices than the profile has times for.
    """
    durations = Durations(plan, profile, conditions)
    split = plan.schedule.splits_backward
    ways = {
        (route.born, route.microbatches[0]): _way(route_hops(route, split=split), len(route.microbatches), durations)
        for route in plan.routes
    }
    bound = _Bound(plan, durations, conditions)
    bound.add_workers(ways.values())
    bound.add_links(ways.values())
    for path in sorted_routes(plan).pipelines:
        if len(path.routes) == 1:
            bound.add_pipeline(ways[path.routes[0].born, path.routes[0].microbatches[0]])
    return bound.step_s()


def _way(way: tuple[RouteHop, ...], num_microbatches: int, durations: Durations) -> _Way:
    def compute_s(leg: RouteHop, op: Op, first: int, counted: tuple[int, ...]) -> float:
        instruction = Instruction(op=op, first_layer=first, end_layer=leg.end_layer, counted=counted)
        return durations.compute_s(leg.worker, instruction)

    forward = [compute_s(leg, Op.FORWARD, leg.first_layer, ()) for leg in way]
    backward = [
        0.0
        if not leg.keeps
        else compute_s(leg, Op.BACKWARD_INPUT, leg.low_layer, ())
        if leg.has_weight
        else compute_s(leg, Op.BACKWARD, leg.low_layer, leg.counted)
        for leg in way
    ]
    weight = [compute_s(leg, Op.BACKWARD_WEIGHT, leg.low_layer, leg.counted) if leg.has_weight else 0.0 for leg in way]
    up = [0.0 if leg.above is None else durations.message_s(leg.worker, leg.above, leg.end_layer) for leg in way]
    down = [
        0.0 if leg.gradient_to is None else durations.message_s(leg.worker, leg.gradient_to, leg.low_layer)
        for leg in way
    ]
    below = [0.0] * len(way)
    for place in range(1, len(way)):
        if way[place].gradient_to is not None:
            rest = max(weight[place - 1], below[place - 1])
            below[place] = down[place] + backward[place - 1] + rest
    return _Way(
        legs=way,
        num_microbatches=num_microbatches,
        forward_s=forward,
        backward_s=backward,
        weight_s=weight,
        up_s=up,
        down_s=down,
        before_s=[0.0, *accumulate(f + u for f, u in zip(forward[:-1], up[:-1], strict=True))],
        below_s=below,
    )


class _Bound:
    def __init__(self, plan: Plan, durations: Durations, conditions: Conditions) -> None:
        self._plan = plan
        self._durations = durations
        self._conditions = conditions
        self._all_done_s = 0.0
        self._ends_s = dict.fromkeys(plan.workers, 0.0)
        self._work_s = dict.fromkeys(plan.workers, 0.0)
        self._late: dict[WorkerId, tuple[_Way, int]] = {}
        """The one route of each worker that serves no other, and its place there."""

    def add_workers(self, ways: Iterable[_Way]) -> None:
        """Adds the bounds of workers: head, work and tail."""
        head: dict[WorkerId, float] = {}
        tail: dict[WorkerId, float] = {}
        first: dict[WorkerId, float] = dict.fromkeys(self._plan.workers, 0.0)
        sends = dict.fromkeys(self._plan.workers, 0.0)
        for way in ways:
            self._all_done_s = max(self._all_done_s, way.rest_s(0))
            for place, leg in enumerate(way.legs):
                worker, number = leg.worker, way.num_microbatches
                head[worker] = min(head.get(worker, way.before_s[place]), way.before_s[place])
                after = way.below_s[place] if leg.keeps else way.rest_s(place) - way.forward_s[place]
                tail[worker] = min(tail.get(worker, after), after)
                first[worker] += number * (way.forward_s[place] + way.backward_s[place])
                self._work_s[worker] += number * (way.forward_s[place] + way.backward_s[place] + way.weight_s[place])
                sends[worker] += number * (way.up_s[place] + way.down_s[place])
        for worker, start in head.items():
            blocked = 0.0 if self._conditions.overlap else sends[worker]
            self._ends_s[worker] = start + self._work_s[worker] + blocked
            # Blocked sends after the last compute are in the tail already.
            self._all_done_s = max(self._all_done_s, start + first[worker] + tail[worker])

    def add_links(self, ways: Iterable[_Way]) -> None:
        """Adds the bounds of links: the least that precedes, all that each carries, and the least that follows."""
        links: dict[tuple[WorkerId, WorkerId], tuple[float, float, float]] = {}
        for way in ways:
            for place, leg in enumerate(way.legs):
                number = way.num_microbatches
                if leg.above is not None:
                    start = way.before_s[place] + way.forward_s[place]
                    after = way.rest_s(place + 1)
                    _add(links, (leg.worker, leg.above), start, number * way.up_s[place], after)
                if leg.gradient_to is not None:
                    start = way.before_s[place] + way.round_trip_s(place)
                    after = way.below_s[place] - way.down_s[place]
                    _add(links, (leg.worker, leg.gradient_to), start, number * way.down_s[place], after)
        for start, carried, after in links.values():
            self._all_done_s = max(self._all_done_s, start + carried + after)

    def add_pipeline(self, way: _Way) -> None:
        """Adds the bounds of a pipeline with one route: each stage's last backward ends no sooner than its work allows,
        than the last backward of the stage above, and than the cycles do that its limit on microbatches in flight
        imposes: a stage that keeps k starts one more only when one is back. Under GPipe, also than all forwards
        allow."""
        number = way.num_microbatches
        kind = self._plan.schedule
        above = 0.0
        for place, leg in reversed(tuple(enumerate(way.legs))):
            self._late[leg.worker] = way, place
            if not leg.keeps:
                continue
            backward, weight = way.backward_s[place], way.weight_s[place]
            behind = kind.weights_behind(place)
            done = way.before_s[place] + number * (way.forward_s[place] + backward)
            done += max(0, number - 1 - behind) * weight
            if place + 1 < len(way.legs):
                done = max(done, above + way.down_s[place + 1] + backward)
            size = kind.forwards_ahead(leg.hops_after, number) + 1
            cycles, more = divmod(number - 1, size)
            # Weight gradients stand between a backward and the next forward once they no longer lag behind.
            weights = sum(cycle * size >= behind for cycle in range(cycles))
            around = (cycles + 1) * way.round_trip_s(place) + weights * weight
            done = max(done, way.before_s[place] + around + more * backward)
            if kind is ScheduleKind.GPIPE:
                down = sum(way.backward_s[place + 1 :]) + sum(way.down_s[place + 1 :])
                done = max(done, way.all_forward_s + down + number * backward)
            left = min(number, behind + 1) * weight
            self._ends_s[leg.worker] = max(self._ends_s[leg.worker], done + left)
            self._all_done_s = max(self._all_done_s, done + way.below_s[place])
            above = done

    def step_s(self) -> float:
        """Returns the bound of the step with sums, vote and apply."""
        plan, durations = self._plan, self._durations
        whole = [
            max((self._due_s(owner, group) for owner in owners), default=0.0)
            for group, owners in enumerate(plan.owners_of)
        ]
        voted = max([self._all_done_s, *(self._voted_s(w, groups, whole) for w, groups in plan.groups_of.items())])
        applies = [durations.apply_s(worker) for worker in plan.workers]
        step = voted + durations.vote_s + max(applies)
        step = max(step, least_step_s(plan, durations, self._work_s, self._conditions))
        # Sums of many terms round differently in another order; a bound must not be above by that.
        return step * self._conditions.stretch * (1 - 1e-12)

    def _due_s(self, worker: WorkerId, group: int) -> float:
        """Returns when the worker's gradients of the group can be whole: its end less what may come after them."""
        if worker not in self._late:
            return 0.0
        way, place = self._late[worker]
        leg = way.legs[place]
        mine = [layer for layer in self._plan.groups[group].layers if layer in leg.counted]
        if not mine:
            return 0.0
        op = Op.BACKWARD_WEIGHT if leg.has_weight else Op.BACKWARD
        times = 1
        if leg.has_weight:
            times = min(way.num_microbatches, self._plan.schedule.weights_behind(leg.place) + 1)
        later = tuple(layer for layer in leg.counted if layer < mine[0])
        instruction = Instruction(op=op, first_layer=leg.low_layer, end_layer=mine[0], counted=later)
        after = times * self._durations.compute_s(worker, instruction)
        if not self._conditions.overlap:
            after += way.down_s[place]
        return self._ends_s[worker] - after

    def _voted_s(self, worker: WorkerId, groups: Sequence[int], whole: Sequence[float]) -> float:
        """Returns when a worker's sums can be done: for each moment, reads of what is whole no sooner, and one sum."""
        sums = {group: self._durations.sum_times(worker, group) for group in groups}
        voted = self._ends_s[worker] + sum(times.add_s for times in sums.values())
        reads, least = 0.0, float("inf")
        for group in sorted(groups, key=lambda g: -whole[g]):
            reads += sums[group].read_s
            least = min(least, sums[group].delay_s + sums[group].add_s)
            start = whole[group] if self._conditions.overlap else max(whole[group], self._ends_s[worker])
            voted = max(voted, start + reads + least)
        return voted


def _add(
    links: dict[tuple[WorkerId, WorkerId], tuple[float, float, float]],
    link: tuple[WorkerId, WorkerId],
    start: float,
    carried: float,
    after: float,
) -> None:
    least_start, total, least_after = links.get(link, (start, 0.0, after))
    links[link] = min(least_start, start), total + carried, min(least_after, after)


def least_rerouted_s(
    profile: ModelProfile, pipelines: Sequence[Pipeline], num_microbatches: int, *, highest_speed: float = 1.0
) -> float:
    """Returns the seconds that a step takes at least on these stages, whatever the routes and the orders of work.

    For each range of layers: the forward of what is below it, and all microbatches' compute on it, in equal parts on
    all workers that own any of it, on the most devices that one of them has. Where no stage begins or ends in the
    range, a microbatch is not cut there: the busiest has a whole number of them. Then the vote. Sums, messages and the
    optimizer count as nothing, so where these take long the bound is far off; and all workers as fast as the fastest.
    """
    stages = [stage for pipeline in pipelines for stage in pipeline.stages]
    widest = max(stage.num_devices for stage in stages)
    times = [layer.on(widest) for layer in profile.layers]
    forward = [0.0, *accumulate(t.forward_s for t in times)]
    compute = [0.0, *accumulate(t.forward_s + t.backward_s for t in times)]
    cuts = sorted({0, profile.num_layers} | {cut for s in stages for cut in (s.first_layer, s.end_layer)})
    longest = 0.0
    for at, first in enumerate(cuts[:-1]):
        for end in cuts[at + 1 :]:
            owners = len(_owners(stages, first, end))
            if not owners:
                continue
            busiest = num_microbatches / owners
            if end == cuts[at + 1]:
                busiest = -(-num_microbatches // owners)
            longest = max(longest, forward[first] + busiest * (compute[end] - compute[first]))
    return longest / highest_speed + profile.step.vote_s


def _owners(stages: Sequence[Stage], first: int, end: int) -> set[int]:
    return {stage.worker for stage in stages if stage.first_layer < end and stage.end_layer > first}
