"""The nodes on this machine: worker processes forked by the forkserver, a process group for each node.

One forkserver can serve several jobs, one after the other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path

import msgspec

from planaria.job.errors import PlanariaError
from planaria.job.settings import Job
from planaria.plan.plan import NodeId, WorkerId
from planaria.runtime.coordinator.settings import CoordinatorSettings
from planaria.runtime.machine.interrupts import deaf
from planaria.runtime.nodes.forkserver import (
    Answer,
    Exited,
    Request,
    SpawnCoordinator,
    Spawned,
    SpawnProfiler,
    SpawnWorker,
)
from planaria.runtime.worker.settings import WorkerSettings


class LauncherError(PlanariaError):
    """The forkserver is gone: its output is in the run folder's logs."""


class LocalNodes:
    """Starts, watches and kills the processes of this machine's nodes.

    Args:
        log: file for what the forkserver prints; None: nowhere.
        model_type: of the job, or EMULATED_MODEL; what it needs is imported once, before anything is forked.
    """

    def __init__(self, log: Path | None, model_type: str) -> None:
        self._log = log
        self._model_type = model_type
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._buffer = b""
        self._answers: deque[Spawned] = deque()
        self._node_of: dict[int, NodeId] = {}
        self._worker_of: dict[int, WorkerId] = {}
        self._leaders: dict[NodeId, int] = {}
        self._exits: deque[Exited] = deque()
        self._statuses: dict[int, int] = {}

    def start(self) -> None:
        """Starts the forkserver. Returns at once; it imports while the caller goes on."""
        ours, theirs = socket.socketpair()
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # deterministic products; read when CUDA starts
            # A step frees what the next one allocates again: glibc shall keep it, not give it back page by page.
            "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
            "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
            "MALLOC_TOP_PAD_": str(16 << 20),
        }
        log = self._log.open("ab") if self._log is not None else None
        try:
            with deaf():
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "planaria.runtime.nodes.forkserver", str(theirs.fileno()), self._model_type],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=log or subprocess.DEVNULL,
                    stderr=log or subprocess.DEVNULL,
                    env=environment,
                    start_new_session=True,
                )
        finally:
            theirs.close()
            if log is not None:
                log.close()
        self._socket = ours

    # Spawning

    def spawn(self, settings: WorkerSettings) -> int:
        """Starts one worker; returns its pid. The first of a node leads the node's process group.

        One that is started again is the device's from now on: nothing more is told of the process before.
        """
        node = NodeId(settings.node)
        for before in self.kill_worker(settings.worker):
            self._worker_of.pop(before), self._node_of.pop(before)
        settings = msgspec.structs.replace(settings, node_leader=self._leaders.get(node, 0))
        pid = self._request(SpawnWorker(settings))
        self._node_of[pid], self._worker_of[pid] = node, settings.worker
        self._leaders.setdefault(node, pid)
        return pid

    def spawn_coordinator(self, settings: CoordinatorSettings, listener: socket.socket, sock: socket.socket) -> int:
        """Starts a coordinator, serving or on standby; returns its pid.

        Args:
            settings: the run's settings.
            listener: the port that it serves. Stays the caller's.
            sock: its end of the link to its supervisor. Stays the caller's, who should close it.
        """
        return self._request(SpawnCoordinator(settings), [listener.fileno(), sock.fileno()])

    def status_of(self, pid: int) -> int:
        """Waits for the end of a process that is no node's; returns its exit status, or minus the signal's number."""
        while True:
            for exited in [exited for exited in self._exits if exited.pid == pid]:
                self._exits.remove(exited)
                self._statuses[pid] = exited.status
            if pid in self._statuses:
                return self._statuses.pop(pid)
            self._read()

    def end(self, pid: int) -> None:
        """Kills a process that is no node's, if it lives, and waits until it is gone."""
        self.strike(pid)
        self.status_of(pid)

    def strike(self, pid: int) -> None:
        """Sends SIGKILL to a process that is no node's, if it lives, without waiting for its end."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._read(socket.MSG_DONTWAIT)
        known = {exited.pid for exited in self._exits} | self._statuses.keys()
        if pid not in known:  # else the number may be another's by now
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def measure(self, job: Job, data_folder: Path, output: Path, import_path: Path | None) -> int:
        """Measures a profile in a process of its own; waits, and returns its exit status."""
        path = None if import_path is None else str(import_path)
        return self.status_of(self._request(SpawnProfiler(job, str(data_folder), str(output), path)))

    def _request(self, request: Request, descriptors: list[int] | None = None) -> int:
        assert self._socket is not None
        line = msgspec.json.encode(request) + b"\n"
        try:
            sent = socket.send_fds(self._socket, [line], descriptors or [])
            self._socket.sendall(line[sent:])
        except OSError as error:
            raise LauncherError(self._gone()) from error
        while not self._answers:
            self._read()
        return self._answers.popleft().pid

    def _read(self, flags: int = 0) -> None:
        """Reads what the forkserver says; waits for it, unless the flags say not to."""
        assert self._socket is not None
        data = self._socket.recv(1 << 16, flags)
        if not data:
            raise LauncherError(self._gone())
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            answer = msgspec.json.decode(line, type=Answer)
            if isinstance(answer, Spawned):
                self._answers.append(answer)
            else:
                self._exits.append(answer)

    def _gone(self) -> str:
        return f"the process that starts workers ended unexpectedly; see {self._log or 'its output'}"

    def pids(self) -> list[int]:
        """Returns the pids of workers that are not known to have ended, in the order in which they were started."""
        return list(self._node_of)

    def pids_of(self, node: NodeId) -> tuple[int, ...]:
        return tuple(pid for pid, at in self._node_of.items() if at == node)

    # The supervisor's side

    def fileno(self) -> int:
        assert self._socket is not None
        return self._socket.fileno()

    def lost(self) -> list[tuple[WorkerId, str]]:
        """Returns the workers whose process ended since the last call, each with the cause. Never waits."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._read(socket.MSG_DONTWAIT)
        return self._lost()

    def _lost(self) -> list[tuple[WorkerId, str]]:
        found = []
        while self._exits:
            exited = self._exits.popleft()
            if self._node_of.pop(exited.pid, None) is not None:
                found.append((self._worker_of.pop(exited.pid), cause_of(exited.status)))
            else:
                self._statuses[exited.pid] = exited.status
        return found

    def kill(self, node: NodeId) -> None:
        """Kills what is left of a node. Safe from any thread."""
        leader = self._leaders.get(node)
        if leader is None or node not in self._node_of.values():
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)

    def kill_worker(self, worker: WorkerId) -> list[int]:
        """Kills what is left of one worker of a node; returns its pids. Safe from any thread."""
        pids = [pid for pid, at in list(self._worker_of.items()) if at == worker]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return pids

    def all_ended(self) -> bool:
        return not self._node_of

    def release(self) -> None:
        """Kills what is left of the job's nodes and waits until it is gone. The next job may start nodes then."""
        while self._node_of:
            for node in set(self._node_of.values()):
                self.kill(node)
            if not self._exits:
                self._read()
            self._lost()
        self._leaders.clear()

    def close(self) -> None:
        """Kills whatever still runs, the forkserver too, and waits until it is gone."""
        for node in set(self._node_of.values()):
            self.kill(node)
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()  # it may be in the middle of its imports; what it forked dies with it
            self._process.wait()

    def __enter__(self) -> LocalNodes:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def cause_of(status: int) -> str:
    """Describes for people what became of a process."""
    if status < 0:
        return f"process killed by {signal.Signals(-status).name}"
    return f"process ended with status {status}"
