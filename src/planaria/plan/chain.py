"""A chain of stages: how long one pipeline takes for a step, event by event, in topological order and without a queue.

The same model as `planaria.estimate.step_time`, for one pipeline on its own and without the sums of gradients: a stage
computes one thing at a time; with overlap a message occupies only its link, and those of one sender to one receiver go
one after another; without overlap a message occupies its sender.

The order: round t of a step is the backward of microbatch t on all stages from the last to the first, after the forward
that precedes it on each stage, from the first to the last. Later stages run fewer forwards ahead, so whatever an
operation waits for is in an earlier round or earlier in its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from planaria.plan.compiled import Kernel, compile_pays
from planaria.plan.plan import ScheduleKind

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

PLAIN_EVENTS_PER_S = 1e7
"""Of the plain form, for one chain; an event is a forward or a backward of one microbatch on one stage."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Stages in layer order.

    Attributes:
        forward_s: of each stage, for one microbatch.
        backward_s: the same, whole.
        link_s: of each boundary between stages, one message either way.
        schedule: order of forwards and backwards.
        overlap: whether messages travel beside the sender's compute.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    link_s: tuple[float, ...]
    schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B
    overlap: bool = True

    @cached_property
    def _arrays(self) -> tuple[Floats, Floats, Floats]:
        forward, backward, link = np.array(self.forward_s), np.array(self.backward_s), np.array(self.link_s)
        return charged(forward[None, :], backward[None, :], link[None, :], overlap=self.overlap)

    def time_s(self, num_microbatches: int, *, compiled: bool | None = None) -> float:
        """Seconds from the first forward to the last backward; 0 for no microbatches.

        Args:
            num_microbatches: of one step.
            compiled: use numba, or not; None: where it pays.
        """
        if num_microbatches <= 0:
            return 0.0
        return float(times_s(*self._arrays, num_microbatches, self.schedule, compiled=compiled)[0])


def charged(forward_s: Floats, backward_s: Floats, link_s: Floats, *, overlap: bool) -> tuple[Floats, Floats, Floats]:
    """The chains (one a row) with messages charged to links (overlap) or to their senders' compute.

    A sender that waits for its message is one whose compute is longer by it, and whose messages take no time.
    """
    if overlap:
        return forward_s, backward_s, link_s
    forward_s, backward_s = forward_s.copy(), backward_s.copy()
    forward_s[:, :-1] += link_s
    backward_s[:, 1:] += link_s
    return forward_s, backward_s, np.zeros_like(link_s)


def times_s(
    forward_s: Floats,
    backward_s: Floats,
    link_s: Floats,
    num_microbatches: int,
    schedule: ScheduleKind,
    *,
    compiled: bool | None = None,
) -> Floats:
    """Seconds of many chains with equally many stages, one a row.

    Args:
        forward_s: chains x stages.
        backward_s: chains x stages.
        link_s: chains x (stages - 1).
        num_microbatches: of one step, at least 1.
        schedule: order of forwards and backwards.
        compiled: use numba, or not; None: where it pays.
    """
    chains, stages = forward_s.shape
    ahead = np.array([schedule.forwards_ahead(stages - 1 - s, num_microbatches) for s in range(stages)], dtype=np.int64)
    if compiled is None:
        compiled = compile_pays(2.0 * chains * stages * num_microbatches / PLAIN_EVENTS_PER_S)
    kernel = KERNEL.form(compiled=compiled)
    return kernel(forward_s, backward_s, np.ascontiguousarray(link_s), ahead, num_microbatches)


def _loops(forward_s: Floats, backward_s: Floats, link_s: Floats, ahead: Ints, num_microbatches: int) -> Floats:
    """Numba's form."""
    chains, stages = forward_s.shape
    times = np.empty(chains)
    arrived = np.empty((stages, num_microbatches))
    clock = np.empty(stages)
    down = np.empty(stages)
    up = np.empty(stages)
    for c in range(chains):
        arrived[0, :] = 0.0
        clock[:] = 0.0
        down[:] = 0.0
        up[:] = 0.0
        for s in range(stages):
            for i in range(ahead[s]):
                now = (arrived[s, i] if arrived[s, i] > clock[s] else clock[s]) + forward_s[c, s]
                clock[s] = now
                if s + 1 < stages:
                    down[s] = (now if now > down[s] else down[s]) + link_s[c, s]
                    arrived[s + 1, i] = down[s]
        for t in range(num_microbatches):
            for s in range(stages):
                i = t + ahead[s]
                if i < num_microbatches:
                    now = (arrived[s, i] if arrived[s, i] > clock[s] else clock[s]) + forward_s[c, s]
                    clock[s] = now
                    if s + 1 < stages:
                        down[s] = (now if now > down[s] else down[s]) + link_s[c, s]
                        arrived[s + 1, i] = down[s]
            come = 0.0
            for s in range(stages - 1, -1, -1):
                now = (come if come > clock[s] else clock[s]) + backward_s[c, s]
                clock[s] = now
                if s > 0:
                    come = (now if now > up[s] else up[s]) + link_s[c, s - 1]
                    up[s] = come
        times[c] = clock.max()
    return times


def _plain(forward_s: Floats, backward_s: Floats, link_s: Floats, ahead: Ints, num_microbatches: int) -> Floats:
    """Without numba: one chain in lists, more of them side by side in arrays."""
    if len(forward_s) < _SIDE_BY_SIDE:
        rows = zip(forward_s.tolist(), backward_s.tolist(), link_s.tolist(), strict=True)
        return np.array([_one(*row, ahead.tolist(), num_microbatches) for row in rows])
    return _side_by_side(forward_s, backward_s, link_s, ahead, num_microbatches)


_SIDE_BY_SIDE = 150


def _one(
    forward_s: Sequence[float], backward_s: Sequence[float], link_s: Sequence[float], ahead: list[int], num: int
) -> float:
    """One chain: a stage's forwards of a round are read from its predecessor's list of arrivals."""
    stages = len(forward_s)
    clock, down, up = [0.0] * stages, [0.0] * stages, [0.0] * stages
    links = [*link_s, 0.0]
    arrived: list[list[float]] = [[0.0] * num, *([] for _ in range(stages))]
    for s in range(stages):
        now, sent, forward, link, sends = 0.0, 0.0, forward_s[s], links[s], arrived[s + 1].append
        for come in arrived[s][: ahead[s]]:
            now = (come if come > now else now) + forward
            sent = (now if now > sent else sent) + link
            sends(sent)
        clock[s], down[s] = now, sent
    below = [(s, forward_s[s], links[s], ahead[s], arrived[s], arrived[s + 1].append) for s in range(stages)]
    above = [(s, backward_s[s], links[s - 1] if s else 0.0) for s in range(stages - 1, -1, -1)]
    for t in range(num):
        for s, forward, link, lead, arrivals, sends in below:
            if t + lead < num:
                come, now = arrivals[t + lead], clock[s]
                clock[s] = now = (come if come > now else now) + forward
                sent = down[s]
                down[s] = sent = (now if now > sent else sent) + link
                sends(sent)
        come = 0.0
        for s, backward, link in above:
            now = clock[s]
            clock[s] = now = (come if come > now else now) + backward
            come = up[s]
            up[s] = come = (now if now > come else come) + link
    return max(clock)


def _side_by_side(forward_s: Floats, backward_s: Floats, link_s: Floats, ahead: Ints, num_microbatches: int) -> Floats:
    """Many chains: the same events, each for all chains at once."""
    chains, stages = forward_s.shape
    forwards, backwards = forward_s.T.copy(), backward_s.T.copy()
    links = np.vstack([link_s.T, np.zeros((1, chains))])
    clock, down, up = np.zeros((stages, chains)), np.zeros((stages, chains)), np.zeros((stages, chains))
    arrived: list[list[Floats]] = [[np.zeros(chains)] * num_microbatches, *([] for _ in range(stages))]

    def forward(s: int, i: int) -> None:
        np.maximum(arrived[s][i], clock[s], out=clock[s])
        clock[s] += forwards[s]
        np.maximum(clock[s], down[s], out=down[s])
        down[s] += links[s]
        if s + 1 < stages:
            arrived[s + 1].append(down[s].copy())

    for s in range(stages):
        for i in range(ahead[s]):
            forward(s, i)
    for t in range(num_microbatches):
        for s in range(stages):
            if t + ahead[s] < num_microbatches:
                forward(s, t + int(ahead[s]))
        come = np.zeros(chains)
        for s in range(stages - 1, -1, -1):
            np.maximum(come, clock[s], out=clock[s])
            clock[s] += backwards[s]
            if s > 0:
                np.maximum(clock[s], up[s], out=up[s])
                up[s] += links[s - 1]
                come = up[s]
    return np.asarray(clock.max(axis=0))


KERNEL: Kernel[[Floats, Floats, Floats, Ints, int], Floats] = Kernel(_loops, _plain)
