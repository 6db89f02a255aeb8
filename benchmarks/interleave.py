"""Two or more programs measured in turns, on a machine that others use too.

All of them stay alive; those whose turn it is not are stopped (SIGSTOP on their whole process trees). So whatever
slows the machine down for some seconds slows all of them down alike, and ratios hold where times do not.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

POLL_S = 0.02
QUIET = 0.08
PATIENCE = 2
DROPPED = 2
"""Steps at the beginning of a turn that do not count: the first spans the stop, the second finds cold caches."""


@dataclass(slots=True)
class Side:
    """One program that logs its steps.

    Attributes:
        name: for people.
        commands: the processes to start, each with its environment's additions.
        log: JSON lines that the program writes, one or more a step.
        seconds_of: from a line to the step's duration; None for a line that is no step.
        output: what the processes print.
    """

    name: str
    commands: Sequence[tuple[Sequence[str], Mapping[str, str]]]
    log: Path
    seconds_of: Callable[[dict[str, object]], float | None]
    output: Path
    turns: list[list[float]] = field(default_factory=list)
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _offset: int = 0
    _rest: bytes = b""

    def start(self) -> None:
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with self.output.open("wb") as output:
            for command, environment in self.commands:
                self._processes.append(
                    subprocess.Popen(
                        command,
                        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **environment},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                )

    def steps(self, count: int, timeout_s: float = 120.0) -> list[float]:
        """Wait for at least `count` more steps; their durations in seconds."""
        deadline = time.monotonic() + timeout_s
        found: list[float] = []
        while len(found) < count:
            time.sleep(POLL_S)
            found += self._read()
            ended = [process.returncode for process in self._processes if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise RuntimeError(
                    f"{self.name}: {len(found)} of {count} steps, ended with {ended}: {self.output.read_text()[-2000:]}"
                )
        return found

    def _read(self) -> list[float]:
        if not self.log.exists():
            return []
        with self.log.open("rb") as log:
            log.seek(self._offset)
            data = log.read()
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        durations = (self.seconds_of(json.loads(line)) for line in lines)
        return [duration for duration in durations if duration is not None]

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)
        time.sleep(0.01)
        self._read()

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    @property
    def has_ended(self) -> bool:
        return all(process.poll() is not None for process in self._processes)

    @property
    def pids(self) -> list[int]:
        return process_tree([process.pid for process in self._processes])

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def process_tree(roots: Sequence[int]) -> list[int]:
    """These processes that live, and all that descend from them."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(entry))
    found: list[int] = []
    todo = [pid for pid in roots if Path(f"/proc/{pid}").exists()]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def interleave(sides: Sequence[Side], *, turns: int, steps: int, warm_up: int, patience: int = PATIENCE) -> int:
    """Fill `turns` of every side: in each round every side runs `steps` steps that count. Kills them all afterwards.

    A round in which other programs took more than QUIET of the machine in any turn is run again, up to `patience`
    rounds a turn; then the quietest are taken.

    Returns:
        How many of the rounds taken were disturbed.
    """
    rounds: list[tuple[float, list[list[float]]]] = []
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what was started is killed first
    try:
        for side in sides:
            side.start()
            side.steps(warm_up)
            side.stop()
        for number in range(turns * patience):
            if sum(foreign <= QUIET for foreign, _ in rounds) == turns:
                break
            found: dict[str, list[float]] = {}
            worst = 0.0
            for side in sides if number % 2 == 0 else reversed(sides):
                side.go_on()
                load = _Load(side)
                found[side.name] = side.steps(DROPPED + steps)[DROPPED:]
                worst = max(worst, load.foreign())
                side.stop()
            rounds.append((worst, [found[side.name] for side in sides]))
    finally:
        for side in sides:
            side.kill()
    taken = sorted(rounds, key=lambda one: one[0])[:turns]
    for at, side in enumerate(sides):
        side.turns = [of_sides[at] for _, of_sides in taken]
    return sum(foreign > QUIET for foreign, _ in taken)


class _Load:
    """What others take of the machine's CPU time, from now on."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._busy, self._all = _machine_s()
        self._own = self._own_s()

    def foreign(self) -> float:
        """As a share of all cores."""
        busy, all_s = _machine_s()
        return max(0.0, (busy - self._busy) - (self._own_s() - self._own)) / max(all_s - self._all, 1e-9)

    def _own_s(self) -> float:
        ticks = 0
        for pid in [*self._side.pids, os.getpid()]:
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def _machine_s() -> tuple[float, float]:
    """Seconds that all cores were busy (time stolen by other virtual machines included), and seconds in all."""
    numbers = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = numbers[3] + numbers[4]
    tick = os.sysconf("SC_CLK_TCK")
    return (sum(numbers) - idle) / tick, sum(numbers) / tick


def step_time_s(side: Side) -> float:
    """Median of all its counted steps."""
    return statistics.median(duration for turn in side.turns for duration in turn)


def ratios(side: Side, baseline: Side) -> list[float]:
    """Step time over the baseline's, one ratio a round: medians of turns that were neighbours in time."""
    return [
        statistics.median(ours) / statistics.median(theirs)
        for ours, theirs in zip(side.turns, baseline.turns, strict=True)
    ]
