"""A process that the kernel kills when the process that started it dies, however that ends.

`python -m planaria.runtime.engines.tied_process PID COMMAND...` becomes the command; PID is who started it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from planaria.runtime.nodes.parent import die_with_parent


def tied(command: Sequence[str]) -> list[str]:
    """Returns the command that ties `command` to this process, and to the thread that starts it."""
    return [sys.executable, "-m", __name__, str(os.getpid()), *command]


def main(starter: int, command: Sequence[str]) -> None:
    """Becomes the command; ends where the starter was gone before the kernel was asked."""
    die_with_parent()
    if os.getppid() == starter:
        os.execvp(command[0], list(command))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
