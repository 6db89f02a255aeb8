"""The command `planaria`: reads arguments, calls `planaria.api`, turns results and errors into exit codes.

Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from planaria import __version__

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_EXHAUSTED = 3
EXIT_INTERRUPTED = 130

_JOB_FILE = click.Path(path_type=Path)
_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Planaria(click.Group):
    """Says a user's mistake in one line, with exit code 2; other exceptions keep their traceback."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        extra["standalone_mode"] = False
        try:
            code = super().main(args, *rest, **extra)
        except click.ClickException as error:
            _fail(error.format_message(), error.exit_code)
        except click.Abort:
            _fail("interrupted", EXIT_INTERRUPTED)
        except ValueError as error:
            if not _is_users_mistake(error):
                raise
            _fail(str(error), EXIT_USER_ERROR)
        sys.exit(code if isinstance(code, int) else 0)


def _is_users_mistake(error: ValueError) -> bool:
    """Planaria's own ValueErrors (UserError, PlanError, ModelError, ...) are the user's mistakes."""
    return any(kind.__module__.partition(".")[0] == "planaria" for kind in type(error).__mro__)


def _fail(message: str, code: int) -> None:
    click.echo(f"planaria: error: {' '.join(message.split())}", err=True)
    sys.exit(code)


def _set_option(command: _Command) -> _Command:
    return click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="Change a field of the job file.",
    )(command)


@click.group(cls=_Planaria, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="planaria", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Train large models on machines that fail.

    A job is one TOML file; see examples/demo.toml.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@cli.command()
@click.argument("job", type=_JOB_FILE)
@_set_option
@click.option("--name", metavar="NAME", help="Name of the run, and of its folder.  [default: the job file's]")
@click.option(
    "--fail", "faults", multiple=True, metavar="SPEC",
    help="Kill a node, for instance kill:node=2,step=20,at=backward. May be given several times.",
)  # fmt: skip
@click.option("--resume", is_flag=True, help="Go on from the run's last checkpoint.")
@click.option("--reference", is_flag=True, help="Train in one process without any of the machinery: the oracle.")
def train(
    job: Path,
    overrides: tuple[str, ...],
    name: str | None,
    faults: tuple[str, ...],
    resume: bool,
    reference: bool,
) -> int:
    """Train JOB on worker processes of this machine.

    Leaves a run folder with events.jsonl, metrics.jsonl, summary.json and checkpoints. The first Ctrl-C
    finishes the step, saves and ends; the second ends at once.

    Exit code: 0 completed, 1 failed, 2 mistake in the job or the command, 3 too few nodes left,
    130 interrupted.
    """
    if reference and (resume or faults):
        raise click.UsageError("--reference goes with neither --resume nor --fail. Drop one of them.")
    from planaria import api

    parsed = api.load_job(job, overrides)
    folder = job.resolve().parent
    if reference:
        result = api.reference(parsed, name=name, progress=True, import_path=folder)
    else:
        result = api.train(parsed, name=name, resume=resume, faults=faults, progress=True, import_path=folder)
    return _exit_code(result.status.value)


def _exit_code(status: str) -> int:
    codes = {
        "completed": 0,
        "failed": EXIT_FAILED,
        "exhausted": EXIT_EXHAUSTED,
        "interrupted": EXIT_INTERRUPTED,
    }
    return codes[status]


@cli.command()
@click.argument("job", type=_JOB_FILE)
@_set_option
@click.option("--json", "as_json", is_flag=True, help="Plan, templates and every worker's program as JSON.")
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Write a picture of the schedule.")
@click.option("--templates", "only_templates", is_flag=True, help="Only the templates.")
@click.option(
    "--profile", "profile_file", type=_JOB_FILE, metavar="FILE",
    help="Plan from a profile.json of a run folder instead of measuring.",
)  # fmt: skip
def plan(
    job: Path,
    overrides: tuple[str, ...],
    as_json: bool,
    svg: Path | None,
    only_templates: bool,
    profile_file: Path | None,
) -> int:
    """Show the plan that JOB would start with; nothing is trained."""
    from planaria import api

    parsed = api.load_job(job, overrides)
    profile = api.read_profile(profile_file) if profile_file is not None else None
    report = api.plan(parsed, profile, import_path=job.resolve().parent)
    from planaria.cli import plan_view

    if svg is not None:
        plan_view.write_svg(report, svg)
    if as_json:
        click.echo(plan_view.as_json(report))
    else:
        plan_view.show(parsed, report, only_templates=only_templates)
    return 0


@cli.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--to", "target", required=True, type=click.Path(path_type=Path), help="Folder to write.")
def export(run: Path, target: Path) -> int:
    """Write the last checkpoint of the run folder RUN as a Hugging Face folder."""
    from planaria.observe.run_folder import RunFolder

    RunFolder.open(run)
    from planaria.launch.export import export_run

    export_run(run, target)
    click.echo(f"exported {run} to {target}")
    return 0


def main() -> None:
    """Entry point of the command `planaria`."""
    cli(prog_name="planaria")


if __name__ == "__main__":
    main()
