"""Checkpoints: the last whole one, and the one under way: which worker writes which groups, and what is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from planaria.plan.plan import WorkerId
from planaria.protocol.messages.checkpoint_ref import CheckpointRef
from planaria.protocol.messages.from_worker import NotSaved, Saved, SavedGroup
from planaria.protocol.messages.to_worker import Save
from planaria.protocol.step.cadence import Cadence


class NobodyHolds(Exception):
    """Raised when no live worker holds a group, so that it cannot be saved."""

    def __init__(self, group: int) -> None:
        super().__init__(group)
        self.group = group


@dataclass(slots=True)
class SaveWish:
    """The user's wish for the next state on disk, apart from when a checkpoint is due.

    Attributes:
        folder: under which it is to be; "": where all are.
        serial: of the order that is to fulfil it; None: none was given yet.
    """

    folder: str = ""
    serial: int | None = None


@dataclass(frozen=True, slots=True)
class SaveAnswer:
    """What came of the user's last wish for a checkpoint."""

    is_done: bool
    text: str


class Saving:
    """One checkpoint that is being written.

    Attributes:
        step: the state after it is saved.
        serial: number of the order, so that answers to an earlier one are told apart.
        folder: where it is written.
        exponents: grid exponents of the next step.
        began: monotonic seconds at which it began.
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
        """Gives every group that nobody writes to its least busy holder; returns what is newly given.

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
        """Whether some group is neither written nor being written."""
        return len(self._written.keys() | self._writer.keys()) < self._num_groups

    def forget(self, lost: Collection[WorkerId]) -> None:
        """Takes back what lost workers were to write."""
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
    """The checkpoints of one run: the last whole one, the one under way, and the user's wish for one.

    Args:
        root: folder under which they are written.
        resume: the one that the run began with.
        cadence: when one is due.

    Attributes:
        last: the newest whole one.
        earlier: the whole one before it.
        unproven: step of the newest, while the votes that compare what it was made of are not in.
        under_way: beside training, or while everybody waits for it.
        wish: of the user, for one that is not there yet.
        answered: what came of the user's last one; None while it is not known.
    """

    def __init__(self, root: str, resume: CheckpointRef | None, cadence: Cadence) -> None:
        self._root = root
        self._orders = 0
        self.cadence = cadence
        self.last = resume
        self.earlier: CheckpointRef | None = None
        self.unproven: int | None = None
        self.under_way: Saving | None = None
        self.wish: SaveWish | None = None
        self.answered: SaveAnswer | None = None

    def begin(self, step: int, num_groups: int, exponents: tuple[int, ...], now: float, num_dropped: int = 0) -> Saving:
        """Begins a checkpoint of the state after `step`, where the user wants it. The one under way is given up."""
        self._orders += 1
        folder = f"{(self.wish and self.wish.folder) or self._root}/step-{step:08d}"
        if self.wish is not None:
            self.wish.serial = self._orders
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

    def wish_for(self, folder: str) -> None:
        """Records that the user wants a checkpoint under this folder; "": where all are."""
        self.wish, self.answered = SaveWish(folder), None

    def joins_wish(self) -> bool:
        """Returns whether the checkpoint under way is what the user wishes for too."""
        wish, saving = self.wish, self.under_way
        if wish is None or wish.folder or saving is None:
            return False
        wish.serial = saving.serial
        return True

    @property
    def is_wished(self) -> bool:
        """Whether the user wants a checkpoint that no worker has begun to write."""
        return self.wish is not None and self.wish.serial is None

    def number_from(self, serial: int) -> None:
        """Skips the numbers of orders given by an earlier coordinator, which may still be answered."""
        self._orders = max(self._orders, serial)

    def answered_by(self, message: Saved | NotSaved) -> Saving | None:
        """Returns the checkpoint under way if the message is about it."""
        saving = self.under_way
        return saving if saving is not None and saving.is_answered_by(message) else None

    def is_made_whole(self, step: int, folder: str) -> bool:
        """Returns whether the checkpoint under way is whole, and of this step and folder; it may have been given up
        since its manifest was ordered, or begun anew."""
        saving = self.under_way
        return saving is not None and (saving.step, saving.folder) == (step, folder) and saving.is_whole

    def complete(self, now: float) -> Saving:
        """Records that the checkpoint under way is whole on disk, and is now the last one."""
        assert self.under_way is not None, "no checkpoint is under way"
        self.cadence.written(now)
        saving, self.under_way = self.under_way, None
        self._answer_wish(saving, f"step {saving.step} is saved in {saving.folder}", is_done=True)
        self.earlier = self.last
        self.last = CheckpointRef(
            step=saving.step, folder=saving.folder, exponents=saving.exponents, num_dropped=saving.num_dropped
        )
        return saving

    def prove(self, step: int) -> None:
        """Records that all owners voted for `step` with the same replicas: what was saved before is of right ones."""
        if self.unproven is not None and self.unproven < step:
            self.unproven = None

    def distrust(self, *, is_earlier_kept: bool) -> CheckpointRef | None:
        """Forgets the newest checkpoint if what it was made of may be wrong, and returns it."""
        if self.last is None or self.unproven != self.last.step:
            return None
        distrusted, self.last = self.last, self.earlier if is_earlier_kept else None
        self.earlier = self.unproven = None
        return distrusted

    def give_up(self, why: str) -> Saving:
        """Gives up the checkpoint under way, and returns it."""
        assert self.under_way is not None, "no checkpoint is under way"
        self.cadence.given_up()
        saving, self.under_way = self.under_way, None
        self._answer_wish(saving, f"step {saving.step} could not be saved: {why}", is_done=False)
        return saving

    def _answer_wish(self, saving: Saving, text: str, *, is_done: bool) -> None:
        if self.wish is not None and self.wish.serial == saving.serial:
            self.answered, self.wish = SaveAnswer(is_done=is_done, text=text), None
