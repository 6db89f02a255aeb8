"""What a run cost, by zone, and what a dollar bought: from its records and the prices of its job. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from planaria.job.settings import Job
from planaria.protocol.messages.records import (
    AnyRecord,
    NodeJoined,
    NodeLost,
    NodeReleased,
    Restored,
    RunEnded,
    StepCommitted,
    StepSkipped,
)

_HOUR_S = 3600.0


class Costs:
    """The cost of a run. Give it every record with its time in seconds, in order.

    Attributes:
        dollars: that the run has cost, as its records say.
        samples: trained, and not lost again.
    """

    def __init__(self, job: Job) -> None:
        """Makes a run that has cost nothing."""
        self.dollars = 0.0
        self.samples = 0
        self._budget, self._batch, self._microbatch = job.budget, job.train.global_batch, job.train.microbatch
        self._is_counted = job.budget.is_counted
        self._step = 0
        self._num_dropped = 0
        self._zones: dict[int, str] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._since_s = 0.0

    def note(self, record: AnyRecord, time_s: float) -> None:
        """Notes what a record says of nodes, steps and dollars."""
        match record:
            case StepCommitted() | StepSkipped():
                self.reach(record.step, record.num_dropped, record.cost if isinstance(record, StepCommitted) else 0.0)
            case Restored():  # how many were dropped by then, the next step tells
                self.reach(record.to_step, self._num_dropped)
            case NodeJoined() | NodeLost() | NodeReleased() | RunEnded():
                if self._is_counted:
                    self._count(record, time_s)
            case _:
                pass

    def reach(self, step: int, num_dropped: int, dollars: float = 0.0) -> None:
        """Notes the last step so far: microbatches dropped, and dollars that the run had cost, by then."""
        self.dollars = max(self.dollars, dollars)
        self._step, self._num_dropped = step, num_dropped
        self.samples = step * self._batch - num_dropped * self._microbatch

    def _count(self, record: NodeJoined | NodeLost | NodeReleased | RunEnded, time_s: float) -> None:
        for zone in self._zones.values():
            self._seconds[zone] += max(0.0, time_s - self._since_s)
        self._since_s = time_s
        match record:
            case NodeJoined():
                self._zones[record.node] = record.zone
            case NodeLost() | NodeReleased():
                self._zones.pop(record.node, None)
            case RunEnded():
                self.dollars = max(self.dollars, record.cost)
                self._zones.clear()

    def told(self, now_s: float) -> dict[str, Any] | None:
        """Returns the cost up to now; None where the job has no prices. `zones`: name, dollars for a node and an hour,
        hours of nodes."""
        if not self._is_counted:
            return None
        seconds = self._seconds.copy()
        for zone in self._zones.values():
            seconds[zone] += max(0.0, now_s - self._since_s)
        price = self._price(seconds)
        return {
            "dollars": self.dollars,
            "steps": self._step,
            "samples": self.samples,
            "samples_per_dollar": self.samples / self.dollars if self.dollars else None,
            "steps_per_dollar": self._step / self.dollars if self.dollars else None,
            "total": self._budget.total,
            "per_hour": self._budget.per_hour,
            "zones": [
                [zone, self._budget.zones.get(zone, price), spent / _HOUR_S] for zone, spent in sorted(seconds.items())
            ],
        }

    def _price(self, seconds: Mapping[str, float]) -> float:
        """Returns the price where a zone has none of its own; of prices that changed, what they came to."""
        known = self._budget.zones
        others_h = sum(spent for zone, spent in seconds.items() if zone not in known) / _HOUR_S
        if not self._budget.price_command or not others_h:
            return self._budget.price
        rest = self.dollars - sum(known[zone] * spent / _HOUR_S for zone, spent in seconds.items() if zone in known)
        return max(0.0, rest) / others_h
