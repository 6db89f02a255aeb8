"""The agent on the coordinator's own node, as its engine: a process that is started again when it is lost.

Whatever started this node starts the other ones, and replaces them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from planaria.protocol.messages.agent import Farewell
from planaria.runtime.engines.engine import EngineError, Task, TaskState
from planaria.runtime.nodes.agent_settings import EXIT_CODES
from planaria.runtime.thresholds import ENGINE_COMMAND_S, ENGINE_POLL_S


class OwnAgent:
    """The engine of a coordinator whose nodes are started by somebody else.

    Args:
        command: of the agent on this node; empty: the coordinator has this node for itself.
    """

    poll_s = ENGINE_POLL_S

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the agent, where there is to be one. It waits for its coordinator."""
        if self._command:
            self._process = subprocess.Popen(self._command)

    def tasks(self) -> list[Task]:
        """Returns the agent's state, if there is one."""
        if self._process is None:
            return []
        code = self._process.poll()
        is_done = code in (EXIT_CODES[Farewell.OVER], EXIT_CODES[Farewell.DRAINED])
        state = TaskState.RUNNING if code is None else TaskState.DONE if is_done else TaskState.LOST
        return [Task(name="agent", state=state)]

    def replace(self, task: Task) -> None:
        """Starts the agent again."""
        self.start()

    def allow(self, num_running: int) -> None:
        """Changes nothing: nobody is started here beside this one."""

    def come_back(self) -> None:
        """Raises EngineError: nothing is asked here to start this process again."""
        raise EngineError("whoever started this process has to start it again")

    def end(self) -> None:
        """Ends the agent, unless it has ended with its run."""
        if self._process is not None:
            self._process.terminate()
            self.wait()

    def wait(self) -> None:
        """Waits for the agent's end, and kills it when that takes too long."""
        if self._process is None:
            return
        try:
            self._process.wait(ENGINE_COMMAND_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
