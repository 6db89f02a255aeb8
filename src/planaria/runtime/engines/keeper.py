"""Keeps the agents of a run: starts again what is lost, and lets spares in while nodes are missing."""

from __future__ import annotations

import _thread
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from planaria.protocol.messages.user import Wish
from planaria.runtime.coordinator.client import Contact, NotReached, ask
from planaria.runtime.engines.engine import Engine, EngineError, Task, TaskState
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.thresholds import ENGINE_POLL_S, LONGEST_REPLACEMENT_S, RELEASED_FOR_S


class Keeper:
    """Keeps as many agents as the run is to have nodes: of a range, as many as its coordinator wants.

    Args:
        engine: what runs the agents.
        run: that they take part in.
        nodes: that the run starts on.
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
        self._allowed: int | None = None  # as the engine began, or as a coordinator before this one left it
        self._was_complete = False
        self._was_short = False
        self._without_node: frozenset[str] = frozenset()
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
        """Allows as many tasks as nodes are wanted, once as many have been there as the run starts on; and as many more
        as nodes are missing for two looks on end though their tasks run."""
        counted = self._counted()
        if counted is None:
            return
        live, wanted, labels = counted
        self._was_complete = self._was_complete or live >= self._nodes
        if not self._was_complete:
            return
        self._ask_back(tasks, wanted)
        missing = max(0, wanted - live)
        running = sum(task.state is TaskState.RUNNING for task in tasks)
        self._tell_of_nodes(tasks, labels if missing and self._was_short else None)
        allowed = wanted
        if missing and self._was_short and running >= wanted:
            allowed += min(missing, self._spares)
        self._was_short = bool(missing)
        if self._allowed is None or allowed > self._allowed or (allowed < self._allowed and not missing):
            self._engine.allow(allowed)
            self._allowed = allowed

    def _ask_back(self, tasks: Sequence[Task], wanted: int) -> None:
        """Starts tasks again whose nodes were given back, where the others are too few for what is wanted now."""
        others = sum(task.state not in (TaskState.GIVEN_BACK, TaskState.DONE) for task in tasks)
        back = [task for task in tasks if task.state is TaskState.GIVEN_BACK]
        for task in back[: max(0, wanted + self._spares - others)]:
            self._say(f"task {task.name} was given back, and is started again: the run wants {wanted} nodes now")
            self._engine.replace(task)

    def _tell_of_nodes(self, tasks: Sequence[Task], labels: Mapping[int, str] | None) -> None:
        """Says which tasks run though the run has no node of theirs; None: no node is missing."""
        nodes = frozenset() if labels is None else frozenset(labels.values())
        without = frozenset(
            task.name for task in tasks if labels and task.state is TaskState.RUNNING and task.name not in nodes
        )
        for name in sorted(without - self._without_node):
            self._say(f"task {name} runs, and the run has no node of it: a spare may take its place")
        self._without_node = without

    def _counted(self) -> tuple[int, int, Mapping[int, str]] | None:
        """Returns how many nodes live, how many are wanted, and their labels; None: the coordinator does not say."""
        try:
            contact = Contact.read(self._run.contact)
            state = ask(contact, Wish.STATUS, run=self._run.path.name, timeout_s=ENGINE_POLL_S).state
        except NotReached:
            return None
        return len(state.nodes), state.wanted or self._nodes, state.labels


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
