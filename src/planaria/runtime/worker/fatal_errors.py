"""Describes what ends a worker, and tells a lack of memory from other errors."""

from __future__ import annotations

import errno
import logging
import re
import resource
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch

from planaria.data.reading.sources import DataError
from planaria.job.errors import UserError
from planaria.model.model import ModelError
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import Failed, OutOfMemory
from planaria.runtime.worker.compute.layers import LayerFailed
from planaria.runtime.worker.preemption import SourceError

_TEXTS = (
    "can't allocate memory",
    "not enough memory",
    "Cannot allocate memory",
    "std::bad_alloc",
    "ALLOC_FAILED",
    "can't start new thread",
)
"""Parts of what torch's allocators and the libraries below say in errors that have no type of their own."""

_HOST_WANTED = re.compile(r"you tried to allocate (\d+) bytes")
_DEVICE_WANTED = re.compile(r"Tried to allocate ([\d.]+) ([KMG]iB)")
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_OWN = re.compile(r"^Private_Dirty:\s+(\d+) kB", re.MULTILINE)


def shortage(error: BaseException, doing: str) -> OutOfMemory | None:
    """Returns what to tell the coordinator of a lack of memory, at whatever depth of the error; None for other errors.

    Args:
        error: the error, with those that caused it.
        doing: what the worker did, for people.
    """
    chain = list(_chain(error))
    reason = next((link for link in chain if lacks_memory(link)), None)
    if reason is None:
        return None
    layer = next((link.layer for link in chain if isinstance(link, LayerFailed)), None)
    where = doing if layer is None else f"{doing}, layer {layer!r}"
    return OutOfMemory(holds=False, where=where, held_bytes=held_bytes(), wanted_bytes=_wanted_bytes(str(reason)))


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__


def lacks_memory(error: BaseException) -> bool:
    """Whether this error says, by itself, that memory was asked for in vain."""
    match error:
        case MemoryError() | torch.OutOfMemoryError():
            return True
        case OSError():
            return error.errno == errno.ENOMEM
        case RuntimeError():
            return any(text in str(error) for text in _TEXTS)
    return False


def _wanted_bytes(text: str) -> int:
    if found := _HOST_WANTED.search(text):
        return int(found[1])
    if found := _DEVICE_WANTED.search(text):
        return int(float(found[1]) * _UNITS[found[2]])
    return 0


def held_bytes() -> int:
    """Returns what this process alone holds: of its GPU if it uses one, else of the host. 0 if that is unknown."""
    if torch.cuda.memory_reserved():  # 0 where torch has not touched a GPU; asking does not touch one
        return int(torch.cuda.max_memory_reserved())
    try:
        found = _OWN.search(Path("/proc/self/smaps_rollup").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


log = logging.getLogger(__name__)


def is_of_device(error: BaseException) -> bool:
    """Returns whether the device failed, and not the code that runs on it: another one may do the same work. An
    assertion that fails on the device is the code's."""
    texts = [str(link) for link in _chain(error) if isinstance(link, RuntimeError)]
    return any("CUDA error" in text and "device-side assert" not in text for text in texts)


def last_words(worker: WorkerId, error: Exception, doing: str) -> Failed | OutOfMemory | None:
    """Returns what a failing worker tells of its end. Memory may lack on this node alone, and a device fail; other
    errors would recur. None: it ends, and nothing is said."""
    log.error("an error, %s", doing, exc_info=error)
    lacking = shortage(error, doing)
    if lacking is not None:
        return lacking
    if is_of_device(error):
        return None
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        where = f"worker {worker} may open no more than {soft} files (ulimit -n). Raise the limit and --resume"
        return Failed(where=where, text="".join(traceback.format_exception(error)))
    if isinstance(error, LayerFailed | ModelError | DataError | UserError | SourceError):
        return Failed(where=str(error), text="".join(traceback.format_exception(error.__cause__ or error)))
    return Failed(where=f"worker {worker}", text="".join(traceback.format_exception(error)))
