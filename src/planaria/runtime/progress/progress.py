"""Shows the progress of a run on a terminal: a live panel where there is one, plain lines otherwise.

What happens to the run (losses, plans, recoveries) is a line each that stays; on a terminal a panel below them shows
where the run stands. It shows what records say and computes nothing of its own but the time left.
"""

from __future__ import annotations

import os
import statistics
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, cast

from planaria.job.sections.train import TrainSection
from planaria.job.settings import Job
from planaria.plan.quantities import count
from planaria.protocol.messages.records import (
    AnyRecord,
    CheckpointSaved,
    ComputedWrong,
    DeviceJoined,
    DeviceLost,
    Evaluated,
    NodeJoined,
    NodeLost,
    NodeReleased,
    NodeSpeed,
    Note,
    PlanTaken,
    Recovered,
    Recovery,
    Restored,
    RunEnded,
    RunStatus,
    StepCommitted,
    StepSkipped,
)
from planaria.runtime.progress.output import Output
from planaria.runtime.run_folder.claim import claimant
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.run_folder.sentences import (
    duration,
    figures_of,
    oversubscription,
    rate,
    recovery_sentence,
    sentence,
)
from planaria.runtime.run_folder.tables import WIDTH, plan_news, plan_table
from planaria.runtime.thresholds import START_TOLD_EVERY_S

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

Clock = Callable[[], float]

_LINES_IN_A_RUN = 20
_LEAST_GAP_S = 1.0
_LONGEST_GAP_S = 20.0
_STEPS_FOR_ETA = 20
_RECOVERIES_SHOWN = 10


class ProgressDisplay:
    """An observer that shows a run. Use it as a context manager, and call it with each record."""

    def __init__(
        self,
        job: Job,
        folder: RunFolder,
        *,
        stream: IO[str] | None = None,
        live: bool | None = None,
        clock: Clock = time.monotonic,
        num_cores: int | None = None,
    ) -> None:
        """Makes a display that has not started.

        Args:
            job: for the number of steps and nodes.
            folder: of the run, named at the end.
            stream: to write to; standard error by default.
            live: a live panel (True) or plain lines (False); by default, whether the stream is a terminal.
            clock: seconds; paces the plain lines.
            num_cores: that this process may use; by default, as the system says.
        """
        cores = len(os.sched_getaffinity(0)) if num_cores is None else num_cores
        self._stream = Output(stream if stream is not None else sys.stderr)
        self._view: _PlainLines | _LivePanel
        if self._stream.isatty() if live is None else live:
            self._view = _LivePanel(job, folder, self._stream, cores)
        else:
            self._view = _PlainLines(job, folder, self._stream, cores, clock)

    def __enter__(self) -> ProgressDisplay:
        self._view.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._view.stop()

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        """Shows a record.

        Args:
            record: what happened.
            time_s: when, in seconds since 1970 (not shown).

        Raises:
            OutputClosed: nobody can see it. Others may be shown, to no effect.
        """
        self._view.show(record)
        self._stream.check()


class _PlainLines:
    """Prints one line for each thing that happens, and for some of the steps."""

    def __init__(self, job: Job, folder: RunFolder, stream: Output, num_cores: int, clock: Clock) -> None:
        self._stream = stream
        self._clock = clock
        self._train = job.train
        self._news = _News(job, num_cores, with_tables=True)
        self._ending = Ending(job, folder)
        self._every = max(1, job.train.steps // _LINES_IN_A_RUN)
        self._last_line: tuple[int, float] | None = None
        self._folder = folder
        self._has_begun = threading.Event()
        self._starting = threading.Thread(target=self._tell_start, name="start", daemon=True)

    def start(self) -> None:
        self._starting.start()

    def stop(self) -> None:
        self._begin()
        self._stream.flush()

    def show(self, record: AnyRecord) -> None:
        self._begin()
        self._ending.note(record)
        for line, _ in self._news.lines(record):
            self._print(line)
        if isinstance(record, StepCommitted) and self._is_due(record.step):
            self._print(_step_line(record, self._train))
            self._last_line = record.step, self._clock()
        elif isinstance(record, RunEnded):
            for last in self._ending.lines(record):
                self._print(last)

    def _begin(self) -> None:
        if not self._has_begun.is_set():
            self._has_begun.set()
            self._starting.join()

    def _tell_start(self) -> None:
        """Prints what is done before there is a first record, where that takes long."""
        said = ""
        while not self._has_begun.wait(START_TOLD_EVERY_S):
            doing = _doing(self._folder)
            if doing != said:
                self._print(doing)
                said = doing

    def _is_due(self, step: int) -> bool:
        if self._last_line is None or step == self._train.steps:
            return True
        last_step, last_s = self._last_line
        gap_s = self._clock() - last_s
        return gap_s >= _LONGEST_GAP_S or (abs(step - last_step) >= self._every and gap_s >= _LEAST_GAP_S)

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def _doing(folder: RunFolder) -> str:
    """Returns what the run's process says that it is about, before there are records."""
    found = claimant(folder.claim)
    return "starting" if found is None else found.doing


class _News:
    """Turns a record into lines, each with its style, for all but steps and the end."""

    def __init__(self, job: Job, num_cores: int, *, with_tables: bool) -> None:
        self._oversubscription = oversubscription(job, num_cores)
        self._devices_per_node = job.cluster.devices_per_node if with_tables else None
        self._has_plan = False

    def lines(self, record: AnyRecord, width: int = WIDTH) -> list[tuple[str, str]]:
        if isinstance(record, NodeJoined) and not self._has_plan:
            return []  # The nodes that the job starts with are news to nobody.
        if isinstance(record, PlanTaken):
            told = plan_news(record, self._devices_per_node, width)
            if not self._has_plan and self._oversubscription is not None:
                told.append(self._oversubscription)
            self._has_plan = True
        else:
            line = sentence(record)
            told = [] if line is None else [line]
        return [(line, _style(record)) for line in told]


def _style(record: AnyRecord) -> str:
    match record:
        case NodeLost() | DeviceLost() | ComputedWrong():
            return "red"
        case Recovered() | NodeJoined() | DeviceJoined() | NodeReleased():
            return "green"
        case NodeSpeed():
            return "yellow" if record.speed < record.before else "green"
        case Note(level="warning") | Restored() | StepSkipped():
            return "yellow"
        case _:
            return "dim"


class _LivePanel:
    """Redraws a panel in place below the lines that stay; the end is printed below it."""

    def __init__(self, job: Job, folder: RunFolder, stream: Output, num_cores: int) -> None:
        self._job = job
        self._folder = folder
        self._stream = stream
        self._news = _News(job, num_cores, with_tables=False)
        self._ending = Ending(job, folder)
        self._plan: PlanTaken | None = None
        self._step: StepCommitted | None = None
        self._evaluated: Evaluated | None = None
        self._live_nodes: int | None = None
        self._recent_s: deque[float] = deque(maxlen=_STEPS_FOR_ETA)
        self._console: Console | None = None
        self._live: Live | None = None

    def start(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=cast("IO[str]", self._stream), highlight=False)
        self._live = Live(
            get_renderable=self._render,
            console=self._console,
            refresh_per_second=8,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start(refresh=True)

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, record: AnyRecord) -> None:
        self._ending.note(record)
        for line, style in self._news.lines(record, self._width()):
            self._print(line, style)
        match record:
            case StepCommitted():
                self._step = record
                self._live_nodes = record.live_nodes
                self._recent_s.append(record.duration_s)
            case Evaluated():
                self._evaluated = record
            case PlanTaken():
                self._plan = record
            case NodeLost() | NodeJoined() | NodeReleased():
                self._live_nodes = record.live_nodes
            case RunEnded():
                self.stop()
                for line in self._ending.lines(record, with_recoveries=False):
                    self._print(line, "bold" if line.startswith(record.status.value) else "")
            case _:
                pass

    def _print(self, line: str, style: str) -> None:
        if self._console is not None:
            from rich.text import Text

            folded = textwrap.fill(
                line, self._width(), subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
            )
            self._console.print(Text(folded, style=style), soft_wrap=True)

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.padding import Padding
        from rich.text import Text

        rows: list[RenderableType] = [self._bar_row(), Text.assemble(*self._figures(), overflow="ellipsis")]
        if self._plan is not None:
            per_node = self._job.cluster.devices_per_node
            table = plan_table(self._plan.pipelines, self._plan.microbatches, per_node, self._width() - 2)
            rows.extend(
                Text(line, "" if at else "dim", no_wrap=True, overflow="ellipsis") for at, line in enumerate(table)
            )
        return Padding(Group(*rows), (0, 1))

    def _width(self) -> int:
        return max(40, WIDTH if self._console is None else self._console.width)

    def _bar_row(self) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        total = self._job.train.steps
        done = self._step.step if self._step else 0
        left = f"{duration(self._left_s(done))} left" if self._recent_s else _doing(self._folder)
        left = "done" if done >= total else left
        row = Table.grid(padding=(0, 2), expand=True)
        row.add_column(no_wrap=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True, justify="right")
        name = self._job.run.name or self._folder.path.name
        row.add_row(
            Text.assemble((name, "bold"), f"  step {done}/{total}"), ProgressBar(total=total, completed=done), left
        )
        return row

    def _left_s(self, done: int) -> float:
        """Returns the seconds of the steps and evaluations to come, as the last ones took them."""
        total, evaluations = self._job.train.steps, 0
        if self._evaluated is not None:
            evaluations = self._job.eval.evaluations_in(total, max(done, self._evaluated.step))
        steps_s = (total - done) * statistics.median(self._recent_s)
        return steps_s + (evaluations * self._evaluated.duration_s if self._evaluated is not None else 0.0)

    def _figures(self) -> list[tuple[str, str]]:
        figures = [] if self._step is None else [
            ("loss   ", "dim"), (f"{self._step.loss:.4f}", "bold"),
            ("   ", ""), (_rate(self._step, self._job.train), ""),
            ("   ", ""), (f"{duration(self._step.duration_s)} a step   ", ""),
        ]  # fmt: skip
        if self._evaluated is not None:
            figures.append((f"{figures_of(self._evaluated)[0]} after step {self._evaluated.step}   ", ""))
        if self._step is not None and self._step.num_dropped:
            figures.append((f"{count(self._step.num_dropped, 'microbatch')} dropped   ", "yellow"))
        if self._plan is not None:
            of, most = self._job.cluster.least_nodes, self._job.cluster.most_nodes
            nodes = self._live_nodes if self._live_nodes is not None else of
            wanted = f"{of}" if most is None else f"{of} to {most}"
            figures.append((f"{nodes} of {wanted} nodes", "" if nodes >= of else "yellow"))
            figures.append((f"   plan {self._plan.generation}", "dim"))
        elif self._step is not None:
            figures.append(("one process, no plan", "dim"))
        return figures


class Ending:
    """Describes the end of a run."""

    def __init__(self, job: Job, folder: RunFolder) -> None:
        self._num_steps = job.train.steps
        self._microbatch_size = job.train.microbatch
        self._folder = folder
        self._step: StepCommitted | None = None
        self._live_nodes = 0
        self._saved_step: int | None = None
        self._evaluated: Evaluated | None = None
        self._best: Evaluated | None = None
        self._num_evaluations = 0
        self._evaluations_s = 0.0
        self._recoveries: list[Recovery] = []
        self._steps_redone = 0

    def note(self, record: AnyRecord) -> None:
        if isinstance(record, StepCommitted):
            self._step = record
        elif isinstance(record, Evaluated):
            self._evaluated = record
            self._best = record if record.is_best else self._best
            self._num_evaluations += 1
            self._evaluations_s += record.duration_s
        elif isinstance(record, NodeJoined | NodeLost | NodeReleased):
            self._live_nodes = record.live_nodes
        elif isinstance(record, CheckpointSaved):
            self._saved_step = record.step
        elif isinstance(record, Recovered):
            self._recoveries.append(record.recovery)
        elif isinstance(record, Restored):
            self._steps_redone += record.from_step - record.to_step

    def lines(self, ended: RunEnded, *, with_recoveries: bool = True) -> list[str]:
        facts = [f"{ended.steps} of {self._num_steps} steps"]
        if self._step is not None:
            facts.append(f"loss {self._step.loss:.4f}")
        if self._step is None or not _is_reference(self._step):
            facts.append(f"{count(self._live_nodes, 'node')} live")
            facts.append(count(len(self._recoveries), "recovery"))
        facts.append(f"{count(ended.skipped_microbatches, 'microbatch')} skipped")
        facts.append(f"{ended.duplicated_microbatches} counted twice")
        if self._steps_redone:
            facts.append(f"{count(self._steps_redone, 'step')} trained again")
        if ended.dropped_microbatches:
            samples = ended.dropped_microbatches * self._microbatch_size
            facts.append(f"{count(ended.dropped_microbatches, 'microbatch')} dropped ({count(samples, 'sample')})")
        if ended.skipped_steps:
            facts.append(f"{count(ended.skipped_steps, 'step')} not applied")
        if ended.cost:
            facts.append(f"{ended.cost:.2f} dollars")
        lines = [f"{ended.status.value}: {', '.join(facts)}"]
        if ended.message:
            lines.append(f"  {ended.message.rstrip()}")
            if self._saved_step is not None and ended.status is not RunStatus.COMPLETED:
                mended = "once that is mended, " if ended.status is RunStatus.FAILED else ""
                lines.append(f"  the state after step {self._saved_step} is saved; {mended}--resume goes on from there")
        if self._evaluated is not None:
            lines.append(f"  {_last_and_best(self._evaluated, self._best)}")
            took = duration(self._evaluations_s)
            lines.append(f"  {count(self._num_evaluations, 'evaluation')} took {took} of the run")
        last = self._recoveries[-_RECOVERIES_SHOWN:] if with_recoveries else []
        if last and len(self._recoveries) > len(last):
            lines.append(f"  the last {len(last)} recoveries (summary.json has all):")
        lines.extend(f"  {recovery_sentence(recovery)}" for recovery in last)
        lines.append(f"run folder: {self._folder.path}")
        return lines


def _last_and_best(last: Evaluated, best: Evaluated | None) -> str:
    line = f"evaluated after step {last.step}: {_all_figures(last)}"
    if best is None or best.step == last.step:
        return line if best is None else f"{line}, the best"
    return f"{line}; the best was step {best.step}: {_all_figures(best)}"


def _rate(step: StepCommitted, train: TrainSection) -> str:
    return rate(step.tokens_per_s, "tok" if train.sequence_length else "samples")


def _step_line(step: StepCommitted, train: TrainSection) -> str:
    where = "" if _is_reference(step) else f"  {count(step.live_nodes, 'node')}  plan {step.generation}"
    dropped = f"  {count(step.num_dropped, 'microbatch')} dropped" if step.num_dropped else ""
    return f"step {step.step}/{train.steps}  loss {step.loss:.4f}  {_rate(step, train)}{where}{dropped}"


def _all_figures(record: Evaluated) -> str:
    return ", ".join(figures_of(record))


def _is_reference(step: StepCommitted) -> bool:
    """Whether the run is of one process alone: those have no generation, others count from 1."""
    return step.generation == 0
