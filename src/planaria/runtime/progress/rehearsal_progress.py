"""Shows the progress of a job under a script: a bar of the script's time where there is one, lines otherwise.

What the script does and what happens to the run is a line each that stays. It shows what it is told, decides nothing.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, cast

from planaria.plan.quantities import count
from planaria.protocol.messages.records import (
    AnyRecord,
    CheckpointSaved,
    NodeJoined,
    NodeLost,
    NodeReleased,
    PlanTaken,
    StepCommitted,
)
from planaria.runtime.progress.output import Output
from planaria.runtime.run_folder.sentences import duration, sentence
from planaria.runtime.run_folder.tables import plan_news
from planaria.simulate.traces.scripts import Clock, Script, ScriptClock

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_STEPS_IN_RATE = 5
_LINE_EVERY_S = 5.0


class RehearsalProgress:
    """An observer that shows one run. Use it as a context manager, and call it with each record.

    Args:
        title: the run's name, for people.
        script: the script that is played.
        global_batch: samples in a step.
        devices_per_node: the devices, and so workers, of each node.
        stream: to write to; standard error by default.
        live: a bar that is redrawn (True) or plain lines (False); by default, whether the stream is a terminal.
        is_brief: only the bar, or now and then a line of figures: not what happens.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        title: str,
        script: Script,
        global_batch: int,
        devices_per_node: int = 1,
        *,
        stream: IO[str] | None = None,
        live: bool | None = None,
        is_brief: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title = title
        self._length = script.trace.horizon_s
        self._unit = script.clock
        self._where = ScriptClock(script.clock)
        self._batch = global_batch
        self._devices_per_node = devices_per_node
        self._stream = Output(stream if stream is not None else sys.stderr)
        self._is_live = self._stream.isatty() if live is None else live
        self._is_brief = is_brief
        self._clock = clock
        self._live: Live | None = None
        self._step: StepCommitted | None = None
        self._recent_s: deque[float] = deque(maxlen=_STEPS_IN_RATE)
        self._num_nodes = 0
        self._has_plan = False
        self._told_at_s = -_LINE_EVERY_S

    def __enter__(self) -> RehearsalProgress:
        if self._is_live:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=cast("IO[str]", self._stream), highlight=False)
            self._live = Live(
                get_renderable=self._render,
                console=console,
                refresh_per_second=8,
                redirect_stdout=False,
                redirect_stderr=False,
                transient=self._is_brief,
            )
            self._live.start(refresh=True)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._stream.flush()

    def say(self, line: str) -> None:
        """Shows what the script does. Safe from any thread."""
        if not self._is_brief:
            self._print(f"{self._place()}: {line}", "bold")

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        now_s = self._clock()
        self._where.note(record, now_s)
        self._tell(record)
        match record:
            case StepCommitted():
                self._step = record
                self._recent_s.append(record.duration_s)
                if self._live is None and now_s - self._told_at_s >= _LINE_EVERY_S:
                    self._told_at_s = now_s
                    self._print(f"{self._title}  {self._place()}  {self._figures()}")
            case NodeJoined() | NodeLost() | NodeReleased():
                self._num_nodes = record.live_nodes
            case PlanTaken():
                self._has_plan = True
            case _:
                pass
        self._stream.check()

    def _tell(self, record: AnyRecord) -> None:
        is_start = isinstance(record, NodeJoined) and not self._has_plan
        if self._is_brief or is_start or isinstance(record, CheckpointSaved):
            return
        if isinstance(record, PlanTaken):
            self._print("\n".join(plan_news(record, self._devices_per_node)), "dim")
        elif (line := sentence(record)) is not None:
            self._print(line, "dim")

    def _print(self, line: str, style: str = "") -> None:
        if self._live is None:
            # In one piece: the script speaks from a thread of its own.
            self._stream.write(f"{line}\n")
            self._stream.flush()
        else:
            from rich.text import Text

            self._live.console.print(Text(line, style=style), soft_wrap=True)

    def _at(self) -> float:
        at = self._where.at(self._clock())
        return 0.0 if at is None else min(at, self._length)

    def _place(self) -> str:
        """Returns the place in the script: "1:20 of 30:00", or "step 6 of 24"."""
        if self._unit is Clock.STEPS:
            return f"step {self._at():.1f} of {self._length:g}"
        return f"{duration(self._at()) if self._at() >= 1 else f'{self._at():.2f} s'} of {duration(self._length)}"

    def _figures(self) -> str:
        figures = [count(self._num_nodes, "node")]
        if self._step is not None:
            figures.append(f"{count(self._step.step, 'step')}")
        if self._recent_s:
            figures.append(f"{self._batch / statistics.median(self._recent_s):.3g} samples/s")
        return ", ".join(figures)

    def _render(self) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        row = Table.grid(padding=(0, 2), expand=True)
        row.add_column(no_wrap=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True, justify="right")
        left = f"{self._place()}   {self._figures()}" if self._step is not None else "starting"
        bar = ProgressBar(total=self._length, completed=self._at())
        row.add_row(Text(self._title, style="bold"), bar, left)
        return row
