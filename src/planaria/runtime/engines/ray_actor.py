"""The actor that Ray runs on each node: it starts `planaria agent`, and passes on a notice.

The agent is a process of its own, tied to the actor's: it needs a main thread for its signals, and it must not outlive
an actor whose raylet was killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planaria.runtime.engines.tied_process import tied


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnd:
    """How an agent ended: its exit code, and the last line that it wrote."""

    code: int
    said: str = ""


class AgentActor:
    """One node's agent.

    Args:
        arguments: of `planaria agent`.
        environment: beyond the actor's own.
        directory: in which the agent runs.
        label: of the node.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], directory: str, label: str) -> None:
        self._command = [sys.executable, "-m", "planaria.ui.cli.main", "agent", "--label", label, *arguments]
        self._environment = {**os.environ, **environment}
        self._directory = directory
        self._lock = threading.Lock()
        self._agent: subprocess.Popen[str] | None = None
        self._is_noticed = False

    def run(self) -> AgentEnd:
        """Runs the agent until it is not needed any more; one whose run is suspended is started again, and waits."""
        while True:
            with self._lock:
                if self._is_noticed:
                    return AgentEnd(code=0)
                self._agent = self._start()
            said = ""
            assert self._agent.stderr is not None
            for line in self._agent.stderr:
                said = line.strip()
                print(said, file=sys.stderr, flush=True)  # into Ray's log of this actor
            code = self._agent.wait()
            if code != os.EX_TEMPFAIL or self._is_noticed:
                return AgentEnd(code=code, said=said)

    def terminate(self) -> None:
        """Gives notice: the node hands over its work, and the agent ends."""
        with self._lock:
            self._is_noticed = True
            if self._agent is not None:
                self._agent.terminate()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            tied(self._command),
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
