"""The demo: the job of examples/demo.toml loses two of its seven nodes, and ends with the bits of one process alone.

`make demo` runs it. Exit status 0 when the losses of all steps and the final weights are the same, bit for bit.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

import planaria

ROOT = Path(__file__).parents[1]
FAULTS = ("kill:node=2,step=20,at=backward", "kill:node=5,step=40,at=sync")
PAGE_PORT = 8265
HAS_PAGE = all(find_spec(module) is not None for module in ("starlette", "uvicorn"))


def main() -> int:
    """Trains twice and compares."""
    console = Console(highlight=False)
    job = planaria.load_job(ROOT / "examples" / "demo.toml")
    if HAS_PAGE:
        observe = msgspec.structs.replace(job.observe, dashboard_port=PAGE_PORT, instructions=True)
        job = msgspec.structs.replace(job, observe=observe)
    name = time.strftime("demo-%Y%m%d-%H%M%S")
    began = time.monotonic()

    _heading(console, f"1. {job.model.type} on {job.cluster.nodes} nodes (worker processes of this machine)")
    console.print("Node 2 dies by SIGKILL inside a backward of step 20, node 5 inside a gradient sum of step 40.")
    _command(console, " ".join(["planaria train examples/demo.toml", *(f'--fail "{fault}"' for fault in FAULTS)]))
    trained = planaria.train(job, name=name, faults=FAULTS, progress=True)
    if trained.status.value != "completed":
        console.print(f"[bold red]{trained.status.value}[/]: {trained.message}")
        return 1

    _heading(console, "2. The same job in one process, without any of the machinery: the reference")
    _command(console, "planaria train examples/demo.toml --reference")
    alone = planaria.reference(job, name=f"{name}-reference", progress=True)

    _heading(console, "3. What happened")
    same = _compare(console, job.cluster.nodes, trained, alone)
    verdict = Text("yes", style="bold green") if same else Text("NO", style="bold red")
    console.print(Text.assemble("\nbit-identical: ", verdict))
    console.print(f"run folder:    {trained.folder}")
    console.print("               events.jsonl, metrics.jsonl, summary.json, checkpoints", style="dim")
    if HAS_PAGE:
        console.print(f"in a browser:  planaria dashboard {trained.folder}")
    console.print(f"took:          {time.monotonic() - began:.0f} s in all")
    return 0 if same else 1


def _heading(console: Console, text: str) -> None:
    console.print()
    console.rule(Text(text, style="bold"), align="left", style="dim")


def _command(console: Console, command: str) -> None:
    console.print(Text(f"$ {command}", style="dim"), soft_wrap=True)
    console.print()


def _compare(console: Console, nodes: int, trained: planaria.TrainResult, alone: planaria.TrainResult) -> bool:
    """Prints both runs side by side; says whether losses and weights are the same."""
    losses, reference = _losses(trained.folder), _losses(alone.folder)
    equal = sum(left == right for left, right in zip(losses, reference, strict=False))
    counts = json.loads((trained.folder / "summary.json").read_text())
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    killed = sum(len(recovery.lost_nodes) for recovery in trained.recoveries)
    for heading in ("", f"{nodes} nodes, {killed} killed", "one process alone"):
        table.add_column(heading)
    table.add_row("final loss", repr(trained.final_loss), repr(alone.final_loss))
    table.add_row("weights, SHA-256", _short(trained.weights_sha256), _short(alone.weights_sha256))
    table.add_row("equal losses", f"{equal} of {len(reference)} steps", "")
    table.add_row("microbatches skipped", str(counts["skipped_microbatches"]), "")
    table.add_row("microbatches counted twice", str(counts["duplicated_microbatches"]), "")
    console.print(table)
    for recovery in trained.recoveries:
        lost = ", ".join(map(str, recovery.lost_nodes))
        console.print(
            f"\nstep {recovery.step}: node {lost} lost, seen after {recovery.detect_ms or 0:.0f} ms; "
            f"{recovery.microbatches_rerun} of {recovery.microbatches_per_step} microbatches ran again, and the step "
            f"was committed {recovery.resume_ms:.0f} ms after the kill."
        )
    return losses == reference and trained.weights_sha256 == alone.weights_sha256


def _losses(folder: Path) -> list[tuple[int, float]]:
    """(step, loss) as the run wrote them; the text of a loss gives back its very bits."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines]


def _short(digest: str | None) -> str:
    return "?" if digest is None else f"{digest[:16]}..."


if __name__ == "__main__":
    sys.exit(main())
