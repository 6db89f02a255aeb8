"""`planaria top`: a run's nodes and devices on a terminal, as its coordinator tells of them once a second.

It shows what the run's answer says, and computes nothing of its own. It asks in a thread, so that a key ends the view
while a run does not answer.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import threading
import time
import tty
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import click

from planaria.job.errors import UserError
from planaria.plan.quantities import count, size
from planaria.protocol.messages.from_worker import Activity
from planaria.protocol.messages.user import Answer, RunDetails, RunState, WorkerWord
from planaria.runtime.coordinator.client import NotReached
from planaria.runtime.run_folder.sentences import duration, layer_range, rate
from planaria.runtime.run_folder.tables import WIDTH, text_table
from planaria.runtime.thresholds import TOP_EVERY_S, TOP_KEYS_S, TOP_PATIENCE_S
from planaria.ui.cli.live import Address, NoAnswer, look, progress
from planaria.ui.cli.options import EXIT_SIGNALLED
from planaria.ui.dashboard.nodes import manner_of

if TYPE_CHECKING:
    from rich.console import RenderableType

_STYLES: Final = {
    "works": "", "spare": "dim", "joining": "cyan", "leaving": "yellow", "released": "dim", "slow": "yellow",
    "lost": "red", "hung": "red",
}  # fmt: skip
"""How a device's state is shown; the states in the order in which their numbers are told."""

_QUIT: Final = b"qQ\x04"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """A device of a node, or a node that is gone (then `worker` is -1).

    Attributes:
        zone: where it is; "": not known.
        node: its number.
        worker: that runs on it.
        state: one of `_STYLES`.
        detail: of that: how slow it is, or why it is gone.
        place: its pipeline and stage; None: it has none.
        layers: that it runs.
        word: what it told last; None: nothing yet.
        age_s: of that, or of its end.
    """

    zone: str
    node: int
    worker: int
    state: str
    detail: str = ""
    place: tuple[int, int] | None = None
    layers: str = ""
    word: WorkerWord | None = None
    age_s: float | None = None


def device_rows(state: RunState, details: RunDetails) -> list[DeviceRow]:
    """Returns the devices of all nodes by zone and number, after them in each zone the nodes that went last."""
    per_node = state.devices_per_node
    stages = {
        worker: ((pipeline, stage), layer_range(first, end))
        for pipeline, cut in enumerate(state.pipelines)
        for stage, (worker, first, end) in enumerate(cut)
    }
    at_work = {worker // per_node for worker in stages}
    live = {node * per_node + device for node in state.nodes for device in range(per_node)}
    rows = []
    for worker in sorted(live | set(details.workers) | set(details.awaited)):
        node, word = worker // per_node, details.workers.get(worker)
        place, layers = stages.get(worker, (None, ""))
        rows.append(
            DeviceRow(
                zone=state.zones.get(node, ""),
                node=node,
                worker=worker,
                state="lost" if worker in state.lost_devices else _state_of(node, state, is_at_work=node in at_work),
                detail=f"{state.speeds[node]:.0%}" if node in state.speeds else "",
                place=place,
                layers=layers,
                word=word,
                age_s=None if word is None else word.silent_s,
            )
        )
    for gone in details.gone:
        manner = manner_of(gone.cause) if gone.cause else "released"
        row = DeviceRow(zone=gone.zone, node=gone.node, worker=-1, state=manner, detail=gone.cause, age_s=gone.ago_s)
        rows.append(row)
    return sorted(rows, key=lambda row: (row.zone, row.worker < 0))


def _state_of(node: int, state: RunState, *, is_at_work: bool) -> str:
    if node not in state.nodes or not state.generation:
        return "joining"
    if node in state.leaving:
        return "leaving"
    if node in state.speeds:
        return "slow"
    return "works" if is_at_work else "spare"


def headline(run: Path | Address, answer: Answer) -> list[str]:
    """Returns where the run stands, and how fast it is beside the estimate, in two lines."""
    state, details = answer.state, answer.details
    plan = f", plan {state.generation} by {state.policy}" if state.generation else ""
    lines = [f"{run}: {state.phase}, {progress(state)}{plan}"]
    last = None if details is None else details.last
    facts = []
    if last is not None:
        facts.append("loss not finite" if last.loss is None else f"loss {last.loss:.4f}")
        expected = None if state.decision is None else state.decision.estimated_step_s
        compared = f" ({duration(expected)} estimated)" if expected else ""
        facts += [rate(last.tokens_per_s, "tok"), f"{duration(last.duration_s)} a step{compared}"]
        if expected:
            facts.append(f"{expected / last.duration_s:.0%} of the estimated throughput")
    if state.cost is not None:
        facts.append(f"{state.cost:.2f} dollars")
    return [*lines, "  ".join(facts) or "no step is committed yet"]


def table_lines(answer: Answer, most_rows: int | None = None) -> list[tuple[str, str]]:
    """Returns numbers of devices by zone, then a table of the devices, as lines with their style.

    Args:
        answer: of the run, with details.
        most_rows: where they are more, those that work as they should are left out, and counted.
    """
    assert answer.details is not None
    rows, state = device_rows(answer.state, answer.details), answer.state
    zones: dict[str, list[DeviceRow]] = {}
    for row in rows:
        zones.setdefault(row.zone, []).append(row)
    lines = [(_zone_line(zone, found), "dim") for zone, found in zones.items()]
    shown = rows
    if most_rows is not None and len(rows) > most_rows:
        shown = sorted(rows, key=lambda row: list(_STYLES).index(row.state), reverse=True)[: max(0, most_rows - 1)]
        shown.sort(key=lambda row: (row.zone, row.worker < 0))
    cells = [_cells(row, state, answer.details.memory_bytes) for row in shown]
    headings = ("zone", "node", "device", "state", "pipeline", "stage", "layers", "memory", "heard", "doing")
    used = [at for at in range(len(headings)) if any(row[at] for row in cells)]
    if state.devices_per_node == 1:
        used.remove(2)
    table = text_table(
        [headings[at] for at in used],
        [[row[at] for at in used] for row in cells],
        left=[place for place, at in enumerate(used) if at in (0, 3, 6, 9)],
        width=1 << 16,
    ) if cells else []  # fmt: skip
    lines += [
        (line, style) for line, style in zip(table, ["bold", *(_STYLES[row.state] for row in shown)], strict=False)
    ]
    if len(shown) < len(rows):
        lines.append((f"{len(rows) - len(shown)} more; --once prints all", "dim"))
    return lines


def _zone_line(zone: str, rows: Sequence[DeviceRow]) -> str:
    states = Counter(row.state for row in rows)
    nodes = count(len({row.node for row in rows}), "node")
    words = {"works": "work"}
    told = ", ".join(f"{states[state]} {words.get(state, state)}" for state in _STYLES if states[state])
    return f"zone {zone}: {nodes}, devices: {told}" if zone else f"{nodes}, devices: {told}"


def _cells(row: DeviceRow, state: RunState, limit_bytes: int) -> tuple[str, ...]:
    pipeline, stage = ("", "") if row.place is None else map(str, row.place)
    held = 0 if row.word is None else row.word.held_bytes
    limit = f" of {size(limit_bytes)}" if limit_bytes else ""
    return (
        row.zone,
        str(row.node),
        "" if row.worker < 0 else str(row.worker % state.devices_per_node),
        f"{row.state} {row.detail}" if row.state == "slow" else row.state,
        pipeline,
        stage,
        row.layers,
        f"{size(held)}{limit}" if held else "",
        "" if row.age_s is None else f"{row.age_s:.1f} s",
        row.detail if row.worker < 0 else _doing(row.word),
    )


def _doing(word: WorkerWord | None) -> str:
    """Returns the instruction under way, or what else the worker is at; the last known one, where it is silent."""
    if word is None:
        return ""
    if word.activity is Activity.IDLE:
        return "idle"
    waits = f", waits for worker {word.waits_for}" if word.waits_for >= 0 else ""
    return word.doing.removeprefix("in the ") + waits


def print_once(run: Path | Address) -> None:
    """Prints where the run stands and its devices; of a run that is over or begins, one line.

    Raises:
        UserError: it is none, or does not answer though it is under way.
    """
    found = look(run, details=True)
    if isinstance(found, NoAnswer):
        click.echo(found.text.partition("\n")[0])
        return
    click.echo("\n".join([*headline(run, found), *(line for line, _ in table_lines(found))]))


class _Looker:
    """Asks the run again and again, in a thread of its own.

    Attributes:
        found: what it answered last; None: nothing yet.
        error: why it cannot be asked; None: it can.
        answered_s: when it last answered (monotonic seconds).
    """

    def __init__(self, run: Path | Address) -> None:
        self._run = run
        self.found: Answer | NoAnswer | None = None
        self.error: UserError | None = None
        self.answered_s = time.monotonic()
        threading.Thread(target=self._ask, name="top", daemon=True).start()

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be expected."""
        if self.error is not None:
            is_lasting = not isinstance(self.error, NotReached) or self.found is None
            return is_lasting or time.monotonic() - self.answered_s > TOP_PATIENCE_S
        return isinstance(self.found, NoAnswer) and self.found.is_over

    def _ask(self) -> None:
        while not self.is_over:
            try:
                found = look(self._run, details=True)
            except UserError as error:
                self.error = error
            else:
                self.found, self.error, self.answered_s = found, None, time.monotonic()
            time.sleep(TOP_EVERY_S)


def watch(run: Path | Address) -> None:
    """Shows the run until it is over or q is pressed.

    Raises:
        UserError: this is no terminal; or the run is none, or does not answer though it is under way.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError(f"this is no terminal: add --once, or see planaria status {run}.")
    from rich.live import Live

    # whatever ends it, the terminal is left as it was
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(EXIT_SIGNALLED + number))
    looker = _Looker(run)
    interrupts = contextlib.suppress(KeyboardInterrupt)
    with interrupts, _single_keys(sys.stdin), Live(screen=True, auto_refresh=False) as live:
        while not looker.is_over:
            live.update(_screen(run, looker), refresh=True)
            if _pressed(sys.stdin) in _QUIT:
                break
    if looker.error is not None and looker.is_over:
        raise looker.error
    if isinstance(looker.found, NoAnswer):
        click.echo(looker.found.text.partition("\n")[0])


@contextlib.contextmanager
def _single_keys(terminal: TextIO) -> Iterator[None]:
    """Lets keys be read one by one, unseen, until the context ends."""
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _pressed(terminal: TextIO) -> bytes:
    """Waits a moment for a key and returns it; a byte that is none: there was none."""
    ready, _, _ = select.select([terminal], [], [], TOP_KEYS_S)
    return os.read(terminal.fileno(), 1) or _QUIT[:1] if ready else b"\0"


def _screen(run: Path | Address, looker: _Looker) -> RenderableType:
    from rich.text import Text

    width, height = shutil.get_terminal_size((WIDTH, 24))
    found = looker.found
    if isinstance(found, Answer):
        head = headline(run, found)
        lines = [(head[0], "bold"), *((line, "") for line in head[1:])]
        lines += table_lines(found, max(1, height - len(lines) - 2 - len(set(found.state.zones.values()) or {""})))
    else:
        lines = [(f"{run} is asked" if found is None else found.text.partition("\n")[0], "")]
    if looker.error is not None:
        lines.insert(1, (f"no answer for {time.monotonic() - looker.answered_s:.0f} s: {looker.error}", "red"))
    lines = [*lines[: height - 1], ("q: quit", "dim")]
    return Text("\n").join(Text(line[:width], style, no_wrap=True, overflow="crop") for line, style in lines)
