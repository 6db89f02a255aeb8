"""The progress of a run on a terminal: a live panel where there is one, plain lines otherwise.

It shows what records say and computes nothing of its own but the time left.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import IO, TYPE_CHECKING

from planaria.job.settings import Job
from planaria.observe.run_folder import RunFolder
from planaria.observe.wording import counted, duration, picture, rate, recovery_sentence, sentence
from planaria.protocol.records import (
    AnyRecord,
    NodeJoined,
    NodeLost,
    Note,
    PlanTaken,
    Recovered,
    Recovery,
    Restored,
    RunEnded,
    RunStatus,
    StepCommitted,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

Clock = Callable[[], float]

_LINES_IN_A_RUN = 60
_LEAST_GAP_S = 1.0
_LONGEST_GAP_S = 20.0
_MESSAGES_SHOWN = 6
_STEPS_FOR_ETA = 20


class Progress:
    """An observer that shows a run. Use it as a context manager, and call it with each record."""

    def __init__(
        self,
        job: Job,
        folder: RunFolder,
        *,
        stream: IO[str] | None = None,
        live: bool | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        """Makes a display that has not started.

        Args:
            job: for the number of steps and nodes.
            folder: of the run, named at the end.
            stream: to write to; standard error by default.
            live: a live panel (True) or plain lines (False); by default, whether the stream is a terminal.
            clock: seconds; paces the plain lines.
        """
        self._stream = stream if stream is not None else sys.stderr
        self._view: _PlainLines | _LivePanel
        if self._stream.isatty() if live is None else live:
            self._view = _LivePanel(job, folder, self._stream)
        else:
            self._view = _PlainLines(job, folder, self._stream, clock)

    def __enter__(self) -> Progress:
        self._view.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._view.stop()

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        """Shows a record.

        Args:
            record: what happened.
            time_s: when, in seconds since 1970 (not shown).
        """
        self._view.show(record)


class _PlainLines:
    """One line for each thing that happens, and for some of the steps."""

    def __init__(self, job: Job, folder: RunFolder, stream: IO[str], clock: Clock) -> None:
        self._stream = stream
        self._clock = clock
        self._num_steps = job.train.steps
        self._ending = _Ending(job, folder)
        self._every = max(1, job.train.steps // _LINES_IN_A_RUN)
        self._last_line: tuple[int, float] | None = None
        self._has_plan = False

    def start(self) -> None:
        """Nothing to prepare."""

    def stop(self) -> None:
        self._stream.flush()

    def show(self, record: AnyRecord) -> None:
        self._ending.note(record)
        if isinstance(record, StepCommitted):
            if self._is_due(record.step):
                self._print(_step_line(record, self._num_steps))
                self._last_line = record.step, self._clock()
        elif isinstance(record, RunEnded):
            for last in self._ending.lines(record):
                self._print(last)
        elif isinstance(record, NodeJoined) and not self._has_plan:
            pass  # The nodes that the job starts with are news to nobody.
        elif (line := sentence(record)) is not None:
            self._has_plan |= isinstance(record, PlanTaken)
            self._print(line)

    def _is_due(self, step: int) -> bool:
        if self._last_line is None or step == self._num_steps:
            return True
        last_step, last_s = self._last_line
        gap_s = self._clock() - last_s
        return gap_s >= _LONGEST_GAP_S or (abs(step - last_step) >= self._every and gap_s >= _LEAST_GAP_S)

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class _LivePanel:
    """A panel that is redrawn in place, with the last few messages; the end is printed below it."""

    def __init__(self, job: Job, folder: RunFolder, stream: IO[str]) -> None:
        self._job = job
        self._folder = folder
        self._stream = stream
        self._ending = _Ending(job, folder)
        self._plan: PlanTaken | None = None
        self._step: StepCommitted | None = None
        self._live_nodes: int | None = None
        self._recent_s: deque[float] = deque(maxlen=_STEPS_FOR_ETA)
        self._messages: deque[tuple[str, str, frozenset[int]]] = deque(maxlen=_MESSAGES_SHOWN)
        self._console: Console | None = None
        self._live: Live | None = None

    def start(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=self._stream, highlight=False)
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
        match record:
            case StepCommitted():
                self._step = record
                self._live_nodes = record.live_nodes
                self._recent_s.append(record.duration_s)
            case PlanTaken():
                if self._plan is not None:
                    self._say(record, "dim")
                self._plan = record
            case NodeLost():
                self._live_nodes = record.live_nodes
                self._say(record, "red", frozenset((record.node,)))
            case Recovered():
                self._replace_losses(frozenset(record.recovery.lost_nodes))
                self._say(record, "green")
            case NodeJoined():
                self._live_nodes = record.live_nodes
                if self._plan is not None:
                    self._say(record, "green")
            case RunEnded():
                self._close(record)
            case Note(level="warning") | Restored():
                self._say(record, "yellow")
            case _:
                self._say(record, "dim")

    def _say(self, record: AnyRecord, style: str, lost: frozenset[int] = frozenset()) -> None:
        if (line := sentence(record)) is not None:
            self._messages.append((line, style, lost))

    def _replace_losses(self, nodes: frozenset[int]) -> None:
        """A recovery says all that the losses said, and what came of them."""
        kept = [message for message in self._messages if not message[2] or not message[2] <= nodes]
        self._messages.clear()
        self._messages.extend(kept)

    def _close(self, record: RunEnded) -> None:
        self.stop()
        if self._console is not None:
            for line in self._ending.lines(record):
                self._console.print(line, markup=False, soft_wrap=True)

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.padding import Padding
        from rich.text import Text

        rows: list[RenderableType] = [self._bar_row(), Text.assemble(*self._figures(), overflow="ellipsis")]
        if self._plan is not None:
            shape = picture(self._plan.pipelines)
            rows.append(Text.assemble(("plan   ", "dim"), shape, no_wrap=True, overflow="ellipsis"))
        rows.extend(Text.assemble(("· ", "dim"), (line, style), overflow="fold") for line, style, _ in self._messages)
        return Padding(Group(*rows), (0, 1))

    def _bar_row(self) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        total = self._job.train.steps
        done = self._step.step if self._step else 0
        left = f"{duration(self._left_s(total - done))} left" if self._recent_s else "starting"
        left = "done" if done >= total else left
        row = Table.grid(padding=(0, 2), expand=True)
        row.add_column(no_wrap=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True, justify="right")
        name = self._job.run.name or self._folder.path.name
        row.add_row(f"[bold]{_escaped(name)}[/]  step {done}/{total}", ProgressBar(total=total, completed=done), left)
        return row

    def _left_s(self, steps: int) -> float:
        return steps * statistics.median(self._recent_s)

    def _figures(self) -> list[tuple[str, str]]:
        nodes = self._live_nodes if self._live_nodes is not None else self._job.cluster.nodes
        of = self._job.cluster.nodes
        figures = [] if self._step is None else [
            ("loss   ", "dim"), (f"{self._step.loss:.4f}", "bold"),
            ("   ", ""), (rate(self._step.tokens_per_s), ""),
            ("   ", ""), (f"{duration(self._step.duration_s)} a step   ", ""),
        ]  # fmt: skip
        figures.append((f"{nodes} of {of} nodes", "" if nodes >= of else "yellow"))
        if self._plan is not None:
            figures.append((f"   generation {self._plan.generation}", "dim"))
        return figures


class _Ending:
    """What is said when a run is over."""

    def __init__(self, job: Job, folder: RunFolder) -> None:
        self._num_steps = job.train.steps
        self._folder = folder
        self._step: StepCommitted | None = None
        self._recoveries: list[Recovery] = []

    def note(self, record: AnyRecord) -> None:
        if isinstance(record, StepCommitted):
            self._step = record
        elif isinstance(record, Recovered):
            self._recoveries.append(record.recovery)

    def lines(self, ended: RunEnded) -> list[str]:
        facts = [f"{ended.steps} of {self._num_steps} steps"]
        if self._step is not None:
            facts.append(f"loss {self._step.loss:.4f}")
            facts.append(f"{counted(self._step.live_nodes, 'node')} live")
        facts.append(counted(len(self._recoveries), "recovery"))
        facts.append(f"{counted(ended.skipped_microbatches, 'microbatch')} skipped")
        facts.append(f"{ended.duplicated_microbatches} counted twice")
        lines = [f"{ended.status.value}: {', '.join(facts)}"]
        if ended.message and ended.status is not RunStatus.COMPLETED:
            lines.append(f"  {ended.message}")
        lines.extend(f"  {recovery_sentence(recovery)}" for recovery in self._recoveries)
        lines.append(f"run folder: {self._folder.path}")
        return lines


def _step_line(step: StepCommitted, num_steps: int) -> str:
    return (
        f"step {step.step}/{num_steps}  loss {step.loss:.4f}  {rate(step.tokens_per_s)}  "
        f"{counted(step.live_nodes, 'node')}  generation {step.generation}"
    )


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
