"""Who may look and command, and that nothing a node says ends as markup."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from planaria.ui.dashboard.access import COOKIE, Access
from planaria.ui.dashboard.runs import Runs
from planaria.ui.dashboard.server import STATIC, dashboard_app
from tests.ui.dashboard.made_up import HOSTILE, happenings, made_up_run

TOKEN = "0123456789abcdef"
HERE = "http://127.0.0.1:8265"
THERE = "http://10.0.0.7:8265"


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    made_up_run(tmp_path, "one", happenings(8, 10, 1, HOSTILE))
    return Runs(tmp_path)


def client(runs: Runs, host: str = "127.0.0.1", url: str = HERE) -> TestClient:
    return TestClient(dashboard_app(runs, Access(host, TOKEN)), base_url=url, follow_redirects=False)


def shown(page: TestClient, url: str, token: str = TOKEN) -> int:
    return page.post("/login", data={"token": token}, headers={"Origin": url}).status_code


def test_on_loopback_everybody_looks_and_nothing_is_loaded_from_elsewhere(runs: Runs) -> None:
    page = client(runs)
    answer = page.get("/")
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    found = page.get("/api/run?name=one&once=1").json()
    assert found["now"]["step"] == 10
    assert found["details"]["nodes"][0]["zone"] == HOSTILE
    assert page.get("/api/run?name=two&once=1").status_code == 404
    assert page.get("/static/..%2fserver.py").status_code == 404
    for file in STATIC.iterdir():
        assert "innerHTML" not in file.read_text()
        assert "https://" not in file.read_text()


def test_what_is_streamed_is_what_is_found_once(runs: Runs) -> None:
    found, _ = runs.reader("one").look()
    assert client(runs).get("/api/run?name=one&once=1").json()["now"] == json.loads(json.dumps(found["now"]))
    compared = client(runs).get("/api/compare?name=one&name=one").json()
    assert [curve["name"] for curve in compared] == ["one", "one"]


def test_commands_need_the_token_and_come_from_the_page_itself(runs: Runs) -> None:
    page = client(runs)

    def asked(origin: str) -> int:
        content = b'{"action": "stop"}'
        return page.post("/api/command?name=one", content=content, headers={"Origin": origin}).status_code

    assert page.get("/api/session").json()["may_command"] is False
    assert asked(HERE) == 401
    assert shown(page, HERE, "guessed") == 403
    assert shown(page, HERE) == 303
    assert page.get("/api/session").json()["may_command"] is True
    assert asked("http://evil.example") == 403
    assert page.post("/api/command?name=one", content=b"{}").status_code == 403
    assert asked(HERE) == 409  # it does not run now
    answer = page.post("/api/command?name=one", content=b'{"action": "format"}', headers={"Origin": HERE})
    assert "no command" in answer.json()["text"]
    assert page.post("/login", content=b"x" * 10_000, headers={"Origin": HERE}).status_code == 413


def test_the_cookie_is_kept_from_scripts_and_other_sites(runs: Runs) -> None:
    answer = client(runs).post("/login", data={"token": TOKEN}, headers={"Origin": HERE})
    cookie = answer.headers["set-cookie"].lower()
    assert cookie.startswith(COOKIE)
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in cookie


def test_elsewhere_looking_needs_the_token_too(runs: Runs) -> None:
    page = client(runs, "0.0.0.0", THERE)
    assert page.get("/").headers["location"] == "/login"
    assert page.get("/login").status_code == 200
    for path in ("/api/runs?once=1", "/api/run?name=one&once=1", "/static/page.js", f"/api/session?token={TOKEN}"):
        assert page.get(path).status_code == 401
    assert shown(page, THERE) == 303
    assert page.get("/api/run?name=one&once=1").status_code == 200


@pytest.mark.parametrize(
    ("host", "header", "is_allowed"),
    [
        ("127.0.0.1", "localhost:1", True),
        ("127.0.0.1", "[::1]:8265", True),
        ("127.0.0.1", "evil.example", False),
        ("127.0.0.1", "10.0.0.7", False),
        ("127.0.0.1", "", False),
        ("0.0.0.0", "10.0.0.7:8265", True),
        ("0.0.0.0", "evil.example", False),
        ("box.example", "box.example:8265", True),
    ],
)
def test_names_that_others_may_point_here_are_refused(host: str, header: str, is_allowed: bool) -> None:
    assert Access(host, TOKEN).allows_host(header) is is_allowed
