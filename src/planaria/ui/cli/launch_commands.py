"""`planaria launch`: a job on an engine that runs a cluster. Reads arguments, shows what was started."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from planaria.runtime.thresholds import ENGINE_GIVE_UP_S
from planaria.ui.cli.options import JOB_FILE, Finite, exit_code, set_option

GIVE_UP = click.option(
    "--give-up", "give_up_s", type=click.FloatRange(min=0, min_open=True), default=ENGINE_GIVE_UP_S, show_default=True,
    metavar="SECONDS", help="An agent ends when it has heard nothing from the coordinator for so long.",
)  # fmt: skip
AGENTS = ('cluster.launcher="agents"', 'cluster.host="0.0.0.0"')


class NodesType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5 alone
    """A number of nodes, or LEAST-MOST; gives both."""

    name = "N|LEAST-MOST"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        least, _, most = str(value).partition("-")
        most = most or least
        if not (least.isdecimal() and most.isdecimal() and 1 <= int(least) <= int(most)):
            self.fail(f"{value!r} is not a number of nodes, as 16, or the fewest and the most, as 8-32.", param, ctx)
        return int(least), int(most)


NODES = click.option(
    "--nodes", type=NodesType(), required=True, help="Nodes that train; 8-32: at least 8, and up to 32 as they come."
)


def nodes_override(nodes: tuple[int, int]) -> str:
    """Returns what sets cluster.nodes, as --set has it."""
    least, most = nodes
    return f"cluster.nodes={least if least == most else f'{{ least = {least}, most = {most} }}'}"


def counted(nodes: tuple[int, int]) -> str:
    """Returns how many nodes there are to be, in words."""
    return " to ".join(map(str, sorted(set(nodes))))


@click.group()
def launch() -> None:
    """Start a job on a cluster's engine: a coordinator, and an agent on each node."""


@launch.command()
@click.argument("job", type=JOB_FILE)
@NODES
@click.option("--spares", type=click.IntRange(min=0), default=0, show_default=True, help="Nodes that take over.")
@click.option("--partition", default="", metavar="NAME", help="SLURM's partition.  [default: SLURM's]")
@click.option("--time", "limit", default="", metavar="TIME", help="Time limit of each job, as sbatch takes it.")
@click.option(
    "--notice", "notice_s", type=click.IntRange(min=1), default=120, show_default=True, metavar="SECONDS",
    help="So long before the time limit work is handed over, and the run is saved and queued again.",
)  # fmt: skip
@GIVE_UP
@click.option(
    "--sbatch", "agent_options", multiple=True, metavar="OPTION",
    help="An option of sbatch for the agents, as --sbatch=--gres=gpu:8. May be given several times.",
)  # fmt: skip
@click.option("--name", metavar="NAME", help="Name of the run, and of its folder.  [default: the job file's]")
@set_option
@click.option("--resume", is_flag=True, help="Go on from the run's last checkpoint.")
@click.option("--print", "prints", is_flag=True, help="Print the two scripts. Nothing is written or submitted.")
def slurm(
    job: Path,
    nodes: tuple[int, int],
    spares: int,
    partition: str,
    limit: str,
    notice_s: int,
    give_up_s: float,
    agent_options: tuple[str, ...],
    name: str | None,
    overrides: tuple[str, ...],
    resume: bool,
    prints: bool,
) -> int:
    """Train JOB on SLURM: a job for the coordinator, and an array of agents, one a node; see docs/howto/slurm.md.

    A task that dies is started again, and a spare takes over at once. Notices of time limits and preemptions drain a
    node. A coordinator that is requeued goes on. Submits, and returns.

    \b
    Example:
      planaria launch slurm job.toml --nodes 16 --spares 2 --partition gpu --time 12:00:00 --sbatch=--gres=gpu:8
    """
    from planaria import api
    from planaria.job.errors import UserError
    from planaria.job.values import check_name
    from planaria.runtime.engines import slurm as engine
    from planaria.runtime.engines.launch_folder import Launch, LaunchFolder
    from planaria.runtime.engines.slurm_scripts import SlurmOptions

    if name is not None:
        check_name("--name", name)
    least, most = nodes
    overrides = (*overrides, *AGENTS, nodes_override(nodes))
    parsed = api.load_job(job, overrides)
    directory = os.getcwd()
    made = Launch(
        job_file=str(job.resolve()),
        overrides=overrides,
        name=name or parsed.run.name or job.stem,
        runs=str(Path(directory, parsed.run.folder)),
        nodes=least,
        most_nodes=most,
        spares=spares,
        python=sys.executable,
        directory=directory,
        tls=str(Path(directory, parsed.cluster.tls)) if parsed.cluster.tls else "",
    )
    folder = LaunchFolder.of(made, engine.ENGINE)
    options = SlurmOptions(
        partition=partition, time=limit, notice_s=notice_s, give_up_s=give_up_s, agent_options=agent_options
    )
    scripts = engine.scripts(made, folder, options)
    if prints:
        for part, text in scripts.items():
            click.echo(f"# {folder.script(part)}\n{text}")
        return 0
    if made.run.path.exists() and not resume:
        raise UserError(
            f"run folder {made.run.path} exists already. "
            "Go on with it by --resume, or choose another name by --name NAME."
        )
    jobs = folder.jobs()
    if jobs is not None and engine.in_queue(jobs):
        raise UserError(
            f"run {made.name} has jobs {jobs.coordinator} and {jobs.agents} in SLURM's queue. "
            f"End them by scancel {jobs.coordinator} {jobs.agents}, or choose another name by --name NAME."
        )
    folder.write(made, scripts)
    jobs = engine.submit(folder)
    about = f"{counted(nodes)} nodes, {spares} spares"
    click.echo(f"coordinator: job {jobs.coordinator}; agents: job array {jobs.agents}, {about}")
    click.echo(f"logs and scripts: {folder.path}")
    click.echo(f"planaria status {made.run.path} says how far it is, once the coordinator runs")
    return 0


@launch.command()
@click.argument("job", type=JOB_FILE)
@NODES
@click.option(
    "--spares", type=click.IntRange(min=0), metavar="NUMBER",
    help="Nodes that take over.  [default: cluster.ray.spares, 0; and so on]",
)  # fmt: skip
@click.option(
    "--address", metavar="HOST:PORT",
    help="Where the Ray cluster is; auto: this machine is one of its nodes, or RAY_ADDRESS says it.  [default: auto]",
)  # fmt: skip
@click.option(
    "--cpus", type=Finite(min=0.0), metavar="NUMBER", help="Processors that Ray sets aside on each node.  [default: 1]"
)
@click.option(
    "--gpus", type=Finite(min=0.0), metavar="NUMBER",
    help='GPUs likewise.  [default: cluster.devices_per_node where cluster.device = "cuda", else none]',
)  # fmt: skip
@click.option(
    "--wait", "wait_s", type=Finite(min=0.0), metavar="SECONDS",
    help="Ray may take so long to find the nodes.  [default: 60]",
)  # fmt: skip
@click.option("--name", metavar="NAME", help="Name of the run, and of its folder.  [default: the job file's]")
@set_option
@click.option("--resume", is_flag=True, help="Go on from the run's last checkpoint.")
def ray(
    job: Path,
    nodes: tuple[int, int],
    name: str | None,
    overrides: tuple[str, ...],
    resume: bool,
    **asked: object,
) -> int:
    """Train JOB on a Ray cluster, from one of its nodes: an agent a node; see docs/howto/ray.md.

    A node that dies is replaced as soon as Ray has another; one that drains hands over its work. Trains, and returns
    when the run is over: its end ends the agents. Exit codes are those of planaria train, which does the same with
    cluster.launcher = "ray" in the job file; options here are fields of [cluster.ray] there.

    \b
    Example:
      planaria launch ray job.toml --nodes 4 --spares 1
    """
    from planaria import api
    from planaria.job.values import check_name

    if name is not None:
        check_name("--name", name)
    given = [f"cluster.ray.{field}={json.dumps(value)}" for field, value in asked.items() if value is not None]
    said = (*overrides, 'cluster.launcher="ray"', nodes_override(nodes), *given)
    folder = job.resolve().parent
    result = api.train(api.load_job(job, said), name=name, resume=resume, progress=True, import_path=folder)
    return exit_code(result)


@click.command(hidden=True)
@click.argument("engine", type=click.Choice(["slurm"]))
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def attend(engine: str, folder: Path) -> int:
    """Run the coordinator of a launch, within the job that `planaria launch` submitted."""
    from planaria.runtime.engines.attendant import Attendant
    from planaria.runtime.engines.launch_folder import LaunchFolder
    from planaria.runtime.engines.slurm import Slurm
    from planaria.runtime.progress.output import Output

    kept = LaunchFolder(folder)
    made = kept.launch()
    command = made.train(["--token-file", str(kept.token)])
    return Attendant(made, command, Slurm(kept), Output(sys.stderr).say).run()
