"""Starts `planaria`, scripts and forkservers: forked, so that nothing is imported twice. All else is what ships.

`python -m tests.e2e.incubator FD` listens at the socket FD and takes orders, each with its descriptors, from whoever
connects. Over the first of those it tells the pid, and then the exit status. `Incubator` is the other side.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import gc
import importlib
import itertools
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from planaria.runtime.machine.interrupts import deaf
from planaria.runtime.nodes import forkserver
from planaria.runtime.nodes.local_nodes import LocalNodes
from tests.e2e import tap

ROOT = Path(__file__).parents[2]
CLONE_NEWNET = 0x40000000
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_BIND = 0x1000
MS_REC_PRIVATE = 0x4000 | 0x40000
MAX_DESCRIPTORS = 3
MAX_ORDER_BYTES = 1 << 16
GREETING = b"here"


class Started:
    """A process that the incubator forked, with the part of subprocess.Popen that is used of one."""

    def __init__(self, news: socket.socket, output: Sequence[IO[str] | None] = (None, None)) -> None:
        self._news = news
        self.stdout, self.stderr = output
        self.returncode: int | None = None
        self.pid = int(news.recv(100))

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._news.settimeout(timeout)
            try:
                self.returncode = int(self._news.recv(100))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0) from None
            self._news.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it may have ended since
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Returns what it says on standard output and on standard error until both are closed, and waits for it."""
        said: dict[IO[str], bytes] = {}
        end = None if timeout is None else time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            for stream in (self.stdout, self.stderr):
                if stream is not None:
                    said[stream] = b""
                    selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(None if end is None else max(0.0, end - time.monotonic()))
                if not ready:
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0, output=repr(said))
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 16)
                    said[key.fileobj] += data  # type: ignore[index]
                    if not data:
                        selector.unregister(key.fileobj)
        self.wait(None if end is None else max(0.0, end - time.monotonic()))
        out, error = (said.get(stream, b"").decode() if stream else "" for stream in (self.stdout, self.stderr))
        return out, error


class StartedReader:
    """A process that reads a stream: one thread may wait for its end while another one kills it."""

    def __init__(self, news: socket.socket, stdin: IO[bytes]) -> None:
        self._news = news
        self.stdin = stdin
        self.pid = int(news.recv(100))

    def wait(self) -> int:
        with self._news:
            return int(self._news.recv(100))

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Incubator:
    """Starts what is forked from one process that has imported everything.

    Args:
        prefix: of the command that starts that process.
        shared: a name; whoever gives the same one has the same process. Empty: it is this one's alone.
    """

    def __init__(self, prefix: Sequence[str] = (), shared: str = "") -> None:
        self._is_shared = bool(shared)
        self._process: subprocess.Popen[bytes] | None = None
        address: str | bytes = f"\0planaria-tests-{shared}" if shared else ""  # none: the kernel finds a name
        while not self._reach(address, prefix):
            time.sleep(0.01)  # whoever has the name is about to listen, or about to end

    def _reach(self, address: str | bytes, prefix: Sequence[str]) -> bool:
        """Connects to the process with that name, which it starts if there is none; returns whether it answers."""
        self._ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            try:
                listener.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                with contextlib.suppress(ConnectionError):
                    self._ours.connect(address)
                    if self._ours.recv(len(GREETING)):
                        return True
                self._ours.close()
                return False
            listener.listen()
            self._ours.connect(listener.getsockname())
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "tests.e2e.incubator", str(listener.fileno())],
                pass_fds=[listener.fileno()],
                cwd=ROOT,
                env={**os.environ, "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
                start_new_session=True,
            )
        return True

    def start(
        self,
        folder: Path,
        *arguments: str,
        log: Path | None = None,
        netns: int | None = None,
        script: Path | None = None,
        environment: Mapping[str, str] | None = None,
        hidden: Path | None = None,
        binds: Mapping[Path, Path] | None = None,
    ) -> Started:
        """Runs `planaria`, or a Python script, with these arguments in a folder and a session of its own.

        Args:
            folder: where it runs.
            arguments: of the command.
            log: what it says goes there. None: into pipes.
            netns: pid of a process in whose network namespace it runs.
            script: what is run. None: `planaria`.
            environment: variables that it has beside those of this process.
            hidden: a folder that is empty for it.
            binds: files, and which others it sees in their place.
        """
        order = {
            "arguments": arguments,
            "folder": str(folder),
            "netns": netns,
            "script": None if script is None else str(script),
            "environment": environment or {},
            "hidden": None if hidden is None else str(hidden),
            "binds": {str(seen): str(other) for seen, other in (binds or {}).items()},
        }
        if log is not None:
            with log.open("ab") as file:
                return Started(self._order(order, file.fileno(), file.fileno()))
        pipes = [os.pipe(), os.pipe()]
        news = self._order(order, *(write for _, write in pipes))
        for _, write in pipes:
            os.close(write)
        return Started(news, [open(read) for read, _ in pipes])

    def start_forkserver(self, nodes: LocalNodes) -> None:
        """In place of `LocalNodes.start`."""
        ours, theirs = socket.socketpair()
        with theirs, open(nodes._log or os.devnull, "ab") as log:
            news = self._order({"forkserver": nodes._model_type, "folder": os.getcwd()}, log.fileno(), theirs.fileno())
        nodes._socket = ours
        nodes._process = Started(news)  # type: ignore[assignment]

    def start_reader(self, command: Sequence[str], *, stdin: int, stdout: IO[bytes], **_: Any) -> StartedReader:
        """In place of `subprocess.Popen` where the process that reads a stream is started."""
        assert (command[-1], stdin) == ("planaria.data.streams.reader", subprocess.PIPE)
        read, write = os.pipe()
        order = {"reader": True, "folder": os.getcwd(), "environment": dict(os.environ)}
        started = StartedReader(self._order(order, stdout.fileno(), read), os.fdopen(write, "wb"))
        os.close(read)
        return started

    def _order(self, order: dict[str, Any], *descriptors: int) -> socket.socket:
        """Returns where the incubator tells of what it forked."""
        news, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._ours, [json.dumps(order).encode()], [theirs.fileno(), *descriptors])
        return news

    def close(self) -> None:
        """Whatever runs still dies with the process, which ends with its last connection."""
        self._ours.close()
        if self._process is not None and not self._is_shared:
            self._process.kill()
            self._process.wait()


# The incubator's side


def fork(child: functools.partial[int], kept: Sequence[int], folder: str = ".") -> int:
    """Runs `child` in a process of its own, in a folder and with no other descriptors; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        limits = [2, *sorted(kept), 1 << 16]
        for before, after in itertools.pairwise(limits):
            os.closerange(before + 1, after)
        forkserver.die_with_parent()
        os.setsid()
        os.chdir(folder)
        status = child()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def fork_forkserver(nodes: LocalNodes) -> None:
    """In place of `LocalNodes.start` in a command."""
    ours, theirs = socket.socketpair()
    log = os.open(nodes._log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with deaf():
        pid = fork(functools.partial(run_forkserver, nodes._model_type, log, theirs.fileno()), [log, theirs.fileno()])
    theirs.close()
    os.close(log)
    nodes._socket = ours
    nodes._process = Forked(pid)  # type: ignore[assignment]


class Forked:
    """A forked child, with the part of subprocess.Popen that LocalNodes uses."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> None:
        os.waitpid(self._pid, 0)


def run_forkserver(model_type: str, log: int, sock: int) -> int:
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    forkserver.main(sock, model_type)
    return 0


def run_reader(environment: dict[str, str], output: int, stdin: int) -> int:
    from planaria.data.streams import reader

    os.dup2(stdin, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, 1 << 16)
    os.environ.clear()
    os.environ.update(environment)
    reader.main()
    return 0


def run_command(order: dict[str, Any], out: int, error: int) -> int:
    from planaria.ui.cli.main import cli

    if order["netns"] is not None:
        with open(f"/proc/{order['netns']}/ns/net") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
    if order["hidden"] is not None or order["binds"]:
        see_otherwise(order["hidden"], order["binds"])
    os.dup2(out, 1)
    os.dup2(error, 2)
    os.closerange(3, 1 << 16)
    LocalNodes.start = fork_forkserver  # type: ignore[method-assign]
    os.environ.update(order["environment"])
    try:
        if order["script"] is None:
            cli(order["arguments"], prog_name="planaria")
        else:
            sys.argv = [order["script"], *order["arguments"]]
            sys.path.insert(0, os.path.dirname(order["script"]))
            runpy.run_path(order["script"], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def see_otherwise(hidden: str | None, binds: Mapping[str, str]) -> None:
    """Lets this process, and all that it starts, see nothing in a folder, and other files in place of some."""
    libc = ctypes.CDLL(None, use_errno=True)
    mounts = [(other.encode(), seen.encode(), None, MS_BIND) for seen, other in binds.items()]
    if hidden is not None:
        mounts.append((b"none", hidden.encode(), b"tmpfs", 0))
    if (
        libc.unshare(CLONE_NEWNS | (CLONE_NEWUSER if os.geteuid() else 0)) != 0
        or libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None) != 0
        or any(libc.mount(*mount, None) != 0 for mount in mounts)
    ):
        raise OSError(ctypes.get_errno(), "unshare or mount")


def import_everything() -> None:
    for model_type in ("gpt2", "bert", "llama"):
        forkserver._import_what_workers_need(model_type)
    forkserver._import_what_coordinators_need()
    with contextlib.suppress(ImportError):
        importlib.import_module("s3fs")  # takes each process a second
    tap.install()
    forkserver._compile_for_workers()
    gc.collect()
    gc.freeze()


def main(descriptor: int) -> None:
    """Forks what is ordered, until the last connection is closed: the first one was made before this process began."""
    import_everything()
    listener = socket.socket(fileno=descriptor)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    connections: set[socket.socket] = set()
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                with contextlib.suppress(OSError):  # whoever connected may be gone
                    connection.send(GREETING)
                connections.add(connection)
                selector.register(connection, selectors.EVENT_READ)
            elif isinstance(sock := key.fileobj, socket.socket):
                data, descriptors = b"", list[int]()
                with contextlib.suppress(ConnectionResetError):  # the one who started this never reads the greeting
                    data, descriptors, _, _ = socket.recv_fds(sock, MAX_ORDER_BYTES, MAX_DESCRIPTORS)
                if not data:
                    selector.unregister(sock)
                    sock.close()
                    connections.remove(sock)
                    if not connections:
                        return
                    continue
                order, (news, *given) = json.loads(data), descriptors
                if "forkserver" in order:
                    child = functools.partial(run_forkserver, order["forkserver"], *given)
                elif "reader" in order:
                    child = functools.partial(run_reader, order["environment"], *given)
                else:
                    child = functools.partial(run_command, order, *given)
                pid = fork(child, given, order["folder"])
                for passed in given:
                    os.close(passed)
                with contextlib.suppress(OSError):  # whoever ordered it may be gone
                    os.write(news, str(pid).encode())
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, news))
            else:
                pid, news = key.data
                _, status = os.waitpid(pid, 0)
                selector.unregister(key.fileobj)
                os.close(key.fd)
                with contextlib.suppress(OSError):
                    os.write(news, str(os.waitstatus_to_exitcode(status)).encode())
                os.close(news)


if __name__ == "__main__":
    main(int(sys.argv[1]))
