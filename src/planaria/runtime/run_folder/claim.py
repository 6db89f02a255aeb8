"""Claims a run folder for one process at a time, which says what it is about before the run can be asked.

The claim is a lock on a file (flock), so it ends with its process, however that ends. Readers are never refused, and
refuse nobody. On a file system without locks nothing is claimed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from planaria.job.errors import UserError
from planaria.runtime.thresholds import CLAIM_RETRY_S, READERS_S

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class Claimant(msgspec.Struct, frozen=True, kw_only=True):
    """The process that writes a run folder.

    Attributes:
        pid: of the process.
        host: where it is.
        doing: what it is about where the run cannot be asked itself, for instance "starting: the data are read".
    """

    pid: int
    host: str
    doing: str


@contextlib.contextmanager
def claimed(path: Path, wait_s: float = READERS_S) -> Iterator[None]:
    """Claims the right to write the folder in which the file `path` lies, until the context ends.

    Args:
        path: of the claim.
        wait_s: seconds that it waits for readers, or for a claimant that ends.

    Raises:
        UserError: another process has it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + wait_s
        while not _locked(descriptor):
            if time.monotonic() >= deadline:
                raise UserError(in_use(path))
            time.sleep(CLAIM_RETRY_S)
        say(path, "starting")
        yield
    finally:
        os.close(descriptor)


def say(path: Path, doing: str) -> None:
    """Tells readers what the claimant, this process, is about; a full disk keeps it from that alone."""
    told = Claimant(pid=os.getpid(), host=socket.gethostname(), doing=doing)
    with contextlib.suppress(OSError):
        path.write_bytes(msgspec.json.encode(told))  # never replaced: the lock is on the file, not on its name


def claimant(path: Path) -> Claimant | None:
    """Returns the process that writes the folder now; None where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _read(path)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _read(path: Path) -> Claimant:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Claimant)
    except (OSError, ValueError):  # it is being written
        return Claimant(pid=0, host="", doing="starting")


def in_use(path: Path) -> str:
    """Returns what to say to a process that finds the folder in use."""
    run, other = path.parent, _read(path)
    who = f"process {other.pid} on {other.host}" if other.pid else "another process"
    return (
        f"run folder {run} is in use by {who}. Look at it by planaria status {run}, end it by planaria stop {run}, "
        "or choose another name by --name NAME."
    )
