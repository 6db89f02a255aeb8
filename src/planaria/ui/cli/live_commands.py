"""`planaria status`, `top`, `add`, `drain`, `policy`, `save` and `stop`: what is asked of a running job.

Reads arguments only.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planaria.job.values import TOKEN_VARIABLE
from planaria.ui.cli.options import FILE, RUN_FOLDER, tls_option, token_of

if TYPE_CHECKING:
    from planaria.ui.cli.live import Address

_ADDRESS = re.compile(r"[^/]+:[0-9]{1,5}")
_IN_ETCD = re.compile(r"(etcds?:)/")
"""With what a path begins that was a journal's URL."""


def _of_run(command: Callable[..., int]) -> Callable[..., int]:
    """Gives a command its argument RUN: the folder of a run, or the address of a coordinator."""

    @click.argument("run", type=RUN_FOLDER, metavar="RUN")
    @click.option(
        "--token-file",
        type=FILE,
        metavar="FILE",
        help=f"The job's token, where RUN is host:port of a coordinator; or set {TOKEN_VARIABLE}.",
    )
    @tls_option
    @functools.wraps(command)
    def with_run(run: Path, token_file: Path | None, tls: Path | None, **options: Any) -> int:
        return command(_run_at(run, token_file, tls), **options)

    return with_run


def _run_at(run: Path, token_file: Path | None, tls: Path | None) -> Path | Address:
    """Returns what RUN names: a folder, or the host and port of a coordinator, which etcd may say.

    Raises:
        UserError: it is an address, and there is no token; or nobody leads the run.
    """
    in_etcd = _IN_ETCD.match(str(run))
    if not in_etcd and (not _ADDRESS.fullmatch(str(run)) or run.exists()):
        return run
    from planaria.job.errors import UserError
    from planaria.ui.cli.live import Address

    token = token_of(token_file)
    if not token:
        raise UserError(f"{run} is an address: give the job's token by --token-file FILE or in {TOKEN_VARIABLE}.")
    folder = "" if tls is None else str(tls)
    address = _led_at(f"{in_etcd[1]}//{str(run)[in_etcd.end() :]}", folder) if in_etcd else str(run)
    return Address(address=address, token=token, tls=folder)


def _led_at(url: str, tls: str) -> str:
    """Returns where a run is led, whose journal is at this URL. Raises UserError."""
    from planaria.job.errors import UserError
    from planaria.runtime.journal.coordinator_place import CoordinatorPlace

    try:
        return CoordinatorPlace(url, "RUN", tls).address()
    except OSError as error:
        raise UserError(f"run {url} does not run now: {error}.") from None


@click.command()
@_of_run
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def status(run: Path | Address, as_json: bool) -> int:
    """Show how far RUN is, and on which nodes; how it starts, and how it ended.

    RUN is the folder of a run, for instance runs/demo; or, from any host, host:port of its coordinator, or
    etcd://HOST:PORT,.../NAME (etcds:// under TLS).
    """
    from planaria.ui.cli import live

    click.echo(live.status(run, as_json=as_json))
    return 0


@click.command()
@_of_run
@click.option("--once", is_flag=True, help="Print it once and end, for scripts.")
def top(run: Path | Address, once: bool) -> int:
    """Watch the nodes and devices of a RUN that is under way: what each does, holds, and when it last spoke.

    RUN is the folder of a run, for instance runs/demo; or, from any host, host:port of its coordinator. The key q ends
    the view, never the run.
    """
    from planaria.ui.cli.top import print_once, watch

    if once:
        print_once(run)
    else:
        watch(run)
    return 0


@click.command()
@_of_run
@click.argument("count", type=click.IntRange(min=1), default=1)
@click.option("--device", metavar="NODE:DEVICE", help="In place of nodes: start this device of a node again.")
def add(run: Path | Address, count: int, device: str | None) -> int:
    """Start COUNT more nodes for a RUN that is under way.

    They get their state beside a step, and microbatches from the next one on.

    With --device: start a device again that was lost alone, for instance 2:1, device 1 of node 2.
    """
    from planaria.ui.cli import live

    click.echo(live.add(run, count) if device is None else live.add_device(run, device))
    return 0


@click.command()
@_of_run
@click.argument("node", type=click.IntRange(min=0))
@click.option("--grace", default=0.0, metavar="SECONDS", help="When the node will be gone, for the record.")
def drain(run: Path | Address, node: int, grace: float) -> int:
    """Let NODE of a RUN that is under way hand over its work, and end it.

    Nothing runs twice. Where the others would be too few without it, the node stays.
    """
    from planaria.ui.cli import live

    click.echo(live.drain(run, node, grace))
    return 0


@click.command()
@_of_run
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Without NAME: the policy and the decision as one JSON object.")
def policy(run: Path | Address, name: str | None, as_json: bool) -> int:
    """Let the policy NAME make the plans of a RUN that is under way.

    The step in progress is finished as it is. After it, another plan is taken if what the new policy makes of now is
    better. Without NAME: show the policy in force, and its last decision.
    """
    from planaria.ui.cli import live

    click.echo(live.policy(run, as_json=as_json) if name is None else live.switch(run, name))
    return 0


@click.command()
@_of_run
@click.option("--to", "folder", help="A folder or a URL; default: with the run's checkpoints.")
def save(run: Path | Address, folder: str | None) -> int:
    """Save the state of a RUN that is under way, and wait until it is on disk.

    With --to it is written under another folder, which every node must see, or under a URL: for a run that cannot end
    because its own disk is full, for instance. RUN finds it there when it is resumed or exported.
    """
    from planaria.ui.cli import live

    click.echo(live.save(run, folder))
    return 0


@click.command()
@_of_run
@click.option("--discard", is_flag=True, help="Do not save.")
def stop(run: Path | Address, discard: bool) -> int:
    """Let a RUN that is under way finish its step, save and end.

    Where its state cannot be saved, the run waits and tries again, unless --discard says that nobody needs it.
    """
    from planaria.ui.cli import live

    click.echo(live.stop(run, discard=discard))
    return 0
