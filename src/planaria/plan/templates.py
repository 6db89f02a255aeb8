"""Pipeline templates: for each number of nodes, the split of the layers into stages that is fastest.

Source: Oobleck, section 4.1. Its divide and conquer is replaced by an exact dynamic program, and its N_b = 4S
by one fixed number of microbatches, so that templates are compared on equal work.
"""

from __future__ import annotations

from dataclasses import dataclass

from planaria.plan.costs import PipelineCost, StageCosts
from planaria.plan.plan import PlanError
from planaria.plan.profile import ModelProfile
from planaria.plan.settings import PlannerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateStage:
    """A stage of a template; `node` counts from 0 within the template."""

    first_layer: int
    end_layer: int
    node: int
    num_devices: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A pipeline shape for `num_nodes` nodes.

    Attributes:
        num_nodes: nodes that it takes.
        stages: in layer order; the stages of a node are neighbours.
        step_time_s: for the share of microbatches that templates are shaped for
            (`PlannerSettings.microbatches_per_pipeline`).
        cost: its time for any number of microbatches.
    """

    num_nodes: int
    stages: tuple[TemplateStage, ...]
    step_time_s: float
    cost: PipelineCost

    def time_s(self, num_microbatches: int) -> float:
        return self.cost.time_s(num_microbatches)

    def stages_of(self, node: int) -> tuple[TemplateStage, ...]:
        """The stages on the template's node `node`, one a device."""
        return tuple(stage for stage in self.stages if stage.node == node)


@dataclass(frozen=True, slots=True)
class _Split:
    """A way to cut layers [u, L): worst period, time on links, unevenness, first cut and what follows it."""

    period_s: float
    links_s: float
    unevenness: float
    cut: int
    rest: _Split | None

    def ranges(self, first: int) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        split: _Split | None = self
        while split is not None:
            ranges.append((first, split.cut))
            first, split = split.cut, split.rest
        return ranges


class _Splits:
    """The splits of every suffix of the layers into k stages that no other split beats both in period and
    links.

    Going from the last stage up, a stage's place from the end is known, so is the number of microbatches that
    it keeps in flight under 1F1B, and so its memory. One table serves all templates.
    """

    def __init__(self, profile: ModelProfile, settings: PlannerSettings) -> None:
        self._costs = StageCosts(profile)
        self._num_layers = profile.num_layers
        self._memory = settings.memory_bytes
        self._schedule = settings.schedule
        self._share = settings.microbatches_per_pipeline
        end = _Split(0.0, 0.0, 0.0, profile.num_layers, None)
        self._levels: list[dict[int, list[_Split]]] = [{profile.num_layers: [end]}]

    def best(self, num_stages: int) -> tuple[list[tuple[int, int]], PipelineCost] | None:
        """The fastest split of all layers into `num_stages` stages, or None where none fits the memory."""
        while len(self._levels) <= num_stages:
            self._levels.append(self._next_level(len(self._levels)))
        splits = self._levels[num_stages].get(0)
        if not splits:
            return None
        total = self._costs.compute_s(0, self._num_layers)

        def step_time(split: _Split) -> float:
            return total + split.links_s + (self._share - 1) * split.period_s

        chosen = min(splits, key=lambda split: (step_time(split), split.unevenness, split.period_s))
        cost = PipelineCost(period_s=chosen.period_s, path_s=total + chosen.links_s)
        return chosen.ranges(0)[:num_stages], cost

    def _next_level(self, k: int) -> dict[int, list[_Split]]:
        level: dict[int, list[_Split]] = {}
        below = self._levels[k - 1]
        for first in range(self._num_layers - k + 1):
            candidates: list[_Split] = []
            for cut in range(first + 1, self._num_layers - k + 2):
                if not self._fits(first, cut, self._schedule.in_flight(k - 1, self._share)):
                    break
                period, links = self._costs.period_s(first, cut), 2 * self._costs.link_s(cut)
                compute = self._costs.compute_s(first, cut)
                candidates.extend(
                    _Split(
                        max(period, rest.period_s),
                        links + rest.links_s,
                        compute * compute + rest.unevenness,
                        cut,
                        rest,
                    )
                    for rest in below.get(cut, ())
                )
            if candidates:
                level[first] = _undominated(candidates)
        return level

    def _fits(self, first: int, end: int, in_flight: int) -> bool:
        return not self._memory or self._costs.memory_bytes(first, end, in_flight) <= self._memory


def _undominated(splits: list[_Split]) -> list[_Split]:
    kept: list[_Split] = []
    for split in sorted(splits, key=lambda s: (s.period_s, s.links_s, s.unevenness, s.cut)):
        if not kept or split.links_s < kept[-1].links_s:
            kept.append(split)
    return kept


def minimum_nodes(profile: ModelProfile, settings: PlannerSettings) -> int:
    """n0: nodes of the smallest pipeline, from the memory or, if it asks for more, from `settings.min_nodes`.

    Raises:
        PlanError: the model does not fit on any number of nodes.
    """
    return _minimum_nodes(profile, settings, _Splits(profile, settings))


def _minimum_nodes(profile: ModelProfile, settings: PlannerSettings, splits: _Splits) -> int:
    per_node = settings.devices_per_node
    most = profile.num_layers // per_node
    if most == 0:
        raise PlanError(
            f"A node's {per_node} devices need {per_node} layers, and the model has {profile.num_layers}: a "
            f"device runs at least one. Set devices_per_node = {profile.num_layers} or less."
        )
    if settings.min_nodes > most:
        raise PlanError(
            f"Pipelines of {settings.min_nodes} nodes with {per_node} devices each need "
            f"{settings.min_nodes * per_node} layers, and the model has {profile.num_layers}. "
            f"Set min_nodes_per_pipeline = {most} or less."
        )
    for nodes in range(1, most + 1):
        if splits.best(nodes * per_node) is not None:
            if 0 < settings.min_nodes < nodes:
                raise PlanError(
                    f"The model does not fit on {_count(settings.min_nodes, 'node')} with "
                    f"{_count(per_node, 'device')} of {_size(settings.memory_bytes)} each; it needs {nodes}. "
                    f"Set min_nodes_per_pipeline = {nodes}, or 0."
                )
            return max(nodes, settings.min_nodes)
    raise _does_not_fit(profile, settings)


def _does_not_fit(profile: ModelProfile, settings: PlannerSettings) -> PlanError:
    costs = StageCosts(profile)
    needs = [costs.memory_bytes(layer, layer + 1, 1) for layer in range(profile.num_layers)]
    largest = max(range(profile.num_layers), key=lambda layer: (needs[layer], -layer))
    if needs[largest] > settings.memory_bytes:
        return PlanError(
            f"Layer {largest} ({profile.layers[largest].name}) needs {_size(needs[largest])} for its state "
            f"and one microbatch, and a device has {_size(settings.memory_bytes)}. Use a smaller microbatch "
            "or shorter sequences, turn activation checkpointing on, or use devices with more memory."
        )
    state = costs.state_bytes(0, profile.num_layers)
    one = sum(layer.activation_bytes for layer in profile.layers)
    return PlanError(
        f"The model needs {_size(state)} of state and {_size(one)} of activations for each microbatch in "
        f"flight, and no split of its {profile.num_layers} layers fits devices of "
        f"{_size(settings.memory_bytes)}. Use a smaller microbatch, turn activation checkpointing on, "
        "or use devices with more memory."
    )


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:.2f} MB"


def make_templates(profile: ModelProfile, settings: PlannerSettings) -> tuple[Template, ...]:
    """Templates for n0, n0 + 1, ... min(N - f n0, L / M) nodes, fewest nodes first (Oobleck, section 4.1.1).

    A number of nodes above n0 whose every split breaks the memory limit has no template.

    Raises:
        PlanError: the model does not fit, or f + 1 replicas do not.
    """
    splits = _Splits(profile, settings)
    smallest = _minimum_nodes(profile, settings, splits)
    check_replicas(settings.num_nodes, smallest, settings.fault_tolerance)
    most = settings.num_nodes - settings.fault_tolerance * smallest
    templates: list[Template] = []
    for nodes in range(smallest, min(most, profile.num_layers // settings.devices_per_node) + 1):
        best = splits.best(nodes * settings.devices_per_node)
        if best is None:
            continue
        ranges, cost = best
        stages = tuple(
            TemplateStage(first_layer=first, end_layer=end, node=place // settings.devices_per_node)
            for place, (first, end) in enumerate(ranges)
        )
        time_s = cost.time_s(settings.microbatches_per_pipeline)
        templates.append(Template(num_nodes=nodes, stages=stages, step_time_s=time_s, cost=cost))
    return tuple(templates)


def check_replicas(num_nodes: int, smallest: int, fault_tolerance: int) -> None:
    """Raise unless `num_nodes` nodes hold f + 1 replicas of `smallest` nodes each.

    Raises:
        PlanError: they do not.
    """
    replicas = fault_tolerance + 1
    needed = replicas * smallest
    if num_nodes >= needed:
        return
    missing = needed - num_nodes
    remedy = f"Add {_count(missing, 'node')}"
    if num_nodes >= smallest:
        remedy += f", or set fault_tolerance = {num_nodes // smallest - 1}"
    else:
        remedy += ", or use devices with more memory"
    raise PlanError(
        f"{_count(num_nodes, 'node')} cannot hold {_count(replicas, 'replica')} of "
        f"{_count(smallest, 'node')} each ({needed} needed). {remedy}."
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
