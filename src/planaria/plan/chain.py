"""A chain of stages: how long one pipeline takes for a step, event by event, in topological order and without a queue.

The same model as `planaria.estimate.step_time`, for one pipeline on its own and without the sums of gradients: a stage
computes one thing at a time; with overlap a message occupies only its link, and those of one sender to one receiver go
one after another; without overlap a message occupies its sender.

The order: round t of a step is the backward of microbatch t on all stages from the last to the first, after the forward
that precedes it on each stage, from the first to the last. Later stages run fewer forwards ahead, so whatever an
operation waits for is in an earlier round or earlier in its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from planaria.plan.compiled import Kernel, Numbers, Work
from planaria.plan.plan import ScheduleKind

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

INTERPRETED_EVENTS_PER_S = 5e6
"""An event is a forward or a backward of one microbatch on one stage."""


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

    def time_s(self, num_microbatches: int) -> float:
        """Seconds from the first forward to the last backward of so many microbatches; 0 for none."""
        if num_microbatches <= 0:
            return 0.0
        return float(times_s(*self._arrays, num_microbatches, self.schedule)[0])


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
    work: Work | None = None,
) -> Floats:
    """Seconds of many chains with equally many stages, one a row.

    Args:
        forward_s: chains x stages.
        backward_s: chains x stages.
        link_s: chains x (stages - 1).
        num_microbatches: of one step, at least 1.
        schedule: order of forwards and backwards.
        work: that this is part of.
    """
    chains, stages = forward_s.shape
    ahead = np.array([schedule.forwards_ahead(stages - 1 - s, num_microbatches) for s in range(stages)], dtype=np.int64)
    work = work or Work()
    work.add(2.0 * chains * stages * num_microbatches / INTERPRETED_EVENTS_PER_S)
    times, clocks = np.empty(chains), np.empty((3, stages))
    arrived = np.empty((stages + 1) * num_microbatches)
    links = np.concatenate([link_s, np.zeros((chains, 1))], axis=1)  # of the last stage: nobody waits for its message
    step_times = STEP_TIMES.form(compiled=work.compiled)
    step_times(forward_s, backward_s, links, ahead, num_microbatches, times, clocks, arrived)
    return times


def _step_times(
    forward_s: Numbers, backward_s: Numbers, link_s: Numbers, ahead: Numbers, num: int, times: Numbers,
    clocks: Numbers, arrived: Numbers,
) -> None:  # fmt: skip
    """Writes `times`. `clocks`: until when a stage, its messages down and those up are busy; `arrived`: of each stage,
    when its microbatches' inputs came."""
    clock, down, up, stages = clocks[0], clocks[1], clocks[2], len(ahead)
    for c in range(len(times)):
        forwards, backwards, links = forward_s[c], backward_s[c], link_s[c]
        for i in range(num):
            arrived[i] = 0.0
        for s in range(stages):
            now, sent = 0.0, 0.0
            for at in range(s * num, s * num + ahead[s]):
                come = arrived[at]
                now = (come if come > now else now) + forwards[s]
                sent = (now if now > sent else sent) + links[s]
                arrived[at + num] = sent
            clock[s], down[s], up[s] = now, sent, 0.0
        for t in range(num):
            for s in range(stages):
                if t + ahead[s] < num:
                    at = s * num + t + ahead[s]
                    come, now, sent = arrived[at], clock[s], down[s]
                    now = (come if come > now else now) + forwards[s]
                    sent = (now if now > sent else sent) + links[s]
                    clock[s], down[s], arrived[at + num] = now, sent, sent
            come = 0.0
            for s in range(stages - 1, -1, -1):
                now, sent = clock[s], up[s]
                now = (come if come > now else now) + backwards[s]
                come = (now if now > sent else sent) + links[s - 1]
                clock[s], up[s] = now, come
        last = clock[0]
        for s in range(1, stages):
            last = clock[s] if clock[s] > last else last
        times[c] = last


STEP_TIMES = Kernel(_step_times, writes=(5,))
