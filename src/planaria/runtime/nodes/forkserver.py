"""The forkserver: a process that has imported torch once and forks workers in milliseconds.

`python -m planaria.runtime.nodes.forkserver FD MODEL_TYPE` speaks JSON lines over the socket FD with whoever started
it. It stays single-threaded, so forking is safe. When its starter is gone, it kills what it forked and ends; when it
dies, the kernel kills them.

Batch systems signal every process of a node. What they mean is for whoever started this one to heed, and for a worker
that is ready: here, and in all that is forked here, such signals are blocked.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections import deque
from pathlib import Path

import msgspec

from planaria.job.parse import EMULATED_MODEL
from planaria.job.registry import PolicyName
from planaria.job.sections.cluster import Device
from planaria.job.settings import Job
from planaria.job.values import is_dataset
from planaria.job.version import __version__
from planaria.runtime.coordinator.settings import CoordinatorSettings
from planaria.runtime.machine.interrupts import HEEDED
from planaria.runtime.machine.limits import raise_file_limit
from planaria.runtime.nodes.parent import die_with_parent
from planaria.runtime.thresholds import MAX_SOCKETS
from planaria.runtime.worker.settings import WorkerSettings

log = logging.getLogger("planaria.runtime.nodes.forkserver")  # this module runs as __main__


class SpawnWorker(msgspec.Struct, frozen=True, tag="worker"):
    settings: WorkerSettings


class SpawnProfiler(msgspec.Struct, frozen=True, tag="profiler"):
    """Orders measuring the job's profile into `output`; a user's mistake goes into `output` + ".error"."""

    job: Job
    data_folder: str
    output: str
    import_path: str | None


class SpawnCoordinator(msgspec.Struct, frozen=True, tag="coordinator"):
    """Orders a coordinator. Two sockets come with it: the listening one, and the one to the supervisor."""

    settings: CoordinatorSettings


Request = SpawnWorker | SpawnProfiler | SpawnCoordinator


class Spawned(msgspec.Struct, frozen=True, tag="spawned"):
    """Answers a request with the process that was started; answers come in the order of the requests."""

    pid: int


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """Tells of a process's end; `status`: exit status, or minus the signal's number."""

    pid: int
    status: int


Answer = Spawned | Exited


def main(descriptor: int, model_type: str) -> None:
    """Runs the forkserver until the other side of the socket closes."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HEEDED)
    die_with_parent()
    _log_to_stderr()
    raise_file_limit()
    began = time.monotonic()
    log.info("planaria %s, Python %s; imports what workers need", __version__, sys.version.split()[0])
    _import_what_workers_need(model_type)
    log.info("ready after %.1f s", time.monotonic() - began)
    # What was imported stays: a worker's garbage collector need not look at it, and so does not copy its pages.
    gc.collect()
    gc.freeze()
    sock = socket.socket(fileno=descriptor)
    selector = selectors.DefaultSelector()
    selector.register(sock, selectors.EVENT_READ)
    children: dict[int, int] = {}
    buffer = b""
    given: deque[int] = deque()
    is_measuring = False
    while True:
        ready = selector.select(0)
        if not ready:
            _import_what_coordinators_need()  # now that nobody waits; a second time this takes no time
            if is_measuring:
                _compile_for_workers()
            ready = selector.select()
        for key, _ in ready:
            if key.fileobj is sock:
                data, descriptors, _, _ = socket.recv_fds(sock, 1 << 20, MAX_SOCKETS)
                if not data:
                    log.info("over: the process that wanted workers is done, or gone")
                    _kill_all(children)
                    return
                given += descriptors
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    request = msgspec.json.decode(line, type=Request)
                    sockets = _take_sockets(given) if isinstance(request, SpawnCoordinator) else ()
                    if isinstance(request, SpawnProfiler):
                        is_measuring = True
                        _preload(request)
                    pid, pidfd = _fork(request, sock, sockets)
                    for passed in sockets:
                        passed.close()
                    children[pid] = pidfd
                    log.info("process %d is %s", pid, _name_of(request))
                    selector.register(pidfd, selectors.EVENT_READ, pid)
                    _answer(sock, Spawned(pid))
            else:
                pid = key.data
                _, status = os.waitpid(pid, 0)
                selector.unregister(key.fileobj)
                os.close(children.pop(pid))
                code = os.waitstatus_to_exitcode(status)
                log.info("process %d ended (%s)", pid, f"status {code}" if code >= 0 else signal.Signals(-code).name)
                _answer(sock, Exited(pid, code))


def _log_to_stderr() -> None:
    """Sends logs of this process and all that it forks to stderr, where each of those has a file of its own."""
    logging.raiseExceptions = False  # a disk that is full is no reason to stop
    logging.basicConfig(format="%(asctime)s %(process)d %(levelname)s %(message)s")
    logging.getLogger("planaria").setLevel(logging.INFO)


def _name_of(request: Request) -> str:
    match request:
        case SpawnWorker(settings):
            return f"worker {settings.worker} of node {settings.node}"
        case SpawnProfiler():
            return "the profiler"
        case SpawnCoordinator():
            return "a coordinator"


def _take_sockets(given: deque[int]) -> tuple[socket.socket, ...]:
    return tuple(socket.socket(fileno=given.popleft()) for _ in range(MAX_SOCKETS))


def _import_what_workers_need(model_type: str) -> None:
    import planaria.runtime.worker.process

    if model_type == EMULATED_MODEL:
        return
    # Torch imports it, and sympy with it, in a process's first backward.
    import torch.fx.experimental.symbolic_shapes  # noqa: F401

    import planaria.runtime.measure.measure  # noqa: F401
    from planaria.model.load import import_what_a_model_needs

    import_what_a_model_needs(model_type)


def _import_what_coordinators_need() -> None:
    import planaria.runtime.coordinator.process  # noqa: F401

    for name in PolicyName:
        name.load()


def _preload(request: SpawnProfiler) -> None:
    """Loads the model that is to be measured, so that its profiler and its workers are forked with it.

    Not with a dataset of the user's, whose code is run in the processes that need it alone.
    Nothing here may ask for a GPU: a process that has cannot be forked.
    """
    if request.job.cluster.device is not Device.CPU or is_dataset(request.job.data.source):
        return
    from planaria.data.opening import open_data
    from planaria.model.load import preload_model

    job = request.job
    try:
        vocab_size = open_data(job, Path(request.data_folder)).vocab_size
        preload_model(job.model, job.train, vocab_size=vocab_size)
    except Exception as error:
        log.info("the profiler tells why the model cannot be loaded: %s", error)
    gc.collect()
    gc.freeze()


@functools.cache
def _compile_for_workers() -> None:
    """Compiles what makes workers quicker, while the profile is measured."""
    from planaria.runtime.worker.compute import accumulator
    from planaria.runtime.worker.transport import grid_encoding

    try:
        accumulator.load_compiled()
        grid_encoding.load_compiled()
    except Exception as error:
        log.warning("sums are rounded without numba, which cannot be used here: %s", error)


def _answer(sock: socket.socket, answer: Answer) -> None:
    with contextlib.suppress(OSError):
        sock.sendall(msgspec.json.encode(answer) + b"\n")


def _kill_all(children: dict[int, int]) -> None:
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _fork(request: Request, sock: socket.socket, sockets: tuple[socket.socket, ...]) -> tuple[int, int]:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        if isinstance(request, SpawnWorker):
            # Both sides set the group, so that it exists whoever is first.
            with contextlib.suppress(OSError):
                os.setpgid(pid, request.settings.node_leader or pid)
        return pid, os.pidfd_open(pid)
    status = 1
    try:
        sock.close()
        die_with_parent()
        if os.getppid() == parent:  # else it was gone before the kernel was asked
            status = _child(request, sockets)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _child(request: Request, sockets: tuple[socket.socket, ...]) -> int:
    if isinstance(request, SpawnCoordinator):
        _print_into(request.settings.log)
        from planaria.runtime.coordinator.process import run_coordinator

        return run_coordinator(request.settings, *sockets)
    import torch

    torch.set_num_threads(1)
    match request:
        case SpawnWorker(settings):
            with contextlib.suppress(OSError):
                os.setpgid(0, settings.node_leader)
            if settings.log is not None:
                _print_into(settings.log)
            from planaria.runtime.worker.process import run_worker

            return run_worker(settings)
        case SpawnProfiler(job, data_folder, output, import_path):
            from planaria.runtime.measure.measure import measure_into

            return measure_into(job, Path(data_folder), Path(output), import_path)


def _print_into(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
