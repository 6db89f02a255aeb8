"""Alerts: which records are worth one, how often, and what becomes of one that nobody takes."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from planaria.protocol.messages.records import AnyRecord, Note, NoteSubject, RunEnded, RunStatus, Waiting
from planaria.runtime.observers import shell_command, webhook
from planaria.runtime.observers.alerts import Alert, Alerts, NotDelivered
from planaria.runtime.observers.shell_command import ShellCommand
from planaria.runtime.observers.view import ViewedRun
from planaria.runtime.observers.webhook import Webhook
from planaria.runtime.run_folder.run_folder import RunFolder
from tests.runtime.run_folder.happenings import JOB, short_run

DEGRADED = Note(level="warning", text="the plan is degraded", subject=NoteSubject.DEGRADED)
CHECKPOINT = Note(
    level="warning", text="the checkpoint of step 5 is given up: no space", subject=NoteSubject.CHECKPOINT
)
WAITING = Waiting(step=4, live_nodes=1, reason="2 are needed")


def ended(status: RunStatus, message: str = "") -> RunEnded:
    return RunEnded(status=status, steps=3, message=message, skipped_microbatches=0, duplicated_microbatches=0)


class Box:
    """Takes alerts, or refuses them."""

    name = "Box"
    rests_s = (0.0, 1.0)

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.refuses = False
        self.tries = 0

    def __call__(self, alert: Alert) -> None:
        self.tries += 1
        if self.refuses:
            raise NotDelivered("it is full")
        self.texts.append(alert.text)


class Told:
    """Alerts to a box, on a clock of the test's."""

    def __init__(self) -> None:
        self.box = Box()
        self.now = 0.0
        self.alerts = Alerts(self.box, clock=lambda: self.now, rest=lambda seconds: None)
        self.alerts.start(ViewedRun(name="demo", job=JOB, folder=RunFolder(Path("runs/demo")), step=0))

    def tell(self, *records: AnyRecord) -> list[str]:
        return list(self.alerts.show([(record, 0.0) for record in records]))


def test_what_is_worth_a_message() -> None:
    told = Told()
    told.tell(*short_run()[:-1], DEGRADED, CHECKPOINT, WAITING, ended(RunStatus.EXHAUSTED, "2 are left\nof 4"))
    told.tell(ended(RunStatus.COMPLETED))
    assert told.box.texts == [
        "demo: degraded: the plan is degraded",
        "demo: checkpoint failed: the checkpoint of step 5 is given up: no space",
        "demo: waiting: waiting for nodes before step 4, 1 node live: 2 are needed",
        "demo: exhausted: exhausted after step 3: 2 are left",
        "demo: ended: completed after step 3",
    ]


def test_messages_of_a_kind_are_seldom_and_those_between_are_counted() -> None:
    told = Told()
    told.tell(DEGRADED, DEGRADED, WAITING, DEGRADED)
    told.now = 61.0
    told.tell(DEGRADED)
    assert told.box.texts == [
        "demo: degraded: the plan is degraded",
        "demo: waiting: waiting for nodes before step 4, 1 node live: 2 are needed",
        "demo: degraded: the plan is degraded (and 2 times more since the last message)",
    ]


def test_a_message_that_is_not_taken_is_tried_again_and_told_once() -> None:
    told = Told()
    told.box.refuses = True
    assert told.tell(DEGRADED, WAITING) == ["did not take a message (it is full); training goes on"]
    assert told.box.tries == 4
    assert told.tell(ended(RunStatus.COMPLETED)) == []
    told.box.refuses = False
    assert told.tell(ended(RunStatus.FAILED)) == []
    assert told.box.texts == ["demo: ended: failed after step 3"]


class Server:
    """A real server on loopback that takes what is posted, and answers as it is told."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, object]] = []
        self.code = 200
        self.gate = threading.Event()
        self.gate.set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.posted.append((self.path, json.loads(body)))
                server.gate.wait(60.0)
                self.send_response(server.code)
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}/services/S3CRET"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.gate.set()
    server.http.shutdown()
    server.http.server_close()


def alert(text: str = "demo: degraded: <!channel> & others") -> Alert:
    from planaria.runtime.observers.alerts import AlertKind

    return Alert(kind=AlertKind.DEGRADED, run="demo", folder=Path("runs/demo"), text=text)


def test_a_webhook_gets_what_slack_takes(server: Server) -> None:
    Webhook(server.url)(alert())
    assert server.posted == [("/services/S3CRET", {"text": "demo: degraded: &lt;!channel&gt; &amp; others"})]


@pytest.mark.parametrize(
    ("code", "why"), [(500, "it answered 500"), (404, "it answered 404"), (302, "it answered 302")]
)
def test_a_webhook_that_fails_says_so_without_its_url(server: Server, code: int, why: str) -> None:
    server.code = code
    with pytest.raises(NotDelivered) as failed:
        Webhook(server.url)(alert())
    assert str(failed.value) == f"it answered {code}"


def test_a_webhook_that_stalls_is_not_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "ALERT_WITHIN_S", 0.2)
    server.gate.clear()
    with pytest.raises(NotDelivered, match="no answer within 0 s"):
        Webhook(server.url)(alert())


def test_a_webhook_that_is_not_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        hook = Webhook(f"http://127.0.0.1:{free.getsockname()[1]}/S3CRET")
        with pytest.raises(NotDelivered, match="Connection refused"):
            hook(alert())
    assert hook.name == "the webhook at 127.0.0.1"


def test_a_command_is_told_in_its_environment(tmp_path: Path) -> None:
    told = tmp_path / "told"
    ShellCommand(f'printf "%s|%s|%s" "$PLANARIA_EVENT" "$PLANARIA_RUN" "$PLANARIA_TEXT" > {told}')(
        alert("demo: $(touch x) `id`")
    )
    assert told.read_text() == "degraded|demo|demo: $(touch x) `id`"


def test_a_command_that_fails_or_stalls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotDelivered, match="it ended with exit code 7"):
        ShellCommand("exit 7")(alert())
    monkeypatch.setattr(shell_command, "COMMAND_WITHIN_S", 0.2)
    pid = tmp_path / "pid"
    with pytest.raises(NotDelivered, match="not done within 0 s, and killed"):
        ShellCommand(f"echo $$ > {pid}; sleep 600")(alert())
    if pid.exists() and pid.read_text().strip():
        assert not os.path.exists(f"/proc/{pid.read_text().strip()}")
