"""Pipeline flow: a pipeline's forwards, backwards and messages in virtual time, without its workers' programs.

What `planaria.estimate.flow` makes of the programs of a way whose workers serve no other one, to the last bit and far
faster: microbatches differ only in when they come, and in what their route counts. Owns nothing of the order of work,
which is that of `planaria.plan.schedule`, and must give the same results as the programs do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from planaria.estimate.durations import Durations
from planaria.estimate.pipeline_rounds import Rounds
from planaria.plan.plan import Plan, Route, Stage, WorkerId
from planaria.plan.program import Instruction, Op
from planaria.plan.schedule import Path
from planaria.plan.stand_in import forwards_at_first, forwards_before, is_worth
from planaria.plan.work import Leg, legs, merge_hops


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFlow:
    """Of one worker of a pipeline, in seconds from the step's beginning.

    Attributes:
        end_s: the end of its last compute (or message, where its sends block).
        compute_s: seconds that it computes.
        due_s: of each of its groups, when its gradients are whole.
        longest_s: of its longest forward or backward.
    """

    end_s: float
    compute_s: float
    due_s: dict[int, float]
    longest_s: float


@dataclass(frozen=True, kw_only=True)
class PipelineFlow:
    """Of a pipeline.

    Attributes:
        parts: its workers', from the first stage to the last.
    """

    parts: tuple[WorkerFlow, ...]

    @cached_property
    def compute_s(self) -> tuple[float, ...]:
        """Of each worker."""
        return tuple(part.compute_s for part in self.parts)

    @cached_property
    def due_s(self) -> dict[int, float]:
        """Of each group, when its gradients are whole at all of the pipeline's workers."""
        due_s: dict[int, float] = {}
        for part in self.parts:
            for group, due in part.due_s.items():
                due_s[group] = max(due_s.get(group, 0.0), due)
        return due_s

    @cached_property
    def longest_s(self) -> float:
        """Of its longest forward or backward."""
        return max(part.longest_s for part in self.parts)

    @cached_property
    def ends_s(self) -> tuple[tuple[tuple[int, ...], float], ...]:
        """Of each worker, its groups and the end of its last compute."""
        return tuple((tuple(part.due_s), part.end_s) for part in self.parts)


def is_plain(plan: Plan, path: Path) -> bool:
    """Whether `run_pipeline` can run it: nothing was done before a loss; and where backwards are split, or workers
    compute what they shadow, all microbatches count the same, and nobody shadows backwards."""
    if any(route.reached is not None for route in (*path.routes, *path.following)):
        return False
    if plan.redundancy is None and not plan.schedule.splits_backward:
        return True
    backwards = plan.redundancy is not None and plan.redundancy.runs_backwards
    return len(path.routes) == 1 and len(path.following) <= 1 and not backwards


def run_pipeline(plan: Plan, path: Path, durations: Durations, *, overlap: bool) -> PipelineFlow:
    """Only for a plain path."""
    rounds = rounds_of(plan, path, durations)
    begins_s = rounds.stages_s[-1]
    ends_s, computes_s, longest_s, layers_s = rounds.run(overlap=overlap)
    parts = []
    for place, hop in enumerate(path.hops):
        begin = begins_s[place]
        due_s = {
            group: max([begin, *(layers_s[layer] for layer in plan.groups[group].layers if layer in hop.layers)])
            for group in plan.groups_of[hop.worker]
        }
        parts.append(
            WorkerFlow(end_s=ends_s[place], compute_s=computes_s[place], due_s=due_s, longest_s=longest_s[place])
        )
    return PipelineFlow(parts=tuple(parts))


def rounds_of(plan: Plan, path: Path, durations: Durations) -> Rounds:
    """What `run_pipeline` runs."""
    hops, routes, travellers = path.hops, path.routes, path.travellers
    last = len(hops) - 1
    ways = [legs(route, hops, split=plan.schedule.splits_backward) for route in routes]
    is_split = [ways[0][place].has_weight for place in range(len(hops))]
    forwards_s, down_s, up_s = [], [0.0] * len(hops), [0.0] * len(hops)
    for place, hop in enumerate(hops):
        forwards_s.append(durations.compute_of_s(hop.worker, Op.FORWARD, hop.first_layer, hop.end_layer))
        if place < last:
            down_s[place] = durations.message_s(hop.worker, hops[place + 1].worker, hop.end_layer)
        if place:
            up_s[place] = durations.message_s(hop.worker, hops[place - 1].worker, hop.first_layer)
    cuts: list[tuple[int, int, int, int]] = []
    pieces_s: list[float] = []
    pieces: list[int] = []
    last_of = _last_of(routes, travellers)
    for place, hop in enumerate(hops):
        if is_split[place]:
            continue
        for number in sorted({number for layer in hop.layers for number in last_of.get(layer, ())}):
            first, route = len(pieces), routes[travellers[number][2]]
            seconds, layers = durations.pieces_of(hop.worker, hop.first_layer, hop.end_layer, route.counted)
            pieces_s += seconds
            pieces += layers
            cuts.append((place, number, first, len(pieces)))
    ahead = [plan.schedule.forwards_ahead(last - place, len(travellers)) for place in range(len(hops))]
    tails: list[tuple[int, int]] = []
    tail_layers: list[int] = []
    tails_s: list[float] = []
    for leg in ways[0]:
        first = len(tail_layers)
        if leg.has_weight:
            tail_layers += reversed(leg.counted)
            tails_s += [_weights_s(durations, leg.worker, (layer,)) for layer in reversed(leg.counted)]
        tails.append((first, len(tail_layers)))
    shadows_s, shadows = _shadows(plan, path, ways[0], ahead, durations)
    return Rounds(
        stages_s=[forwards_s, down_s, up_s, [durations.late_s[hop.worker] for hop in hops]],
        ahead=ahead,
        kinds=[at for _, _, at in travellers],
        backwards_s=[
            [_inputs_s(durations, leg) if leg.has_weight else _whole_s(durations, hop, route) for hop, leg in pairs]
            for route, pairs in ((route, zip(hops, way, strict=True)) for route, way in zip(routes, ways, strict=True))
        ],
        lows=[next(place for place, hop in enumerate(hops) if hop.end_layer > route.counted[0]) for route in routes],
        cuts=cuts,
        pieces_s=pieces_s,
        pieces=pieces,
        num_layers=plan.num_layers,
        behind=[plan.schedule.weights_behind(leg.place) if leg.has_weight else -1 for leg in ways[0]],
        weights_s=[_weights_s(durations, leg.worker, leg.counted) if leg.has_weight else 0.0 for leg in ways[0]],
        tails=tails,
        tails_s=tails_s,
        tail_layers=tail_layers,
        shadows_s=shadows_s,
        shadows=shadows,
    )


def _shadows(
    plan: Plan, path: Path, way: Sequence[Leg], ahead: Sequence[int], durations: Durations
) -> tuple[list[float], list[list[int]]]:
    """Of each stage a forward of what it shadows, and how many are done when; see `Rounds`."""
    none = [0.0] * len(way)
    if plan.redundancy is None or not plan.redundancy.runs_forwards:
        return none, []
    last, num = len(way) - 1, len(path.travellers)
    seconds, rows = list(none), []
    for place, leg in enumerate(way):
        following = (place + 1) % len(way)
        shadowed, number = way[following], num if path.stand_ins[following] == leg.worker else 0
        if path.following:
            (route,) = path.following
            hops = merge_hops(route.hops)
            shadowed, number = legs(route, hops, split=plan.schedule.splits_backward)[0], len(route.microbatches)
        number = number if is_worth(shadowed) else 0
        late = min(place, number)
        row = [forwards_at_first(number, late, place, len(way))]
        for at in range(num):
            forwards = min(num, ahead[place] + at + 1)
            due = min(forwards_before(forwards, at, is_last=place == last), number - late)
            row.append(due if leg.keeps else 0)
        rows.append([*row, number])
        again = Instruction(op=Op.SHADOW_FORWARD, first_layer=shadowed.first_layer, end_layer=shadowed.end_layer)
        seconds[place] = durations.compute_s(leg.worker, again)
    return seconds, rows if any(row[-1] for row in rows) else []


def _last_of(routes: Sequence[Route], travellers: Sequence[tuple[int, int, int]]) -> dict[int, list[int]]:
    """Of each layer, which travellers are the last to count it, of those born together."""
    if len(routes) == 1:
        return {layer: [len(travellers) - 1] for layer in routes[0].counted} if travellers else {}
    number_of = {(born, microbatch): number for number, (born, microbatch, _) in enumerate(travellers)}
    last: dict[int, dict[int, int]] = {}
    for route in routes:
        if route.microbatches:
            for layer in route.counted:
                own = last.setdefault(layer, {})
                own[route.born] = max(own.get(route.born, -1), route.microbatches[-1])
    return {layer: [number_of[one] for one in own.items()] for layer, own in last.items()}


def _whole_s(durations: Durations, hop: Stage, route: Route) -> float:
    """A route's backward at a hop; 0 where it has none."""
    low, counted = route.counted[0], route.counted
    if hop.end_layer <= low:
        return 0.0
    own = counted[bisect_left(counted, hop.first_layer) : bisect_left(counted, hop.end_layer)]
    return _backward_s(durations, hop, max(hop.first_layer, low), hop.end_layer, own)


def _inputs_s(durations: Durations, leg: Leg) -> float:
    instruction = Instruction(op=Op.BACKWARD_INPUT, first_layer=leg.low_layer, end_layer=leg.end_layer)
    return durations.compute_s(leg.worker, instruction)


def _weights_s(durations: Durations, worker: WorkerId, counted: tuple[int, ...]) -> float:
    instruction = Instruction(op=Op.BACKWARD_WEIGHT, first_layer=counted[0], end_layer=counted[-1] + 1, counted=counted)
    return durations.compute_s(worker, instruction)


def _backward_s(durations: Durations, hop: Stage, first: int, end: int, counted: tuple[int, ...]) -> float:
    return durations.compute_of_s(hop.worker, Op.BACKWARD, first, end, counted)
