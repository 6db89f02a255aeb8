"""Pipelines: stages of layers on devices, and what follows from a pipeline by itself.

A plan that keeps a pipeline keeps the object, so what was found out about it once need not be found out for each plan.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property, lru_cache
from typing import NewType, TypeVar

import msgspec

from planaria.plan.quantities import ranges

NodeId = NewType("NodeId", int)
"""Number of a machine; never given to another machine within a run."""

WorkerId = NewType("WorkerId", int)
"""Number of a device and of the process that drives it: node * devices_per_node + device."""


_T = TypeVar("_T")


class Stage(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True, gc=False):
    """A contiguous range of layers on `num_devices` devices of one node, driven by `worker`."""

    worker: WorkerId
    first_layer: int
    end_layer: int
    num_devices: int = 1

    @property
    def layers(self) -> range:
        return range(self.first_layer, self.end_layer)


def renamed(worker: WorkerId, name_of: Mapping[NodeId, NodeId], devices_per_node: int) -> WorkerId:
    """Returns the worker of the same device on the node of that name."""
    node, device = divmod(worker, devices_per_node)
    return WorkerId(name_of[NodeId(node)] * devices_per_node + device)


def renamed_stages(
    stages: Iterable[Stage], name_of: Mapping[NodeId, NodeId], devices_per_node: int
) -> tuple[Stage, ...]:
    """Returns the same stages on the nodes of these names."""
    return tuple(
        Stage(
            worker=renamed(stage.worker, name_of, devices_per_node),
            first_layer=stage.first_layer,
            end_layer=stage.end_layer,
            num_devices=stage.num_devices,
        )
        for stage in stages
    )


def first_sharing(worker: WorkerId, num_sharing: int) -> WorkerId:
    """Returns the first of so many workers that share microbatches with one; see `Plan.num_sharing`."""
    return WorkerId(worker - worker % num_sharing)


def runs_of(worker: WorkerId, layers: Collection[int], num_devices: int = 1) -> list[Stage]:
    """Returns the contiguous ranges of a worker's layers, as stages on its devices."""
    return [
        Stage(worker=worker, first_layer=first, end_layer=end, num_devices=num_devices)
        for first, end in ranges(sorted(layers))
    ]


class Form(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """A pipeline's shape, regardless of which workers and nodes it runs on.

    Attributes:
        stages: of each its first layer and end layer, its devices, the number of its node among the pipeline's in the
            order of the stages, and of its first device there.
        num_nodes: how many nodes it has.
    """

    stages: tuple[tuple[int, int, int, int, int], ...]
    num_nodes: int


@lru_cache(maxsize=1 << 12)
def _form(stages: tuple[tuple[int, int, int, int, int], ...], num_nodes: int) -> Form:
    """Returns the one shared Form object, so that equal forms compare fast."""
    return Form(stages, num_nodes)


@lru_cache(maxsize=1 << 12)
def _layers(first: int, end: int) -> tuple[int, ...]:
    return tuple(range(first, end))


class Pipeline(msgspec.Struct, frozen=True, kw_only=True, dict=True, cache_hash=True):
    """Stages in layer order. A whole pipeline covers every layer once; a broken one (after a loss) has gaps.

    Plans that keep a pipeline keep the object, and so what was found out about it.
    """

    stages: tuple[Stage, ...]

    @cached_property
    def workers(self) -> tuple[WorkerId, ...]:
        return tuple([stage.worker for stage in self.stages])

    @cached_property
    def owned(self) -> dict[WorkerId, tuple[int, ...]]:
        """The layers that each worker of the pipeline owns, ascending; workers in the order of the stages."""
        owned: dict[WorkerId, tuple[int, ...]] = {}
        for stage in self.stages:
            layers = _layers(stage.first_layer, stage.end_layer)
            before = owned.get(stage.worker)
            owned[stage.worker] = layers if before is None else tuple(sorted({*before, *layers}))
        return owned

    @cached_property
    def devices_of(self) -> dict[WorkerId, int]:
        """Number of devices that each worker of the pipeline drives: those of its widest stage here."""
        devices: dict[WorkerId, int] = {}
        for stage in self.stages:
            devices[stage.worker] = max(devices.get(stage.worker, 0), stage.num_devices)
        return devices

    @cached_property
    def key(self) -> tuple[tuple[int, int, int], ...]:
        """Each stage's worker, first layer and end layer."""
        return tuple([(stage.worker, stage.first_layer, stage.end_layer) for stage in self.stages])

    @cached_property
    def _least_layers(self) -> int:
        """Fewest layers of a model that the stages fit; sys.maxsize where some stage is invalid."""
        sound = all(
            stage.worker >= 0 and 0 <= stage.first_layer < stage.end_layer and stage.num_devices >= 1
            for stage in self.stages
        )
        return max(stage.end_layer for stage in self.stages) if sound and self.stages else sys.maxsize

    def is_sound(self, num_layers: int) -> bool:
        """Returns whether the pipeline has stages, each of valid layers of such a model and on at least one device."""
        return self._least_layers <= num_layers

    @cached_property
    def most_devices(self) -> int:
        """Number of devices of the widest stage."""
        return max((stage.num_devices for stage in self.stages), default=0)

    @cached_property
    def _reach(self) -> int:
        """End of the layers that the stages cover from 0 on without gap or overlap; -1 where they do not."""
        position = 0
        for stage in self.stages:
            if stage.first_layer != position:
                return -1
            position = stage.end_layer
        return position

    def is_whole(self, num_layers: int) -> bool:
        return self._reach == num_layers

    @cached_property
    def _placed(self) -> dict[int, tuple[tuple[NodeId, ...], Form]]:
        return {}

    def nodes(self, devices_per_node: int) -> tuple[NodeId, ...]:
        """Returns the nodes of the stages, in stage order."""
        return (self._placed.get(devices_per_node) or self._on_nodes(devices_per_node))[0]

    def form(self, devices_per_node: int) -> Form:
        """Returns the pipeline's form: its shape, regardless of worker and node numbers."""
        return (self._placed.get(devices_per_node) or self._on_nodes(devices_per_node))[1]

    def _on_nodes(self, devices_per_node: int) -> tuple[tuple[NodeId, ...], Form]:
        place: dict[NodeId, int] = {}
        stages = []
        for stage in self.stages:
            node, device = divmod(stage.worker, devices_per_node)
            number = place.setdefault(NodeId(node), len(place))
            stages.append((stage.first_layer, stage.end_layer, stage.num_devices, number, device))
        found = self._placed[devices_per_node] = tuple(place), _form(tuple(stages), len(place))
        return found


def exchanged(
    before: Mapping[WorkerId, _T], old: Iterable[Pipeline], new: Iterable[Mapping[WorkerId, _T]]
) -> dict[WorkerId, _T]:
    """Returns `before` without entries of old pipelines' workers and with the `new` entries; ascending."""
    changed = dict(before)
    put = {worker: found for of_pipeline in new for worker, found in of_pipeline.items()}
    for pipeline in old:
        for worker in pipeline.workers:
            if worker not in put:
                changed.pop(worker, None)
    num_known = len(changed)
    changed.update(put)
    return changed if len(changed) == num_known else dict(sorted(changed.items()))
