"""`planaria plan` and `planaria profile`: what a job would do, without training. Reads arguments only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planaria.job.registry import PolicyName
from planaria.plan.schedule_kind import ScheduleKind
from planaria.plan.thresholds import MEAN_TIME_BETWEEN_FAILURES_S
from planaria.ui.cli.options import FILE, JOB_FILE, set_option

if TYPE_CHECKING:
    from planaria.plan.costs.model_profile import ModelProfile

_SCHEDULES = [kind.value for kind in ScheduleKind]
_OBJECTIVES = ("steptime", "oobleck")
_POLICIES = [name.value for name in PolicyName]


_DEVICE_ALONE = re.compile(r"[0-9]{1,9}:[0-9]{1,9}")


def _lost(context: click.Context, option: click.Parameter, given: Sequence[str]) -> tuple[tuple[int | str, ...], ...]:
    """Returns the numbers of each text such as "1,5", and devices alone, such as "2:1", as they are."""
    try:
        return tuple(tuple(_one_lost(one.strip()) for one in text.split(",")) for text in given)
    except ValueError:
        raise click.BadParameter(
            "give numbers of nodes, such as 1 or 1,5, or a device of a node, such as 2:1."
        ) from None


def _one_lost(text: str) -> int | str:
    return text if _DEVICE_ALONE.fullmatch(text) else int(text)


@click.command()
@click.argument("job", type=JOB_FILE, required=False)
@set_option
@click.option("--json", "as_json", is_flag=True, help="Everything but the workers' programs, as JSON.")
@click.option("--programs", is_flag=True, help="With --json: every worker's program too.")
@click.option(
    "--svg", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a picture of the schedule."
)
@click.option("--templates", "only_templates", is_flag=True, help="Only the templates.")
@click.option(
    "--profile", "profile_file", type=JOB_FILE, metavar="FILE",
    help="Plan from this profile: of `planaria profile`, or the profile.json of a run folder.",
)  # fmt: skip
@click.option(
    "--device", metavar="NAME",
    help="Compute JOB's costs for this device of `planaria profile --list`, and measure nothing.  "
    "[default where JOB is for GPUs and this machine has none: a100]",
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
@click.option(
    "--objective", type=click.Choice(_OBJECTIVES), default="steptime", show_default=True,
    help="Without JOB: what plans are made for; oobleck: templates, sets of them and shares as in its paper.",
)  # fmt: skip
@click.option("--powers-of-two", is_flag=True, help="Stages have 1, 2, 4, ... devices only.")
@click.option("--no-overlap", is_flag=True, help="A message occupies its sender.")
@click.option("--shadows", is_flag=True, help="Every worker has room for a shadow of its successor's state.")
@click.option("--thorough", is_flag=True, help="Search templates for seconds, not tenths of one.")
@click.option(
    "--policy", type=click.Choice(_POLICIES),
    help="Without JOB: how the plan is made, and those after losses.  [default: adaptive; with --objective oobleck: "
    "templates]",
)  # fmt: skip
@click.option(
    "--mean-time-between-failures-s", type=click.FloatRange(min=0, min_open=True), show_default=True,
    default=MEAN_TIME_BETWEEN_FAILURES_S,
    help="Without JOB: seconds between losses of nodes, which the policy adaptive expects.",
)  # fmt: skip
@click.option(
    "--lose", "losses", multiple=True, metavar="NODES", callback=_lost,
    help="Show the plan after the loss of these nodes (1 or 1,5: at once), or of a device alone (2:1: device 1 of node "
    "2); may be repeated.",
)  # fmt: skip
def plan(
    job: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
    programs: bool,
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
    if wanted["device"] is not None and (measure or job is None):
        raise click.UsageError("--device goes with JOB, and without --measure.")
    if measure and profile_file is not None:
        raise click.UsageError("--measure and --profile exclude each other. Drop one of them.")
    if programs and not as_json:
        raise click.UsageError("--programs goes with --json.")
    from planaria.ui.cli.planning import costs_source, plan_view

    if job is None:
        subject, report = costs_source.from_profile(profile_file, costs_source.PlanOptions(**wanted))
    else:
        subject, report = costs_source.from_job(
            job, overrides, profile_file, costs_source.PlanOptions(**wanted), measure=measure
        )
    if svg is not None:
        plan_view.write_svg(report, svg)
    if as_json:
        click.echo(plan_view.as_json(report, with_programs=programs))
    else:
        plan_view.show(subject, report, only_templates=only_templates)
        if svg is not None:
            click.echo(f"\npicture: {svg}")
    return 0


@click.command()
@click.argument("job", type=JOB_FILE, required=False)
@set_option
@click.option(
    "-o", "--output", type=FILE, metavar="FILE", help="Write the profile as JSON; see docs/reference/profile-format.md."
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
    help="What messages between the preset's nodes reach, in Gbit/s: 100 are 12.5 GB/s.  [default: 80]",
)  # fmt: skip
@click.option(
    "--numerics", type=click.Choice(["exact", "fast", "mixed"]),
    help="What the preset's workers hold and send: 24, 20 or, as published systems have it, 16 bytes a parameter."
    "  [default: exact]",
)  # fmt: skip
@click.option(
    "--profile", "profile_file", type=JOB_FILE, metavar="FILE", help="Read this profile instead of measuring."
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
    numerics: str | None,
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
    from planaria.ui.cli.planning import profile_view

    if only_list:
        profile_view.show_presets()
        return 0
    of_presets = (microbatch, sequence_length, devices_per_node, network_gbit, numerics)
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
                numerics=numerics or "exact",
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
    of_presets: tuple[float | str | None, ...],
) -> None:
    """Checks that a profile has one source, and that source no other's options."""
    if sum(source is not None for source in (job, preset, profile_file)) != 1:
        raise click.UsageError("Give one of JOB, --preset NAME and --profile FILE, or --list.")
    if (preset is None) != (device is None):
        raise click.UsageError("--preset and --device go together; --list shows what there is.")
    if preset is None and any(option is not None for option in of_presets):
        raise click.UsageError(
            "--microbatch, --sequence-length, --devices-per-node, --network-gbit and --numerics go with --preset. "
            "A job says these things itself."
        )
    if job is None and overrides:
        raise click.UsageError("--set goes with JOB.")


def _measured(job: Path, overrides: tuple[str, ...]) -> ModelProfile:
    from planaria import api
    from planaria.ui.cli.planning import profile_view
    from planaria.ui.cli.planning.costs_source import busy

    parsed = api.load_job(job, overrides)
    with busy(f"measuring the layers of {parsed.model.type} ..."):
        return profile_view.measured(parsed, job.resolve().parent)
