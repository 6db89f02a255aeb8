"""Nodes that learn from their cloud that they will be taken away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from planaria.runtime.launch.training.result import RunStatus
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import Outcome, make_emulated_job, make_job

ONE_OF_THEM = """
import os

def seconds_left():
    try:
        os.close(os.open({claim!r}, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return None
    return 60.0
"""


def assert_one_node_left(outcome: Outcome, reference: Outcome, cause: str) -> None:
    (leaving,) = outcome.events("node_leaving")
    assert leaving["cause"] == cause
    (released,) = outcome.events("node_released")
    assert released["node"] == leaving["node"]
    assert not outcome.events("node_lost")
    assert not outcome.events("recovered")
    outcome.assert_same_bits(reference)


def test_a_function_gives_notice(tmp_path: Path, slow_layers: Path, run: Run, reference: Reference) -> None:
    """The first node that asks is the one to go."""
    (tmp_path / "one_of_them.py").write_text(ONE_OF_THEM.format(claim=str(tmp_path / "claim")))
    job = make_emulated_job(slow_layers, train__steps=8, resilience__preemption="one_of_them:seconds_left")
    outcome = run(job, import_path=tmp_path)
    assert_one_node_left(outcome, reference(job), "notice of one_of_them:seconds_left")


@pytest.fixture
def metadata_url() -> Iterator[str]:
    """Google's metadata server, which preempts the first machine that asks."""
    asked = iter(["TRUE"])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = next(asked, "FALSE").encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_cloud_gives_notice(metadata_url: str, slow_layers: Path, run: Run, reference: Reference) -> None:
    job = make_emulated_job(slow_layers, train__steps=8, resilience__preemption="google")
    outcome = run(job, metadata_url=metadata_url)
    assert_one_node_left(outcome, reference(job), "Google preemption notice")


def test_a_function_that_is_not_there_ends_the_job(text: Path, run: Run) -> None:
    outcome = run(make_job(text, resilience__preemption="no_such_module:f"))
    assert outcome.result.status is RunStatus.FAILED
    assert "resilience.preemption = 'no_such_module:f' cannot be imported" in outcome.result.message
