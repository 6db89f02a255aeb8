"""What workers' traces say of a loss: how much longer than usual a worker paused."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from watched import STILL_STEPS

from planaria.protocol.messages.records import PlanTaken
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.worker.instruction_trace import Entry, read_trace

COMPUTE = ("forward", "backward", "backward_input", "backward_weight")
AROUND_S = 0.15
"""After a loss is known, so long the plans of it may reach a worker."""


class Traces:
    """Of all workers of a run that ended."""

    def __init__(self, folder: RunFolder) -> None:
        self._of: dict[int, list[Entry]] = {}
        for path in sorted(folder.logs.glob("trace-*.jsonl")):
            entries = [entry for entry in read_trace(path) if entry.op in COMPUTE]
            self._of[int(path.stem.partition("-")[2])] = entries

    def first(self, worker: int, after: float = 0.0) -> float | None:
        """When the worker began its first instruction after a moment."""
        return next((entry.began_s for entry in self._of.get(worker, ()) if entry.began_s > after), None)

    def gaps_ms(self, plan: PlanTaken, lost: int, step: int, killed: float, known: float) -> list[float]:
        """Of each worker of a pipeline without the lost node.

        Args:
            plan: in force when it was lost.
            lost: the node.
            step: that was lost in.
            killed: when, in monotonic seconds.
            known: when the coordinator knew.
        """
        found = []
        for pipeline in plan.pipelines:
            workers = [worker for worker, _, _ in pipeline]
            if lost not in workers:
                gaps = (self._gap_ms(worker, step, killed, known) for worker in workers)
                found += [gap for gap in gaps if gap is not None]
        return found

    def _gap_ms(self, worker: int, step: int, killed: float, known: float) -> float | None:
        """How much longer the longest pause of the worker is that touches the time around the loss."""
        usual = self._usual_s(worker, step)
        entries = [entry for entry in self._of.get(worker, ()) if entry.step == step]
        longer = []
        for left, right in pairwise(entries):
            if right.born != left.born or right.began_s < killed or left.ended_s > known + AROUND_S:
                continue
            key = _pair(left, right)
            if key in usual:
                longer.append(right.began_s - left.ended_s - usual[key])
        return max(max(longer) * 1e3, 0.0) if longer else None

    def _usual_s(self, worker: int, step: int) -> Mapping[object, float]:
        """The median pause between each two instructions in the steps before."""
        pauses: dict[object, list[float]] = defaultdict(list)
        entries = [e for e in self._of.get(worker, ()) if step - STILL_STEPS <= e.step < step]
        for left, right in pairwise(entries):
            if left.step == right.step:
                pauses[_pair(left, right)].append(right.began_s - left.ended_s)
        return {key: statistics.median(of_pair) for key, of_pair in pauses.items()}

    def boundary_ms(self, workers: Sequence[int], step: int, usual_steps: Sequence[int]) -> list[float]:
        """How much longer each worker's pause before a step is than before the usual ones."""
        found = []
        for worker in workers:
            ends, begins = {}, {}
            for entry in self._of.get(worker, ()):
                ends[entry.step] = entry.ended_s
                begins.setdefault(entry.step, entry.began_s)
            pause = {s: begins[s] - ends[s - 1] for s in begins if s - 1 in ends}
            usual = [pause[s] for s in usual_steps if s in pause]
            if usual and step in pause:
                found.append(max(0.0, pause[step] - statistics.median(usual)) * 1e3)
        return found


def _pair(left: Entry, right: Entry) -> object:
    return left.op, left.microbatch, left.first_layer, right.op, right.microbatch, right.first_layer
