"""Folds a run's records into what the page shows, in bounded memory: it holds ends of lists, counts and series."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from planaria.job.settings import Job
from planaria.protocol.messages.records import (
    AnyRecord,
    DeviceLost,
    EstimateCorrected,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeReleased,
    NodeSpeed,
    PlanTaken,
    PolicySwitched,
    Recovered,
    Restored,
    RunEnded,
    StepCommitted,
    StepSkipped,
    Waiting,
)
from planaria.protocol.step.time_accounting import TimeAccount
from planaria.runtime.run_folder.recorder import finite
from planaria.runtime.run_folder.sentences import recovery_sentence, sentence
from planaria.runtime.run_folder.step_blocks import StepBlock
from planaria.runtime.run_folder.step_lines import StepLine
from planaria.runtime.run_folder.tables import by_lanes, num_lanes
from planaria.ui.dashboard.accounts.costs import Costs
from planaria.ui.dashboard.accounts.decisions import MOST_CANDIDATES, PLACED, Decisions
from planaria.ui.dashboard.accounts.evaluations import Evaluations
from planaria.ui.dashboard.nodes import Nodes
from planaria.ui.dashboard.series import Point, Series

MOST_RECOVERIES: Final = 40
MOST_MARKS: Final = 300
MOST_SENTENCES: Final = 150
MOST_ACCOUNTED: Final = 4_000_000
"""Steps up to which a run's time is split by cause: the account holds 16 bytes for each."""

_NO_ANSWER: Final[dict[str, Any]] = {"after": None, "generation": None, "candidates": []}


class RunView:
    """What is shown of one run. Give it every record with its time, in order.

    Attributes:
        series: the steps.
        changes: goes up with each record that is not of a step.
    """

    def __init__(self, job: Job) -> None:
        """Makes the view of a run without records."""
        self.series = Series()
        self.changes = 0
        self._job = job
        self._nodes = Nodes(job.cluster.devices_per_node)
        self._began_s = self._last_s = 0.0
        self._step: StepCommitted | StepSkipped | None = None
        self._num_steps = 0
        self._costs = Costs(job)
        self._plan: PlanTaken | None = None
        self._plan_step_s = 0.0
        self._finishes: PlanTaken | None = None
        self._before: PlanTaken | None = None
        self._policy = job.resilience.policy.value
        self._phase = "starting"
        self._ended: RunEnded | None = None
        self._recoveries: deque[dict[str, Any]] = deque(maxlen=MOST_RECOVERIES)
        self._num_recoveries = 0
        self._decisions = Decisions(job.train)
        self._evaluations = Evaluations(job.eval)
        self._marks: deque[dict[str, Any]] = deque(maxlen=MOST_MARKS)
        self._sentences: deque[tuple[float, str]] = deque(maxlen=MOST_SENTENCES)
        self._time: TimeAccount | None = TimeAccount()

    def add(self, record: AnyRecord, time_s: float) -> None:
        """Adds a record: what happened, and when, in seconds since 1970 (UTC)."""
        self._began_s = self._began_s or time_s
        self._last_s = time_s
        if self._time is not None:
            self._time.note(record, time_s)
        self._costs.note(record, time_s)
        self._decisions.note(record, time_s - self._began_s)
        if isinstance(record, StepCommitted | StepSkipped):
            self._add_step(record, time_s)
            return
        self._evaluations.note(record)
        self.changes += 1
        self._nodes.note(record, time_s)
        self._note(record, time_s)
        text = sentence(record)
        if text is not None:
            self._sentences.append((time_s, text))

    def add_steps(self, steps: Sequence[StepLine]) -> None:
        """Adds steps that come between two others, each of which is added as a record."""
        self._count_steps(len(steps))
        if self._time is not None:
            at = [step.time for step in steps]
            self._time.note_steps([step.step for step in steps], [step.duration_s for step in steps], at)
        self._decisions.committed(
            len(steps), sum([step.duration_s for step in steps]), sum([len(step.dropped) for step in steps])
        )
        self.series.add(steps, self._point)

    def _point(self, steps: Sequence[StepLine]) -> Point:
        last = steps[-1]
        self._costs.reach(last.step, last.num_dropped, last.cost)
        point = Point.of(steps, self._began_s, self._plan_step_s)
        point.cost, point.samples = self._costs.dollars, self._costs.samples
        return point

    def add_block(self, block: StepBlock, last: StepCommitted | StepSkipped) -> None:
        """Adds a block of steps, after another step; `last` is the last of them."""
        self._last_s = block.time
        self._note_step(last, block.count)
        if self._time is not None:
            self._time.note_block(block.step, block.count, block.useful_s, block.time)
        self._decisions.committed(block.count, block.duration_s, block.dropped)
        self._costs.reach(block.step, block.num_dropped, block.cost)
        point = Point.of_block(block, self._began_s, self._plan_step_s)
        point.cost, point.samples = self._costs.dollars, self._costs.samples
        self.series.add_point(point)

    def _count_steps(self, count: int) -> None:
        self._num_steps += count
        if self._num_steps > MOST_ACCOUNTED:
            self._time = None

    def _add_step(self, step: StepCommitted | StepSkipped, time_s: float) -> None:
        self._note_step(step)
        line = StepLine(
            time=time_s,
            step=step.step,
            loss=step.loss,
            live_nodes=step.live_nodes,
            duration_s=step.duration_s,
            tokens_per_s=step.tokens_per_s,
            dropped=step.dropped,
            num_dropped=step.num_dropped,
            cost=step.cost if isinstance(step, StepCommitted) else 0.0,
        )
        self.series.add((line,), self._point)

    def _note_step(self, step: StepCommitted | StepSkipped, count: int = 1) -> None:
        """Notes where the run is after a step, the last of so many."""
        self._step = step
        self._count_steps(count)
        if self._nodes.is_moving:
            self._nodes.committed(step.generation)
            self.changes += 1
        if self._phase != "training":
            self._phase = "training"
            self.changes += 1

    def _note(self, record: AnyRecord, time_s: float) -> None:
        match record:
            case PlanTaken():
                self._take(record, time_s)
            case EstimateCorrected():
                self._plan_step_s = record.step_s
            case NodeLost():
                if self._before is None:
                    self._before = self._plan
                self._mark("lost", record.node, time_s)
            case DeviceLost():
                if self._before is None:
                    self._before = self._plan
            case NodeJoined():
                if self._step is not None:
                    self._mark("joined", record.node, time_s)
            case NodeLeaving() | NodeReleased():
                if isinstance(record, NodeReleased):
                    self._mark("released", record.node, time_s)
            case Recovered():
                self._recover(record, time_s)
            case Restored():
                self.series.forget_after(record.to_step)
                self._mark("restored", None, time_s)
            case PolicySwitched():
                self._policy = record.policy
            case Waiting():
                self._phase = "waiting"
            case RunEnded():
                self._ended = record
            case NodeSpeed():
                self._mark("slow" if record.speed < record.before else "faster", record.node, time_s)
            case _:
                pass
        if self._ended is not None and not isinstance(record, RunEnded):
            self._ended = None  # the run goes on: it was resumed

    def _take(self, plan: PlanTaken, time_s: float) -> None:
        if plan.purpose not in PLACED:
            self._finishes = plan if plan.purpose == "finish step" else self._finishes
            return
        self._finishes = None
        self._plan, self._plan_step_s = plan, plan.estimated_step_s
        if self._recoveries and self._recoveries[-1]["after"] is None:
            self._recoveries[-1] |= self._answer(plan)

    def _recover(self, record: Recovered, time_s: float) -> None:
        self._num_recoveries += 1
        before, self._before = self._before, None
        after = self._plan if self._plan is not before else None
        self._recoveries.append(
            {
                **msgspec.to_builtins(record.recovery),
                "time_s": time_s - self._began_s,
                "text": recovery_sentence(record.recovery),
                "before": None if before is None else self._worms(before),
                **(_NO_ANSWER | {"why": record.recovery.reason} if after is None else self._answer(after)),
            }
        )

    def _mark(self, kind: str, node: int | None, time_s: float) -> None:
        step = 0 if self._step is None else self._step.step
        self._marks.append({"kind": kind, "node": node, "step": step + 1, "time_s": time_s - self._began_s})

    def now(self) -> dict[str, Any]:
        """Returns the facts that change with each step."""
        step = self._step
        expected = self._plan_step_s
        return {
            "step": 0 if step is None else step.step,
            "steps": self._job.train.steps,
            "loss": None if step is None else finite(step.loss),
            "learning_rate": None if step is None else step.learning_rate,
            "grad_norm": None if step is None else finite(step.grad_norm),
            "tokens_per_s": None if step is None else step.tokens_per_s,
            "step_s": None if step is None else step.duration_s,
            "expected_step_s": expected or None,
            "live_nodes": self._nodes.num_live,
            "cost": self._costs.dollars or None,
            "elapsed_s": self._last_s - self._began_s,
            "began_s": self._began_s,
            "last_s": self._last_s,
            "split": None if self._time is None or step is None else msgspec.to_builtins(self._time.split),
        }

    def details(self) -> dict[str, Any]:
        """Returns the rest of what the page shows, but for the series."""
        plan = self._plan
        return {
            "phase": self._phase if self._ended is None else self._ended.status.value,
            "message": "" if self._ended is None else self._ended.message,
            "policy": self._policy,
            "layers": 0 if plan is None else max((end for p in plan.pipelines for _, _, end in p), default=0),
            "devices_per_node": self._job.cluster.devices_per_node,
            "plan": None
            if plan is None
            else {**self._worms(plan), "generation": plan.generation, "reason": plan.reason},
            "finishes": None
            if self._finishes is None
            else {**self._worms(self._finishes), "step": self._finishes.step},
            "moved": self._nodes.moved,
            "nodes": self._nodes.rows(),
            "num_nodes_at_start": self._nodes.num_at_start,
            "recoveries": list(self._recoveries),
            "num_recoveries": self._num_recoveries,
            "decisions": self._decisions.rows(),
            "regret": self._decisions.total(),
            "costs": self._costs.told(self._last_s),
            "evaluations": self._evaluations.rows(),
            "best": self._evaluations.best(),
            "marks": list(self._marks),
            "sentences": list(self._sentences),
        }

    def _worms(self, plan: PlanTaken) -> dict[str, Any]:
        """Returns a plan's pipelines as they are drawn: those on several devices of the same nodes are one."""
        lanes = num_lanes(plan.pipelines, self._job.cluster.devices_per_node)
        return {
            "pipelines": plan.pipelines[::lanes],
            "microbatches": by_lanes(plan.microbatches, lanes),
            "devices": lanes,
            "shared": plan.shares_microbatches,
        }

    def _answer(self, plan: PlanTaken) -> dict[str, Any]:
        """Returns the plan that answers a loss, and what was weighed for it."""
        candidates = msgspec.to_builtins(plan.candidates[:MOST_CANDIDATES])
        return {"after": self._worms(plan), "generation": plan.generation, "candidates": candidates, "why": plan.reason}
