"""Keeps the agents of a run: starts again what is lost, and lets spares in while nodes are missing."""

from __future__ import annotations

import _thread
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from planaria.protocol.messages.user import Wish
from planaria.runtime.coordinator.client import Contact, NotReached, ask
from planaria.runtime.engines.engine import Engine, EngineError, Task, TaskState
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.thresholds import ENGINE_POLL_S, LONGEST_REPLACEMENT_S, RELEASED_FOR_S


class Keeper:
    """Keeps as many agents as the run is to have nodes.

    Args:
        engine: what runs the agents.
        run: that they take part in.
        nodes: that train.
        spares: agents beyond these.
        say: takes lines for people.
    """

    def __init__(self, engine: Engine, run: RunFolder, nodes: int, spares: int, say: Callable[[str], None]) -> None:
        self._engine = engine
        self._run = run
        self._nodes = nodes
        self._spares = spares
        self._say = say
        self._replacements: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._allowed = nodes + spares  # as a coordinator before this one may have left it
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
        why = f" ({task.why})" if task.why else ""
        self._say(f"task {task.name} is lost{why}, and started again")
        self._engine.replace(task)

    def _let_spares_in(self, tasks: Sequence[Task]) -> None:
        """Allows as many tasks more as nodes are missing for two looks on end, once all have been there."""
        live = self._num_live()
        if live is None:
            return
        missing = max(0, self._nodes - live)
        self._was_complete = self._was_complete or not missing
        running = sum(task.state is TaskState.RUNNING for task in tasks)
        wanted = self._nodes
        if self._was_complete and missing and self._was_short and running >= self._nodes:
            wanted += min(missing, self._spares)
        self._was_short = bool(missing)
        if wanted > self._allowed or (wanted < self._allowed and not missing):
            self._engine.allow(wanted)
            self._allowed = wanted

    def _num_live(self) -> int | None:
        try:
            contact = Contact.read(self._run.contact)
            return len(ask(contact, Wish.STATUS, run=self._run.path.name, timeout_s=ENGINE_POLL_S).state.nodes)
        except NotReached:
            return None


@contextlib.contextmanager
def kept(engine: Engine, keeper: Keeper) -> Iterator[None]:
    """Looks at an engine's tasks until the context ends, in another thread; where that fails, the run is ended."""
    is_over = threading.Event()
    failures: list[BaseException] = []

    def look() -> None:
        try:
            keeper.look()
            while not is_over.wait(engine.poll_s):
                keeper.look()
        except BaseException as error:
            failures.append(error)
            _thread.interrupt_main()

    thread = threading.Thread(target=look, name="keeper of agents", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        if failures:
            raise failures[0]
