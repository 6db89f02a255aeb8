"""Sources of preemption notices against local fakes of the clouds' endpoints."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from planaria.runtime.thresholds import GOOGLE_GRACE_S
from planaria.runtime.worker.preemption import AwsSource, FunctionSource, GoogleSource, SourceError, Watch, make_source

Answer = tuple[int, str]
NOON = 1_505_736_000.0
"""2017-09-18T12:00:00Z"""


class Fake:
    """An HTTP server on loopback; `answer` makes status and body of (method, path, headers in lower case)."""

    def __init__(self, answer: Callable[[str, str, dict[str, str]], Answer]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                status, body = answer(self.command, self.path, {k.lower(): v for k, v in self.headers.items()})
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            do_GET = do_PUT = _answer  # noqa: N815

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def fake() -> Iterator[Callable[[Callable[[str, str, dict[str, str]], Answer]], str]]:
    started: list[Fake] = []

    def start(answer: Callable[[str, str, dict[str, str]], Answer]) -> str:
        started.append(Fake(answer))
        return started[-1].url

    yield start
    for one in started:
        one.close()


@pytest.fixture
def dead_url() -> Iterator[str]:
    """A port that is taken and that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


class Aws:
    """IMDSv2 as Amazon describes it."""

    def __init__(self) -> None:
        self.action: str | None = None
        self.token = "first"
        self.asked: list[tuple[str, str]] = []

    def __call__(self, method: str, path: str, headers: dict[str, str]) -> Answer:
        self.asked.append((method, path))
        if (method, path) == ("PUT", "/latest/api/token"):
            life = int(headers["x-aws-ec2-metadata-token-ttl-seconds"])
            return (200, self.token) if 1 <= life <= 21_600 else (400, "")
        if headers.get("x-aws-ec2-metadata-token") != self.token:
            return 401, ""
        if (method, path) == ("GET", "/latest/meta-data/spot/instance-action") and self.action is not None:
            return 200, self.action
        return 404, "not here"


Serve = Callable[[Callable[[str, str, dict[str, str]], Answer]], str]


def test_aws_says_when_the_instance_goes(fake: Serve) -> None:
    service = Aws()
    source = AwsSource(fake(service), clock=lambda: NOON)
    assert source.seconds_left() is None
    assert source.seconds_left() is None
    assert [method for method, _ in service.asked] == ["PUT", "GET", "GET"], "one token for many questions"
    service.action = '{"action": "terminate", "time": "2017-09-18T12:02:00Z"}'
    assert source.seconds_left() == 120.0
    service.action = '{"action": "hibernate", "time": "2017-09-18T11:59:00Z"}'
    assert source.seconds_left() == 0.0


def test_aws_gets_a_new_token_when_the_old_one_is_refused(fake: Serve) -> None:
    service = Aws()
    source = AwsSource(fake(service), clock=lambda: NOON)
    source.seconds_left()
    service.token = "second"
    service.action = '{"action": "stop", "time": "2017-09-18T12:01:30Z"}'
    assert source.seconds_left() == 90.0


@pytest.mark.parametrize("action", ["", "[]", "{}", '{"time": 5}', '{"time": "tomorrow"}', "x" * 100_000])
def test_aws_nonsense_is_an_error(action: str, fake: Serve) -> None:
    service = Aws()
    service.action = action
    with pytest.raises(SourceError, match="bears no time"):
        AwsSource(fake(service)).seconds_left()


def test_google_says_when_the_machine_goes(fake: Serve) -> None:
    preempted = "FALSE"

    def answer(method: str, path: str, headers: dict[str, str]) -> Answer:
        right = (method, path) == ("GET", "/computeMetadata/v1/instance/preempted")
        return (200, preempted) if right and headers.get("metadata-flavor") == "Google" else (403, "")

    source = GoogleSource(fake(answer))
    assert source.seconds_left() is None
    preempted = "TRUE"
    assert source.seconds_left() == GOOGLE_GRACE_S
    preempted = "MAYBE"
    with pytest.raises(SourceError, match="MAYBE"):
        source.seconds_left()


@pytest.mark.parametrize("kind", ["aws", "google"])
def test_proxies_are_not_used(kind: str, fake: Serve, dead_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, dead_url)
    service = Aws()
    source = make_source(kind, fake(service if kind == "aws" else lambda *_: (200, "FALSE")))
    assert source is not None
    assert source.seconds_left() is None


@pytest.mark.parametrize("kind", ["aws", "google"])
def test_an_endpoint_that_is_not_there_is_told_once(kind: str, dead_url: str) -> None:
    source = make_source(kind, dead_url)
    assert source is not None
    notices: list[tuple[float, str]] = []
    said: list[str] = []
    watch = Watch(source, lambda grace_s, cause: notices.append((grace_s, cause)), said.append)
    for _ in range(3):
        watch.ask()
    (line,) = said
    assert dead_url in line
    assert not notices


def test_what_speaks_no_http_is_told_and_does_not_raise() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(4096)
                sock.sendall(b"220 mail here\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        said: list[str] = []
        Watch(GoogleSource(f"http://127.0.0.1:{listener.getsockname()[1]}"), lambda *_: None, said.append).ask()
        thread.join()
    assert len(said) == 1


MINE = """
answers = []

def seconds_left():
    answer = answers.pop(0)
    if isinstance(answer, Exception):
        raise answer
    return answer

class Nested:
    seconds = 5
    @staticmethod
    def ask():
        return None
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the user's function returns, in order."""
    (tmp_path / "my_notices.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "my_notices", raising=False)
    import my_notices  # type: ignore[import-not-found]

    answers: list[object] = my_notices.answers
    return answers


def test_a_function_of_the_users(mine: list[object]) -> None:
    mine += [None, 12, -3.0, "soon", True, float("nan"), RuntimeError("no answer"), ValueError("still none"), 7.5]
    notices: list[tuple[float, str]] = []
    said: list[str] = []
    watch = Watch(FunctionSource("my_notices:seconds_left"), lambda *notice: notices.append(notice), said.append)
    while mine:
        watch.ask()
    assert notices == [(12.0, "notice of my_notices:seconds_left"), (0.0, notices[0][1]), (7.5, notices[0][1])]
    (line,) = said
    assert "'soon'" in line, "the first of a row of failures is told"
    mine.append(RuntimeError("again"))
    watch.ask()
    assert "again" in said[1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module:f", "ModuleNotFoundError"),
        ("my_notices:nothing", "AttributeError"),
        ("my_notices:Nested.seconds", "not a function"),
    ],
)
def test_a_function_that_is_not_there(name: str, words: str, mine: list[object]) -> None:
    with pytest.raises(SourceError, match=words) as caught:
        make_source(name)
    assert name in str(caught.value)


def test_sources_are_found_by_name(mine: list[object]) -> None:
    assert make_source("none") is None
    assert isinstance(make_source("aws"), AwsSource)
    assert isinstance(make_source("google"), GoogleSource)
    assert isinstance(make_source("my_notices:Nested.ask"), FunctionSource)


def test_the_thread_asks_again_until_it_is_closed(mine: list[object]) -> None:
    mine += [None, None, 3.0]
    source = FunctionSource("my_notices:seconds_left")
    source.interval_s = 0.001
    told = threading.Event()
    watch = Watch(source, lambda *_: told.set(), lambda line: None)
    watch.start()
    assert told.wait(30)
    watch.close()
