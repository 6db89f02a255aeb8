"""Attends a run where the engine put its coordinator: trains, goes on where the last coordinator died, keeps agents.

`planaria train` is a process of its own here, so that nothing that befalls it ends the attendant. What is lost of the
agents' tasks is started again; spares may run while nodes are missing whose loss the engine has not seen yet.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from signal import Signals
from types import FrameType
from typing import Final

import msgspec

from planaria.checkpoint.manifest import whole_steps
from planaria.protocol.messages.records import RunStatus
from planaria.runtime.engines.engine import Engine, EngineError
from planaria.runtime.engines.keeper import Keeper, kept
from planaria.runtime.engines.launch_folder import Launch
from planaria.runtime.launch.training.result import TrainResult
from planaria.runtime.run_folder.run_folder import RunFolder, free_name
from planaria.runtime.thresholds import ENGINE_COMMAND_S, MOST_FRUITLESS_STARTS

EXHAUSTED: Final = 3
"""Exit code of `planaria train` when too few nodes are left. Others come, here."""


class Attendant:
    """One coordinator's task.

    Args:
        launch: what is trained.
        command: `planaria train JOB ...`, without --resume.
        engine: what runs the agents.
        say: takes lines for people.
    """

    def __init__(self, launch: Launch, command: Sequence[str], engine: Engine, say: Callable[[str], None]) -> None:
        self._launch = launch
        self._command = list(command)
        self._engine = engine
        self._say = say
        self._train: subprocess.Popen[bytes] | None = None
        self._notice: Signals | None = None
        self._keeper = Keeper(engine, launch.run, launch.nodes, launch.spares, say)

    def run(self) -> int:
        """Trains until the run is over or suspended. Returns the exit code of `planaria train`."""
        for number in (Signals.SIGUSR1, Signals.SIGTERM, Signals.SIGINT):
            signal.signal(number, self._heed)
        if is_complete(self._launch.run):
            self._say("the run is complete already")
            self._end(0)
            return 0
        starts = Starts(self._launch.run)
        while True:
            code = self._train_once()
            if self._notice is not None or (code >= 0 and code != EXHAUSTED) or not starts.may_go_on():
                break
            self._say(f"planaria train ended with {code}; it goes on from the checkpoint of step {starts.reached}")
        self._end(code)
        return code if code >= 0 else 128 - code

    def _heed(self, number: int, frame: FrameType | None) -> None:
        """Handles the engine's notice: the run is saved and ends; near a time limit (SIGUSR1), the task comes back."""
        self._notice = self._notice or Signals(number)
        if self._train is not None:
            self._train.send_signal(Signals.SIGTERM)

    def _train_once(self) -> int:
        resume = ["--resume"] if prepare(self._launch.run) else []
        self._train = subprocess.Popen([*self._command, *resume])
        if self._notice is not None:
            self._train.send_signal(Signals.SIGTERM)
        while True:
            try:
                return self._train.wait(self._engine.poll_s)
            except subprocess.TimeoutExpired:
                self._keeper.look()

    def _end(self, code: int) -> None:
        try:
            # Exhausted: the agents' own limit was near too, and they handed over first.
            if self._notice is Signals.SIGUSR1 and code in (128 + Signals.SIGTERM, EXHAUSTED):
                self._say("the time limit is near: the run is saved, and this job goes back into the queue")
                self._engine.come_back()
                time.sleep(ENGINE_COMMAND_S)  # an end of its own, beside the engine's, would count as the task's
            elif self._notice is None:
                self._engine.end()
        except EngineError as error:
            self._say(str(error))


def prepare(run: RunFolder) -> bool:
    """Returns whether a run goes on. One that died before its first checkpoint is moved out of the way."""
    if not run.path.exists() or not any(run.path.iterdir()):
        return False
    if whole_steps(run.checkpoints, 1 << 62):
        return True
    run.path.rename(run.path.with_name(free_name(run.path.parent, f"{run.path.name}-begun")))
    return False


class Starts:
    """Counts a coordinator's starts that bring no new checkpoint.

    Attributes:
        reached: step of the newest checkpoint.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._fruitless = 0
        self.reached = self._last_step()

    def may_go_on(self) -> bool:
        """Returns whether to start once more, after a start has come to its end."""
        step = self._last_step()
        self._fruitless = self._fruitless + 1 if step <= self.reached else 0
        self.reached = max(step, self.reached)
        return self._fruitless < MOST_FRUITLESS_STARTS

    def _last_step(self) -> int:
        return max(whole_steps(self._run.checkpoints, 1 << 62), default=0)


def is_complete(run: RunFolder) -> bool:
    """Returns whether a run has trained all its steps."""
    try:
        summary: dict[str, object] = msgspec.json.decode(run.summary.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return False
    return summary.get("status") == RunStatus.COMPLETED.value


def attend_here(
    engine: Engine, keeper: Keeper, run: RunFolder, train: Callable[[bool], TrainResult], say: Callable[[str], None]
) -> TrainResult:
    """Trains in this process, and keeps the agents meanwhile. A run that has too few nodes goes on when others come.

    Args:
        engine: what runs the agents.
        keeper: of these agents.
        run: that is trained.
        train: trains, from the last checkpoint if it is told so.
        say: takes lines for people.
    """
    starts = Starts(run)
    with kept(engine, keeper):
        while True:
            result = train(prepare(run))
            if result.status is not RunStatus.EXHAUSTED or not starts.may_go_on():
                return result
            say(f"too few nodes were left; the run goes on from the checkpoint of step {starts.reached}")
