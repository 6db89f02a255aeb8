"""Whether a machine is fit to train: each check says what it found and, where that hinders, what to do about it."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import resource
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from planaria.plan.quantities import size
from planaria.runtime.machine.limits import num_cores
from planaria.runtime.thresholds import MOST_FILES
from planaria.runtime.wire.link_probe import ProbeListener, probe

OLDEST_PYTHON = (3, 11)
FEW_FILES = 1024
"""Open files of a process, of which a few dozen workers on a machine need as many."""
LITTLE_DISK_BYTES = 5 * 10**9
LITTLE_MEMORY_BYTES = 2 * 10**9
SLOW_SYNC_S = 0.1
"""The journal of plans is on disk before they are told."""
SLOW_LOOPBACK_BYTES_PER_S = 5e8
PROBE_S = 0.2
TIME_ERROR = 5
"""Of adjtimex(2): nobody keeps the clock right."""


class Verdict(enum.StrEnum):
    FINE = "fine"
    LOOK = "look"
    """Works, and may be slow or surprising."""
    MEND = "mend"
    """Runs fail before that is mended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found.

    Attributes:
        name: of the check.
        verdict: what it means.
        text: the fact, with its remedy where there is one.
    """

    name: str
    verdict: Verdict
    text: str


def examined(folder: Path) -> Iterator[Finding]:
    """Yields what is found of this machine, check by check. `folder`: where runs are to be."""
    for name, check in CHECKS.items():
        verdict, text = check(folder)
        yield Finding(name=name, verdict=verdict, text=text)


_Found = tuple[Verdict, str]


def _python(folder: Path) -> _Found:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        return Verdict.MEND, f"Python {found}; 3.11 or newer is needed."
    return Verdict.FINE, f"Python {found}"


def _torch(folder: Path) -> _Found:
    try:
        import torch
    except (ImportError, OSError) as error:
        return Verdict.MEND, f"torch cannot be imported: {error}. pip install torch"
    with_models = f"torch {torch.__version__}, transformers {_version('transformers')}"
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        return Verdict.FINE, f"{with_models}; {len(names)} GPU: {', '.join(sorted(set(names)))}"
    if shutil.which("nvidia-smi"):
        return Verdict.LOOK, f"{with_models}; nvidia-smi is there, and torch sees no GPU: install a torch with CUDA."
    return Verdict.FINE, f"{with_models}; no GPU"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(missing)"


def _cores(folder: Path) -> _Found:
    cores, there = num_cores(), os.cpu_count() or 1
    text = f"{cores:g} of {there} cores for this process" if cores < there else f"{there} cores"
    if cores < 2:
        return Verdict.LOOK, f"{text}: workers of one machine take turns on them, and the coordinator with them."
    return Verdict.FINE, text


def _memory(folder: Path) -> _Found:
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = 1024 * int(fields["MemAvailable"].split()[0])
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        free = min(free, int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    if free < LITTLE_MEMORY_BYTES:
        return Verdict.LOOK, f"{size(free)} free: a worker takes some 500 MB beside the model's state."
    return Verdict.FINE, f"{size(free)} free"


def _files(folder: Path) -> _Found:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < FEW_FILES:
        return Verdict.LOOK, f"a process may open {most} files: raise it, for instance by ulimit -n {MOST_FILES}."
    return Verdict.FINE, f"a process may open {'any number of' if most == resource.RLIM_INFINITY else most} files"


def _shared_memory(folder: Path) -> _Found:
    try:
        descriptor = os.memfd_create("planaria-doctor")
        with os.fdopen(descriptor, "wb") as file, open(f"/proc/{os.getpid()}/fd/{descriptor}", "rb"):
            file.write(b"0")
    except OSError as error:
        return Verdict.MEND, f"memory cannot be shared (memfd: {error.strerror}), which workers of a host do."
    return Verdict.FINE, "processes can share memory"


def _disk(folder: Path) -> _Found:
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            began = time.perf_counter()
            file.write(b"0" * 4096)
            file.flush()
            os.fsync(file.fileno())
            took_s = time.perf_counter() - began
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Verdict.MEND, f"{folder} cannot be written: {error.strerror}. Set run.folder to one that can."
    text = f"{size(free)} free in {folder}, a write is safe after {1e3 * took_s:.1f} ms"
    if free < LITTLE_DISK_BYTES:
        return Verdict.LOOK, f"{text}: a checkpoint of AdamW takes 12 bytes a parameter."
    if took_s > SLOW_SYNC_S:
        return Verdict.LOOK, f"{text}: slow, and the journal waits for it at each plan."
    return Verdict.FINE, text


def _host(folder: Path) -> _Found:
    name = socket.gethostname()
    try:
        address = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        return Verdict.LOOK, f"the name {name} has no address ({error.strerror}): name cluster.host for other hosts."
    family = socket.AF_INET6 if ":" in str(address) else socket.AF_INET
    try:
        socket.create_server((str(address), 0), family=family).close()
    except OSError as error:
        return Verdict.LOOK, f"{name} is {address}, where no port can be opened ({error.strerror}): name cluster.host."
    elsewhere = ": for other hosts name cluster.host" if str(address).startswith(("127.", "::1")) else ""
    return Verdict.FINE, f"{name} is {address}, and ports can be opened{elsewhere}"


def _links(folder: Path) -> _Found:
    token = secrets.token_hex(16)
    listener = ProbeListener(token)
    try:
        latency_s, rate = probe(f"127.0.0.1:{listener.start('127.0.0.1')}", token, PROBE_S)
    except (OSError, EOFError) as error:
        return Verdict.MEND, f"nothing passes over 127.0.0.1 ({error}): look at firewalls and sandboxes."
    finally:
        listener.close()
    text = f"loopback: {1e6 * latency_s:.0f} us, {rate / 1e9:.2g} GB/s"
    return (Verdict.FINE if rate >= SLOW_LOOPBACK_BYTES_PER_S else Verdict.LOOK), text


def _clock(folder: Path) -> _Found:
    code = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(ctypes.create_string_buffer(512)))
    now = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    if code == TIME_ERROR:
        return Verdict.LOOK, f"{now}; nobody keeps it right (no NTP): times in records of several hosts may not agree."
    return Verdict.FINE, now


CHECKS: dict[str, Callable[[Path], _Found]] = {
    "python": _python,
    "torch": _torch,
    "cores": _cores,
    "memory": _memory,
    "files": _files,
    "shared memory": _shared_memory,
    "disk": _disk,
    "host": _host,
    "links": _links,
    "clock": _clock,
}
