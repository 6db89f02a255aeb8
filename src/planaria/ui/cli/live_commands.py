"""`planaria status`, `add`, `drain`, `policy`, `save` and `stop`: what is asked of a running job.

Reads arguments only.
"""

from __future__ import annotations

from pathlib import Path

import click

from planaria.ui.cli.options import RUN_FOLDER


@click.command()
@click.argument("run", type=RUN_FOLDER)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def status(run: Path, as_json: bool) -> int:
    """Show how far RUN is, and on which nodes; how it starts, and how it ended.

    RUN is the folder of a run, for instance runs/demo.
    """
    from planaria.ui.cli import live

    click.echo(live.status(run, as_json=as_json))
    return 0


@click.command()
@click.argument("run", type=RUN_FOLDER)
@click.argument("count", type=click.IntRange(min=1), default=1)
def add(run: Path, count: int) -> int:
    """Start COUNT more nodes for a RUN that is under way.

    They get their state beside a step, and microbatches from the next one on.
    """
    from planaria.ui.cli import live

    click.echo(live.add(run, count))
    return 0


@click.command()
@click.argument("run", type=RUN_FOLDER)
@click.argument("node", type=click.IntRange(min=0))
@click.option("--grace", default=0.0, metavar="SECONDS", help="When the node will be gone, for the record.")
def drain(run: Path, node: int, grace: float) -> int:
    """Let NODE of a RUN that is under way hand over its work, and end it.

    Nothing runs twice. Where the others would be too few without it, the node stays.
    """
    from planaria.ui.cli import live

    click.echo(live.drain(run, node, grace))
    return 0


@click.command()
@click.argument("run", type=RUN_FOLDER)
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Without NAME: the policy and the decision as one JSON object.")
def policy(run: Path, name: str | None, as_json: bool) -> int:
    """Let the policy NAME make the plans of a RUN that is under way.

    The step in progress is finished as it is. After it, another plan is taken if what the new policy makes of now is
    better. Without NAME: show the policy in force, and its last decision.
    """
    from planaria.ui.cli import live

    click.echo(live.policy(run, as_json=as_json) if name is None else live.switch(run, name))
    return 0


@click.command()
@click.argument("run", type=RUN_FOLDER)
@click.option("--to", "folder", type=click.Path(path_type=Path), help="Where; default: with the run's checkpoints.")
def save(run: Path, folder: Path | None) -> int:
    """Save the state of a RUN that is under way, and wait until it is on disk.

    With --to it is written under another folder, which every node must see: for a run that cannot end because its own
    disk is full, for instance. RUN finds it there when it is resumed or exported.
    """
    from planaria.ui.cli import live

    click.echo(live.save(run, folder))
    return 0


@click.command()
@click.argument("run", type=RUN_FOLDER)
@click.option("--discard", is_flag=True, help="Do not save.")
def stop(run: Path, discard: bool) -> int:
    """Let a RUN that is under way finish its step, save and end.

    Where its state cannot be saved, the run waits and tries again, unless --discard says that nobody needs it.
    """
    from planaria.ui.cli import live

    click.echo(live.stop(run, discard=discard))
    return 0
