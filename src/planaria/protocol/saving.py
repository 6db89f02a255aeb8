"""A checkpoint under way: which worker writes which groups, and what is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from planaria.plan.plan import WorkerId
from planaria.protocol.messages import NotSaved, Save, Saved, SavedGroup


class NobodyHolds(Exception):
    """No live worker holds this group, so it cannot be saved."""

    def __init__(self, group: int) -> None:
        super().__init__(group)
        self.group = group


class Saving:
    """One checkpoint.

    Attributes:
        step: the state after it is saved.
        serial: number of the order, so that answers to an earlier one are told apart.
        folder: where it is written.
        exponents: grid exponents of the next step.
        began: monotonic seconds.
    """

    def __init__(
        self, num_groups: int, *, step: int, serial: int, folder: str, exponents: tuple[int, ...], began: float
    ) -> None:
        self.step = step
        self.serial = serial
        self.folder = folder
        self.exponents = exponents
        self.began = began
        self._num_groups = num_groups
        self._writer: dict[int, WorkerId] = {}
        self._written: dict[int, SavedGroup] = {}

    def assign(self, holders: Mapping[WorkerId, Collection[int]]) -> dict[WorkerId, Save]:
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
        return {
            worker: Save(step=self.step, serial=self.serial, folder=self.folder, groups=tuple(groups))
            for worker, groups in sorted(parts.items())
        }

    def is_answered_by(self, message: Saved | NotSaved) -> bool:
        return (message.step, message.serial) == (self.step, self.serial)

    @property
    def has_orphans(self) -> bool:
        """Some group is neither written nor being written."""
        return len(self._written.keys() | self._writer.keys()) < self._num_groups

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
