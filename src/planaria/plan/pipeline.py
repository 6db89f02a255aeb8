"""Pipelines: stages of layers on devices, and what follows from a pipeline by itself.

A plan that keeps a pipeline keeps the object, so what was found out about it once need not be found out for each plan.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from functools import cached_property, lru_cache
from typing import NewType

import msgspec

NodeId = NewType("NodeId", int)
"""Number of a machine; never given to another machine within a run."""

WorkerId = NewType("WorkerId", int)
"""Number of a device and of the process that drives it: node * devices_per_node + device."""


class Stage(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True, gc=False):
    """A contiguous range of layers on `num_devices` devices of one node, driven by `worker`."""

    worker: WorkerId
    first_layer: int
    end_layer: int
    num_devices: int = 1

    @property
    def layers(self) -> range:
        return range(self.first_layer, self.end_layer)


def runs_of(worker: WorkerId, layers: Collection[int], num_devices: int = 1) -> list[Stage]:
    """The contiguous ranges of a worker's layers, as stages on its devices."""
    runs: list[Stage] = []
    for layer in sorted(layers):
        first = runs.pop().first_layer if runs and runs[-1].end_layer == layer else layer
        runs.append(Stage(worker=worker, first_layer=first, end_layer=layer + 1, num_devices=num_devices))
    return runs


class Form(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """What a pipeline is, names aside.

    Attributes:
        stages: of each its first layer and end layer, its devices, the number of its node among the pipeline's in the
            order of the stages, and of its first device there.
        num_nodes: that it has.
    """

    stages: tuple[tuple[int, int, int, int, int], ...]
    num_nodes: int


@lru_cache(maxsize=1 << 12)
def _form(stages: tuple[tuple[int, int, int, int, int], ...], num_nodes: int) -> Form:
    """The one object that stands for it, so that equal ones are told at a glance."""
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
        """The layers that each of its workers owns, ascending; workers in the order of the stages."""
        owned: dict[WorkerId, tuple[int, ...]] = {}
        for stage in self.stages:
            layers = _layers(stage.first_layer, stage.end_layer)
            before = owned.get(stage.worker)
            owned[stage.worker] = layers if before is None else tuple(sorted({*before, *layers}))
        return owned

    @cached_property
    def devices_of(self) -> dict[WorkerId, int]:
        """How many devices each of its workers drives: those of its widest stage here."""
        devices: dict[WorkerId, int] = {}
        for stage in self.stages:
            devices[stage.worker] = max(devices.get(stage.worker, 0), stage.num_devices)
        return devices

    @cached_property
    def key(self) -> tuple[tuple[int, int, int], ...]:
        """Of each stage its worker, first layer and end layer."""
        return tuple([(stage.worker, stage.first_layer, stage.end_layer) for stage in self.stages])

    @cached_property
    def _least_layers(self) -> int:
        """Of a model whose layers the stages may be; beyond all where one of them can be no stage."""
        sound = all(
            stage.worker >= 0 and 0 <= stage.first_layer < stage.end_layer and stage.num_devices >= 1
            for stage in self.stages
        )
        return max(stage.end_layer for stage in self.stages) if sound and self.stages else sys.maxsize

    def is_sound(self, num_layers: int) -> bool:
        """It has stages; each runs layers of a model of so many, on one device or more."""
        return self._least_layers <= num_layers

    @cached_property
    def most_devices(self) -> int:
        """Of its widest stage."""
        return max((stage.num_devices for stage in self.stages), default=0)

    @cached_property
    def _reach(self) -> int:
        """The end of the layers that its stages cover without a gap or overlap; -1: there is one."""
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
        """Of its stages, in their order."""
        return (self._placed.get(devices_per_node) or self._on_nodes(devices_per_node))[0]

    def form(self, devices_per_node: int) -> Form:
        """What it is, names aside."""
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
