"""The interpreter in symbols: the real one's rules (`StepWork`, `Sums`), with numbers in place of tensors.

When things happen, how long they take and who waits is the worker's business (`tests.testkit.worker.worker`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from planaria.plan.plan import WorkerId
from planaria.plan.program.instructions import Instruction, Op
from planaria.protocol.messages.worker import Commit
from planaria.protocol.worker.mail import Key, Kind, Mail, MailStore, Ways
from planaria.protocol.worker.step_work import StepWork
from planaria.protocol.worker.sums import Sums
from tests.testkit.promises.symbols import Algebra, Symbol
from tests.testkit.worker.holdings import Accumulator, Holdings

Read = Callable[[], Any]
"""Returns a message's content, read when it arrives: a change of what is being sent is found out."""

Part = Symbol | Accumulator
"""A part of a sum: as it arrived, or where it lies in the memory of the host."""


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
    """The sums of one worker, in symbols.

    Args:
        algebra: what norms are.
        is_on_this_host: whether a peer reads sums in place.
    """

    def __init__(
        self,
        worker: WorkerId,
        holdings: Holdings,
        ways: Ways[Read],
        mail: MailStore[Any],
        algebra: Algebra,
        is_on_this_host: Callable[[WorkerId], bool],
    ) -> None:
        super().__init__(worker, holdings, ways, mail)
        self._algebra = algebra
        self._is_on_this_host = is_on_this_host

    def _own(self, accumulator: Accumulator) -> Part:
        return accumulator

    def _parcel(self, owner: WorkerId, accumulator: Accumulator | None) -> tuple[str, Read]:
        if accumulator is None:
            return Kind.SUM, lambda: (None,)
        if self._is_on_this_host(owner):
            return Kind.SHARED_SUM, lambda: (accumulator,)
        return Kind.SUM, lambda: (accumulator.total,)

    def _part(self, kind: str, owner: WorkerId, group: int, sent: tuple[Part | None]) -> tuple[Part | None] | None:
        return sent

    def _add_up(self, group: int, parts: Sequence[Part], *, with_norm: bool) -> float:
        total = sum(part.total if isinstance(part, Accumulator) else part for part in parts)
        self._holdings.replicas[group].gradient = total
        return self._algebra.norm(total)


class Interpreter(StepWork[Symbol, Symbol]):
    """An interpreter that runs the instructions of one worker.

    Args:
        worker: whose.
        algebra: what layers compute.
        holdings: the worker's.
        mail: the worker's.
        ways: to its peers.
        is_on_this_host: whether a peer reads sums in place.
    """

    def __init__(
        self,
        worker: WorkerId,
        algebra: Algebra,
        holdings: Holdings,
        mail: WatchedMail,
        ways: Ways[Read],
        is_on_this_host: Callable[[WorkerId], bool],
    ) -> None:
        self.sums = SymbolSums(worker, holdings, ways, mail, algebra, is_on_this_host)
        super().__init__(worker, algebra.num_layers, holdings, holdings.compute, self.sums, mail, 0)
        self._algebra = algebra
        self._letters = mail
        self._ways = ways

    @property
    def has_plan(self) -> bool:
        return self._plan is not None

    def _update(self, groups: Collection[int], commit: Commit) -> None:
        self._holdings.apply(groups, commit.step, commit.clip_factor, commit.scale)

    def is_ready(self, instruction: Instruction) -> bool:
        """Returns whether what a receipt or a vote waits for is here."""
        if instruction.op is Op.VOTE:
            return self.sums.is_whole()
        kind = Kind.ACTIVATION if instruction.op is Op.RECV_ACTIVATION else Kind.GRADIENT
        return self._letters.has_come(self._key(kind, instruction.peer, instruction))

    def awaited(self, instruction: Instruction) -> WorkerId | None:
        """Returns the worker from which something is missing that the instruction waits for."""
        return self.sums.awaited() if instruction.op is Op.VOTE else instruction.peer

    def execute(self, instruction: Instruction) -> None:
        self.perform(instruction)
        self.progress.finish()

    def _batch(self, microbatch: int) -> Symbol:
        return self._algebra.batch(self.step, microbatch)

    def _inputs(self, batch: Symbol) -> Symbol:
        return batch

    def _send(self, peer: WorkerId, key: Key, value: Symbol) -> None:
        self._ways.send(peer, key, lambda: value)

    def _take(self, key: Key) -> Symbol:
        value = self._letters.take(key)
        assert isinstance(value, Symbol)
        return value

    def _finish_sums(self, instruction: Instruction) -> None:
        assert self.sums.is_whole()
