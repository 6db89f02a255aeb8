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
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

POLL_S = 0.02
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


def interleave(sides: Sequence[Side], *, turns: int, steps: int, warm_up: int) -> None:
    """Fill `turns` of every side: in each round every side runs `steps` steps that count. Kills them all afterwards."""
    try:
        for side in sides:
            side.start()
            side.steps(warm_up)
            side.stop()
        for turn in range(turns):
            order = sides if turn % 2 == 0 else list(reversed(sides))
            for side in order:
                side.go_on()
                side.turns.append(side.steps(DROPPED + steps)[DROPPED:])
                side.stop()
    finally:
        for side in sides:
            side.kill()


def step_time_s(side: Side) -> float:
    """Median of all its counted steps."""
    return statistics.median(duration for turn in side.turns for duration in turn)


def ratios(side: Side, baseline: Side) -> list[float]:
    """Step time over the baseline's, one ratio a round: medians of turns that were neighbours in time."""
    return [
        statistics.median(ours) / statistics.median(theirs)
        for ours, theirs in zip(side.turns, baseline.turns, strict=True)
    ]
