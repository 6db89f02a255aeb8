"""The protocol of an engine: what an attendant asks of whatever runs the agents. An engine decides nothing."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from planaria.job.errors import PlanariaError


class EngineError(PlanariaError):
    """The engine does not answer, or not for now; it is asked again."""


class TaskState(enum.Enum):
    """The state of an agent's task."""

    WAITING = enum.auto()
    """For a node."""
    HELD = enum.auto()
    """Back in the queue, and not to start before some time."""
    SPARE = enum.auto()
    """Behind as many others as may run."""
    GIVEN_BACK = enum.auto()
    """Back in the queue until it is asked for: the run had one node too many."""
    RUNNING = enum.auto()
    DONE = enum.auto()
    """The agent ended because it was not needed any more."""
    LOST = enum.auto()
    """The agent, or its node, died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task of the engine that runs an agent: its name for the engine, its state, and why it is lost, where known.

    The name is the label of the agent's node.
    """

    name: str
    state: TaskState
    why: str = ""


class Engine(Protocol):
    """The agents of one launch, as the engine runs them.

    The engine gives agents notice itself, of a time limit or a preemption: SIGTERM, which drains their node.

    Attributes:
        poll_s: seconds between two looks at the tasks.
    """

    poll_s: float

    def tasks(self) -> list[Task]:
        """Returns the tasks. Raises EngineError: it does not answer."""
        ...

    def replace(self, task: Task) -> None:
        """Starts a lost task again, or lets one start that is held or was given back. Raises EngineError."""
        ...

    def allow(self, num_running: int) -> None:
        """Sets how many tasks may run at a time; the others are spares. Raises EngineError."""
        ...

    def come_back(self) -> None:
        """Has the coordinator's own task started again, after its time limit. Raises EngineError."""
        ...

    def end(self) -> None:
        """Ends all agents' tasks, running or not. Raises EngineError."""
        ...
