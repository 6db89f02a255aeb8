"""The command `planaria`: reads arguments, calls `planaria.api`, turns results and errors into exit codes.

Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from planaria import __version__
from planaria.cli.trace import trace
from planaria.job.errors import PlanariaError

if TYPE_CHECKING:
    from planaria.plan.profile import ModelProfile

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_EXHAUSTED = 3
EXIT_INTERRUPTED = 130

_SCHEDULES = ("eager-1f1b", "1f1b", "gpipe", "zb-h1")
"""Of `planaria.plan.plan.ScheduleKind`, which is not imported for a help page."""
_OBJECTIVES = ("steptime", "oobleck")
_POLICIES = ("templates", "reroute", "adaptive")
"""Of `planaria.job.settings.PolicyName`, likewise."""
_TOKEN_VARIABLE = "PLANARIA_TOKEN"
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


def _nodes_lost(context: click.Context, option: click.Parameter, given: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Each "1,5" as its numbers."""
    try:
        return tuple(tuple(int(node) for node in text.split(",")) for text in given)
    except ValueError:
        raise click.BadParameter("give numbers of nodes, such as 1 or 1,5.") from None


def _set_option(command: _Command) -> _Command:
    return click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="Change a field of the job file.",
    )(command)


def _token_option(command: _Command) -> _Command:
    return click.option(
        "--token-file", type=_FILE, metavar="FILE",
        help=f"The job's token, readable by you alone; or set {_TOKEN_VARIABLE}.  [default of train: a new one, "
        "in the run folder]",
    )(command)  # fmt: skip


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
    help="Strike a node when it is about to run that kind of instruction: kill, hang, freeze, notice, memory; make it "
    "slow for some steps; or kill the coordinator (coordinator:step=20,at=commit). May be given several times.",
)  # fmt: skip
@click.option("--resume", is_flag=True, help="Go on from the run's last checkpoint.")
@click.option(
    "--reference", is_flag=True, help="Train in one process, without any of the machinery: what every run must equal."
)
@_token_option
def train(
    job: Path,
    overrides: tuple[str, ...],
    name: str | None,
    faults: tuple[str, ...],
    resume: bool,
    reference: bool,
    token_file: Path | None,
) -> int:
    """Train JOB on worker processes of this machine, or on nodes whose agents come to it (cluster.launcher).

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
        token = _token(token_file)
        result = api.train(
            parsed, name=name, resume=resume, faults=faults, progress=True, import_path=folder, token=token
        )
    return _exit_code(result.status.value)


def _exit_code(status: str) -> int:
    codes = {
        "completed": 0,
        "failed": EXIT_FAILED,
        "exhausted": EXIT_EXHAUSTED,
        "interrupted": EXIT_INTERRUPTED,
    }
    return codes[status]


def _token(file: Path | None) -> str:
    """The job's token from the file, or the environment; "" where neither has one."""
    from planaria.launch.hosts import check_token, read_token

    if file is not None:
        return read_token(file)
    given = os.environ.get(_TOKEN_VARIABLE, "")
    return check_token(given, _TOKEN_VARIABLE) if given else ""


@cli.command()
@click.option(
    "--coordinator", required=True, metavar="HOST:PORT", help="Where `planaria train` listens; it prints this."
)
@_token_option
@click.option(
    "--host", default="", metavar="ADDRESS",
    help="Address of this node for other nodes.  [default: the one from which it reaches the coordinator]",
)  # fmt: skip
@click.option(
    "--import-path", type=click.Path(path_type=Path, file_okay=False), default=Path(), metavar="FOLDER",
    help="Where a model given as module:function is looked for.  [default: the current folder]",
)  # fmt: skip
@click.option(
    "--give-up", "give_up_s", type=click.FloatRange(min=0, min_open=True), default=600.0, show_default=True,
    metavar="SECONDS", help="End when nothing was heard from the coordinator for so long.",
)  # fmt: skip
def agent(coordinator: str, token_file: Path | None, host: str, import_path: Path, give_up_s: float) -> int:
    """Offer this node to a job whose cluster.launcher is "agents"; see docs/hosts.md.

    Starts the node's workers, and offers the node again under a new number when it was cut off. The first SIGTERM or
    Ctrl-C hands over the node's work and ends; the second ends at once.

    \b
    Example:
      planaria agent --coordinator 10.0.0.1:29400 --token-file runs/job/token

    \b
    Exit code:
      0 the run is over, or the node was handed over    1 the coordinator is gone
      2 this node cannot take part    130 interrupted
    """
    from planaria.launch.agent import AgentSettings, NodeAgent

    token = _token(token_file)
    if not token:
        raise click.UsageError(f"An agent needs the job's token. Give --token-file FILE, or set {_TOKEN_VARIABLE}.")
    settings = AgentSettings(
        coordinator=coordinator, token=token, host=host, import_path=import_path.resolve(), give_up_s=give_up_s
    )
    try:
        NodeAgent(settings, lambda line: click.echo(line, err=True)).run()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


@cli.command()
@click.argument("job", type=_JOB_FILE, required=False)
@_set_option
@click.option("--json", "as_json", is_flag=True, help="Everything, with every worker's program, as JSON.")
@click.option(
    "--svg", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a picture of the schedule."
)
@click.option("--templates", "only_templates", is_flag=True, help="Only the templates.")
@click.option(
    "--profile", "profile_file", type=_JOB_FILE, metavar="FILE",
    help="Plan from this profile: of `planaria profile`, or the profile.json of a run folder.",
)  # fmt: skip
@click.option("--measure", is_flag=True, help="Measure the layers again, though they were measured before.")
@click.option("--nodes", type=int, help="Without JOB: nodes that there are.")
@click.option("--devices-per-node", type=int, default=1, help="Without JOB.", show_default=True)
@click.option("--fault-tolerance", type=int, default=1, help="Without JOB: f.", show_default=True)
@click.option("--global-batch", type=int, help="Without JOB: samples in a step.")
@click.option("--microbatch", type=int, help="Without JOB: samples in a microbatch.  [default: the profile's]")
@click.option("--memory-gb", type=float, help="Without JOB: of one device.  [default: the profile's]")
@click.option("--min-nodes", type=int, default=0, help="Without JOB: nodes of the smallest pipeline.")
@click.option("--schedule", type=click.Choice(_SCHEDULES), default="eager-1f1b", help="Without JOB.", show_default=True)
@click.option("--recompute", is_flag=True, help="Without JOB: backwards recompute the forward.")
@click.option("--objective", type=click.Choice(_OBJECTIVES), help="What templates are made for.  [default: steptime]")
@click.option("--powers-of-two", is_flag=True, help="Stages have 1, 2, 4, ... devices only.")
@click.option("--no-overlap", is_flag=True, help="A message occupies its sender.")
@click.option("--shadows", is_flag=True, help="Every worker has room for a shadow of its successor's state.")
@click.option("--thorough", is_flag=True, help="Search templates for seconds, not tenths of one.")
@click.option(
    "--policy", type=click.Choice(_POLICIES), default="templates", show_default=True,
    help="Without JOB: how plans are made after a loss.",
)  # fmt: skip
@click.option(
    "--mean-time-between-failures-s", type=click.FloatRange(min=0, min_open=True), default=10_800.0, show_default=True,
    help="Without JOB: seconds between losses of nodes, which the policy adaptive expects.",
)  # fmt: skip
@click.option(
    "--lose", "losses", multiple=True, metavar="NODES", callback=_nodes_lost,
    help="Show the plan after the loss of these nodes (1 or 1,5: at once); may be repeated.",
)  # fmt: skip
def plan(
    job: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
    svg: Path | None,
    only_templates: bool,
    profile_file: Path | None,
    measure: bool,
    **wanted: Any,
) -> int:
    """Show the plan that JOB would start with, or have after losses; nothing is trained.

    The layers' costs are measured on this machine once (some seconds) and kept; later plans of the same model and
    shapes are made at once. Without JOB, plans from a profile and the options.

    \b
    Examples:
      planaria plan job.toml
      planaria profile --preset gpt3-6.7b --device a100 --devices-per-node 8 -o gpt3.json
      planaria plan --profile gpt3.json --nodes 16 --devices-per-node 8 --global-batch 512
    """
    if measure and profile_file is not None:
        raise click.UsageError("--measure and --profile exclude each other. Drop one of them.")
    from planaria.cli import plan_view, planning

    if job is None:
        subject, report = planning.from_profile(profile_file, planning.Wanted(**wanted))
    else:
        subject, report = planning.from_job(job, overrides, profile_file, planning.Wanted(**wanted), measure=measure)
    if svg is not None:
        plan_view.write_svg(report, svg)
    if as_json:
        click.echo(plan_view.as_json(report))
    else:
        plan_view.show(subject, report, only_templates=only_templates)
        if svg is not None:
            click.echo(f"\npicture: {svg}")
    return 0


@cli.command()
@click.argument("job", type=_JOB_FILE, required=False)
@_set_option
@click.option(
    "-o", "--output", type=_FILE, metavar="FILE", help="Write the profile as JSON; see docs/profile-format.md."
)
@click.option("--preset", metavar="NAME", help="A published model instead of a measured one; needs --device.")
@click.option("--device", metavar="NAME", help="The preset's device.")
@click.option("--microbatch", type=click.IntRange(min=1), metavar="N", help="Samples in the preset's microbatch.")
@click.option("--sequence-length", type=click.IntRange(min=1), metavar="N", help="Tokens in the preset's samples.")
@click.option(
    "--devices-per-node", type=click.IntRange(min=1), metavar="M",
    help="Give the preset's times for stages of 1, 2, 4, ... M devices.  [default: 1]",
)  # fmt: skip
@click.option(
    "--network-gbit", type=click.FloatRange(min=0, min_open=True), metavar="G",
    help="The preset's bandwidth between nodes, in Gbit/s.  [default: 100]",
)  # fmt: skip
@click.option(
    "--profile", "profile_file", type=_JOB_FILE, metavar="FILE", help="Read this profile instead of measuring."
)
@click.option(
    "--calibrate", type=float, metavar="SECONDS",
    help="Scale all times so that one microbatch's forward and backward take this, summed over the layers.",
)  # fmt: skip
@click.option("--list", "only_list", is_flag=True, help="Show presets and devices, with their sources.")
def profile(
    job: Path | None,
    overrides: tuple[str, ...],
    output: Path | None,
    preset: str | None,
    device: str | None,
    microbatch: int | None,
    sequence_length: int | None,
    devices_per_node: int | None,
    network_gbit: float | None,
    profile_file: Path | None,
    calibrate: float | None,
    only_list: bool,
) -> int:
    """Show what each layer of JOB's model costs, and write it to a file.

    Measured on this machine (some seconds); or from a preset, or from a file, without torch.

    \b
    Examples:
      planaria profile job.toml -o costs.json
      planaria profile --preset gpt3-6.7b --device a100 --devices-per-node 8 -o costs.json
      planaria profile --profile costs.json --calibrate 0.52 -o corrected.json
      planaria profile --list
    """
    from planaria.cli import profile_view

    if only_list:
        profile_view.show_presets()
        return 0
    of_presets = (microbatch, sequence_length, devices_per_node, network_gbit)
    _check_source(job, overrides, preset, device, profile_file, of_presets)
    if preset is not None and device is not None:
        made = profile_view.from_preset(
            profile_view.PresetChoice(
                model=preset,
                device=device,
                microbatch=microbatch or 0,
                sequence_length=sequence_length or 0,
                devices_per_node=devices_per_node or 1,
                network_gbit=network_gbit or 0.0,
            )
        )
    elif profile_file is not None:
        from planaria import api

        made = api.read_profile(profile_file)
    else:
        assert job is not None
        made = _measured(job, overrides)
    if calibrate is not None:
        made = profile_view.corrected(made, calibrate)
    profile_view.show(made)
    if output is not None:
        profile_view.write(made, output)
        click.echo(f"profile: {output}")
    return 0


def _check_source(
    job: Path | None,
    overrides: tuple[str, ...],
    preset: str | None,
    device: str | None,
    profile_file: Path | None,
    of_presets: tuple[float | None, ...],
) -> None:
    """A profile has one source, and each source its own options."""
    if sum(source is not None for source in (job, preset, profile_file)) != 1:
        raise click.UsageError("Give one of JOB, --preset NAME and --profile FILE, or --list.")
    if (preset is None) != (device is None):
        raise click.UsageError("--preset and --device go together; --list shows what there is.")
    if preset is None and any(option is not None for option in of_presets):
        raise click.UsageError(
            "--microbatch, --sequence-length, --devices-per-node and --network-gbit go with --preset. "
            "A job says these things itself."
        )
    if job is None and overrides:
        raise click.UsageError("--set goes with JOB.")


def _measured(job: Path, overrides: tuple[str, ...]) -> ModelProfile:
    from planaria import api
    from planaria.cli import profile_view
    from planaria.cli.planning import busy

    parsed = api.load_job(job, overrides)
    with busy(f"measuring the layers of {parsed.model.type} ..."):
        return profile_view.measured(parsed, job.resolve().parent)


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


cli.add_command(trace)


def main() -> None:
    """Entry point of the command `planaria`."""
    cli(prog_name="planaria")


if __name__ == "__main__":
    main()
