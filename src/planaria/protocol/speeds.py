"""How fast the nodes are, judged from what their workers measure: the seconds that they computed in each step.

A node's speed is what the estimate expects of it over what it took, beside the same of the other nodes: a profile that
is off for everybody, or a host that all share, says nothing of any one node. It is slow, or fast again, when several
steps in a row say so; one that changes often is believed more slowly each time, so plans do not go to and fro. Pure:
no clock; measurements come as arguments.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from planaria.plan.plan import NodeId, Plan, WorkerId
from planaria.protocol.learnt import KnownSpeeds
from planaria.protocol.records import NodeSpeed

STEPS = 3
"""So many steps in a row must tell of another speed. One or two may be chance: a page fault, a checkpoint's copy."""

MOST_STEPS = 24
"""And at most so many, of a node that changed often within the last `MEMORY_STEPS`."""

MEMORY_STEPS = 100

FACTOR = 1.4
"""By how much a speed must differ from the known one. Profiles' errors and the noise of shared cores are within it: on
nodes of one speed, single steps show speeds down to 0.75, and now and then one of any kind."""

LEAST_S = 0.005
"""A step in which nobody computes for so long says nothing: at that scale the interpreter is what is measured."""

HARM = 0.8
"""A node is not called slower unless it computes for so much of the time of most: else nobody waits for it, and it may
only have so little to do that the interpreter is what is measured."""

GRAIN = 0.05
"""Speeds are multiples of it. Finer ones would be chance, and nodes of one speed are planned for together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """Of one node in one step: its speed, and whether others may have to wait for it."""

    speed: float
    harms: bool


@dataclass(slots=True)
class _Seen:
    """Of one node: its speeds in the last steps, and the steps in which its known speed changed."""

    recent: deque[_Measured] = field(default_factory=lambda: deque(maxlen=MOST_STEPS))
    changed: deque[int] = field(default_factory=lambda: deque(maxlen=8))

    def needed(self, step: int) -> int:
        """How many steps must agree. The first change and the way back count as one."""
        often = sum(step - changed < MEMORY_STEPS for changed in self.changed)
        return min(STEPS << max(0, often - 1), MOST_STEPS)


class Speeds:
    """Of all nodes.

    Attributes:
        known: speeds of the nodes that are slower than the others; 0.5: they take twice as long.
    """

    def __init__(self) -> None:
        self.known: dict[NodeId, float] = {}
        self._seen: dict[NodeId, _Seen] = {}
        self._expected: tuple[Plan, Mapping[WorkerId, float]] | None = None
        self._expected_s: dict[NodeId, dict[WorkerId, float]] = {}
        self._is_first = True

    @property
    def learnt(self) -> KnownSpeeds:
        """For the next coordinator."""
        changed = {node: tuple(seen.changed) for node, seen in sorted(self._seen.items()) if seen.changed}
        return KnownSpeeds(slow=dict(sorted(self.known.items())), changed=changed)

    def recall(self, learnt: KnownSpeeds, live: Collection[NodeId]) -> None:
        """What the coordinator before knew of nodes that live."""
        self.known = {node: speed for node, speed in learnt.slow.items() if node in live}
        for node, steps in learnt.changed.items():
            if node in live:
                self._seen.setdefault(node, _Seen()).changed.extend(steps)

    def expect(self, plan: Plan, compute_s: Mapping[WorkerId, float]) -> None:
        """A plan is in force now, under which the workers should compute for so long.

        Its first step is not judged: what is used for the first time is slow, and state may be on its way.
        """
        self._expected = plan, compute_s
        self._is_first = True

    def forget(self, node: NodeId) -> bool:
        """It is gone. Returns whether it was known to be slow."""
        self._seen.pop(node, None)
        return self.known.pop(node, None) is not None

    def committed(self, step: int, compute_s: Mapping[WorkerId, float]) -> list[NodeSpeed]:
        """A step in which no node was lost, and how long each worker computed; returns what is new."""
        speeds = {} if self._is_first else self._measured(compute_s)
        self._is_first = False
        return [news for node, found in sorted(speeds.items()) if (news := self._judge(step, node, found)) is not None]

    def _measured(self, compute_s: Mapping[WorkerId, float]) -> dict[NodeId, _Measured]:
        """Of each node, by the slowest of its workers; of none where somebody did not measure."""
        if self._expected is not None:  # of many plans, no step is judged
            plan, expected_s = self._expected
            self._expected, self._expected_s = None, {}
            for worker, seconds in expected_s.items():
                if seconds > 0:
                    self._expected_s.setdefault(plan.node_of(worker), {})[worker] = seconds
        slowness: dict[NodeId, float] = {}
        longest_s: dict[NodeId, float] = {}
        for node, expected in self._expected_s.items():
            took = {worker: compute_s.get(worker, 0.0) for worker in expected}
            if min(took.values()) <= 0:
                return {}
            slowness[node] = max(seconds / expected[worker] for worker, seconds in took.items())
            longest_s[node] = max(took.values())
        if len(slowness) < 2 or max(longest_s.values()) < LEAST_S:
            return {}
        usual = statistics.median_low(slowness.values())
        most_s = HARM * statistics.median_low(longest_s.values())
        return {
            node: _Measured(speed=min(1.0, usual / slowness[node]), harms=took_s >= most_s)
            for node, took_s in longest_s.items()
        }

    def _judge(self, step: int, node: NodeId, found: _Measured) -> NodeSpeed | None:
        seen = self._seen.setdefault(node, _Seen())
        seen.recent.append(found)
        before = self.known.get(node, 1.0)
        low, high = before / FACTOR, min(before * FACTOR, (1.0 + before) / 2)
        if low <= found.speed <= high or before == 1.0 <= found.speed:
            return None  # as nearly always, for thousands of nodes
        needed = seen.needed(step)
        last = list(seen.recent)[-needed:]
        is_slower = all(one.harms and one.speed < low for one in last)
        is_faster = all(one.speed > high for one in last)
        if len(last) < needed or not (is_slower or is_faster):
            return None
        now = _rounded(statistics.median(one.speed for one in last))
        if now == before:
            return None
        self.known[node] = now
        if now == 1.0:
            del self.known[node]
        seen.recent.clear()
        seen.changed.append(step)
        return NodeSpeed(node=node, step=step, speed=now, before=before, steps=needed)


def _rounded(speed: float) -> float:
    """To the grain; what is nearly as fast as the others is as fast."""
    grains = max(1, round(speed / GRAIN))
    return 1.0 if (grains + 2) * GRAIN >= 1.0 else round(grains * GRAIN, 2)
