"""The files of a scenario: it is read, its model's costs are found, and its traces. Nothing is simulated here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from planaria.job.errors import UserError
from planaria.job.parse import text_of
from planaria.plan.costs.model_profile import ModelProfile, device_counts
from planaria.plan.costs.profile_check import decode_profile
from planaria.plan.plan import PlanError
from planaria.profile.presets.presets import DEFAULT_NETWORK_GBIT_S, preset
from planaria.simulate.failures_part import part_of
from planaria.simulate.scenario import Scenario, check_devices_of, check_zones_of, made_up, parse_scenario, with_devices
from planaria.simulate.traces.formats import ReadTrace, read_trace
from planaria.simulate.traces.trace import Trace


def load_scenario(path: Path, overrides: Sequence[str] = ()) -> Scenario:
    """Reads a scenario file.

    Raises:
        UserError: it cannot be read, or is not a valid scenario.
    """
    return parse_scenario(text_of(path, "scenario"), overrides=overrides, origin=str(path))


def profile_of(scenario: Scenario, folder: Path) -> ModelProfile:
    """Returns the costs of the scenario's model.

    Args:
        scenario: the scenario.
        folder: from which a profile's path leads.

    Raises:
        UserError: there is no such preset, or no such profile.
    """
    model, cluster = scenario.model, scenario.cluster
    if model.preset:
        return preset(
            model.preset,
            model.device,
            microbatch_size=model.microbatch,
            sequence_length=model.sequence_length,
            device_counts=device_counts(cluster.devices_per_node),
            network_gbit_s=cluster.network_gbit or DEFAULT_NETWORK_GBIT_S,
            numerics=model.numerics,
        )
    path = folder / model.profile
    try:
        return decode_profile(path.read_bytes())
    except OSError as error:
        raise UserError(
            f"model.profile = {model.profile!r} cannot be read: {error.strerror}. "
            "Give a path from the scenario's folder."
        ) from None
    except PlanError as error:
        raise UserError(f"model.profile = {model.profile!r}: {error}") from None


def traces_of(scenario: Scenario, folder: Path, told: Callable[[str], None] = lambda text: None) -> list[Trace]:
    """Returns the scenario's traces, one for each of its seeds.

    Args:
        scenario: the scenario.
        folder: from which a trace's path leads.
        told: called with what was repaired in a trace file, one sentence each.

    Raises:
        UserError: a trace cannot be read or used.
    """
    failures = scenario.failures
    seeds = range(failures.seed, failures.seed + failures.runs)
    if not failures.trace:
        return [made_up(scenario, seed) for seed in seeds]
    path = folder / failures.trace
    text = text_of(path, "failures.trace:")
    read: list[ReadTrace] = [read_trace(text, path.name, seed=seed) for seed in seeds]
    for repair in read[0].repairs:
        told(f"{path.name}, {repair}")
    check_zones_of(scenario, read[0].trace)
    check_devices_of(scenario, read[0].trace)
    if failures.runs > 1 and read[0].trace == read[1].trace and not failures.device_hourly:
        told(
            f"failures.runs = {failures.runs}: {path.name} says which nodes go; all runs are the same, and one would do"
        )
    return [with_devices(scenario, part_of(one.trace, failures), seed) for one, seed in zip(read, seeds, strict=True)]
