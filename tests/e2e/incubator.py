"""Starts `planaria` commands on hosts that are network namespaces: forked, so that nothing is imported twice.

`python -m tests.e2e.incubator FD` takes orders as JSON lines from the socket FD, and tells of pids and exits. A
command's forkserver is forked as well, in place of a new interpreter; all else is what ships.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import socket
import sys
import traceback

from planaria.model.load import load_family
from planaria.runtime.nodes import forkserver
from planaria.runtime.nodes.local_nodes import LocalNodes
from planaria.ui.cli.main import cli

CLONE_NEWNET = 0x40000000


class Forked:
    """A forked child, with the part of subprocess.Popen that LocalNodes uses."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> None:
        os.waitpid(self._pid, 0)


def fork_forkserver(nodes: LocalNodes) -> None:
    """In place of `LocalNodes.start`."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            if nodes._log is not None:
                forkserver._print_into(str(nodes._log))
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            forkserver.main(theirs.detach(), nodes._model_type)
        finally:
            os._exit(0)
    theirs.close()
    nodes._socket = ours
    nodes._process = Forked(pid)  # type: ignore[assignment]


def run(order: dict[str, object]) -> int:
    """In a child: the command."""
    with open(f"/proc/{order['netns']}/ns/net") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    forkserver._print_into(str(order["log"]))
    os.chdir(str(order["folder"]))
    LocalNodes.start = fork_forkserver  # type: ignore[method-assign]
    try:
        cli(order["arguments"], prog_name="planaria")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def main(descriptor: int) -> None:
    forkserver.die_with_parent()
    load_family("gpt2")
    sock = socket.socket(fileno=descriptor)
    selector = selectors.DefaultSelector()
    selector.register(sock, selectors.EVENT_READ)
    buffer = b""
    while True:
        for key, _ in selector.select():
            if key.fileobj is sock:
                data = sock.recv(1 << 16)
                if not data:
                    return
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    pid = os.fork()
                    if pid == 0:
                        sock.close()
                        status = 1
                        try:
                            forkserver.die_with_parent()
                            status = run(json.loads(line))
                        except BaseException:
                            traceback.print_exc()
                        finally:
                            sys.stdout.flush()
                            sys.stderr.flush()
                            os._exit(status)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
                    sock.sendall(json.dumps({"started": pid}).encode() + b"\n")
            else:
                _, status = os.waitpid(key.data, 0)
                selector.unregister(key.fileobj)
                os.close(key.fd)
                ended = {"ended": key.data, "status": os.waitstatus_to_exitcode(status)}
                sock.sendall(json.dumps(ended).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
