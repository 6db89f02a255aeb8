"""Reconfiguration: the plan for the steps after nodes were lost or came, with as little moved as can be.

Source: Oobleck, section 5. Takes effect between two steps; within a step, see `planaria.planner.finish_step.salvage`.
Each strategy (`simple`, `borrow`, `merge`, `full`) is a pure function from a `Change` to a plan; `reconfigure` takes
the first that applies, as the paper does, or searches them all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.pipeline_time import NodeSpeeds, Template
from planaria.plan.errors import NoReplica as NoReplica
from planaria.plan.errors import TooFewNodes as TooFewNodes
from planaria.plan.plan import NodeId, Plan
from planaria.plan.settings import PlannerSettings
from planaria.plan.thresholds import HARDLY_BETTER, STEPS_AHEAD
from planaria.planner.placement.senders import Holders
from planaria.planner.placement.zones import Zones
from planaria.planner.reconfigure.pipeline_sizes import How as How
from planaria.planner.reconfigure.pipeline_sizes import (
    Situation,
    borrow_sizes,
    merge_sizes,
    reinstantiate,
    simple_sizes,
)
from planaria.planner.reconfigure.surviving_plan import Change as Change
from planaria.planner.reconfigure.surviving_plan import Reconfiguration as Reconfiguration
from planaria.planner.reconfigure.surviving_plan import SurvivingPlan


def reconfigure(
    profile: ModelProfile,
    templates: Sequence[Template],
    settings: PlannerSettings,
    plan: Plan,
    lost: Collection[NodeId],
    holders: Holders,
    generation: int,
    leaving: Collection[NodeId] = (),
    *,
    joined: Collection[NodeId] = (),
    speeds: NodeSpeeds | None = None,
    zones: Zones | None = None,
    steps_ahead: int = STEPS_AHEAD,
) -> Reconfiguration:
    """Returns a plan for the live nodes: whole pipelines, at least f + 1, every microbatch once, every node used.

    The first of simple, borrow and merge that gives each pipeline a template; the full search where none does, or where
    more nodes came than fill the gaps. For the arguments see `Change`.

    Raises:
        TooFewNodes: fewer than (f + 1) n0 nodes are left.
        NoReplica: a group has no live holder.
        PlanError: fewer microbatches than pipelines needed; a speed that is none.
    """
    change = Change(
        profile=profile,
        templates=templates,
        settings=settings,
        plan=plan,
        lost=lost,
        holders=holders,
        generation=generation,
        leaving=leaving,
        joined=joined,
        speeds=speeds or {},
        zones=zones or {},
    )
    left = SurvivingPlan(change)
    found = reinstantiate(left.situation)
    if found is None:
        return best_of(left, searched(left), steps_ahead)
    sizes, how = found
    return left.build(sizes, how)


def simple(change: Change) -> Reconfiguration | None:
    """Returns the plan where pipelines take the template of their remaining nodes; None: no template, or replicas lack.

    Nodes that came fill gaps, make new pipelines, then make the smallest larger; intact pipelines stay otherwise.

    Raises:
        TooFewNodes, NoReplica, PlanError: as `reconfigure`.
    """
    return _by_sizes(change, simple_sizes, How.SIMPLE)


def borrow(change: Change) -> Reconfiguration | None:
    """Returns the plan of `simple`, with too small pipelines taking nodes from the largest; None: those have too few.

    Raises:
        TooFewNodes, NoReplica, PlanError: as `reconfigure`.
    """
    return _by_sizes(change, borrow_sizes, How.BORROW)


def merge(change: Change) -> Reconfiguration | None:
    """Returns the plan of `simple`, with too small pipelines merged into the smallest others; None: replicas lack then.

    Raises:
        TooFewNodes, NoReplica, PlanError: as `reconfigure`.
    """
    return _by_sizes(change, merge_sizes, How.MERGE)


def full(change: Change, steps_ahead: int = STEPS_AHEAD) -> Reconfiguration:
    """Returns the plan for which `steps_ahead` steps and the transfers before them take least, by prediction.

    Of: the three ways above; the best instantiation of the nodes that no intact pipeline has, and of those and the
    nodes of 1, 2, 4, ... and all of the largest intact ones; where speeds differ, the best grouping by speed. So it is
    never worse than the paper's ways, nor, for long enough, than the best step time.

    Args:
        change: what to plan from.
        steps_ahead: until the next change.

    Raises:
        TooFewNodes, NoReplica, PlanError: as `reconfigure`.
    """
    left = SurvivingPlan(change)
    return best_of(left, searched(left), steps_ahead)


def searched(left: SurvivingPlan) -> dict[tuple[int, ...], How]:
    """Returns the sizes of pipelines (0: none) of which a full search takes one, where nodes are equally fast; and how
    they came about.

    Raises:
        PlanError: there are none.
    """
    found: dict[tuple[int, ...], How] = {}
    for sizes, how in _candidates(left):
        found.setdefault(tuple(sizes), how)
    most = max(map(sum, found))
    return {sizes: how for sizes, how in found.items() if sum(sizes) == most}


def best_of(
    left: SurvivingPlan,
    found: Mapping[tuple[int, ...], How],
    steps_ahead: int,
    step_s: Callable[[tuple[int, ...]], float] | None = None,
) -> Reconfiguration:
    """Returns the plan of a full search: of those with these sizes, or grouped by speed.

    Args:
        left: of which the plans are made.
        found: sizes, and how they came about.
        steps_ahead: until the next change.
        step_s: gives a step's seconds with pipelines of these sizes, on nodes that are equally fast; None: without
            sums between pipelines.
    """
    if not left.speeds_differ:
        return _least(left, found, steps_ahead, step_s or left.step_s)
    results = [left.build(sizes, how) for sizes, how in found.items()]
    results.append(left.build_by_speed())
    most = max(len(result.plan.nodes) for result in results)
    return min(
        (result for result in results if len(result.plan.nodes) == most), key=lambda result: _cost(result, steps_ahead)
    )


def _by_sizes(change: Change, strategy: Callable[[Situation], list[int] | None], how: How) -> Reconfiguration | None:
    left = SurvivingPlan(change)
    sizes = strategy(left.situation)
    if sizes is None:
        return None
    return left.build(sizes, How.SIMPLE if sizes == simple_sizes(left.situation) else how)


def _cost(result: Reconfiguration, steps_ahead: int) -> tuple[float, int]:
    return steps_ahead * result.step_time_s + result.transfer_s, result.transfer_bytes


def _least(
    left: SurvivingPlan,
    found: Mapping[tuple[int, ...], How],
    steps_ahead: int,
    step_s: Callable[[tuple[int, ...]], float],
) -> Reconfiguration:
    """Returns the plan that takes least. Those are not made whose steps alone take nearly as long as all of another."""
    bounds = sorted((steps_ahead * step_s(sizes), at, sizes) for at, sizes in enumerate(found))
    costs: list[tuple[float, int, int]] = []
    results: list[Reconfiguration] = []
    for seconds, at, sizes in bounds:
        if costs and seconds > HARDLY_BETTER * min(costs)[0]:
            break
        results.append(left.build(sizes, found[sizes]))
        costs.append((seconds + results[-1].transfer_s, results[-1].transfer_bytes, at))
    return results[costs.index(min(costs))]


def _candidates(left: SurvivingPlan) -> Iterator[tuple[list[int], How]]:
    """Yields sizes worth a try. The last is the best instantiation of all nodes."""
    paper = reinstantiate(left.situation)
    if paper is not None:
        yield paper
    for strategy, how in ((simple_sizes, How.SIMPLE), (borrow_sizes, How.BORROW), (merge_sizes, How.MERGE)):
        sizes = strategy(left.situation)
        if sizes is not None:
            yield sizes, how
    intact = sorted((at for at, is_intact in enumerate(left.intact) if is_intact), key=lambda at: -left.alive[at])
    num_freed = 0
    while num_freed < len(intact):
        sizes = left.instantiated(intact[num_freed:])
        if sizes is not None:
            yield sizes, How.INSTANTIATE
        num_freed = max(1, 2 * num_freed)
    last = left.instantiated(())
    assert last is not None
    yield last, How.INSTANTIATE
