"""Pipeline templates: for each number of nodes, the split of the layers into stages that is best.

Source: Oobleck, section 4.1. Its divide and conquer is replaced by searches that are exact or say how far they can be
from it, and its N_b = 4S, unless asked for, by one number of microbatches, so that templates are compared on equal
work.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from planaria.plan.compiled import Work
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.pipeline_time import Chain, Floats, Template, TemplateStage
from planaria.plan.costs.stage_costs import StageCosts, pipeline_cost
from planaria.plan.errors import NeedsMoreNodes
from planaria.plan.plan import PlanError
from planaria.plan.quantities import count, size
from planaria.plan.settings import Objective, PlannerSettings
from planaria.plan.thresholds import (
    FEW_STATE_LIMITS,
    FULL_BUDGETS,
    MANY_SIZES,
    RANGE_CANDIDATES,
    SPLIT_BUDGET,
    STATE_LIMITS,
)
from planaria.planner.templates.oobleck import OobleckSearch
from planaria.planner.templates.split_dp import expected_s, fewest_stages
from planaria.planner.templates.split_scores import Shared
from planaria.planner.templates.split_search import Found, StepTimeSearch
from planaria.planner.templates.splits import Space, Split, spaces


def make_templates(
    profile: ModelProfile, settings: PlannerSettings, without: Collection[int] = ()
) -> tuple[Template, ...]:
    """Returns templates for n0, n0 + 1, ... min(N - f n0, what layers allow) nodes, fewest first (Oobleck, 4.1.1).

    A number of nodes above n0 whose every split breaks the memory limit has no template. None has more nodes than the
    shape that is asked for.

    Args:
        profile: what layers and links cost.
        settings: what the job asks of its plans.
        without: numbers of nodes of which no template is asked for.

    Raises:
        PlanError: the model does not fit, or f + 1 replicas do not.
    """
    is_tight = settings.shadows and settings.memory_bytes > 0
    if is_tight:
        return _with_shadows(profile, settings, without)
    search = _Search.of(profile, settings)
    _check_shape(settings, search.sizes)
    sizes = [nodes for nodes in search.sizes if nodes not in without]
    return tuple(_template(profile, settings, nodes, search.best(nodes)) for nodes in sizes)


def of_shape(templates: Sequence[Template], num_nodes: int, settings: PlannerSettings) -> Sequence[Template]:
    """Returns the one template that is asked for, where so many nodes are enough for as many pipelines of it as are
    asked for; else all."""
    if settings.shape is None or not settings.is_enough(num_nodes):
        return templates
    return [template for template in templates if template.num_nodes == settings.shape[1]]


def fewest_nodes(profile: ModelProfile, settings: PlannerSettings) -> int:
    """Returns n0, the fewest nodes onto which some split fits.

    Raises:
        PlanError: the model does not fit.
    """
    smallest, _ = _node_counts(profile, settings, spaces(profile, settings))
    return smallest


def _with_shadows(profile: ModelProfile, settings: PlannerSettings, without: Collection[int]) -> tuple[Template, ...]:
    """Returns the best templates with stages of at most so much state, each with room for as much of another's, for
    several such limits. One for which only uneven states would fit may be missed; bounds are those without shadows.
    """
    plain = _Search.of(profile, dataclasses.replace(settings, shadows=False), num_calls=1 + STATE_LIMITS)
    limits = _largest_states(profile, STATE_LIMITS if len(plain.sizes) <= MANY_SIZES else FEW_STATE_LIMITS)
    searches: list[_Search] = []
    for largest_state in limits:
        with contextlib.suppress(PlanError):  # not with this limit
            searches.append(_Search.of(profile, settings, largest_state))
    sizes = sorted({nodes for search in searches for nodes in search.sizes})
    if not sizes:
        raise PlanError(
            f"No split onto {count(settings.num_nodes, 'node')} leaves every worker room for a shadow of its "
            f"successor's state on devices of {size(settings.memory_bytes)}. Use more nodes or devices with more "
            "memory, or plan without shadows."
        )
    _check_shape(settings, sizes)
    most = settings.largest - settings.fault_tolerance * sizes[0]
    made = []
    for nodes in sizes:
        if nodes <= most and nodes not in without:
            shared = Shared()
            bound_s = plain.best(nodes, shared).lower_bound_s if nodes in plain.sizes else 0.0
            founds = [search.best(nodes, shared) for search in searches if nodes in search.sizes]
            found = min(founds, key=lambda found: found.time_s)
            made.append(_template(profile, settings, nodes, dataclasses.replace(found, lower_bound_s=bound_s)))
    return tuple(made)


def _largest_states(profile: ModelProfile, count: int) -> list[int]:
    """Returns limits on a stage's state worth a try, from the largest layer's to the model's, in equal ratios."""
    costs = StageCosts(profile)
    least = max(costs.state_bytes(layer, layer + 1) for layer in range(profile.num_layers))
    most = costs.state_bytes(0, profile.num_layers)
    ratio = (most / max(least, 1)) ** (1 / (count - 1))
    return sorted({least, most, *(round(least * ratio**step) for step in range(count))})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """Search for the best splits onto some numbers of nodes.

    Attributes:
        settings: what the job asks of its plans.
        space_of: see `spaces`.
        sizes: the numbers of nodes that a template may have.
        work: of all these searches.
    """

    settings: PlannerSettings
    space_of: Callable[[int], Space]
    sizes: Sequence[int]
    work: Work

    @classmethod
    def of(
        cls, profile: ModelProfile, settings: PlannerSettings, largest_state: int | None = None, num_calls: int = 1
    ) -> _Search:
        """Makes the search. `largest_state`: see `make_space`; `num_calls`: of this one and those that follow.

        Raises:
            PlanError: the model or f + 1 replicas of it do not fit.
        """
        space_of = spaces(profile, settings, largest_state)
        smallest, fitting = _node_counts(profile, settings, space_of)
        check_replicas(settings.num_nodes, smallest, settings.fault_tolerance)
        most = settings.largest - settings.fault_tolerance * smallest
        if settings.shape is not None:
            most = min(most, settings.shape[1])
        sizes = [nodes for nodes in fitting if smallest <= nodes <= most]
        ahead_s = sum(expected_s(space_of(nodes), nodes, each) for nodes in sizes for each in settings.shares)
        return cls(settings=settings, space_of=space_of, sizes=sizes, work=Work(ahead_s * num_calls))

    def best(self, nodes: int, shared: Shared | None = None) -> Found:
        """Returns the best split onto one of these numbers of nodes; `shared`: with other searches for as many."""
        share = min(1.0, FULL_BUDGETS / len(self.sizes))
        return _best(self.space_of(nodes), self.settings, nodes, share, self.work, shared)


def _best(
    space: Space, settings: PlannerSettings, nodes: int, share: float, work: Work, shared: Shared | None
) -> Found:
    """Returns the best split onto so many nodes; some is known to fit. `share`: of one template's budget."""
    if settings.objective is Objective.OOBLECK:
        found = OobleckSearch(space, nodes, work).run()
        assert found is not None, f"a split onto {nodes} nodes fits, and none was found"
        return Found(split=found[0], time_s=found[1], lower_bound_s=found[1])
    budget = SPLIT_BUDGET * (20 if settings.thorough else share)
    searches = [
        StepTimeSearch(
            space, nodes, share, work=work, budget=budget, shared=shared, only_best=len(settings.shares) == 1
        )
        for share in settings.shares
    ]
    founds = [search.run() for search in searches]
    if len(founds) == 1:
        assert founds[0] is not None, f"a split onto {nodes} nodes fits, and none was found"
        return founds[0]
    candidates = {split for search in searches for split in search.scored[:RANGE_CANDIDATES]}
    bounds = [found.lower_bound_s for found in founds if found is not None]
    worst: dict[Split, tuple[float, float, float]] = {}
    for split in candidates:
        own = [search.time_s(split) for search in searches]
        worst[split] = max((time / bound, time, bound) for time, bound in zip(own, bounds, strict=True))
    chosen = min(candidates, key=lambda split: (worst[split][0], split))
    return Found(split=chosen, time_s=worst[chosen][1], lower_bound_s=worst[chosen][2])


def _template(profile: ModelProfile, settings: PlannerSettings, nodes: int, best: Found) -> Template:
    stages: list[TemplateStage] = []
    used = first = 0
    for end, devices in best.split:
        node = used // settings.devices_per_node
        stages.append(TemplateStage(first_layer=first, end_layer=end, node=node, num_devices=devices))
        first, used = end, used + devices
    chain = stage_chain(profile, settings, stages)
    return Template(
        num_nodes=nodes,
        stages=tuple(stages),
        step_time_s=chain.time_s(settings.shares[-1]),
        cost=pipeline_cost(
            profile, ((s.first_layer, s.end_layer) for s in stages), ((s.node, s.num_devices) for s in stages)
        ),
        chain=chain,
        objective_s=best.time_s,
        lower_bound_s=0.0 if settings.schedule.splits_backward else best.lower_bound_s,
    )


def stage_chain(profile: ModelProfile, settings: PlannerSettings, stages: Sequence[TemplateStage]) -> Chain:
    """Returns the chain of the stages' times, as the event simulation adds them up."""
    costs = StageCosts(profile)
    return Chain(
        forward_s=tuple(costs.forward_s(s.first_layer, s.end_layer, s.num_devices) for s in stages),
        backward_s=tuple(costs.backward_s(s.first_layer, s.end_layer, s.num_devices) for s in stages),
        link_s=tuple(costs.link_s(b.first_layer, same_node=a.node == b.node) for a, b in pairwise(stages)),
        schedule=settings.schedule,
        overlap=settings.overlap,
    )


def _node_counts(
    profile: ModelProfile, settings: PlannerSettings, space_of: Callable[[int], Space]
) -> tuple[int, list[int]]:
    """Returns n0, and all numbers of nodes onto which some split fits, as far as they are asked for."""
    per_node = settings.devices_per_node
    stages = _stages_per_node(space_of(settings.largest))
    most = profile.num_layers // stages
    if most == 0:
        raise PlanError(
            f"A node's {per_node} devices need {stages} layers, and the model has {profile.num_layers}: a "
            f"{'device' if stages == per_node else 'stage'} runs at least one. "
            f"Set devices_per_node = {profile.num_layers * per_node // stages} or less, or more devices_per_stage."
        )
    if settings.min_nodes > most:
        raise PlanError(
            f"Pipelines of {settings.min_nodes} nodes with {per_node} devices each need "
            f"{settings.min_nodes * stages} layers, and the model has {profile.num_layers}. "
            f"Set min_nodes_per_pipeline = {most} or less."
        )
    fitting: list[int] = []
    for wanted in sorted({min(most, max(settings.largest, settings.min_nodes)), most}):
        fitting = _fitting(space_of, wanted)
        if fitting:
            break
    if not fitting:
        raise _does_not_fit(profile, settings, space_of(most))
    if 0 < settings.min_nodes < fitting[0]:
        raise NeedsMoreNodes(
            f"The model does not fit on {count(settings.min_nodes, 'node')} with "
            f"{count(per_node, 'device')} of {size(settings.memory_bytes)} each; it needs {fitting[0]}. "
            f"Set min_nodes_per_pipeline = {fitting[0]}, or 0."
        )
    return max(fitting[0], settings.min_nodes), fitting


def _fitting(space_of: Callable[[int], Space], most: int) -> list[int]:
    """Returns the numbers of nodes, up to the most, onto which some split fits."""
    fewest: dict[int, Floats] = {}
    found, work = [], Work()
    for nodes in range(1, most + 1):
        space = space_of(nodes)
        if space.limited and id(space) not in fewest:
            is_last = space is space_of(most)
            fewest[id(space)] = fewest_stages(space, most if is_last else nodes, work)
        if not space.limited or fewest[id(space)][nodes] < np.inf:
            found.append(nodes)
    return found


def _stages_per_node(space: Space) -> int:
    """Returns the fewest stages that use all devices of a node.

    Raises:
        PlanError: the profile's device counts do not add up to a node's devices.
    """
    fewest = [0] + [1 << 30] * space.per_node
    for devices in range(1, space.per_node + 1):
        fewest[devices] = min((fewest[devices - d] + 1 for d in space.counts.tolist() if d <= devices), default=1 << 30)
    if fewest[-1] > space.per_node:
        counts = ", ".join(str(d) for d in space.counts.tolist()) or "none that may be used"
        raise PlanError(
            f"A node has {count(space.per_node, 'device')}, and stages of the device counts in the profile ({counts}) "
            "cannot use them all. Profile the layers on 1 device too, or change devices_per_node."
        )
    return fewest[-1]


def _check_shape(settings: PlannerSettings, sizes: Sequence[int]) -> None:
    """Raises PlanError: there is no template of the nodes that pipelines are to have."""
    if settings.shape is None or settings.shape[1] in sizes:
        return
    nodes = settings.shape[1]
    limit = f" of devices of {size(settings.memory_bytes)}" if settings.memory_bytes else ""
    known = f"{sizes[0]} to {sizes[-1]}" if sizes else "none"
    raise PlanError(
        f"The model cannot be cut onto {count(nodes, 'node')}{limit}; of the numbers of nodes up to that, {known} can "
        "be had. Set another nodes_per_pipeline, or leave it out."
    )


def _does_not_fit(profile: ModelProfile, settings: PlannerSettings, space: Space) -> PlanError:
    costs, widest = StageCosts(profile, settings.schedule), int(space.counts[-1])
    needs = [costs.memory_bytes(layer, layer + 1, 1, widest) for layer in range(profile.num_layers)]
    largest = max(range(profile.num_layers), key=lambda layer: (needs[layer], -layer))
    if needs[largest] > settings.memory_bytes:
        return PlanError(
            f"Layer {largest} ({profile.layers[largest].name}) needs {size(needs[largest])} for its state "
            f"and one microbatch, and a device has {size(settings.memory_bytes)}. Use a smaller microbatch "
            "or shorter sequences, turn activation checkpointing on, or use devices with more memory."
        )
    state = costs.state_bytes(0, profile.num_layers)
    one = sum(layer.activation_bytes for layer in profile.layers)
    return PlanError(
        f"The model needs {size(state)} of state and {size(one)} of activations for each microbatch in "
        f"flight, and no split of its {profile.num_layers} layers fits devices of "
        f"{size(settings.memory_bytes)}. Use a smaller microbatch, turn activation checkpointing on, "
        "or use devices with more memory."
    )


def check_replicas(num_nodes: int, smallest: int, fault_tolerance: int) -> None:
    """Raises an error unless `num_nodes` nodes hold f + 1 replicas of `smallest` nodes each.

    Raises:
        PlanError: they do not.
    """
    replicas = fault_tolerance + 1
    needed = replicas * smallest
    if num_nodes >= needed:
        return
    missing = needed - num_nodes
    remedy = f"Add {count(missing, 'node')}"
    if num_nodes >= smallest:
        remedy += f", or set fault_tolerance = {num_nodes // smallest - 1}"
    else:
        remedy += ", or use devices with more memory"
    raise NeedsMoreNodes(
        f"{count(num_nodes, 'node')} cannot hold {count(replicas, 'replica')} of "
        f"{count(smallest, 'node')} each ({needed} needed). {remedy}."
    )
