"""Checkpoints: the last whole one, and the one under way: which worker writes which groups, and what is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf

from planaria.plan.plan import WorkerId
from planaria.policy.outlook import DEGRADED_SAVES_S
from planaria.protocol.messages import NotSaved, Save, Saved, SavedGroup
from planaria.protocol.settings import CheckpointRef

LEAST_REST = 20.0
"""Under a degraded plan, from one order to the next, as a multiple of what the last one took: so writing has at most a
twentieth of the time, and what a loss takes is at most what passes between two, the last one's writing and a step."""


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
        num_dropped: microbatches that the run left out up to `step`.
    """

    def __init__(
        self,
        num_groups: int,
        *,
        step: int,
        serial: int,
        folder: str,
        exponents: tuple[int, ...],
        began: float,
        num_dropped: int = 0,
    ) -> None:
        self.step = step
        self.serial = serial
        self.folder = folder
        self.exponents = exponents
        self.began = began
        self.num_dropped = num_dropped
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
            if worker in load:  # else it was released, and finishes what it was given
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

    def forget(self, lost: Collection[WorkerId]) -> None:
        """Take back what lost workers were to write."""
        self._writer = {group: worker for group, worker in self._writer.items() if worker not in lost}

    def written(self, groups: Collection[SavedGroup]) -> None:
        for saved in groups:
            self._written[saved.group] = saved

    @property
    def is_whole(self) -> bool:
        return len(self._written) == self._num_groups

    @property
    def groups(self) -> tuple[SavedGroup, ...]:
        return tuple(self._written[group] for group in sorted(self._written))


class Checkpoints:
    """A run's.

    Args:
        root: folder under which they are written.
        every: steps between them; 0: one is due only under a degraded plan, and then again now and then.
        resume: the one that the run began with.

    Attributes:
        last: the newest whole one.
        under_way: beside training, or while everybody waits for it.
        due_s: monotonic seconds from which on one is due under a degraded plan.
    """

    def __init__(self, root: str, every: int, resume: CheckpointRef | None) -> None:
        self._root = root
        self._every = every
        self._orders = 0
        self.last = resume
        self.under_way: Saving | None = None
        self.due_s = -inf

    def is_due(self, committed: int, now: float, *, is_degraded: bool) -> bool:
        """Beside training, of the step that is committed under such a plan."""
        if self._every:
            return committed % self._every == 0
        return is_degraded and now >= self.due_s

    def rest(self, now: float) -> None:
        """The one under way is written, or cannot be: the next under a degraded plan has time."""
        assert self.under_way is not None, "no checkpoint is under way"
        began = self.under_way.began
        self.due_s = began + max(DEGRADED_SAVES_S, LEAST_REST * (now - began))

    def begin(self, step: int, num_groups: int, exponents: tuple[int, ...], now: float, num_dropped: int = 0) -> Saving:
        """Order one of the state after `step`. What was under way is given up."""
        self._orders += 1
        folder = f"{self._root}/step-{step:08d}"
        self.under_way = Saving(
            num_groups,
            step=step,
            serial=self._orders,
            folder=folder,
            exponents=exponents,
            began=now,
            num_dropped=num_dropped,
        )
        return self.under_way

    def number_from(self, serial: int) -> None:
        """Orders up to this one were given by an earlier coordinator, and may still be answered."""
        self._orders = max(self._orders, serial)

    def answered_by(self, message: Saved | NotSaved) -> Saving | None:
        """The one under way, if the message is about it."""
        saving = self.under_way
        return saving if saving is not None and saving.is_answered_by(message) else None

    def is_under_way(self, step: int) -> bool:
        """The one of this step; it may have been given up since its manifest was ordered."""
        return self.under_way is not None and self.under_way.step == step

    def complete(self, now: float) -> Saving:
        """The one under way is whole on disk."""
        assert self.under_way is not None, "no checkpoint is under way"
        self.rest(now)
        saving, self.under_way = self.under_way, None
        self.last = CheckpointRef(
            step=saving.step, folder=saving.folder, exponents=saving.exponents, num_dropped=saving.num_dropped
        )
        return saving
