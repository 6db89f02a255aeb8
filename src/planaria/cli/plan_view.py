"""How `planaria plan` shows a report: tables and a picture for people, JSON for programs, SVG for pages."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from planaria.job.errors import UserError
from planaria.observe.wording import counted, duration, size
from planaria.plan.draw import svg, terminal
from planaria.plan.schedule import program

if TYPE_CHECKING:
    from planaria.api import PlanReport
    from planaria.job.settings import Job
    from planaria.plan.profile import ModelProfile

_WIDTH_WITHOUT_TERMINAL = 100


def show(job: Job, report: PlanReport, *, only_templates: bool) -> None:
    """Prints a report to standard output."""
    width = shutil.get_terminal_size((_WIDTH_WITHOUT_TERMINAL, 24)).columns
    console = Console(width=width, highlight=False)
    console.print(_headline(job, report))
    console.print()
    console.print(_templates(job, report))
    console.print()
    if only_templates:
        return
    console.print(_pipelines(report))
    console.print()
    console.print(Text.assemble("expected step time  ", (duration(report.step_time_s), "bold")))
    console.print(Text(report.reason, style="dim"))
    console.print()
    # The picture brings its own colours, and must not be wrapped.
    print(terminal(report.timeline, report.plan, width))


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
    return Text.assemble(
        (job.run.name or job.model.type, "bold"),
        f"  {job.model.type}, {counted(report.profile.num_layers, 'layer')}, "
        f"{size(parameters)} of parameters; {counted(job.train.num_microbatches, 'microbatch')} "
        f"of {job.train.microbatch} x {job.train.sequence_length} tokens; "
        f"{counted(job.cluster.nodes, 'node')} with {counted(job.cluster.devices_per_node, 'device')} each; "
        f"fault_tolerance = {job.resilience.fault_tolerance}",
    )


def _templates(job: Job, report: PlanReport) -> Table:
    table = _table("Templates")
    table.add_column("nodes", justify="right")
    table.add_column("stages: layers")
    # What a template is shaped for: the largest share of an even split over f + 1 pipelines.
    share = -(-job.train.num_microbatches // (job.resilience.fault_tolerance + 1))
    table.add_column(f"step with {counted(share, 'microbatch')}", justify="right")
    used = {len({report.plan.node_of(worker) for worker in pipeline.workers}) for pipeline in report.plan.pipelines}
    for template in report.templates:
        stages = " | ".join(_range(stage.first_layer, stage.end_layer) for stage in template.stages)
        style = "" if template.num_nodes in used else "dim"
        table.add_row(str(template.num_nodes), stages, duration(template.step_time_s), style=style)
    return table


def _pipelines(report: PlanReport) -> Table:
    plan = report.plan
    table = _table("Pipelines")
    for heading in ("pipeline", "microbatches", "stage", "node", "worker"):
        table.add_column(heading, justify="right")
    table.add_column("layers")
    table.add_column("names", overflow="fold")
    for number, pipeline in enumerate(plan.pipelines):
        microbatches = sum(len(route.microbatches) for route in plan.routes if route.hops == pipeline.stages)
        for place, stage in enumerate(pipeline.stages):
            first = (str(number), str(microbatches)) if place == 0 else ("", "")
            table.add_row(
                *first,
                str(place),
                str(plan.node_of(stage.worker)),
                str(stage.worker),
                _range(stage.first_layer, stage.end_layer),
                _names(report.profile, stage.first_layer, stage.end_layer),
                end_section=place == len(pipeline.stages) - 1,
            )
    return table


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=None,
        padding=(0, 2, 0, 0),
    )


def _range(first: int, end: int) -> str:
    return f"{first}" if end - first == 1 else f"{first}-{end - 1}"


def _names(profile: ModelProfile, first: int, end: int) -> str:
    """The names of a layer range; a long one by its ends."""
    names = [layer.name for layer in profile.layers[first:end]]
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} ... {names[-1]}"
