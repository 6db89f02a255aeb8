"""The command `planaria`: reads arguments, calls `planaria.api`, turns results and errors into exit codes.

Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from planaria import __version__
from planaria.job.errors import PlanariaError

if TYPE_CHECKING:
    from planaria.api import PlanReport
    from planaria.job.settings import Job

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_EXHAUSTED = 3
EXIT_INTERRUPTED = 130

_JOB_FILE = click.Path(path_type=Path)
_FILE = click.Path(path_type=Path, dir_okay=False)
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Planaria(click.Group):
    """Says a user's mistake in one line, with exit code 2; other exceptions keep their traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are needed, as they stand below."""
        return list(self.commands)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        extra["standalone_mode"] = False
        try:
            code = super().main(args, *rest, **extra)
        except click.ClickException as error:
            _fail(error.format_message(), error.exit_code)
        except click.Abort:
            _fail("interrupted", EXIT_INTERRUPTED)
        except Exception as error:
            if isinstance(error, ValueError) and _is_users_mistake(error):
                _fail(" ".join(str(error).split()), EXIT_USER_ERROR)
            if isinstance(error, PlanariaError):
                _fail(str(error), EXIT_FAILED)
            raise
        sys.exit(code if isinstance(code, int) else 0)


def _is_users_mistake(error: ValueError) -> bool:
    """Planaria's own ValueErrors (UserError, PlanError, ModelError, ...) are the user's mistakes."""
    return any(kind.__module__.partition(".")[0] == "planaria" for kind in type(error).__mro__)


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"planaria: error: {message}", err=True)
    sys.exit(code)


def _set_option(command: _Command) -> _Command:
    return click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="Change a field of the job file.",
    )(command)


@click.group(cls=_Planaria, invoke_without_command=True, context_settings=_CONTEXT)
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
    help="Strike a node when it is about to run that kind of instruction: kill, hang, freeze or notice. "
    "May be given several times.",
)  # fmt: skip
@click.option("--resume", is_flag=True, help="Go on from the run's last checkpoint.")
@click.option(
    "--reference", is_flag=True, help="Train in one process, without any of the machinery: what every run must equal."
)
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

    \b
    Examples:
      planaria train job.toml
      planaria train job.toml --name attacked --fail kill:node=2,step=20,at=backward
      planaria train job.toml --resume

    \b
    Exit code:
      0 completed    1 failed    2 a mistake in the job or the command
      3 exhausted: too few nodes are left    130 interrupted
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
@click.option(
    "--svg", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a picture of the schedule."
)
@click.option("--templates", "only_templates", is_flag=True, help="Only the templates.")
@click.option(
    "--profile", "profile_file", type=_JOB_FILE, metavar="FILE",
    help="Plan from this profile, for instance the profile.json of a run folder.",
)  # fmt: skip
@click.option("--measure", is_flag=True, help="Measure the layers again, though they were measured before.")
def plan(
    job: Path,
    overrides: tuple[str, ...],
    as_json: bool,
    svg: Path | None,
    only_templates: bool,
    profile_file: Path | None,
    measure: bool,
) -> int:
    """Show the plan that JOB would start with; nothing is trained.

    The layers' costs are measured on this machine once (some seconds) and kept; later plans of the same model and
    shapes are made at once.
    """
    if measure and profile_file is not None:
        raise click.UsageError("--measure and --profile exclude each other. Drop one of them.")
    from planaria import api

    parsed = api.load_job(job, overrides)
    report, measured = _report(parsed, job.resolve().parent, profile_file, measure=measure)
    from planaria.cli import plan_view

    if svg is not None:
        plan_view.write_svg(report, svg)
    if as_json:
        click.echo(plan_view.as_json(report))
    else:
        plan_view.show(parsed, report, measured=measured, only_templates=only_templates)
        if svg is not None:
            click.echo(f"\npicture: {svg}")
    return 0


def _report(job: Job, folder: Path, profile_file: Path | None, *, measure: bool) -> tuple[PlanReport, str]:
    """The plan, and where the costs behind it come from."""
    from planaria import api
    from planaria.cli.profile_cache import ProfileCache, cache_folder
    from planaria.observe.wording import age

    if profile_file is None and job.cluster.profile is not None:
        profile_file = Path(job.cluster.profile)
    if profile_file is not None:
        return api.plan(job, api.read_profile(profile_file)), f"from {profile_file}"
    cache = ProfileCache(cache_folder(os.environ))
    kept = None if measure else cache.find(job)
    if kept is not None:
        return api.plan(job, kept[0]), f"measured on this machine {age(kept[1])} ago; --measure does it again"
    with _busy(f"measuring the layers of {job.model.type} ..."):
        report = api.plan(job, import_path=folder)
    try:
        cache.keep(job, report.profile)
    except OSError as error:
        click.echo(f"planaria: warning: the profile could not be kept: {error}", err=True)
    return report, "measured on this machine now"


def _busy(what: str) -> AbstractContextManager[object]:
    """A sign of life on standard error, where it is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.status(what) if console.is_terminal else nullcontext()


@cli.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def status(run: Path, as_json: bool) -> int:
    """Show how far RUN is, and on which nodes.

    RUN is the folder of a run, for instance runs/demo.
    """
    from planaria.cli import live

    click.echo(live.status(run, as_json=as_json))
    return 0


@cli.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("count", type=click.IntRange(min=1), default=1)
def add(run: Path, count: int) -> int:
    """Start COUNT more nodes for a RUN that is under way.

    They get their state beside a step, and microbatches from the next one on.
    """
    from planaria.cli import live

    click.echo(live.add(run, count))
    return 0


@cli.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("node", type=click.IntRange(min=0))
@click.option("--grace", default=0.0, metavar="SECONDS", help="When the node will be gone, for the record.")
def drain(run: Path, node: int, grace: float) -> int:
    """Let NODE of a RUN that is under way hand over its work, and end it.

    Nothing runs twice. Where the others would be too few without it, the node stays.
    """
    from planaria.cli import live

    click.echo(live.drain(run, node, grace))
    return 0


@cli.command()
@click.argument("run", type=click.Path(path_type=Path))
def stop(run: Path) -> int:
    """Let a RUN that is under way finish its step, save and end."""
    from planaria.cli import live

    click.echo(live.stop(run))
    return 0


@cli.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--to", "target", required=True, type=click.Path(path_type=Path), help="Folder to write.")
def export(run: Path, target: Path) -> int:
    """Write RUN's last checkpoint as a Hugging Face folder.

    RUN is a run folder, for instance runs/demo. `from_pretrained` of transformers loads what is written.
    """
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
