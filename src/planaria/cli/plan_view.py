"""How `planaria plan` shows a report: tables and a picture for people, JSON for programs, SVG for pages."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from planaria.job.errors import UserError
from planaria.observe.wording import counted, crowding, duration, layer_range, size
from planaria.plan.cells import CellKind
from planaria.plan.draw import svg, terminal
from planaria.plan.program import Op
from planaria.plan.schedule import program

if TYPE_CHECKING:
    from planaria.api import PlanReport
    from planaria.job.settings import Job
    from planaria.plan.profile import ModelProfile

_WIDTH_WITHOUT_TERMINAL = 100
_COMPUTE = (Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT)
_BACKGROUND = {CellKind.FORWARD: 117, CellKind.BACKWARD: 215, CellKind.WEIGHT: 223, CellKind.SYNC: 71}
"""Of the terminal's 256 colours."""


def show(job: Job, report: PlanReport, *, measured: str, only_templates: bool) -> None:
    """Prints a report to standard output.

    Args:
        job: what was planned.
        report: its plan.
        measured: where the layers' costs come from.
        only_templates: leave out the pipelines and the schedule.
    """
    width = shutil.get_terminal_size((_WIDTH_WITHOUT_TERMINAL, 24)).columns
    console = Console(width=width, highlight=False)
    console.print(_headline(job, report))
    console.print(Text(f"layer costs: {measured}", style="dim"))
    console.print()
    console.print(_templates(job, report))
    if only_templates:
        return
    console.print()
    console.print(_pipelines(report))
    console.print()
    console.print(_expectation(job, report, len(os.sched_getaffinity(0))))
    console.print(Text(report.reason, style="dim"))
    console.print()
    # The picture brings its own colours, and must not be wrapped.
    print(
        terminal(
            report.timeline, report.plan, width, paint=_paint if console.color_system and not console.no_color else None
        )
    )


def _paint(kind: CellKind, text: str) -> str:
    return f"\x1b[30;48;5;{_BACKGROUND[kind]}m{text}\x1b[0m"


def as_json(report: PlanReport) -> str:
    """The report as one JSON object; `programs` is keyed by worker."""
    return msgspec.json.encode(
        {
            "step_time_s": report.step_time_s,
            "reason": report.reason,
            "templates": report.templates,
            "plan": report.plan,
            "plan_hash": report.plan.content_hash,
            "profile": report.profile,
            "programs": {str(worker): program(report.plan, worker) for worker in report.plan.workers},
        }
    ).decode()


def write_svg(report: PlanReport, path: Path) -> None:
    """Writes the picture of the schedule.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        path.write_text(svg(report.timeline, report.plan), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--svg {path} cannot be written: {error.strerror}. Give a writable file.") from None


def _headline(job: Job, report: PlanReport) -> Text:
    parameters = sum(group.size_bytes for group in report.profile.groups)
    devices = job.cluster.devices_per_node
    return Text.assemble(
        (job.run.name or job.model.type, "bold"),
        f": {job.model.type}, {counted(report.profile.num_layers, 'layer')}, {size(parameters)} of parameters\n",
        f"a step: {counted(job.train.num_microbatches, 'microbatch')} "
        f"of {job.train.microbatch} x {job.train.sequence_length} tokens, on {counted(job.cluster.nodes, 'node')}"
        f"{f' of {devices} devices' if devices > 1 else ''}, "
        f"fault_tolerance = {job.resilience.fault_tolerance}",
    )


def _expectation(job: Job, report: PlanReport, num_cores: int) -> Text:
    """The step time, and what is known of it where workers share cores."""
    text = Text.assemble("expected step time  ", (duration(report.step_time_s), "bold"))
    if crowding(job, num_cores) is not None:
        spans = (span for worker in report.timeline.spans.values() for span in worker)
        busy_s = sum(end - start for instruction, start, end in spans if instruction.op in _COMPUTE)
        text.append(
            f"  with a core for each of the {len(report.plan.workers)} workers; "
            f"on the {counted(num_cores, 'core')} of this machine at least {duration(busy_s / num_cores)}"
        )
    return text


def _templates(job: Job, report: PlanReport) -> Table:
    table = _table("Templates")
    table.add_column("nodes", justify="right")
    table.add_column("stages, by their layers")
    # What a template is shaped for: the largest share of an even split over f + 1 pipelines.
    share = -(-job.train.num_microbatches // (job.resilience.fault_tolerance + 1))
    table.add_column(counted(share, "microbatch"), justify="right")
    table.add_column("used by")
    users: dict[int, list[str]] = {}
    for number, pipeline in enumerate(report.plan.pipelines):
        num_nodes = len({report.plan.node_of(worker) for worker in pipeline.workers})
        users.setdefault(num_nodes, []).append(str(number))
    for template in report.templates:
        stages = " | ".join(layer_range(stage.first_layer, stage.end_layer) for stage in template.stages)
        used = users.get(template.num_nodes, [])
        by = f"pipeline{'s' if len(used) > 1 else ''} {', '.join(used)}" if used else ""
        style = "" if used else "dim"
        table.add_row(str(template.num_nodes), stages, duration(template.step_time_s), by, style=style)
    return table


def _pipelines(report: PlanReport) -> Table:
    plan = report.plan
    names = _short_names(report.profile)
    table = _table("Pipelines")
    table.add_column("pipeline", justify="right")
    table.add_column("microbatches", justify="right")
    table.add_column("node" if plan.devices_per_node == 1 else "node.device", justify="right")
    table.add_column("layers")
    table.add_column("", overflow="fold", style="dim")
    for number, pipeline in enumerate(plan.pipelines):
        microbatches = sum(len(route.microbatches) for route in plan.routes if route.hops == pipeline.stages)
        for place, stage in enumerate(pipeline.stages):
            first = (str(number), str(microbatches)) if place == 0 else ("", "")
            device = "" if plan.devices_per_node == 1 else f".{stage.worker % plan.devices_per_node}"
            table.add_row(
                *first,
                f"{plan.node_of(stage.worker)}{device}",
                layer_range(stage.first_layer, stage.end_layer),
                _few(names[stage.first_layer : stage.end_layer]),
            )
    return table


def _short_names(profile: ModelProfile) -> list[str]:
    """The layers' names, without a first part that most of them share (as "transformer." in "transformer.h.0")."""
    names = [layer.name for layer in profile.layers]
    prefix, count = Counter(name.partition(".")[0] for name in names).most_common(1)[0]
    short = [name.removeprefix(f"{prefix}.") for name in names]
    return names if 2 * count <= len(names) or any(name.isdigit() for name in short) else short


def _few(names: list[str]) -> str:
    """Names in a list; a long one by its ends."""
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} ... {names[-1]}"


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=None,
        padding=(0, 2, 0, 0),
    )
