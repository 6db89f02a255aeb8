"""The schedule of a step: as the plan has it, and as the workers ran it, a row a stage. It reads the run folder, and a
journal in etcd."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import msgspec

from planaria.estimate.step_time import Span, simulate
from planaria.job.registry import Launcher
from planaria.job.settings import Job
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import Plan, WorkerId
from planaria.plan.program.instructions import Instruction, Op
from planaria.protocol.messages.journal import JournalPlan
from planaria.protocol.messages.records import PlanTaken
from planaria.runtime.component_settings import job_profile
from planaria.runtime.journal.plans import recorded_plans
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.worker.instruction_trace import Entry
from planaria.ui.dashboard.recorded_steps import RecordedSteps
from planaria.ui.dashboard.thresholds import MOST_CELLS, MOST_PLANNED
from planaria.ui.plots.cells import Cell, CellKind, cells, label, microbatches, rows

_PLACED = ("start", "reconfigure", "restore")
"""Purposes of plans that say who does what in whole steps."""

_KNOWN = frozenset(op.value for op in Op)

_SET = "Set observe.instructions = true in the job file, or go on with --resume --set observe.instructions=true."
_ELSEWHERE = "Only nodes of this machine can write what they did."


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's row: what it did, each as (kind, microbatch or group, first layer, end layer, start_s, end_s)."""

    worker: int
    name: str
    cells: Sequence[tuple[str, int, int, int, float, float]]


class PipelineRows(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline's rows, from its first stage to its last.

    Attributes:
        number: of the pipeline; None: the workers are not in the plan.
        microbatches: that are counted with it.
        rows: of its workers, each in the first of its pipelines.
    """

    number: int | None
    microbatches: int
    rows: Sequence[Row]


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A step as it is drawn.

    Attributes:
        step_s: its length.
        pipelines: as many as can be drawn.
        num_left_out: the other ones.
    """

    step_s: float
    pipelines: Sequence[PipelineRows]
    num_left_out: int


class StepSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """The schedule of one step.

    Attributes:
        steps: that were recorded, and may be chosen.
        step: the one that is shown; None: none was recorded.
        generation: of its plan; None: that is not known.
        planned: as its plan has it.
        measured: as it ran; the optimizer's part, which follows the commit, is not recorded.
        notes: what is lacking, and how to come by it.
    """

    steps: Sequence[int]
    step: int | None
    generation: int | None
    planned: Picture | None
    measured: Picture | None
    notes: Sequence[str]


class Schedules:
    """The schedules of a run's steps. Several threads may ask.

    Args:
        folder: of the run.
        job: that it trains.
    """

    def __init__(self, folder: RunFolder, job: Job) -> None:
        self._folder = folder
        self._job = job
        self._lock = threading.Lock()
        self._recorded = RecordedSteps(folder)
        self._known: dict[tuple[int, int, float], Picture] = {}

    def of_step(self, step: int | None) -> StepSchedule:
        """Returns the schedule of a recorded step; None: of the newest one, or, where none is, of the plan in force."""
        with self._lock:
            recorded = self._recorded
            recorded.look()
            shown = recorded.newest if step is None else step
            notes: tuple[str, ...] = ()
            found = self._plan_of(shown)
            planned = None if found is None else self._planned(found)
            if planned is None:
                of_which = "of now" if shown is None else f"of step {shown}"
                where = "is not in the journal, or that cannot be read"
                notes += (f"The plan {of_which} {where}: nothing can be said of what was planned.",)
            entries = {} if shown is None else recorded.entries(shown)
            if not recorded.has_any:
                remedy = _SET if self._job.cluster.launcher is Launcher.LOCAL else _ELSEWHERE
                notes += (f"What workers did is not recorded: only the planned schedule is shown. {remedy}",)
            elif not entries:
                which = "No step" if shown is None else f"Nothing of step {shown}"
                notes += (f"{which} is recorded here. planaria trace-steps reads those of long ago.",)
            return StepSchedule(
                steps=recorded.steps,
                step=shown if entries else None,
                generation=None if found is None else found.message.plan.generation,
                planned=planned,
                measured=_measured(None if found is None else found.message.plan, entries),
                notes=notes,
            )

    def _plan_of(self, step: int | None) -> JournalPlan | None:
        """Returns the last placement in force in a step, from the journal; None: of the last one."""
        job = self._job
        plans = recorded_plans(self._folder.journal, job.run.journal, self._folder.path.name, job.cluster.tls)
        of_step = [plan for plan in plans if _places(plan) and (step is None or plan.message.step <= step)]
        return of_step[-1] if of_step else None

    def _planned(self, entry: JournalPlan) -> Picture | None:
        """Returns the schedule of a plan's step, drawn as long as the step was estimated when the plan was made."""
        plan = entry.message.plan.of_step
        key = plan.generation, entry.message.step, entry.step_time_s
        if key not in self._known:
            try:
                profile = msgspec.json.decode(self._folder.profile.read_bytes(), type=ModelProfile)
                timeline = simulate(plan, job_profile(self._job, profile))
            except (OSError, ValueError):
                return None
            longer = entry.step_time_s / timeline.step_time_s if timeline.step_time_s else 1.0
            spans = {
                worker: [(instruction, start * longer, end * longer) for instruction, start, end in found]
                for worker, found in timeline.spans.items()
            }
            self._known[key] = _picture(plan, spans, entry.step_time_s)
            while len(self._known) > MOST_PLANNED:
                del self._known[next(iter(self._known))]
        return self._known[key]


def _places(entry: JournalPlan) -> bool:
    return any(isinstance(record, PlanTaken) and record.purpose in _PLACED for record in entry.records)


def _measured(plan: Plan | None, entries: Mapping[int, Sequence[Entry]]) -> Picture | None:
    """Returns a step as it ran, from the first instruction of any worker on; None: nothing was recorded."""
    if not any(entries.values()):
        return None
    began_s = min(entry.began_s for found in entries.values() for entry in found)
    ended_s = max(entry.ended_s for found in entries.values() for entry in found)
    spans = {
        WorkerId(worker): [_span(e, began_s) for e in found if e.op in _KNOWN] for worker, found in entries.items()
    }
    return _picture(plan, spans, ended_s - began_s)


def _span(entry: Entry, began_s: float) -> Span:
    instruction = Instruction(
        op=Op(entry.op),
        microbatch=entry.microbatch,
        born=entry.born,
        first_layer=entry.first_layer,
        end_layer=max(entry.end_layer, entry.first_layer + 1),
        group=entry.group,
    )
    return instruction, entry.began_s - began_s, entry.ended_s - began_s


def _picture(plan: Plan | None, spans: Mapping[WorkerId, Sequence[Span]], step_s: float) -> Picture:
    pipelines: list[tuple[int | None, list[WorkerId]]] = []
    for number, worker in () if plan is None else rows(plan):
        if number is not None:
            pipelines.append((number, []))
        pipelines[-1][1].append(worker)
    placed = {worker for _, workers in pipelines for worker in workers}
    if others := [worker for worker in spans if worker not in placed]:
        pipelines.append((None, others))
    counts = [] if plan is None else microbatches(plan)
    drawn: list[PipelineRows] = []
    num_cells = 0
    for number, workers in pipelines:
        found = [_row(plan, worker, spans.get(worker, ())) for worker in workers]
        num_cells += sum(len(row.cells) for row in found)
        if drawn and num_cells > MOST_CELLS:
            break
        drawn.append(PipelineRows(number=number, microbatches=0 if number is None else counts[number], rows=found))
    return Picture(step_s=step_s, pipelines=drawn, num_left_out=len(pipelines) - len(drawn))


def _row(plan: Plan | None, worker: WorkerId, spans: Sequence[Span]) -> Row:
    name = f"worker {worker}" if plan is None or worker not in plan.workers else label(plan, worker)
    boxes = [(box, _layers(plan, box)) for box in cells(spans)]
    return Row(
        worker=worker,
        name=name,
        cells=[(b.kind.name.lower(), b.number, *layers, round(b.start_s, 6), round(b.end_s, 6)) for b, layers in boxes],
    )


def _layers(plan: Plan | None, box: Cell) -> tuple[int, int]:
    """Returns first layer and end of what a box is coloured by: of a sum, the lowest layer that uses the group."""
    if box.kind is not CellKind.SYNC:
        return box.layers
    if plan is None or not 0 <= box.number < len(plan.groups):
        return 0, 1
    first = plan.groups[box.number].layers[0]
    return first, first + 1
