"""Members of etcd that say nothing, and how soon another one is asked."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from planaria.runtime.journal.etcd import Etcd

pytest.importorskip("etcd3gw")


@contextmanager
def member(num_unanswered: int = 0) -> Iterator[str]:
    """A member that has no keys, and leaves so many questions without an answer."""
    is_over, asked = threading.Event(), []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            if len(asked) <= num_unanswered:
                is_over.wait()
                return
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            is_over.set()
            server.shutdown()
            thread.join()


def test_a_member_that_says_nothing_is_passed_over_in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planaria.runtime.journal.etcd.ETCD_TIMEOUT_S", 3600.0)
    with socket.create_server(("127.0.0.1", 0)) as silent, member() as answers:
        etcd = Etcd(f"etcd://127.0.0.1:{silent.getsockname()[1]},{answers}")
        assert etcd.find("nothing") is None


def test_a_member_that_is_late_is_asked_again_with_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planaria.runtime.journal.etcd.ETCD_TIMEOUT_S", 3600.0)
    with member(num_unanswered=2) as late:
        assert Etcd(f"etcd://{late}").find("nothing") is None
