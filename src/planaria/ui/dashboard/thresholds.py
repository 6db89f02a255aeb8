"""Numbers of the page that are choices."""

from __future__ import annotations

from typing import Final

LOOK_EVERY_S: Final = 0.5
"""Seconds between two looks of a page at a run: often enough to seem live."""

TABLE_EVERY_S: Final = 2.0
"""Seconds between two looks at a folder of runs."""

SAVE_TIMEOUT_S: Final = 600.0
"""Most seconds that a page waits until a state is on disk."""

NICENESS: Final = 10
"""By how much the page of [observe] dashboard_port steps back for what trains on the same cores."""

MOST_TRACE_BYTES: Final = 32 << 20
"""Most bytes that are read of what workers have written of their steps: the last ones. They take 0.3 s of a
processor once, and what is new some milliseconds."""

MOST_STEPS_OFFERED: Final = 500
"""Most steps whose schedule may be chosen: the last ones."""

MOST_CELLS: Final = 4000
"""Most boxes of a schedule that a page draws; whole pipelines are left out beyond."""

MOST_PLANNED: Final = 8
"""Plans whose schedule is kept."""

MOST_ADDED: Final = 64
"""Most nodes that the page adds at once."""

MOST_BODY_BYTES: Final = 4096
"""Most bytes of a request: a command or a token."""

MOST_COMPARED: Final = 8
"""Most runs whose curves are laid over each other."""
