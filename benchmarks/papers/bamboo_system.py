"""Bamboo as its paper describes it: redundant computation in pipelines of fixed depth, and reconfigurations.

Each worker holds its successor's stage too, the last one the first's (section 5). A lost worker's stage goes on at its
predecessor. Two neighbours lost break the pipeline; what happens then, and when pipelines are formed anew, is appendix
A: full depth P first, what is left over waits as standby.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from replay import Answer, Changes, Checkpoints, Mode, Node


@dataclass(slots=True, kw_only=True)
class Bamboo:
    """Pipelines with shadows.

    Attributes:
        num_pipelines: D, at most.
        depth: P.
        step_s: of all D pipelines whole, redundant computation included.
        samples: in a step.
        recovery_s: of a shadow that takes over.
        reconfiguration_s: of new pipelines.
        restart_s: from a checkpoint.
        shadow_slows: how many times longer a step takes where a worker does two stages' work. The paper's simulator
            knows nothing of the kind: 1.
    """

    num_pipelines: int
    depth: int
    step_s: float
    samples: float
    recovery_s: float
    reconfiguration_s: float
    restart_s: float
    shadow_slows: float = 1.0
    name: str = "Bamboo"
    checkpoints: Checkpoints | None = None
    _pipelines: list[list[Node | None]] = field(default_factory=list)
    _standby: list[Node] = field(default_factory=list)

    def start(self, nodes: Sequence[Node]) -> Mode | None:
        """Pipelines of full depth, neighbours in different zones where that can be."""
        ordered = _mixed(nodes)
        count = min(self.num_pipelines, len(ordered) // self.depth)
        self._pipelines = [list(ordered[at * self.depth : (at + 1) * self.depth]) for at in range(count)]
        self._standby = list(ordered[count * self.depth :])
        return self._mode()

    def change(self, changes: Changes) -> Answer:
        gone = set(changes.lost)
        self._standby = [node for node in self._standby if node not in gone] + list(changes.joined)
        hit = any(node in gone for pipeline in self._pipelines for node in pipeline)
        self._pipelines = [[None if node in gone else node for node in pipeline] for pipeline in self._pipelines]
        if self._pipelines and self._is_fatal():
            return Answer(mode=self._anew(), pause_s=self.restart_s, how="checkpoint", rolls_back=True)
        if any(_is_broken(pipeline) for pipeline in self._pipelines) or self._is_due():
            was_idle = not self._pipelines
            mode = self._anew()
            if mode is None:
                return Answer(mode=None, how="too few nodes", disturbs=True)
            return Answer(mode=mode, pause_s=self.restart_s if was_idle else self.reconfiguration_s, how="reconfigure")
        return Answer(mode=self._mode(), pause_s=self.recovery_s if hit else 0.0, how="shadow" if hit else "standby")

    def _anew(self) -> Mode | None:
        nodes = [node for pipeline in self._pipelines for node in pipeline if node is not None]
        return self.start([*nodes, *self._standby])

    def _is_fatal(self) -> bool:
        """Whether some stage's state is nowhere."""
        return any(
            all(pipeline[at] is None and pipeline[at - 1] is None for pipeline in self._pipelines)
            for at in range(self.depth)
        )

    def _is_due(self) -> bool:
        """Appendix A: enough nodes wait to make pipelines whole or to add one, or each pipeline is near its end."""
        missing = sum(node is None for pipeline in self._pipelines for node in pipeline)
        if missing and len(self._standby) >= missing:
            return True
        if len(self._pipelines) < self.num_pipelines and len(self._standby) - missing >= self.depth:
            return True
        return bool(self._pipelines) and all(None in pipeline for pipeline in self._pipelines)

    def _mode(self) -> Mode | None:
        if not self._pipelines:
            return None
        slow = self.shadow_slows if any(None in pipeline for pipeline in self._pipelines) else 1.0
        return Mode(step_s=self.step_s * slow * self.num_pipelines / len(self._pipelines), samples=self.samples)


def _is_broken(pipeline: Sequence[Node | None]) -> bool:
    """Whether a worker and its shadow are gone."""
    return any(pipeline[at] is None and pipeline[at - 1] is None for at in range(len(pipeline)))


def _mixed(nodes: Sequence[Node]) -> list[Node]:
    """Zone by zone in turn, so that neighbours differ as long as there are several zones left."""
    by_zone: dict[str, list[Node]] = {}
    for node in nodes:
        by_zone.setdefault(node.zone, []).append(node)
    queues = sorted(by_zone.values(), key=len, reverse=True)
    mixed = []
    while any(queues):
        for queue in queues:
            if queue:
                mixed.append(queue.pop())
    return mixed
