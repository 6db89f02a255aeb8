"""The failure detector: nodes are lost that are silent, hang, never came or are cut off, though none saw them end.

Where the other workers of its node answer, one that is silent or hangs is a device of its own.

It owns what is known of everybody's signs of life, and of itself: a judge that was away, or that hears of nobody at
all, judges nobody. Pure: time comes as an argument.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.membership.admission import Admission
from planaria.protocol.membership.liveness import Limits, Liveness
from planaria.protocol.planning.step_times import Expectation
from planaria.protocol.thresholds import DETECTOR_AWAY_S, DETECTOR_TICK_S, OVERDUE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A worker that is to be given up.

    Attributes:
        worker: which one.
        cause: for the records.
        is_alone: it is its device that does nothing, and not the node's network or all of the node.
    """

    worker: WorkerId
    cause: str
    is_alone: bool = False


class Judge:
    """The failure detector of one coordinator.

    Args:
        admission: who is there to be judged.
        limits: after which a worker counts as hung.
        patience_s: how long it waits where all are silent; 0: no longer than for one of them.
        now: monotonic seconds.

    Attributes:
        liveness: what is known of every worker's signs of life.
    """

    def __init__(self, admission: Admission[Any], limits: Limits, patience_s: float, now: float) -> None:
        self.liveness = Liveness(limits)
        self._admission = admission
        self._isolation = Isolation(patience_s, limits.silence_s)
        self._accusations = Accusations()
        self._judged = now

    def expect(self, node: NodeId, now: float) -> None:
        """Awaits the workers of a node that was started; those that have joined already are not awaited."""
        for worker in self._admission.workers_of(node):
            if not self.liveness.knows(worker) and not self._admission.is_worker_fenced(worker):
                self.liveness.started(worker, now)

    def expect_back(self, node: NodeId, now: float) -> None:
        """Awaits the return of a node that was there before, for as long as a worker may be silent."""
        for worker in self._admission.workers_of(node):
            if not self._admission.is_worker_fenced(worker):
                self.liveness.joined(worker, now)

    def is_due(self, now: float) -> bool:
        return now - self._judged >= DETECTOR_TICK_S

    def verdicts(
        self, now: float, is_runnable: Callable[[NodeId], bool], expectation: Callable[[], Expectation]
    ) -> Iterator[Verdict]:
        """Yields who is to be given up. A loss excuses others, so each is lost before the next is asked for.

        Args:
            now: monotonic seconds.
            is_runnable: whether a node's processes are known to be there, and not stopped.
            expectation: of the plan in force, how long things take.
        """
        if (away_s := now - self._judged) > DETECTOR_AWAY_S:
            self.liveness.excuse(now, away_s + OVERDUE_S)
        self._judged = now
        if self._isolation.holds(self.liveness.quiet_s(now)):
            return
        if lasted_s := self._isolation.ended():
            self.liveness.excuse(now + lasted_s, 2 * lasted_s)
        node_of = self._admission.node_of
        for worker, silence_s in list(self.liveness.silent(now)):
            if self.liveness.is_gone(silence_s, runnable=is_runnable(node_of(worker))):
                cause = f"silent for {silence_s:.1f} s"
                yield Verdict(worker=worker, cause=cause, is_alone=self._others_answer(worker, now))
        for worker, waited_s in list(self.liveness.late(now)):
            yield Verdict(worker=worker, cause=f"did not join within {waited_s:.0f} s")
        expected = expectation()
        for worker, cause in list(self.liveness.hung(now, expected.instruction_s)):
            yield Verdict(worker=worker, cause=cause, is_alone=True)
        blocked = self.liveness.blocked(now, expected.step_s)
        if blocked is not None:
            yield Verdict(worker=blocked[0], cause=blocked[1])

    def _others_answer(self, worker: WorkerId, now: float) -> bool:
        """Returns whether another worker of the node was heard of, so that it is not the node that is silent."""
        mates = self._admission.workers_of(self._admission.node_of(worker))
        return any(self.liveness.answers(mate, now) for mate in mates if mate != worker)

    def cut_off(self, worker: WorkerId, peer: WorkerId, address: str) -> tuple[NodeId, str] | None:
        """Returns the node to lose and the cause when `worker` cannot reach `peer` there; None if that is no news.

        Of two that live, one has to go.
        """
        if not self._admission.is_missed(peer, address):
            return None
        node, other = self._admission.node_of(worker), self._admission.node_of(peer)
        is_other = self._accusations.judge(node, other) == other
        return (other, f"cut off from worker {worker}") if is_other else (node, f"cut off from worker {peer}")


class Isolation:
    """Detects that a coordinator is cut off from all of its workers.

    Args:
        patience_s: how long it waits; 0: it never does.
        silence_s: after which one worker counts as lost. Half of it without a sign of anybody is suspicious, and so is
            a heartbeat that everybody missed.
    """

    def __init__(self, patience_s: float, silence_s: float) -> None:
        self._patience_s = patience_s
        self._suspicious_s = min(silence_s / 2, OVERDUE_S)
        self._quiet_s: float | None = None

    def holds(self, quiet_s: float) -> bool:
        """Returns whether no worker may be judged now, because none is heard of.

        Args:
            quiet_s: seconds since the last sign of anybody.
        """
        if quiet_s > self._patience_s:
            self._quiet_s = None  # nobody was heard of: whoever is silent is judged, or it would wait for ever
        if not self._suspicious_s < quiet_s <= self._patience_s:
            return False
        self._quiet_s = quiet_s
        return True

    def ended(self) -> float:
        """Returns how many seconds the isolation lasted, once after it is over; 0 if there was none.

        A sender tries again after pauses that double, so others may take as long again to be heard.
        """
        lasted, self._quiet_s = self._quiet_s or 0.0, None
        return lasted


class Accusations:
    """Decides, from all reports of a run, which of two nodes that cannot reach each other is lost."""

    def __init__(self) -> None:
        self._involved: Counter[NodeId] = Counter()

    def judge(self, reporter: NodeId, peer: NodeId) -> NodeId:
        """Returns which of the two nodes to lose."""
        culprit = peer if self._involved[peer] > self._involved[reporter] else reporter
        self._involved.update((reporter, peer))
        return culprit
