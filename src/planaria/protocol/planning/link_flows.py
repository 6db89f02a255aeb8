"""Link flows: at what rate bytes that flow anyway pass between hosts, and where that has changed.

Under one plan, messages and sums share links in the same way in every step. So where bytes pass at another rate than in
the plan's first steps, the link is another one than it was, however many share it. A change counts when two windows in
a row show it. Pure: no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planaria.plan.costs.network import HostPair, host_pair
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import Flow
from planaria.protocol.thresholds import FLOW_MATTERS, LEAST_FLOW_BYTES, LEAST_FLOW_S

Flows = Mapping[WorkerId, Mapping[WorkerId, Flow]]
"""What each worker has sent to each of its peers on other hosts, since its connection to it was made."""


class LinkFlows:
    """Rates between pairs of hosts, compared with those in the first steps of the plan in force."""

    def __init__(self) -> None:
        self._generation = -1
        self._last: dict[tuple[WorkerId, WorkerId], Flow] = {}
        self._usual: dict[HostPair, float] = {}
        """Bytes a second that each pair is known for under this plan."""
        self._suspected: dict[HostPair, float] = {}
        """By what factor the pair's rate was another one in the last window."""

    def measured(
        self, generation: int, flows: Flows, host_of: Callable[[WorkerId], str | None]
    ) -> dict[HostPair, float]:
        """Takes what was sent until a step of the plan; returns by what factor the rates of which pairs have changed.

        Args:
            generation: of the plan in force.
            flows: as told with the votes for the step.
            host_of: a worker's host; None: it is not known.
        """
        if generation != self._generation:
            self._generation = generation
            self._last, self._usual, self._suspected = {}, {}, {}
        changed = {}
        for pair, rate in self._rates(flows, host_of).items():
            usual = self._usual.setdefault(pair, rate)
            factor, before = rate / usual, self._suspected.pop(pair, 1.0)
            if 1 / FLOW_MATTERS < factor < FLOW_MATTERS:
                continue
            if before != 1.0 and (factor > 1) == (before > 1):
                changed[pair], self._usual[pair] = factor, rate
            else:
                self._suspected[pair] = factor
        return changed

    def _rates(self, flows: Flows, host_of: Callable[[WorkerId], str | None]) -> dict[HostPair, float]:
        """Returns the bytes a second of each pair since the last time, both ways together, where it tells something."""
        sums: dict[HostPair, tuple[int, float]] = {}
        for sender, sent in flows.items():
            for peer, flow in sent.items():
                last = self._last.get((sender, peer))
                self._last[sender, peer] = flow
                here, there = host_of(sender), host_of(peer)
                if last is None or flow.sent_bytes < last.sent_bytes or here is None or there is None or here == there:
                    continue  # the first window of a connection, or one that was made anew
                size, busy_s = sums.get(pair := host_pair(here, there), (0, 0.0))
                sums[pair] = size + flow.sent_bytes - last.sent_bytes, busy_s + flow.busy_s - last.busy_s
        return {
            pair: size / busy_s
            for pair, (size, busy_s) in sums.items()
            if size >= LEAST_FLOW_BYTES and busy_s >= LEAST_FLOW_S
        }
