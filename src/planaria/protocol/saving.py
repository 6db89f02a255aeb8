"""A checkpoint under way: which worker writes which groups, and what is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from planaria.plan.plan import WorkerId
from planaria.protocol.messages import SavedGroup


class NobodyHolds(Exception):
    """No live worker holds this group, so it cannot be saved."""

    def __init__(self, group: int) -> None:
        super().__init__(group)
        self.group = group


class Saving:
    """One checkpoint of `num_groups` groups, begun at monotonic time `began`."""

    def __init__(self, num_groups: int, began: float) -> None:
        self.began = began
        self._num_groups = num_groups
        self._writer: dict[int, WorkerId] = {}
        self._written: dict[int, SavedGroup] = {}

    def assign(self, holders: Mapping[WorkerId, Collection[int]]) -> dict[WorkerId, tuple[int, ...]]:
        """Give every group that nobody writes to its least busy holder; returns what is newly given.

        Raises:
            NobodyHolds: a group has no holder.
        """
        load = dict.fromkeys(holders, 0)
        for worker in self._writer.values():
            load[worker] += 1
        parts: dict[WorkerId, list[int]] = {}
        for group in range(self._num_groups):
            if group in self._written or group in self._writer:
                continue
            able = [worker for worker, held in holders.items() if group in held]
            if not able:
                raise NobodyHolds(group)
            writer = min(able, key=lambda worker: (load[worker], worker))
            load[writer] += 1
            self._writer[group] = writer
            parts.setdefault(writer, []).append(group)
        return {worker: tuple(groups) for worker, groups in sorted(parts.items())}

    def forget(self, live: Collection[WorkerId]) -> None:
        """Take back what lost workers were to write."""
        self._writer = {group: worker for group, worker in self._writer.items() if worker in live}

    def written(self, groups: Collection[SavedGroup]) -> None:
        for saved in groups:
            self._written[saved.group] = saved

    @property
    def is_whole(self) -> bool:
        return len(self._written) == self._num_groups

    @property
    def groups(self) -> tuple[SavedGroup, ...]:
        return tuple(self._written[group] for group in sorted(self._written))
