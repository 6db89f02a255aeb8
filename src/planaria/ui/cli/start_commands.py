"""`planaria init` and `planaria doctor`: the first hour. Reads arguments, shows answers."""

from __future__ import annotations

from pathlib import Path

import click

from planaria.ui.cli.options import EXIT_FAILED


@click.command()
@click.argument("kind", type=click.Choice(["text", "chats", "images", "module"]))
@click.argument("folder", type=click.Path(path_type=Path), default=Path())
def init(kind: str, folder: Path) -> int:
    """Write a commented job of a KIND into FOLDER, with data to try it on, so that it trains as it is.

    \b
    text     a language model on text
    chats    fine-tuning on chats
    images   classes of images, from folders
    module   a model and a dataset of one's own

    FOLDER is made where it is not there; nothing in it is written over.  [default: here]
    """
    from planaria.ui.start.jobs import write_job

    job, *others = write_job(kind, folder)
    click.echo(f"wrote {job}" + "".join(f" and {other}" for other in others))
    here = "" if folder == Path() else f"cd {folder} && "
    click.echo(f"Try it: {here}planaria train {job.name}. Then put in your own data and model.")
    return 0


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
def doctor(folder: Path) -> int:
    """Check whether this machine is fit to train, and say what to mend.

    Looked at are Python, torch and its devices, memory, open files, disk, ports, links and clock. FOLDER is where runs
    are to be.  [default: runs]

    Exit code 1 where something hinders any run.
    """
    from planaria.ui.start.doctor import Verdict, examined

    worst = 0
    for finding in examined(folder):
        click.echo(f"{finding.verdict.value:<5} {finding.name:<14} {finding.text}")
        worst = max(worst, finding.verdict is Verdict.MEND)
    return EXIT_FAILED if worst else 0
