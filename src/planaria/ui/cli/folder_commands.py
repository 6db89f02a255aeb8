"""`planaria ls`, `logs` and `trace-steps`: what run folders tell. Nobody else is asked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from planaria.ui.cli.options import RUN_FOLDER


@click.command("ls")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--json", "as_json", is_flag=True, help="As one JSON array.")
def list_runs(folder: Path, as_json: bool) -> int:
    """List the runs in FOLDER, the one last written first.

    FOLDER is a folder of run folders, or a run folder.  [default: runs]

    A run is starting, training or ending while a process writes its folder. Else it is shown how it ended; "gone"
    means that its process ended without a word.
    """
    import msgspec

    from planaria.job.errors import UserError
    from planaria.runtime.run_folder.overview import RunOverview, find_runs, overview
    from planaria.runtime.run_folder.sentences import age
    from planaria.runtime.run_folder.tables import text_table

    def row(run: RunOverview) -> tuple[str, ...]:
        loss = "" if run.loss is None else f"{run.loss:.4f}"
        nodes = "" if run.nodes is None else str(run.nodes)
        written = age(max(0.0, time.time() - run.changed_s))
        return Path(run.run).name, run.state, f"{run.step} of {run.steps}", loss, nodes, run.policy, written

    runs = []
    for found in find_runs(folder):
        try:
            runs.append(overview(found))
        except UserError as error:
            click.echo(f"planaria: left out: {error}", err=True)
    runs.sort(key=lambda run: run.changed_s, reverse=True)
    if as_json:
        click.echo(msgspec.json.encode(runs).decode())
    elif runs:
        headings = ("run", "state", "step", "loss", "nodes", "policy", "last written")
        click.echo("\n".join(text_table(headings, [row(run) for run in runs], left=(0, 1, 5, 6))))
    else:
        click.echo(f"there are no runs in {folder}. planaria train JOB makes one.")
    return 0


@click.command()
@click.argument("run", type=RUN_FOLDER)
@click.option("--node", type=click.IntRange(min=0), metavar="N", help="Only of this node's workers.")
@click.option("--lines", type=click.IntRange(min=0), default=20, show_default=True, help="Last lines of each; 0: all.")
@click.option("-f", "--follow", is_flag=True, help="Show what comes, until the run ends.")
def logs(run: Path, node: int | None, lines: int, follow: bool) -> int:
    """Show the logs of RUN's processes: coordinator, launcher and workers.

    RUN is the folder of a run, for instance runs/demo.
    """
    from planaria.job.errors import UserError
    from planaria.runtime.run_folder.claim import claimant
    from planaria.runtime.run_folder.process_logs import LogReader, log_files
    from planaria.runtime.run_folder.run_folder import RunFolder

    folder = RunFolder.open(run)
    if node is not None and not follow and not log_files(folder, node):
        raise UserError(f"--node {node}: no worker of it has written a log in {folder.logs}. Leave --node out for all.")
    reader = LogReader(folder, node)
    _show(reader.new_lines(last=lines))
    while follow:
        lives = claimant(folder.claim) is not None
        _show(reader.new_lines())
        if not lives:
            break
        time.sleep(_LOOK_EVERY_S)
    return 0


_LOOK_EVERY_S = 0.2


def _show(found: Iterator[tuple[str, Sequence[str]]]) -> None:
    before = ""
    for name, lines in found:
        if name != before:
            click.echo(f"== {name} ==")
        before = name
        click.echo("\n".join(lines))


@click.command("trace-steps")
@click.argument("run", type=RUN_FOLDER)
@click.option("--steps", required=True, metavar="FIRST:LAST", help="Which steps; one number: that one.")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("trace.json"), show_default=True)
def trace_steps(run: Path, steps: str, output: Path) -> int:
    """Write what RUN's workers did in some steps, on one time axis, for Perfetto (https://ui.perfetto.dev).

    RUN is the folder of a run whose job has observe.instructions = true.
    """
    from planaria.job.errors import UserError
    from planaria.runtime.run_folder.run_folder import RunFolder
    from planaria.ui.plots.step_trace import traced_steps, write_step_trace

    first, colon, last = steps.partition(":")
    if not (first.isdecimal() and (last.isdecimal() or not colon)) or int(first) > int(last or first):
        raise UserError(f"--steps {steps} is not FIRST:LAST. Write for instance 20:22.")
    traced = traced_steps(RunFolder.open(run), int(first), int(last or first))
    write_step_trace(traced, output)
    count = sum(map(len, traced.workers.values()))
    click.echo(f"{count} instructions of {len(traced.workers)} workers are in {output}. Open it in ui.perfetto.dev.")
    return 0
