"""Pipeline flow: a pipeline's forwards, backwards and messages in virtual time, without its workers' programs.

What `planaria.estimate.flow` makes of the programs of a way whose workers serve no other one, to the last bit and far
faster: microbatches differ only in when they come, and in what their route counts. Owns nothing of the order of work,
which is that of `planaria.plan.program`, and must give the same results as the programs do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from planaria.estimate.durations import Durations
from planaria.estimate.pipeline_rounds import Rounds
from planaria.estimate.pipeline_stages import Stages
from planaria.plan.plan import Plan, Route, WorkerId
from planaria.plan.program.hops import RouteHop, route_hops
from planaria.plan.program.instructions import Instruction, Op
from planaria.plan.program.redundant_compute import forwards_at_first, forwards_before, is_worth
from planaria.plan.program.routes import PipelineRoutes


class WorkerFlow(msgspec.Struct, frozen=True, kw_only=True):
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


def is_plain(plan: Plan, path: PipelineRoutes) -> bool:
    """Whether `run_pipeline` can run it: nothing was done before a loss; and where backwards are split, or workers
    compute what they shadow, all microbatches count the same, and nobody shadows backwards."""
    if any(route.reached is not None for route in (*path.routes, *path.shadowed_routes)):
        return False
    if plan.redundancy is None and not plan.schedule.splits_backward:
        return True
    backwards = plan.redundancy is not None and plan.redundancy.runs_backwards
    return len(path.routes) == 1 and len(path.shadowed_routes) <= 1 and not backwards


def run_pipeline(
    plan: Plan, path: PipelineRoutes, durations: Durations, *, overlap: bool, stages: Stages | None = None
) -> PipelineFlow:
    """Only for a plain path.

    Args:
        plan: whose path it is.
        path: the pipeline, and what it carries.
        durations: of the plan.
        overlap: whether messages travel beside the sender's compute.
        stages: of its hops, or of those of a pipeline like it; None: they are not known.
    """
    stages = Stages(plan, path.hops, durations) if stages is None else stages
    ends_s, computes_s, longest_s, layers_s = rounds_of(plan, path, durations, stages).run(overlap=overlap)
    parts = []
    for place, begin in enumerate(stages.times_s[-1]):
        due_s = {group: max([begin, *[layers_s[layer] for layer in own]]) for group, own in stages.groups[place]}
        parts.append(
            WorkerFlow(end_s=ends_s[place], compute_s=computes_s[place], due_s=due_s, longest_s=longest_s[place])
        )
    return PipelineFlow(parts=tuple(parts))


def rounds_of(plan: Plan, path: PipelineRoutes, durations: Durations, stages: Stages) -> Rounds:
    """What `run_pipeline` runs."""
    routes, num_stages = path.routes, len(path.hops)
    kinds = order_of(routes)
    ahead = stages.ahead(len(kinds))
    backwards = [stages.backwards(route.counted) for route in routes]
    backwards_s = [list(own.seconds) for own in backwards]
    is_split = [False] * num_stages
    behind, weights_s = [-1] * num_stages, [0.0] * num_stages
    tails, tails_s, tail_layers = [(0, 0)] * num_stages, list[float](), list[int]()
    shadows_s, shadows = [0.0] * num_stages, list[list[int]]()
    front = None
    if plan.redundancy is not None or plan.schedule.splits_backward:
        (way,) = [route_hops(route, split=plan.schedule.splits_backward) for route in routes]
        for place, leg in enumerate(way):
            first = len(tail_layers)
            if leg.has_weight:
                is_split[place] = True
                backwards_s[0][place] = _inputs_s(durations, leg)
                behind[place] = plan.schedule.weights_behind(place)
                weights_s[place] = _weights_s(durations, leg.worker, leg.counted)
                tail_layers += reversed(leg.counted)
                tails_s += [_weights_s(durations, leg.worker, (layer,)) for layer in reversed(leg.counted)]
            tails[place] = first, len(tail_layers)
        shadows_s, shadows = _shadows(plan, path, way, ahead, durations)
    elif kinds and stages.counts_all(routes[kinds[0]].counted):
        front = stages.front
    cuts: list[tuple[int, int, int, int]] = []
    pieces_s: list[float] = []
    pieces: list[int] = []
    for place, number, at in _cuts(stages, routes, kinds):
        if not is_split[place]:
            seconds, layers = stages.pieces(place, routes[at].counted)
            cuts.append((place, number, len(pieces), len(pieces) + len(layers)))
            pieces_s += seconds
            pieces += layers
    return Rounds(
        stages_s=stages.times_s,
        ahead=ahead,
        kinds=kinds,
        backwards_s=backwards_s,
        lows=[own.low for own in backwards],
        cuts=cuts,
        pieces_s=pieces_s,
        pieces=pieces,
        num_layers=plan.num_layers,
        behind=behind,
        weights_s=weights_s,
        tails=tails,
        tails_s=tails_s,
        tail_layers=tail_layers,
        shadows_s=shadows_s,
        shadows=shadows,
        front=front,
    )


def order_of(routes: Sequence[Route]) -> list[int]:
    """Of a pipeline's microbatches, in the order in which they set out, the numbers of their routes."""
    together: dict[int, list[int]] = {}
    for at, route in enumerate(routes):
        together.setdefault(route.born, []).append(at)
    order: list[int] = []
    for born in sorted(together):
        first, *others = together[born]
        if not others:
            order += [first] * len(routes[first].microbatches)
            continue
        travellers = sorted([(microbatch, at) for at in together[born] for microbatch in routes[at].microbatches])
        order += [at for _, at in travellers]
    return order


def _cuts(stages: Stages, routes: Sequence[Route], kinds: Sequence[int]) -> list[tuple[int, int, int]]:
    """Stage, microbatch and its route's number of all backwards that are cut into layers, in this order: those of the
    last microbatch to count a layer, of those born together."""
    last_of = {at: number for number, at in enumerate(kinds)}
    later: dict[int, int] = {}
    found: list[tuple[int, int, int]] = []
    for at in sorted(last_of, key=last_of.__getitem__, reverse=True):
        born, counted = routes[at].born, stages.backwards(routes[at].counted).counted
        last = counted & ~later.get(born, 0)
        later[born] = later.get(born, 0) | counted
        found += [(place, last_of[at], at) for place, layers in enumerate(stages.layers) if layers & last]
    found.sort()
    return found


def _shadows(
    plan: Plan, path: PipelineRoutes, way: Sequence[RouteHop], ahead: Sequence[int], durations: Durations
) -> tuple[list[float], list[list[int]]]:
    """Of each stage a forward of what it shadows, and how many are done when; see `Rounds`."""
    none = [0.0] * len(way)
    if plan.redundancy is None or not plan.redundancy.runs_forwards:
        return none, []
    last, num = len(way) - 1, len(path.travellers)
    seconds, rows = list(none), []
    for place, leg in enumerate(way):
        following = (place + 1) % len(way)
        shadowed, number = way[following], num if path.redundant_workers[following] == leg.worker else 0
        if path.shadowed_routes:
            (route,) = path.shadowed_routes
            (shadowed,), number = route_hops(route, split=plan.schedule.splits_backward), len(route.microbatches)
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


def _inputs_s(durations: Durations, leg: RouteHop) -> float:
    instruction = Instruction(op=Op.BACKWARD_INPUT, first_layer=leg.low_layer, end_layer=leg.end_layer)
    return durations.compute_s(leg.worker, instruction)


def _weights_s(durations: Durations, worker: WorkerId, counted: tuple[int, ...]) -> float:
    instruction = Instruction(op=Op.BACKWARD_WEIGHT, first_layer=counted[0], end_layer=counted[-1] + 1, counted=counted)
    return durations.compute_s(worker, instruction)
