"""The view of a report of `planaria plan`: tables and a picture for people, JSON for programs, SVG for pages."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from planaria.job.errors import UserError
from planaria.plan.program.programs import program
from planaria.plan.quantities import size
from planaria.planner.reroute.plans import shares
from planaria.runtime.run_folder.sentences import counted, duration, layer_range
from planaria.ui.plots.cells import CellKind
from planaria.ui.plots.schedule_picture import svg, terminal

if TYPE_CHECKING:
    from planaria.api import PlanReport
    from planaria.job.settings import Job
    from planaria.plan.costs.model_profile import ModelProfile
    from planaria.plan.costs.pipeline_time import Template
    from planaria.plan.plan import Plan, Stage
    from planaria.plan.settings import PlannerSettings
    from planaria.policy.candidate_record import CandidateRecord

_WIDTH_WITHOUT_TERMINAL = 100
_SEVERAL_DEVICES = (
    "Training cannot run this plan: there a stage has one device, but for emulated devices. Stages of several are "
    "planned where the profile has times for them: make it without --devices-per-node."
)
_BACKGROUND = {
    CellKind.FORWARD: 117,
    CellKind.BACKWARD: 215,
    CellKind.WEIGHT: 223,
    CellKind.SHADOW: 250,
    CellKind.SYNC: 71,
}
"""Background of each kind of cell, out of the terminal's 256 colours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """The subject of a plan, for people.

    Attributes:
        title: its name.
        model: of what kind.
        batch: what a step is made of.
        costs: where the layers' costs come from.
    """

    title: str
    model: str
    batch: str
    costs: str


def subject_of(job: Job, costs: str) -> PlannedModel:
    """Returns the subject of a job's plan."""
    microbatches = counted(job.train.num_microbatches, "microbatch")
    return PlannedModel(
        title=job.run.name or job.model.type,
        model=job.model.type,
        batch=f"{microbatches} of {job.train.microbatch} x {job.train.sequence_length} tokens",
        costs=costs,
    )


def subject_of_profile(profile: ModelProfile, settings: PlannerSettings, costs: str) -> PlannedModel:
    """Returns the subject of a profile's plan, without a job."""
    microbatches = counted(settings.num_microbatches, "microbatch")
    return PlannedModel(
        title=profile.name or "profile",
        model=f"on {profile.device.name}",
        batch=f"{microbatches} of {counted(profile.microbatch_size, 'sample')}",
        costs=costs,
    )


def show(subject: PlannedModel, report: PlanReport, *, only_templates: bool) -> None:
    """Prints a report to standard output.

    Args:
        subject: what was planned.
        report: its plan.
        only_templates: leave out the pipelines and the schedule.
    """
    width = shutil.get_terminal_size((_WIDTH_WITHOUT_TERMINAL, 24)).columns
    console = Console(width=width, highlight=False)
    console.print(_headline(subject, report))
    console.print(Text(f"layer costs: {subject.costs}; planned in {report.planning_s * 1e3:.0f} ms", style="dim"))
    console.print()
    console.print(_templates(report))
    if only_templates:
        return
    console.print()
    console.print(_pipelines(report))
    if any(stage.num_devices > 1 for stage in report.plan.stages()):
        console.print()
        console.print(Text(_SEVERAL_DEVICES, style="yellow"))
    console.print()
    console.print(_expectation(report))
    console.print(Text(report.reason, style="dim"))
    for proposal in report.after_losses:
        console.print(Text(f"{duration(proposal.step_time_s)} a step: {proposal.reason}", style="dim"))
        if proposal.candidates:
            console.print(_candidates(proposal.candidates))
    console.print()
    # The picture brings its own colours, and must not be wrapped.
    print(
        terminal(
            report.timeline, report.plan, width, paint=_paint if console.color_system and not console.no_color else None
        )
    )


def _paint(kind: CellKind, text: str) -> str:
    return f"\x1b[30;48;5;{_BACKGROUND[kind]}m{text}\x1b[0m"


def as_json(report: PlanReport, *, with_programs: bool) -> str:
    """Returns the report as one JSON object; `memory` and `programs` are keyed by worker."""
    plan = report.plan
    told: dict[str, object] = {
        "planning_ms": report.planning_s * 1e3,
        "step_time_s": report.step_time_s,
        "lower_bound_s": report.lower_bound_s,
        "reason": report.reason,
        "after_losses": [
            {
                "step_time_s": p.step_time_s,
                "transfer_bytes": p.transfer_bytes,
                "how": p.how,
                "reason": p.reason,
                "candidates": p.candidates,
            }
            for p in report.after_losses
        ],
        "templates": [_template(template) for template in report.templates],
        "instantiation": [
            {"num_nodes": len(nodes), "nodes": nodes, "microbatches": share}
            for nodes, share in zip(_nodes(plan), shares(plan), strict=True)
        ],
        "plan": plan,
        "plan_hash": plan.content_hash,
        "memory": {str(worker): {**asdict(use), "total": use.total} for worker, use in report.memory.items()},
        "profile": report.profile,
    }
    if with_programs:
        told["programs"] = {str(worker): program(plan, worker) for worker in plan.workers}
    return msgspec.json.format(msgspec.json.encode(told), indent=1).decode()


def _template(template: Template) -> dict[str, object]:
    return {
        "num_nodes": template.num_nodes,
        "stages": template.stages,
        "step_time_s": template.step_time_s,
        "objective_s": template.objective_s,
        "lower_bound_s": template.lower_bound_s or None,
        "gap": template.gap if template.lower_bound_s else None,
    }


def _nodes(plan: Plan) -> list[list[int]]:
    """Returns each pipeline's nodes."""
    return [sorted({plan.node_of(worker) for worker in pipeline.workers}) for pipeline in plan.pipelines]


def write_svg(report: PlanReport, path: Path) -> None:
    """Writes the picture of the schedule.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        path.write_text(svg(report.timeline, report.plan), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--svg {path} cannot be written: {error.strerror}. Give a writable file.") from None


def _headline(subject: PlannedModel, report: PlanReport) -> Text:
    parameters = sum(group.size_bytes for group in report.profile.groups)
    settings = report.settings
    devices = settings.devices_per_node
    return Text.assemble(
        (subject.title, "bold"),
        f": {subject.model}, {counted(report.profile.num_layers, 'layer')}, {size(parameters)} of parameters\n",
        f"a step: {subject.batch}, on {counted(settings.num_nodes, 'node')}"
        f"{f' of {devices} devices' if devices > 1 else ''}, fault_tolerance = {settings.fault_tolerance}",
    )


def _expectation(report: PlanReport) -> Text:
    """The step time, and how much shorter it could be at most; where workers share cores, also what it would be if they
    did not."""
    bound = f"this plan needs at least {duration(report.lower_bound_s)}" if report.lower_bound_s > 0 else ""
    cores = report.settings.num_cores
    if cores is None:
        told = Text.assemble("expected step time  ", (duration(report.step_time_s), "bold"))
        return told.append(f" ({bound})" if bound else "")
    told = Text(f"{len(report.plan.workers)} workers share {cores:g} core{'' if cores == 1 else 's'}: ")
    told.append("a step is expected to take ").append(duration(report.step_time_s), "bold")
    return told.append(f"; with a core each {duration(report.timeline.step_time_s)}{f' ({bound})' if bound else ''}")


def _templates(report: PlanReport) -> Table:
    table = _table("Templates")
    table.add_column("nodes", justify="right")
    several = report.settings.devices_per_node > 1
    table.add_column(f"stages, by their layers{' (devices); | between nodes' if several else ''}", overflow="fold")
    table.add_column(counted(report.settings.shares[-1], "microbatch"), justify="right")
    table.add_column("off by at most")
    table.add_column("used by")
    users: dict[int, list[str]] = {}
    for number, nodes in enumerate(_nodes(report.plan)):
        users.setdefault(len(nodes), []).append(str(number))
    for template in report.templates:
        used = users.get(template.num_nodes, [])
        table.add_row(
            str(template.num_nodes),
            " | ".join(_node_stages(template, node, several) for node in range(template.num_nodes)),
            duration(template.step_time_s),
            f"{100 * template.gap:.1f}%" if template.lower_bound_s else "",
            f"pipeline{'s' if len(used) > 1 else ''} {', '.join(used)}" if used else "",
            style="" if used else "dim",
        )
    return table


def _node_stages(template: Template, node: int, several: bool) -> str:
    return ", ".join(
        layer_range(stage.first_layer, stage.end_layer) + (f"({stage.num_devices})" if several else "")
        for stage in template.stages_of(node)
    )


def _pipelines(report: PlanReport) -> Table:
    plan = report.plan
    names = _short_names(report.profile)
    several = plan.devices_per_node > 1
    table = _table("Pipelines")
    table.add_column("pipeline", justify="right")
    table.add_column("microbatches", justify="right")
    table.add_column("node.device" if several else "node", justify="right")
    table.add_column("layers")
    table.add_column("memory" if not several else "memory each", justify="right")
    table.add_column("", overflow="fold", style="dim")
    for number, (pipeline, share) in enumerate(zip(plan.pipelines, shares(plan), strict=True)):
        for place, stage in enumerate(pipeline.stages):
            first = (str(number), str(share)) if place == 0 else ("", "")
            table.add_row(
                *first,
                f"{plan.node_of(stage.worker)}{_devices(plan, stage) if several else ''}",
                layer_range(stage.first_layer, stage.end_layer),
                size(report.memory[stage.worker].total),
                _few(names[stage.first_layer : stage.end_layer]),
            )
    return table


def _devices(plan: Plan, stage: Stage) -> str:
    first = stage.worker % plan.devices_per_node
    return f".{first}" if stage.num_devices == 1 else f".{first}-{first + stage.num_devices - 1}"


def _short_names(profile: ModelProfile) -> list[str]:
    """Returns the layers' names, without a first part that most share (as "transformer." in "transformer.h.0")."""
    names = [layer.name for layer in profile.layers]
    prefix, count = Counter(name.partition(".")[0] for name in names).most_common(1)[0]
    short = [name.removeprefix(f"{prefix}.") for name in names]
    return names if 2 * count <= len(names) or any(name.isdigit() for name in short) else short


def _few(names: list[str]) -> str:
    """Returns names in a list; a long one by its ends."""
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} ... {names[-1]}"


def _candidates(candidates: Sequence[CandidateRecord]) -> Table:
    """Returns a table of what a decision weighed, the best first."""
    table = _table("Candidates")
    table.add_column("", overflow="fold")
    for heading in ("a step", "transition", "moves", "memory", "risk", "samples/s"):
        table.add_column(heading, justify="right")
    for at, candidate in enumerate(candidates):
        table.add_row(
            f"{candidate.name}{' (degraded)' if candidate.is_degraded else ''}",
            duration(candidate.step_time_s),
            duration(candidate.transition_s),
            size(candidate.transfer_bytes) if candidate.transfer_bytes else "",
            size(candidate.memory_bytes),
            duration(candidate.risk_s) if candidate.risk_s else "",
            f"{candidate.samples_per_s:.4g}",
            style="dim" if at else "",
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
