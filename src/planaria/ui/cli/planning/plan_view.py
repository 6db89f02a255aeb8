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
from planaria.plan.quantities import count, size
from planaria.planner.reroute.plans import shares
from planaria.planner.stage_devices import by_stage
from planaria.policy.sentences import join
from planaria.runtime.run_folder.sentences import duration, layer_range
from planaria.runtime.run_folder.tables import candidate_table, listed, plan_table
from planaria.ui.plots.cells import CellKind
from planaria.ui.plots.schedule_picture import svg, terminal

if TYPE_CHECKING:
    from planaria.api import PlanReport
    from planaria.estimate.evaluation_time import EvaluationShare
    from planaria.job.settings import Job
    from planaria.plan.costs.model_profile import ModelProfile
    from planaria.plan.costs.pipeline_time import Template
    from planaria.plan.plan import Plan, Stage
    from planaria.plan.settings import PlannerSettings
    from planaria.runtime.launch.plan_report import AuditReport

_WIDTH_WITHOUT_TERMINAL = 100
_SEVERAL_DEVICES = (
    "Training cannot run this plan, but on emulated devices: elsewhere the devices of a stage take microbatches in "
    "turn (cluster.devices_per_stage). Make the profile without --devices-per-node."
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
        model: the kind of model.
        batch: what a step is made of.
        costs: where the layers' costs come from.
    """

    title: str
    model: str
    batch: str
    costs: str


def subject_of(job: Job, costs: str) -> PlannedModel:
    """Returns the subject of a job's plan."""
    train = job.train
    length = f" x {train.sequence_length} tokens" if train.sequence_length else ""
    return PlannedModel(
        title=job.run.name or job.model.type,
        model=job.model.type,
        batch=f"{count(train.num_microbatches, 'microbatch')} of {train.microbatch}{length or ' samples'}",
        costs=costs,
    )


def subject_of_profile(profile: ModelProfile, settings: PlannerSettings, costs: str) -> PlannedModel:
    """Returns the subject of a profile's plan, without a job."""
    microbatches = count(settings.num_microbatches, "microbatch")
    return PlannedModel(
        title=profile.name or "profile",
        model=f"on {profile.device.name}",
        batch=f"{microbatches} of {count(profile.microbatch_size, 'sample')}",
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
    console.print(Text(f"layer costs: {subject.costs}", style="dim"))
    console.print(Text(f"planned in {duration(report.planning_s)}", style="dim"))
    console.print()
    console.print(_templates(report))
    if only_templates:
        return
    console.print()
    console.print(Text("Pipelines", style="bold"))
    print("\n".join(_pipelines(report, width)))
    console.print()
    console.print(_stages(report))
    if any(stage.num_devices > 1 for stage in report.plan.stages()):
        console.print()
        console.print(Text(_SEVERAL_DEVICES, style="yellow"))
    console.print()
    console.print(_expectation(report))
    console.print(Text(report.reason, style="dim"))
    for proposal in report.after_losses:
        console.print(f"\nafter the loss: {duration(proposal.step_time_s)} a step")
        console.print(Text(proposal.reason, style="dim"))
        if proposal.candidates:
            print("\n".join(candidate_table(proposal.candidates, width)))
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
        "evaluations": _evaluations_json(report.evaluations),
        "audits": None if report.audits is None else asdict(report.audits),
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


def _evaluations_json(found: EvaluationShare | None) -> dict[str, object] | None:
    return None if found is None else {**asdict(found), "run_s": found.run_s, "share": found.share}


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
        f": {subject.model}, {count(report.profile.num_layers, 'layer')}, {size(parameters)} of parameters\n",
        f"a step: {subject.batch}, on {count(settings.num_nodes, 'node')}"
        f"{f' of {devices} devices' if devices > 1 else ''}{_per_stage(report)}, "
        f"fault_tolerance = {settings.fault_tolerance}",
    )


def _per_stage(report: PlanReport) -> str:
    devices, choices = report.plan.devices_per_stage, report.settings.stage_choices
    if devices == 1 and len(choices) == 1:
        return ""
    chosen = f" (chosen from {join(choices)})" if len(choices) > 1 else ""
    shared = "share each microbatch" if report.plan.shares_microbatches else "take microbatches in turn"
    return f", stages on {devices}{f', which {shared}' if devices > 1 else ''}{chosen}"


def _expectation(report: PlanReport) -> Text:
    """Returns the step time; what it would be if no workers shared cores, where they do; and the least possible."""
    told = Text.assemble("expected step time  ", (duration(report.step_time_s), "bold"))
    cores = report.settings.num_cores
    if cores is not None:
        told.append(f"\n{len(report.plan.workers)} workers share {cores:g} core{'' if cores == 1 else 's'}. ")
        told.append(f"With a core each a step takes {duration(report.timeline.step_time_s)}.")
    if report.evaluations is not None:
        told.append(f"\n{_evaluations(report.evaluations)}")
    if report.audits is not None:
        told.append(f"\n{_audits(report.audits)}")
    if report.lower_bound_s > 0:
        told.append(f"\nNo order of this plan's work takes less than {duration(report.lower_bound_s)}.", "dim")
    return told


def _evaluations(found: EvaluationShare) -> str:
    return (
        f"An evaluation of {count(found.microbatches, 'microbatch')} takes {duration(found.seconds)}. "
        f"{count(found.evaluations, 'evaluation')} and {count(found.steps, 'step')} take {duration(found.run_s)}, "
        f"{found.share:.1%} of it the evaluations."
    )


def _audits(found: AuditReport) -> str:
    """Describes what audits take, as expected, and what they cannot look at."""
    takes = f"Audits of {found.share:.3g} of all forwards and backwards take {duration(found.seconds)} of that."
    if not found.unaudited:
        return takes
    return f"{takes} Layers {listed(found.unaudited)} are not audited: no other node could run them again."


def _templates(report: PlanReport) -> Table:
    table = _table("Templates")
    table.add_column("nodes", justify="right")
    several = any(stage.num_devices > 1 for template in report.templates for stage in template.stages)
    between = "; | between nodes" if report.settings.devices_per_node > 1 else ""
    table.add_column(f"stages, by their layers{' (devices)' if several else ''}{between}", overflow="fold")
    table.add_column(count(report.settings.shares[-1], "microbatch"), justify="right")
    table.add_column("off by at most")
    table.add_column("used by")
    users: dict[int, list[int]] = {}
    for number, nodes in enumerate(_nodes(by_stage(report.plan))):
        users.setdefault(len(nodes), []).append(number)
    for template in report.templates:
        used = users.get(template.num_nodes, [])
        table.add_row(
            str(template.num_nodes),
            " | ".join(_node_stages(template, node, several) for node in range(template.num_nodes)),
            duration(template.step_time_s),
            f"{100 * template.gap:.1f}%" if template.lower_bound_s else "",
            f"pipeline{'s' if len(used) > 1 else ''} {listed(used)}" if used else "",
            style="" if used else "dim",
        )
    return table


def _node_stages(template: Template, node: int, several: bool) -> str:
    return ", ".join(
        layer_range(stage.first_layer, stage.end_layer) + (f"({stage.num_devices})" if several else "")
        for stage in template.stages_of(node)
    )


def _pipelines(report: PlanReport, width: int) -> list[str]:
    plan = report.plan
    return plan_table([pipeline.key for pipeline in plan.pipelines], shares(plan), plan.devices_per_node, width)


def _stages(report: PlanReport) -> Table:
    """Returns a table of what stages need; those with the same layers and devices share a row."""
    plan = report.plan
    names = _short_names(report.profile)
    several = plan.devices_per_stage > 1 or any(stage.num_devices > 1 for stage in plan.stages())
    alike: dict[tuple[int, int, int], list[Stage]] = {}
    for stage in plan.stages():
        alike.setdefault((stage.first_layer, stage.end_layer, stage.num_devices), []).append(stage)
    table = _table("Stages")
    table.add_column("layers")
    if several:
        table.add_column("devices", justify="right")
    table.add_column("workers", justify="right")
    table.add_column("memory each" if several else "memory", justify="right")
    table.add_column("", overflow="fold", style="dim")
    for (first, end, devices), held in sorted(alike.items()):
        table.add_row(
            layer_range(first, end),
            *([str(devices * plan.devices_per_stage)] if several else []),
            str(len(held)),
            _from_to(sorted(report.memory[stage.worker].total for stage in held)),
            _few(names[first:end]),
        )
    return table


def _from_to(sizes: Sequence[int]) -> str:
    least, most = size(sizes[0]), size(sizes[-1])
    return most if least == most else f"{least} to {most}"


def _short_names(profile: ModelProfile) -> list[str]:
    """Returns the layers' names, without a first part that most share (as "transformer." in "transformer.h.0")."""
    names = [layer.name for layer in profile.layers]
    prefix, count = Counter(name.partition(".")[0] for name in names).most_common(1)[0]
    short = [name.removeprefix(f"{prefix}.") for name in names]
    return names if 2 * count <= len(names) or any(name.isdigit() for name in short) else short


def _few(names: list[str]) -> str:
    """Returns names in a list; a long one by its ends."""
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
