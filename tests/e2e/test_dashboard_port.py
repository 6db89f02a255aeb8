"""[observe] dashboard_port: the page of a run is there while it runs, and whatever happens to it changes no bit."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest

from planaria.job.settings import Job
from planaria.protocol.messages.records import AnyRecord, Note
from planaria.ui.cli import live
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_emulated_job

pytest.importorskip("uvicorn", reason="the extra dashboard is not installed")


class Viewer:
    """Asks for the page until it shows a step, and from then on takes the stream of it and reads nothing."""

    def __init__(self, port: int, folder: Path) -> None:
        self._port = port
        self._folder = folder
        self._stream = socket.socket()
        self.seen: dict[str, Any] = {}
        self.status = ""
        self.thread = threading.Thread(target=self._look, daemon=True)

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        if isinstance(record, Note) and record.text.startswith("page: "):
            self.thread.start()

    def _look(self) -> None:
        deadline = time.monotonic() + 60
        while not self.seen.get("step") and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/run?once=1", timeout=10) as answer:
                    self.seen = json.load(answer)["now"]
            except (urllib.error.URLError, OSError):
                continue
        self.status = live.status(self._folder, as_json=False)
        self._stream.connect(("127.0.0.1", self._port))
        self._stream.sendall(f"GET /api/run HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n\r\n".encode())


def told(folder: Path) -> list[str]:
    records = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [record["text"] for record in records if record["event"] == "note"]


def with_page(job: Job, port: int) -> Job:
    return msgspec.structs.replace(job, observe=msgspec.structs.replace(job.observe, dashboard_port=port))


def test_a_run_serves_its_page_until_it_ends_whoever_stalls(
    run: Run, tmp_path: Path, slow_layers: Path, reference: Reference
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
    plain = make_emulated_job(slow_layers, train__steps=10)
    viewer = Viewer(port, tmp_path / "run-0")
    outcome = run(with_page(plain, port), "kill:node=2,step=2,at=backward", observers=[viewer])
    viewer.thread.join(60)
    outcome.assert_same_bits(reference(plain))
    assert viewer.seen["step"] >= 1
    address = f"page: http://127.0.0.1:{port}/"
    assert address in viewer.status.splitlines()
    contact = outcome.result.folder / "coordinator.json"
    assert f"{address} (for commands: the token in {contact})" in told(outcome.result.folder)
    assert (outcome.result.folder / "logs" / "dashboard.log").read_text() == ""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_port_that_is_taken_is_one_line_and_nothing_else(run: Run, slow_layers: Path, reference: Reference) -> None:
    plain = make_emulated_job(slow_layers, train__steps=2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
        outcome = run(with_page(plain, port))
    outcome.assert_same_bits(reference(plain))
    (line,) = (text for text in told(outcome.result.folder) if "page" in text)
    assert line == (
        f"the page is not served at 127.0.0.1:{port}: Address already in use. Training goes on without it; "
        "observe.dashboard_port may name another port"
    )
