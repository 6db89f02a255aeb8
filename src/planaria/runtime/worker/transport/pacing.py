"""Decides how fast sums go to each of several hosts, so that each gets its part of the wire.

Connections share a wire unevenly when nothing else decides, and the owner whose parts come last holds up everybody's
step. As fast as the wire was probed, divided by the number of hosts, no connection is in another's way. A probe can
have been of a busy wire; so every now and then a step goes as fast as it can, and shows what the wire takes. Pure: no
socket.
"""

from __future__ import annotations

from collections.abc import Mapping

from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import Flow
from planaria.runtime.thresholds import PACED_BELOW_BYTES_PER_S, UNPACED_EVERY, WIRE_IS_FASTER

Flows = Mapping[WorkerId, Flow]


class Pacing:
    """The rate at which one worker sends to each of the hosts that it exchanges sums with."""

    def __init__(self) -> None:
        self._wire = 0.0
        self._num_hosts = 0
        self._steps = 0
        self._before: Flows = {}

    def begin_plan(self, wire_bytes_per_s: float, num_hosts: int) -> None:
        """Begins anew, for a plan.

        Args:
            wire_bytes_per_s: what the wire of a host takes, as it was probed; 0: that is not known.
            num_hosts: that sums go to.
        """
        self._wire, self._num_hosts, self._steps, self._before = wire_bytes_per_s, num_hosts, 0, {}

    @property
    def is_on(self) -> bool:
        """Whether there is anything to pace."""
        return self._num_hosts > 1 and 0 < self._wire < PACED_BELOW_BYTES_PER_S

    def next_step(self, flows: Flows) -> float | None:
        """Returns the bytes a second to each host in the step that begins; None: as fast as it goes.

        Args:
            flows: what was sent to them so far.
        """
        was_free, before, self._before = self._is_free, self._before, flows
        self._steps += 1
        if was_free and (rate := _rate(before, flows)) > self._wire * WIRE_IS_FASTER:
            self._wire = rate
        return self._wire / self._num_hosts if self.is_on and not self._is_free else None

    @property
    def _is_free(self) -> bool:
        return self._steps % UNPACED_EVERY == 0


def _rate(before: Flows, after: Flows) -> float:
    """Returns the bytes a second of all together, while any was under way; 0 where that is not known."""
    if not before or before.keys() != after.keys():
        return 0.0
    size = sum(flow.sent_bytes - before[peer].sent_bytes for peer, flow in after.items())
    busy_s = max(flow.busy_s - before[peer].busy_s for peer, flow in after.items())
    return size / busy_s if busy_s > 0 else 0.0
