"""`planaria dashboard` and `planaria report`: a run in a browser, and in one file. Reads arguments only.

`serve-page` is `dashboard` for `planaria train`, which starts it (`planaria.runtime.observers.dashboard_page`).
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from planaria.job.errors import UserError
from planaria.ui.cli.options import RUN_FOLDER, token_of

NO_STARLETTE = (
    "the page needs starlette and uvicorn. Install them: pip install starlette uvicorn "
    '(in a clone: pip install -e ".[dashboard]")'
)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--port", type=click.IntRange(0, 65535), default=8265, show_default=True, help="0: one that is free.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option(
    "--token-file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="The page's token, readable by you alone; or set PLANARIA_TOKEN.  [default: a new one, shown here]",
)  # fmt: skip
def dashboard(folder: Path, port: int, host: str, token_file: Path | None) -> int:
    """Show a run, or all runs of FOLDER, in a browser, live or over.

    FOLDER is a run folder, for instance runs/demo, or a folder of them.  [default: runs]

    On this machine everybody may look; commands need the token that is shown here. At any other address looking needs
    it, too. Ctrl-C ends the page, never a run.
    """
    if importlib.util.find_spec("starlette") is None or importlib.util.find_spec("uvicorn") is None:
        raise UserError(NO_STARLETTE)
    import secrets

    from planaria.ui.dashboard.access import Access
    from planaria.ui.dashboard.listen import address_of, listening, serve
    from planaria.ui.dashboard.runs import Runs
    from planaria.ui.dashboard.server import dashboard_app

    runs = Runs(folder)
    given = token_of(token_file)
    token = given or secrets.token_hex(16)
    with listening(host, port) as listener:
        click.echo(f"{folder}: {address_of(listener, host)}")
        click.echo("token for commands: " + ("the one given" if given else token))
        serve(dashboard_app(runs, Access(host, token)), listener)
    return 0


@click.command("serve-page", hidden=True)
@click.argument("run", type=RUN_FOLDER)
@click.argument("listener", type=int)
def serve_page(run: Path, listener: int) -> int:
    """Serve the page of RUN at a socket that is open already, until standard input ends; its first line is a token."""
    import os
    import socket
    import sys
    from functools import partial

    from planaria.ui.dashboard.access import Access
    from planaria.ui.dashboard.listen import serve
    from planaria.ui.dashboard.runs import Runs
    from planaria.ui.dashboard.server import dashboard_app
    from planaria.ui.dashboard.thresholds import NICENESS

    os.nice(NICENESS)
    token = sys.stdin.readline().strip()
    with socket.socket(fileno=listener) as opened:
        app = dashboard_app(Runs(run), Access(opened.getsockname()[0], token))
        serve(app, opened, until=partial(os.read, sys.stdin.fileno(), 1))
    return 0


@click.command()
@click.argument("source", metavar="RUN|FILE", type=RUN_FOLDER)
@click.option(
    "-o", "--output", "target", type=click.Path(path_type=Path, dir_okay=False), default=Path("report.html"),
    show_default=True, help="File to write.",
)  # fmt: skip
def report(source: Path, target: Path) -> int:
    """Write what happened in RUN into one HTML file, to keep, send or print.

    RUN is the folder of a run, of a drill or of a comparison, for instance runs/demo; it may be under way. FILE is what
    planaria simulate --json --timeline printed; planaria simulate --report writes that report itself.
    """
    from planaria.ui.report.report import write_report

    write_report(source, target)
    click.echo(f"report of {source}: {target}")
    return 0
