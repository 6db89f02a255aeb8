"""Serves the pages, the stream of what is new, and the commands. Every answer passes `Access` first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from planaria.job.errors import UserError
from planaria.ui.dashboard.access import COOKIE, HEADERS, Access
from planaria.ui.dashboard.commands import decode_command, obey, policies
from planaria.ui.dashboard.runs import RunReader, Runs
from planaria.ui.dashboard.thresholds import LOOK_EVERY_S, MOST_BODY_BYTES, MOST_COMPARED, TABLE_EVERY_S

STATIC = Path(__file__).parent / "static"
_TITLES = {"page.html": "Planaria", "runs.html": "Planaria: runs", "login.html": "Planaria: token"}
_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/page.css">
</head>
"""
_TOLD = "<!-- told -->"
"""Where a page has what it tells of the last request."""
_FILES = {
    "icon.svg": "image/svg+xml",
    "page.css": "text/css",
    "draw.js": "text/javascript",
    "charts.js": "text/javascript",
    "worms.js": "text/javascript",
    "accounts.js": "text/javascript",
    "parts.js": "text/javascript",
    "schedule.js": "text/javascript",
    "page.js": "text/javascript",
    "runs.js": "text/javascript",
}
_OPEN = ("/login", "/static/page.css", "/static/icon.svg")
"""Paths that are there for whoever has not shown the token yet."""

_Look = Callable[[Any], tuple[Any, Any]]


class _Guard:
    """Lets a request pass that `Access` allows, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        refusal = self._refusal(Request(scope))
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if not self._access.allows_host(host):
            return _text("This is not the page's address.", 403)
        is_change = request.method not in ("GET", "HEAD")
        if is_change and not self._access.allows_origin(request.headers.get("origin"), host):
            return _text("The request comes from another page.", 403)
        if request.url.path in _OPEN or self._access.has_session(request.cookies):
            return None
        if is_change:
            return _text("Show the token first.", 401)
        if self._access.is_open:
            return None
        if request.url.path in ("/", "/run", "/compare"):
            return RedirectResponse("/login", status_code=303)
        return _text("Show the token first.", 401)


def dashboard_app(runs: Runs, access: Access) -> Starlette:
    """Returns the web application that shows these runs by these rules."""

    async def home(request: Request) -> Response:
        return _page("page.html" if runs.is_one else "runs.html")

    async def table(request: Request) -> Response:
        return _stream(request, lambda known: _if_new(msgspec.to_builtins(runs.table()), known), TABLE_EVERY_S)

    async def run_stream(request: Request) -> Response:
        reader = await _reader(runs, request.query_params.get("name", ""))
        return _stream(request, reader.look, LOOK_EVERY_S)

    async def compared(request: Request) -> Response:
        names = request.query_params.getlist("name")[:MOST_COMPARED]
        readers = [await _reader(runs, name) for name in names]
        found = [await run_in_threadpool(reader.look) for reader in readers]
        curves = [{"rows": data["series"]["rows"], "read": data["read"]} for data, _ in found]
        return _json([{"name": name, **curve} for name, curve in zip(names, curves, strict=True)])

    async def schedule(request: Request) -> Response:
        reader = await _reader(runs, request.query_params.get("name", ""))
        wanted = request.query_params.get("step", "")
        step = int(wanted) if wanted.isascii() and wanted.isdecimal() and len(wanted) < 16 else None
        return _json(await run_in_threadpool(reader.schedules.of_step, step))

    async def login(request: Request) -> Response:
        if request.method == "GET":
            return _page("login.html")
        form = (await _body(request)).decode(errors="replace")
        name, _, token = form.partition("=")
        if name != "token" or not access.knows_token(token.strip()):
            return _page("login.html", 403, '<p class="bad">That is not the token.</p>')
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(COOKIE, access.session, httponly=True, samesite="strict", path="/")
        return answer

    async def session(request: Request) -> Response:
        return _json({"may_command": access.has_session(request.cookies), "policies": policies()})

    async def command(request: Request) -> Response:
        reader = await _reader(runs, request.query_params.get("name", ""))
        try:
            wanted = decode_command(await _body(request))
            text = await run_in_threadpool(obey, reader.folder, wanted)
        except UserError as error:
            return _json({"done": False, "text": str(error)}, 409)
        return _json({"done": True, "text": text})

    routes = [
        Route("/", home),
        Route("/run", partial(_fixed, "page.html")),
        Route("/compare", partial(_fixed, "runs.html")),
        Route("/login", login, methods=["GET", "POST"]),
        Route("/static/{file}", _static),
        Route("/api/session", session),
        Route("/api/runs", table),
        Route("/api/run", run_stream),
        Route("/api/compare", compared),
        Route("/api/schedule", schedule),
        Route("/api/command", command, methods=["POST"]),
    ]
    app = Starlette(routes=routes)
    app.state.is_ending = lambda: False
    app.add_middleware(_Guard, access=access)
    return app


async def _fixed(name: str, request: Request) -> Response:
    return _page(name)


async def _static(request: Request) -> Response:
    kind = _FILES.get(request.path_params["file"])
    if kind is None:
        raise HTTPException(404)
    return FileResponse(STATIC / request.path_params["file"], media_type=kind)


async def _reader(runs: Runs, name: str) -> RunReader:
    try:
        return await run_in_threadpool(runs.reader, name or runs.place.resolve().name)
    except UserError as error:
        raise HTTPException(404, str(error)) from None


async def _body(request: Request) -> bytes:
    found = b""
    async for piece in request.stream():
        found += piece
        if len(found) > MOST_BODY_BYTES:
            raise HTTPException(413)
    return found


def _stream(request: Request, look: _Look, every_s: float) -> Response:
    """Returns server-sent events: what each look finds that is new, until the page is closed, or no longer served."""
    is_ending: Callable[[], bool] = request.app.state.is_ending

    async def events() -> AsyncIterator[bytes]:
        known: Any = None
        is_last = False
        while not is_last and not await request.is_disconnected():
            is_last = is_ending()
            found, known = await run_in_threadpool(look, known)
            if found is not None:
                yield b"data: %b\n\n" % msgspec.json.encode(found)
            is_behind = isinstance(found, dict) and found.get("read", 1.0) < 1
            until = time.monotonic() + (0 if is_behind else every_s)
            while not is_ending() and (left_s := until - time.monotonic()) > 0:
                await asyncio.sleep(min(left_s, LOOK_EVERY_S))

    if request.query_params.get("once"):
        found, _ = look(None)
        return _json(found)
    return StreamingResponse(events(), media_type="text/event-stream")


def _if_new(found: Any, known: Any) -> tuple[Any, Any]:
    return (None if found == known else found), found


def _page(name: str, status: int = 200, told: str = "") -> Response:
    body = (STATIC / name).read_text().replace(_TOLD, told)
    return HTMLResponse(f"{_HEAD.format(title=_TITLES[name])}{body}</html>\n", status_code=status)


def _json(found: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(found), status_code=status, media_type="application/json")


def _text(text: str, status: int) -> Response:
    return Response(text, status_code=status, media_type="text/plain")
