"""The interpreter in symbols: the real one's rules (`StepWork`, `Sums`), with numbers in place of tensors.

When things happen, how long they take and who waits is the worker's business (`tests.testkit.worker.worker`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from functools import partial
from typing import Any

from planaria.plan.plan import WorkerId
from planaria.plan.program.instructions import Instruction, Op
from planaria.plan.sums.slices import Slices
from planaria.protocol.messages.to_worker import Commit
from planaria.protocol.worker.mail import Key, Kind, Mail, MailStore, Ways
from planaria.protocol.worker.progress import Work
from planaria.protocol.worker.step_work import StepWork
from planaria.protocol.worker.sums import Sum, Sums
from tests.testkit.promises.symbols import Algebra, Symbol
from tests.testkit.worker.holdings import Accumulator, Holdings, digest

Read = Callable[[], Any]
"""Returns a message's content, read when it arrives: a change of what is being sent is found out."""

Part = Symbol | Accumulator
"""A part of a sum: as it arrived, or where it lies in the memory of the host."""

Totals = dict[WorkerId, Symbol]
"""A group's gradient: slice -> its total."""


class WatchedMail(Mail[Any]):
    """The mail of one worker, which complains where a wanted message came damaged."""

    def __init__(self, complain: Callable[[Key], None]) -> None:
        super().__init__()
        self._complain = complain

    def has_come(self, key: Key) -> bool:
        """Returns whether a wanted message is here."""
        if self.came_damaged(key):
            self._complain(key)
        return key in self

    def poll(self, key: Key) -> Any:
        return self.take(key) if self.has_come(key) else None


class SymbolSums(Sums[Accumulator, Read, Part]):
    """The sums of one worker, in symbols: each slice of a group has the whole sum as its total.

    Args:
        algebra: what norms are.
        host_of: worker -> whose memory it shares.
    """

    def __init__(
        self,
        worker: WorkerId,
        holdings: Holdings,
        ways: Ways[Read],
        mail: MailStore[Any],
        algebra: Algebra,
        host_of: Callable[[WorkerId], Hashable],
    ) -> None:
        super().__init__(worker, holdings, ways, mail)
        self._algebra = algebra
        self._hosts = host_of
        self._totals: dict[int, Totals] = defaultdict(dict)

    def _host_of(self, worker: WorkerId) -> Hashable:
        return self._hosts(worker)

    def _own(self, accumulator: Accumulator) -> Part:
        return accumulator

    def _place(self, accumulator: Accumulator | None) -> Read:
        return lambda: (accumulator,)

    def _part_at(self, owner: WorkerId, group: int, sent: tuple[Part | None]) -> tuple[Part | None] | None:
        return sent

    def _encoded(self, group: int, about: WorkerId, slices: Slices, parts: Sequence[Part]) -> Read:
        total = _sum(parts) if parts else None
        return lambda: (total,)

    def _came(self, sent: tuple[Part | None]) -> Part | None:
        return sent[0]

    def _add_up(self, group: int, slices: Slices, in_place: Sequence[Part], came: Sequence[Part]) -> None:
        self._totals[group][self._worker] = _sum([*in_place, *came])

    def _total(self, group: int, about: WorkerId, slices: Slices) -> Read:
        totals = self._totals[group]
        return lambda: (totals[about],)

    def _total_place(self, group: int) -> Read:
        totals = self._totals[group]
        return lambda: (totals,)

    def _take(self, group: int, about: WorkerId, slices: Slices, sent: tuple[Symbol]) -> None:
        self._totals[group][about] = sent[0]

    def _take_from(self, group: int, about: WorkerId, slices: Slices, owner: WorkerId, sent: tuple[Totals]) -> bool:
        self._totals[group][about] = sent[0][about]
        return True

    def _norm(self, group: int) -> float:
        gradient = self._holdings.replicas[group].gradient
        assert gradient is not None
        return self._algebra.norm(gradient)

    def _finish(self, group: int, pending: Sum[Part]) -> None:
        totals = [self._totals[group][owner] for owner in pending.slices.owners]
        # Slices that differ are of sums that differ: one was begun anew while another owner still read the old one.
        self._holdings.replicas[group].gradient = totals[0] if len(set(totals)) == 1 else hash(tuple(totals))
        super()._finish(group, pending)


def _sum(parts: Sequence[Part]) -> Symbol:
    return sum(part.total if isinstance(part, Accumulator) else part for part in parts)


class Interpreter(StepWork[Symbol, Symbol]):
    """An interpreter that runs the instructions of one worker.

    Args:
        worker: whose.
        algebra: what layers compute.
        holdings: the worker's.
        mail: the worker's.
        ways: to its peers.
        host_of: worker -> whose memory it shares.
        corrupted: told of each state that a fault has changed, and of what comes of it.

    Attributes:
        corrupts: "rest", "apply", "sync", "forward", "backward", "send", "way" (what was sent, after its digest was
            made) or "audit" -> how often it is still to be changed.
    """

    def __init__(
        self,
        worker: WorkerId,
        algebra: Algebra,
        holdings: Holdings,
        mail: WatchedMail,
        ways: Ways[Read],
        host_of: Callable[[WorkerId], Hashable],
        corrupted: Callable[[Symbol], None],
    ) -> None:
        self.sums = SymbolSums(worker, holdings, ways, mail, algebra, host_of)
        super().__init__(worker, algebra.num_layers, holdings, holdings.compute, self.sums, mail, 0)
        self._algebra = algebra
        self._letters = mail
        self._ways = ways
        self._corrupted = corrupted
        self.corrupts: Counter[str] = Counter()

    @property
    def has_plan(self) -> bool:
        return self._plan is not None

    def _update(self, groups: Collection[int], commit: Commit) -> None:
        self._holdings.apply(groups, commit.step, commit.clip_factor, commit.scale)
        for group in groups:
            if self._holdings.replicas[group].is_changed:
                self._corrupted(self._holdings.replicas[group].state)
        self._change("apply")

    def corrupt_at_rest(self) -> None:
        """Changes a replica, if that is due and one is held."""
        self._change("rest")

    def _change(self, what: str) -> None:
        """Changes the first replica that is held, or its sum, if that is due."""
        if not self.corrupts.get(what):
            return
        held = [self._holdings.replicas[group] for group in self.kept if group in self._holdings.replicas]
        if not held:
            return
        self.corrupts[what] -= 1
        if what == "sync":
            held[0].gradient = hash((held[0].gradient, what))
            return
        held[0].state, held[0].is_changed = hash((held[0].state, what)), True
        self._corrupted(held[0].state)

    def _change_activation(self, instruction: Instruction) -> None:
        """Changes what a forward made, if that is due and goes on."""
        at = (instruction.microbatch, instruction.born), instruction.end_layer
        if self.corrupts.get("forward") and at in self._activations and self.plan.evaluation is None:
            self.corrupts["forward"] -= 1
            self._activations[at] = hash((self._activations[at], "forward"))

    def _note_backward(self, work: Work, layer: int, *, counted: bool) -> None:
        super()._note_backward(work, layer, counted=counted)
        is_due = counted and self._counts_here and self.corrupts.get("backward")
        groups = self._algebra.groups_of[layer] if is_due else ()
        for group in groups[:1]:
            self.corrupts["backward"] -= 1
            self._holdings.accumulators[group].total += hash((work, layer, "backward"))

    def _audit(self, instruction: Instruction) -> None:
        super()._audit(instruction)
        if self.corrupts.get("audit"):
            self.corrupts["audit"] -= 1
            told = self._audits.computed[-1]
            told.made.update({name: told_digest ^ 1 for name, told_digest in told.made.items()})

    def _digest_of(self, value: Symbol) -> int:
        return digest(value)

    def is_ready(self, instruction: Instruction) -> bool:
        """Returns whether what a receipt or a vote waits for is here."""
        if instruction.op is Op.VOTE:
            return self.plan.evaluation is not None or self.sums.is_whole()
        kind = Kind.ACTIVATION if instruction.op is Op.RECV_ACTIVATION else Kind.GRADIENT
        return self._letters.has_come(self._key(kind, instruction.peer, instruction))

    def awaited(self, instruction: Instruction) -> WorkerId | None:
        """Returns the worker from which something is missing that the instruction waits for."""
        return self.sums.awaited() if instruction.op is Op.VOTE else instruction.peer

    def execute(self, instruction: Instruction) -> None:
        if self.corrupts:
            self.corrupt_at_rest()
        self.perform(instruction)
        if self.corrupts:
            self._corrupt_after(instruction)
        if instruction.op is Op.FORWARD and self.plan.evaluation is not None:
            assert instruction.microbatch not in self._batches, "an evaluated batch stays on the device"
        self.progress.finish()

    def _corrupt_after(self, instruction: Instruction) -> None:
        """Changes what the instruction made, if that is due."""
        if instruction.op is Op.FORWARD:
            self._change_activation(instruction)
        if instruction.op is Op.VOTE and self.plan.evaluation is None:
            self._change("sync")

    def _batch(self, microbatch: int) -> Symbol:
        if self.plan.evaluation is not None:
            return self._algebra.held_out(microbatch)
        return self._algebra.batch(self.step, microbatch)

    def _inputs(self, batch: Symbol) -> Symbol:
        return batch

    def _send(self, peer: WorkerId, key: Key, value: Symbol) -> Callable[[], int]:
        told = out = value
        for what in ("send", "way") if self.corrupts and self.plan.evaluation is None else ():
            if self.corrupts.get(what):
                self.corrupts[what] -= 1
                out = hash((value, what))
                told = out if what == "send" else told
        self._ways.send(peer, key, lambda: out)
        return partial(digest, told)

    def _take(self, key: Key) -> Symbol:
        value = self._letters.take(key)
        assert isinstance(value, Symbol)
        return value

    def _finish_sums(self, instruction: Instruction) -> None:
        assert self.sums.is_whole()
