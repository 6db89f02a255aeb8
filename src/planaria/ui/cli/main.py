"""The command `planaria`: reads arguments, calls `planaria.api`, turns results and errors into exit codes.

Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from signal import Signals
from typing import Any, NoReturn

import click

from planaria.job.errors import PlanariaError, UserCodeError
from planaria.job.version import __version__
from planaria.runtime.machine.interrupts import Interrupted
from planaria.runtime.progress.output import OutputClosed
from planaria.ui.cli.dashboard_commands import dashboard, report, serve_page
from planaria.ui.cli.folder_commands import list_runs, logs, trace_steps
from planaria.ui.cli.host_commands import agent, certificates, standby
from planaria.ui.cli.launch_commands import attend, launch
from planaria.ui.cli.live_commands import add, drain, policy, save, status, stop, top
from planaria.ui.cli.options import (
    EXIT_FAILED,
    EXIT_SIGNALLED,
    EXIT_USER_ERROR,
    JOB_FILE,
    RUN_FOLDER,
    exit_code,
    set_option,
    token_of,
    token_option,
)
from planaria.ui.cli.planning.plan_commands import plan, profile
from planaria.ui.cli.pod_commands import here, kubernetes
from planaria.ui.cli.rehearsal.drill_commands import compare, drill
from planaria.ui.cli.simulation.simulate import simulate
from planaria.ui.cli.simulation.trace import trace
from planaria.ui.cli.start_commands import doctor, init

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class _Planaria(click.Group):
    """Says a user's mistake in one line, with exit code 2, and ends without a word when nobody reads its output.

    Other exceptions keep their traceback.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the commands in the order in which they are needed, as they stand below."""
        return [name for name, command in self.commands.items() if not command.hidden]

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Resolves a command as click does; where there is none, says what was probably meant."""
        if args and self.get_command(ctx, args[0]) is None:
            names = self.list_commands(ctx)
            close = difflib.get_close_matches(args[0], names, n=1)
            meant = f"Did you mean {close[0]}?" if close else f"There are {', '.join(names)}."
            raise click.UsageError(f"there is no command {args[0]!r}. {meant}")
        return super().resolve_command(ctx, args)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        extra["standalone_mode"] = False
        try:
            code = self._run(args, *rest, **extra)
            sys.stdout.flush()
        except (BrokenPipeError, OutputClosed):
            code = _forget_output()
        sys.exit(code if isinstance(code, int) else 0)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Makes the context as click does, which prints the help, too."""
        with _output_may_close():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _output_may_close():
            return super().invoke(ctx)

    def _run(self, args: Sequence[str] | None, *rest: Any, **extra: Any) -> Any:
        try:
            return super().main(args, *rest, **extra)
        except click.ClickException as error:
            _fail(error.format_message(), error.exit_code)
        except click.Abort as abort:
            number = abort.__cause__.signal if isinstance(abort.__cause__, Interrupted) else Signals.SIGINT
            _fail("interrupted", EXIT_SIGNALLED + number)
        except OutputClosed:
            raise
        except Exception as error:
            if isinstance(error, ValueError) and _is_users_mistake(error):
                line = " ".join(str(error).split())
                trace = f"\n\n{error.trace.rstrip()}" if isinstance(error, UserCodeError) else ""
                _fail(f"{line}{trace}", EXIT_USER_ERROR)
            if isinstance(error, PlanariaError):
                _fail(str(error), EXIT_FAILED)
            raise


def _is_users_mistake(error: ValueError) -> bool:
    """Returns whether it is Planaria's own ValueError (UserError, PlanError, ModelError, ...): a user's mistake."""
    return any(kind.__module__.partition(".")[0] == "planaria" for kind in type(error).__mro__)


@contextlib.contextmanager
def _output_may_close() -> Iterator[None]:
    """Raises OutputClosed when output closes: click would end with 1, which cannot be told from a failure."""
    try:
        yield
    except BrokenPipeError as error:
        raise OutputClosed from error


def _forget_output() -> int:
    """Redirects what is left to write to nowhere, or the interpreter complains at its end. Returns the exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(nowhere, stream.fileno())
    return EXIT_SIGNALLED + Signals.SIGPIPE


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"planaria: error: {message}", err=True)
    sys.exit(code)


@click.group(cls=_Planaria, invoke_without_command=True, context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="planaria", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Train large models on machines that fail.

    A job is one TOML file; planaria init writes one to begin with.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@click.command()
@click.argument("job", type=JOB_FILE)
@set_option
@click.option("--name", metavar="NAME", help="Name of the run, and of its folder.  [default: the job file's]")
@click.option(
    "--fail", "faults", multiple=True, metavar="SPEC",
    help="Strike a node when it is about to run that kind of instruction: kill, hang, freeze, notice, memory; make it "
    "slow for some steps; or kill the coordinator (coordinator:step=20,at=commit). May be given several times.",
)  # fmt: skip
@click.option("--resume", is_flag=True, help="Go on from the run's last checkpoint.")
@click.option(
    "--accept-changed-data", is_flag=True, help="With --resume: go on although the data are not those of before."
)
@click.option(
    "--reference", is_flag=True, help="Train in one process, without any of the machinery: what every run must equal."
)
@click.option(
    "--replay", "--drops", "replay", type=RUN_FOLDER,
    help="With --reference: leave out the samples that this run left out, and raise train.steps where it did.",
)  # fmt: skip
@token_option
def train(
    job: Path,
    overrides: tuple[str, ...],
    name: str | None,
    faults: tuple[str, ...],
    resume: bool,
    accept_changed_data: bool,
    reference: bool,
    replay: Path | None,
    token_file: Path | None,
) -> int:
    """Train JOB on worker processes of this machine, or on nodes whose agents come to it (cluster.launcher).

    Leaves a run folder with events.jsonl, metrics.jsonl, summary.json and checkpoints. Ctrl-C, SIGTERM, a terminal
    that closes (SIGHUP) and output that nobody reads any more finish the step, save and end; a second Ctrl-C ends at
    once.

    \b
    Examples:
      planaria train job.toml
      planaria train job.toml --name attacked --fail kill:node=2,step=20,at=backward
      planaria train job.toml --resume

    \b
    Exit code:
      0 completed, or stopped by planaria stop    1 failed    2 a mistake in the job or the command
      3 exhausted: too few nodes are left    130 Ctrl-C    143 SIGTERM    129 SIGHUP    141 nobody reads the output
    """
    if reference and (resume or faults):
        raise click.UsageError("--reference goes with neither --resume nor --fail. Drop one of them.")
    if replay is not None and not reference:
        raise click.UsageError("--replay goes with --reference. Add that, or drop it.")
    if accept_changed_data and not resume:
        raise click.UsageError("--accept-changed-data goes with --resume. Add that, or drop it.")
    from planaria import api

    parsed = api.load_job(job, overrides)
    folder = job.resolve().parent
    if reference:
        result = api.reference(parsed, name=name, progress=True, import_path=folder, replay=replay)
    else:
        token = token_of(token_file)
        result = api.train(
            parsed,
            name=name,
            resume=resume,
            faults=faults,
            progress=True,
            import_path=folder,
            token=token,
            accept_changed_data=accept_changed_data,
        )
    return exit_code(result)


@click.command()
@click.argument("run", type=RUN_FOLDER)
@click.option("--to", "target", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@click.option("--step", type=click.IntRange(min=0), help="Step of the checkpoint.  [default: the last one]")
@click.option(
    "--format",
    "form",
    type=click.Choice(["huggingface", "torch"]),
    default="huggingface",
    show_default=True,
    help="A Hugging Face folder, or torch.distributed.checkpoint's with the optimizer's state.",
)
@click.option("--adapters", is_flag=True, help="Write the adapters of [model.lora] alone, for peft.")
def export(run: Path, target: Path, step: int | None, form: str, adapters: bool) -> int:
    """Write a checkpoint of RUN, the last one by default, and its tokenizer as a Hugging Face folder.

    RUN is a run folder, for instance runs/demo. `from_pretrained` of transformers loads what is written. Adapters are
    merged into the weights. For torch, parameters and the optimizer's state are written as they are, of any model.
    """
    if adapters and form == "torch":
        raise click.UsageError("--adapters goes with --format huggingface. Drop one of them.")
    from planaria.runtime.run_folder.run_folder import RunFolder

    RunFolder.open(run)
    from planaria.runtime.launch.export import export_for_torch, export_run

    if form == "torch":
        export_for_torch(run, target, step)
    else:
        export_run(run, target, step, adapters=adapters)
    click.echo(f"exported {run} to {target}")
    return 0


LIVE = (status, top, add, drain, policy, save, stop)
START = (init, doctor, train, agent, standby, certificates, launch, attend)
FOLDERS = (list_runs, logs, trace_steps, dashboard, serve_page, report)
for command in (*START, plan, profile, simulate, *FOLDERS, *LIVE, export, trace, drill, compare):
    cli.add_command(command)
for command in (kubernetes, here):
    launch.add_command(command)


def main() -> None:
    """Runs the command `planaria`: its entry point."""
    cli(prog_name="planaria")


if __name__ == "__main__":
    main()
