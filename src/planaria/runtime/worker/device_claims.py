"""Who of a host's processes has which of its devices: each claims one, and loses it only by ending.

A claim is a lock on a file, which the kernel lifts when its process is gone, however it went: so a node that takes a
lost one's place gets the device that this left free. Only processes of one user see each other's claims.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import IO

_held: list[IO[bytes]] = []
"""Of this process; closed, and so lifted, by its end."""


def claim(names: Sequence[str], first: int, folder: Path | None = None) -> int:
    """Claims the device that fewest processes have, until this process ends.

    Args:
        names: of the devices, the same in all processes of the host.
        first: the place of the one that is taken if all are as free.
        folder: of the locks; None: the user's, on this host.

    Returns:
        The place of the device among the names.

    Raises:
        OSError: the folder cannot be written, or is another user's.
    """
    folder = folder or Path(tempfile.gettempdir()) / f"planaria-devices-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise PermissionError(f"{folder} is somebody else's")
    order = [(first + turn) % len(names) for turn in range(len(names))]
    for others in count():
        for place in order:
            lock = (folder / f"{names[place]}-{others}").open("ab")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                continue
            _held.append(lock)
            return place
    raise AssertionError("there is always a lock that nobody has")
