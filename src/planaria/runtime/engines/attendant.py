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
from planaria.protocol.messages.user import Wish
from planaria.runtime.coordinator.client import Contact, NotReached, ask
from planaria.runtime.engines.engine import Engine, EngineError, Task, TaskState
from planaria.runtime.engines.launch_folder import Launch
from planaria.runtime.run_folder.run_folder import RunFolder, free_name
from planaria.runtime.thresholds import (
    ENGINE_COMMAND_S,
    ENGINE_POLL_S,
    LONGEST_REPLACEMENT_S,
    MOST_FRUITLESS_STARTS,
    RELEASED_FOR_S,
)

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
        self._keeper = Keeper(engine, launch, say)

    def run(self) -> int:
        """Trains until the run is over or suspended. Returns the exit code of `planaria train`."""
        for number in (Signals.SIGUSR1, Signals.SIGTERM, Signals.SIGINT):
            signal.signal(number, self._heed)
        if is_complete(self._launch.run):
            self._say("the run is complete already")
            self._end(0)
            return 0
        fruitless, reached = 0, self._last_step()
        while True:
            code = self._train_once()
            if self._notice is not None or (code >= 0 and code != EXHAUSTED):
                break
            step = self._last_step()
            fruitless, reached = (fruitless + 1, reached) if step <= reached else (0, step)
            if fruitless == MOST_FRUITLESS_STARTS:
                break
            self._say(f"planaria train ended with {code}; it goes on from the checkpoint of step {step}")
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
                return self._train.wait(ENGINE_POLL_S)
            except subprocess.TimeoutExpired:
                self._keeper.look()

    def _last_step(self) -> int:
        return max(whole_steps(self._launch.run.checkpoints, 1 << 62), default=0)

    def _end(self, code: int) -> None:
        try:
            if self._notice is Signals.SIGUSR1 and code == 128 + Signals.SIGTERM:
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


def is_complete(run: RunFolder) -> bool:
    """Returns whether a run has trained all its steps."""
    try:
        summary: dict[str, object] = msgspec.json.decode(run.summary.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return False
    return summary.get("status") == RunStatus.COMPLETED.value


class Keeper:
    """Keeps as many agents as the run is to have nodes: of a range, as many as its coordinator wants."""

    def __init__(self, engine: Engine, launch: Launch, say: Callable[[str], None]) -> None:
        self._engine = engine
        self._launch = launch
        self._say = say
        self._replacements: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._allowed: int | None = None  # as the scripts say, or as a coordinator before this one left it
        self._was_complete = False
        self._was_short = False
        self._complaint = ""

    def look(self) -> None:
        """Looks at the tasks, and replaces what is lost. An engine that does not answer is asked again later."""
        try:
            tasks = self._engine.tasks()
            for task in tasks:
                if task.state is TaskState.HELD:
                    self._release(task)
                elif task.state is TaskState.LOST:
                    self._replace(task)
            self._let_spares_in(tasks)
            self._complaint = ""
        except EngineError as error:
            if str(error) != self._complaint:
                self._say(str(error))
            self._complaint = str(error)

    def _release(self, task: Task) -> None:
        now = time.monotonic()
        if now >= self._not_before.get(task.name, 0.0):
            self._not_before[task.name] = now + RELEASED_FOR_S
            self._engine.replace(task)

    def _replace(self, task: Task) -> None:
        now = time.monotonic()
        if now < self._not_before.get(task.name, 0.0):
            return
        count = self._replacements[task.name] = self._replacements.get(task.name, 0) + 1
        self._not_before[task.name] = now + min(LONGEST_REPLACEMENT_S, 2.0**count)
        self._say(f"task {task.name} is lost, and started again")
        self._engine.replace(task)

    def _let_spares_in(self, tasks: Sequence[Task]) -> None:
        """Allows as many tasks as nodes are wanted, once as many have been there as the run starts on; and as many more
        as nodes are missing for two looks on end though their tasks run."""
        counted = self._counted()
        if counted is None:
            return
        live, wanted = counted
        self._was_complete = self._was_complete or live >= self._launch.nodes
        if not self._was_complete:
            return
        missing = max(0, wanted - live)
        running = sum(task.state is TaskState.RUNNING for task in tasks)
        allowed = wanted
        if missing and self._was_short and running >= wanted:
            allowed += min(missing, self._launch.spares)
        self._was_short = bool(missing)
        if self._allowed is None or allowed > self._allowed or (allowed < self._allowed and not missing):
            self._engine.allow(allowed)
            self._allowed = allowed

    def _counted(self) -> tuple[int, int] | None:
        """Returns how many nodes live, and how many are wanted; None: the coordinator does not say."""
        try:
            contact = Contact.read(self._launch.run.contact)
            state = ask(contact, Wish.STATUS, run=self._launch.name, timeout_s=ENGINE_POLL_S).state
        except NotReached:
            return None
        return len(state.nodes), state.wanted or self._launch.nodes
