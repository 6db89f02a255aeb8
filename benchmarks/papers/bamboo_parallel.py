"""Pure data parallelism as Bamboo's appendices describe it: with replicas on other workers, and with checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from replay import Answer, Changes, Checkpoints, Mode, Node


@dataclass(slots=True, kw_only=True)
class Replicas:
    """Bamboo's: each worker also computes another's batch, and has its parameters and optimizer state (appendix B).

    Attributes:
        work_s: of a whole batch on one worker, without redundancy.
        samples: of a batch.
        overbatching: how much longer a worker computes for twice the batch (1.5 in the paper).
        recovery_s: of a worker that takes over.
        reconfiguration_s: when nodes join.
        restart_s: where a worker and its replica are gone.
    """

    work_s: float
    samples: float
    overbatching: float
    recovery_s: float
    reconfiguration_s: float
    restart_s: float
    name: str = "Bamboo, data parallel"
    checkpoints: Checkpoints | None = None
    _ring: list[Node] = field(default_factory=list)

    def start(self, nodes: Sequence[Node]) -> Mode | None:
        self._ring = list(nodes)
        if not self._ring:
            return None
        return Mode(step_s=self.work_s * self.overbatching / len(self._ring), samples=self.samples)

    def change(self, changes: Changes) -> Answer:
        gone = set(changes.lost)
        is_fatal = any(self._ring[at] in gone and self._ring[at - 1] in gone for at in range(len(self._ring)))
        mode = self.start([*(node for node in self._ring if node not in gone), *changes.joined])
        if is_fatal:
            return Answer(mode=mode, pause_s=self.restart_s, how="checkpoint", rolls_back=True)
        pause_s = self.reconfiguration_s if changes.joined else self.recovery_s
        return Answer(mode=mode, pause_s=pause_s, how="reconfigure" if changes.joined else "replica")


@dataclass(slots=True, kw_only=True)
class Restarts:
    """The paper's Checkpoint: a standby node takes a lost worker's place at once and loads the last checkpoint, and
    all go back to it (appendix C.2). There is always a standby node."""

    step_s: float
    samples: float
    restart_s: float
    checkpoints: Checkpoints | None
    name: str = "Checkpoint, data parallel"

    def start(self, nodes: Sequence[Node]) -> Mode | None:
        return Mode(step_s=self.step_s, samples=self.samples)

    def change(self, changes: Changes) -> Answer:
        if not changes.lost:
            return Answer(mode=self.start(()), how="join")
        return Answer(mode=self.start(()), pause_s=self.restart_s, how="restart", rolls_back=True)
