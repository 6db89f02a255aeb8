"""How fast the nodes are, judged from what their workers measure: the seconds that they computed in each step.

A node's speed is what the estimate expects of it over what it took, beside the same of the other nodes: a profile that
is off for everybody, or a host that all share, says nothing of any one node. It is slow, or fast again, when several
windows in a row say so, each of one step or, where steps are short, of several; one that changes often is believed more
slowly each time, so plans do not go to and fro. Pure: no clock; measurements come as arguments.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from planaria.plan.plan import NodeId, Plan, WorkerId
from planaria.protocol.messages.records import NodeSpeed
from planaria.protocol.messages.run_measurements import KnownSpeeds
from planaria.protocol.thresholds import (
    AGREEING_WINDOWS,
    FAST_AGAIN,
    HARMFUL_SHARE,
    LEAST_COMPUTE_S,
    MOST_AGREEING_WINDOWS,
    REMEMBERED_WINDOWS,
    SLOWER_FACTOR,
    SPEED_GRAIN,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedEvidence:
    """How much must be measured before a node's speed is believed, and how often plans may follow speeds.

    Attributes:
        window_s: steps are judged together until some worker has computed for so long; 0: each step alone.
        rest_s: between two plans that are made because of speeds.
    """

    window_s: float = 0.0
    rest_s: float = 0.0


ON_REAL_HOSTS = SpeedEvidence(window_s=0.25, rest_s=10.0)
"""Evidence where layers are really computed: what a scheduler does to a step of 10 ms says nothing of its node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """What one window showed of one node: its speed, and whether others may have to wait for it."""

    speed: float
    harms: bool


@dataclass(slots=True)
class _Seen:
    """History of one node: its speeds in the last windows, and the steps in which its known speed changed."""

    recent: deque[_Measured] = field(default_factory=lambda: deque(maxlen=MOST_AGREEING_WINDOWS))
    changed: deque[int] = field(default_factory=lambda: deque(maxlen=8))

    def needed(self, step: int, window_steps: int) -> int:
        """Returns how many windows must agree. The first change and the way back count as one."""
        often = sum(step - changed < REMEMBERED_WINDOWS * window_steps for changed in self.changed)
        return min(AGREEING_WINDOWS << max(0, often - 1), MOST_AGREEING_WINDOWS)

    def lasts_steps(self, step: int) -> int | None:
        """Returns for how many steps the node's present speed is thought to last; None if unknown."""
        if len(self.changed) < 3:
            return None
        return max(self.changed[-2] - self.changed[-3], step - self.changed[-1])


class NodeSpeeds:
    """Known speeds of all nodes.

    Args:
        evidence: how much of it is needed.

    Attributes:
        known: speeds of the nodes that are slower than the others; 0.5: they take twice as long.
    """

    def __init__(self, evidence: SpeedEvidence | None = None) -> None:
        self._evidence = evidence or SpeedEvidence()
        self._window: dict[WorkerId, float] = {}
        self._window_steps = 0
        self.known: dict[NodeId, float] = {}
        self._seen: dict[NodeId, _Seen] = {}
        self._expected: tuple[Plan, Mapping[WorkerId, float]] | None = None
        self._expected_s: dict[NodeId, dict[WorkerId, float]] = {}
        self._is_first = True

    @property
    def learnt(self) -> KnownSpeeds:
        """Known speeds, for the next coordinator."""
        changed = {node: tuple(seen.changed) for node, seen in sorted(self._seen.items()) if seen.changed}
        return KnownSpeeds(slow=dict(sorted(self.known.items())), changed=changed)

    def recall(self, learnt: KnownSpeeds, live: Collection[NodeId]) -> None:
        """Takes over what the last coordinator knew of the nodes that live."""
        self.known = {node: speed for node, speed in learnt.slow.items() if node in live}
        for node, steps in learnt.changed.items():
            if node in live:
                self._seen.setdefault(node, _Seen()).changed.extend(steps)

    def expect(self, plan: Plan, compute_s: Mapping[WorkerId, float]) -> None:
        """Records that a plan is in force under which the workers should compute for so many seconds.

        Its first step is not judged: what is used for the first time is slow, and state may be on its way.
        """
        self._expected = plan, compute_s
        self._is_first = True
        self._window, self._window_steps = {}, 0

    def forget(self, node: NodeId) -> bool:
        """Forgets a lost node; returns whether it was known to be slow."""
        self._seen.pop(node, None)
        return self.known.pop(node, None) is not None

    def committed(self, step: int, compute_s: Mapping[WorkerId, float]) -> list[NodeSpeed]:
        """Judges a step without losses from each worker's seconds; returns the speeds that changed."""
        window = None if self._is_first else self._windowed(compute_s)
        self._is_first = False
        if window is None:
            return []
        speeds = self._measured(window)
        news = [news for node, found in sorted(speeds.items()) if (news := self._judge(step, node, found)) is not None]
        self._window, self._window_steps = {}, 0
        return news

    def lasts_steps(self, step: int) -> int | None:
        """Returns for how many steps the present speeds are thought to last: as long as such speeds did the last time,
        or as they have by now. None: nodes did not change often enough to tell."""
        latest = max((seen.changed[-1] for seen in self._seen.values() if seen.changed), default=None)
        lasts = [seen.lasts_steps(step) for seen in self._seen.values() if seen.changed and seen.changed[-1] == latest]
        return min((steps for steps in lasts if steps is not None), default=None)

    def _windowed(self, compute_s: Mapping[WorkerId, float]) -> Mapping[WorkerId, float] | None:
        """Returns each worker's seconds in the window that this step ends; None: it ends none, or some worker did not
        measure, or it was too short."""
        if self._expected is not None:  # of many plans, no step is judged
            plan, expected_s = self._expected
            self._expected, self._expected_s = None, {}
            for worker, seconds in expected_s.items():
                if seconds > 0:
                    self._expected_s.setdefault(plan.node_of(worker), {})[worker] = seconds
        took = {worker: compute_s.get(worker, 0.0) for own in self._expected_s.values() for worker in own}
        longest_s = max(took.values(), default=0.0)
        if longest_s < LEAST_COMPUTE_S or min(took.values()) <= 0:
            return None
        self._window_steps += 1
        if self._window or longest_s < self._evidence.window_s:
            took = {worker: self._window.get(worker, 0.0) + seconds for worker, seconds in took.items()}
            self._window, longest_s = took, max(took.values())
        return took if longest_s >= self._evidence.window_s else None

    def _measured(self, compute_s: Mapping[WorkerId, float]) -> dict[NodeId, _Measured]:
        """Returns each node's measured speed, by the slowest of its workers."""
        slowness: dict[NodeId, float] = {}
        longest_s: dict[NodeId, float] = {}
        for node, expected in self._expected_s.items():
            slowness[node] = max(compute_s[worker] / seconds for worker, seconds in expected.items())
            longest_s[node] = max(map(compute_s.__getitem__, expected))
        if len(slowness) < 2:
            return {}
        usual = statistics.median_low(slowness.values())
        most_s = HARMFUL_SHARE * statistics.median_low(longest_s.values())
        return {
            node: _Measured(speed=min(1.0, usual / slowness[node]), harms=took_s >= most_s)
            for node, took_s in longest_s.items()
        }

    def _judge(self, step: int, node: NodeId, found: _Measured) -> NodeSpeed | None:
        seen = self._seen.setdefault(node, _Seen())
        seen.recent.append(found)
        before = self.known.get(node, 1.0)
        low, high = before / SLOWER_FACTOR, min(before * SLOWER_FACTOR, max(FAST_AGAIN, (1.0 + before) / 2))
        if low <= found.speed <= high or before == 1.0 <= found.speed:
            return None  # as nearly always, for thousands of nodes
        needed = seen.needed(step, self._window_steps)
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
    """Rounds a speed to a multiple of `SPEED_GRAIN`; a node nearly as fast as the others counts as fast."""
    grains = max(1, round(speed / SPEED_GRAIN))
    return 1.0 if (grains + 2) * SPEED_GRAIN >= 1.0 else round(grains * SPEED_GRAIN, 2)
