"""Parameter groups: what is summed, owned and moved as one, and which of them layers use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

import msgspec


class Group(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True, gc=False):
    """A parameter group: what is summed, owned and moved as one.

    A layer's own parameters form one group; parameters tied between layers form one group that belongs to all
    of them.

    Attributes:
        layers: the layers that use the group, ascending.
        size_bytes: bytes of its parameters. What travels of a sum has as many.
        optimizer_bytes: of the optimizer's state; None: twice the parameters' (AdamW, all in one precision).
    """

    layers: tuple[int, ...]
    size_bytes: int
    optimizer_bytes: int | None = None

    @property
    def moved_bytes(self) -> int:
        """Bytes that move with a replica: parameters and optimizer state."""
        return self.size_bytes + self.state_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of the optimizer's state."""
        return 2 * self.size_bytes if self.optimizer_bytes is None else self.optimizer_bytes


_Held = dict[tuple[int, ...], tuple[int, ...]]


class GroupsOf(_Held):
    """Cache from layers to the groups that they use; both ascending."""

    def __init__(self, groups: tuple[Group, ...], num_layers: int) -> None:
        self._by_layer: list[list[int]] = [[] for _ in range(num_layers)]
        for number, group in enumerate(groups):
            for layer in group.layers:
                self._by_layer[layer].append(number)

    def __missing__(self, layers: tuple[int, ...]) -> tuple[int, ...]:
        if len(self) >= 1 << 12:  # what survivors hold may be any layers
            self.clear()
        found = self[layers] = tuple(sorted({g for layer in layers for g in self._by_layer[layer]}))
        return found


@lru_cache(maxsize=64)
def groups_by_layers(groups: tuple[Group, ...], num_layers: int) -> GroupsOf:
    """Returns the one cache of a model's groups."""
    return GroupsOf(groups, num_layers)


@lru_cache(maxsize=1 << 12)
def layers_held(groups: tuple[Group, ...], num_layers: int, held: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the layers whose every group is among those that are held."""
    own = frozenset(held)
    lacking = {layer for number, group in enumerate(groups) if number not in own for layer in group.layers}
    return tuple(layer for layer in range(num_layers) if layer not in lacking)


@lru_cache(maxsize=1 << 12)
def kept_groups(groups: tuple[Group, ...], held: tuple[int, ...], num_lanes: int) -> tuple[tuple[int, ...], ...]:
    """Returns which of the groups that the devices of a stage hold each of them keeps whole, if only one has the
    optimizer's state of each: the largest first, each by the device with least so far. What has no such state, all do.
    """
    loads = [0] * num_lanes
    kept: list[list[int]] = [[] for _ in loads]
    for group in sorted(held, key=lambda group: (-groups[group].state_bytes, group)):
        lanes = [loads.index(min(loads))] if groups[group].state_bytes else range(num_lanes)
        for lane in lanes:
            loads[lane] += groups[group].state_bytes
            kept[lane].append(group)
    return tuple(tuple(sorted(own)) for own in kept)


Worker = TypeVar("Worker", bound=int)


def workers_by_group(num_groups: int, groups_of: Mapping[Worker, Sequence[int]]) -> tuple[tuple[Worker, ...], ...]:
    """Returns of each group the workers that have it, ascending, given each worker's groups."""
    found: list[list[Worker]] = [[] for _ in range(num_groups)]
    for worker in sorted(groups_of):
        for group in groups_of[worker]:
            found[group].append(worker)
    return tuple(map(tuple, found))
