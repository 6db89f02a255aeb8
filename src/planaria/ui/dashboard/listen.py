"""Listens at an address and serves an application until Ctrl-C, or until something else is over."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from planaria.job.errors import UserError


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Listens at an address; port 0: a free one. Raises UserError: that cannot be done."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, number)
    except OSError as error:
        raise UserError(f"--host {host}: {error.strerror}. Give an address of this machine.") from None
    with contextlib.closing(listener):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen()
        except OSError as error:
            raise UserError(f"{host}:{port} cannot be listened at: {error.strerror}. Give another --port.") from None
        yield listener


def address_of(listener: socket.socket, host: str) -> str:
    """Returns the page's address, as it is typed into a browser."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}/"


def serve(app: Any, listener: socket.socket, until: Callable[[], object] | None = None) -> None:
    """Serves an application until SIGINT or SIGTERM; open streams end with it, a second later.

    Args:
        app: the application of `dashboard_app`. It hears when serving ends, so that streams can tell the last news.
        listener: where it is served.
        until: returns when serving is to end; it is called in a thread of its own. None: only a signal ends it.
    """
    import uvicorn

    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, server_header=False)
    server = uvicorn.Server(config)

    def wait(wanted: Callable[[], object]) -> None:
        wanted()
        server.should_exit = True

    app.state.is_ending = lambda: server.should_exit
    if until is not None:
        threading.Thread(target=wait, args=(until,), name="end", daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
