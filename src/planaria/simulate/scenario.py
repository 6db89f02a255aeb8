"""The scenario file: what `planaria simulate` is asked. Every field is documented here and checked; nothing is read.

Reading, and what errors look like, is as for job files (`planaria.job.parse`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from planaria.job.errors import UserError
from planaria.job.parse import read_toml, sections
from planaria.job.registry import PolicyName
from planaria.job.sections.cluster import StageDevices
from planaria.job.sections.section import Section
from planaria.plan.costs.model_profile import LinkCost, Links, ModelProfile
from planaria.plan.plan import PlanError, Redundancy, ScheduleKind
from planaria.plan.settings import PlannerSettings
from planaria.planner.instantiation.microbatch_shares import microbatches_of
from planaria.simulate.baselines import REFERENCES
from planaria.simulate.experiment import Experiment
from planaria.simulate.failures_part import DEFAULT_HOURS, OF_RATES, FailuresPart, check_failures, process_of, require
from planaria.simulate.results import Prices
from planaria.simulate.timings import Timings
from planaria.simulate.traces.generators import ConstantRate, Population, generate
from planaria.simulate.traces.lone_devices import with_lone_devices
from planaria.simulate.traces.trace import HOUR_S, Trace


class ModelPart(Section, frozen=True):
    """[model]

    Attributes:
        preset: a published model, by an analytic model of its costs; `planaria profile --list` names them.
        device: the published device that the preset is on; `planaria profile --list` names them too.
        profile: a profile's file instead of a preset: of `planaria profile`, or the profile.json of a run folder.
        microbatch: samples in the preset's microbatch; 0: its default.
        sequence_length: tokens in the preset's samples; 0: its default.
        recompute: backwards recompute the forward (activation checkpointing).
        numerics: of the preset: what a worker holds and sends with exact or fast numerics; or mixed, of published
            systems of 16 bytes a parameter and gradients of 2, which Planaria has not.
    """

    preset: str = ""
    device: str = ""
    profile: str = ""
    microbatch: int = 0
    sequence_length: int = 0
    recompute: bool = False
    numerics: str = "exact"


class ClusterPart(Section, frozen=True):
    """[cluster]

    Attributes:
        nodes: that the job begins with, and for which it is planned.
        devices_per_node: workers on each node.
        devices_per_stage: of a node that each stage is on, as in a job: a divisor of devices_per_node, or auto.
        memory_gb: of one device, in GB of 10**9 bytes; 0: the profile's.
        schedule: order of forwards and backwards in a pipeline.
        zones: names of the zones in which nodes are; they are dealt out in turn.
        network_gbit: that messages between nodes reach, in Gbit/s (10**9 bits), one direction; 0: the profile's.
        network_latency_s: of a message between nodes; below 0: the profile's.
    """

    nodes: int
    devices_per_node: int = 1
    devices_per_stage: int | StageDevices = 1
    memory_gb: float = 0.0
    schedule: ScheduleKind = ScheduleKind.EAGER_ONE_F_ONE_B
    zones: list[str] = msgspec.field(default_factory=list)
    network_gbit: float = 0.0
    network_latency_s: float = -1.0


class JobPart(Section, frozen=True):
    """[job]

    Attributes:
        global_batch: samples in one step.
        policies: to be compared: the project's, and the references on-demand, ideal and oracle.
        fault_tolerance: f; plans keep f + 1 replicas.
        min_nodes_per_pipeline: n0; 0: the fewest that the memory allows.
        nodes_per_pipeline: P, the nodes of every pipeline, as in a job; 0: whatever is best.
        num_pipelines: D; 0: as many as the nodes make.
        redundancy: what workers compute of their successors' layers under the policy redundancy, and in rings of the
            policy adaptive: eager-lazy, lazy-lazy or eager-eager.
        samples: after which the job is complete; 0: it trains for as long as its failures are told of.
        checkpoint_every: steps between checkpoints; 0: none but the state that it begins with.
        mean_time_between_failures_s: between losses, over the whole job, as expected before any is seen.
    """

    global_batch: int
    policies: list[str] = msgspec.field(default_factory=lambda: ["adaptive"])
    fault_tolerance: int = 1
    min_nodes_per_pipeline: int = 0
    nodes_per_pipeline: int = 0
    num_pipelines: int = 0
    redundancy: Redundancy = Redundancy.EAGER_LAZY
    samples: float = 0.0
    checkpoint_every: int = 100
    mean_time_between_failures_s: float = 10_800.0


class SweepPart(Section, frozen=True):
    """[sweep]: every combination is simulated by `planaria simulate --sweep`. A field that is left out stays as it is.

    Attributes:
        policies: one after the other.
        nodes: numbers of nodes of the cluster.
        fault_tolerance: f: how many nodes may be lost at once.
        hourly: shares of the nodes that go in an hour.
        mean_bulk: nodes that go together.
    """

    policies: list[str] = msgspec.field(default_factory=list)
    nodes: list[int] = msgspec.field(default_factory=list)
    fault_tolerance: list[int] = msgspec.field(default_factory=list)
    hourly: list[float] = msgspec.field(default_factory=list)
    mean_bulk: list[float] = msgspec.field(default_factory=list)


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole scenario file."""

    model: ModelPart
    cluster: ClusterPart
    job: JobPart
    failures: FailuresPart = FailuresPart()
    prices: Prices = Prices()
    timings: Timings = Timings()
    sweep: SweepPart = SweepPart()


def parse_scenario(text: str, *, overrides: Sequence[str] = (), origin: str) -> Scenario:
    """Parses and checks a scenario.

    Args:
        text: TOML.
        overrides: "section.key=value" each.
        origin: what errors call the text, for instance its path.

    Raises:
        UserError: one line with field, value and remedy.
    """
    table = read_toml(text, overrides, origin)
    try:
        return scenario_from_table(table)
    except UserError as error:
        raise UserError(f"{origin}: {error}") from None


def scenario_from_table(table: Mapping[str, Any]) -> Scenario:
    """Returns a checked scenario from plain dicts. Raises UserError."""
    scenario = Scenario(**sections(table, Scenario))
    _check(scenario)
    return scenario


def _check(scenario: Scenario) -> None:
    model, cluster, job, failures = scenario.model, scenario.cluster, scenario.job, scenario.failures
    if bool(model.preset) == bool(model.profile):
        given = "both are" if model.preset else "neither is"
        raise UserError(f"model.preset and model.profile: {given} given. Give one of them.")
    if model.preset and not model.device:
        raise UserError("model.device is missing. Name the preset's device; planaria profile --list has them.")
    require("model.microbatch", model.microbatch, model.microbatch >= 0, "0 or more samples")
    require("cluster.nodes", cluster.nodes, cluster.nodes >= 1, "at least 1")
    require("cluster.devices_per_node", cluster.devices_per_node, cluster.devices_per_node >= 1, "at least 1")
    _check_stages(cluster)
    require("cluster.memory_gb", cluster.memory_gb, cluster.memory_gb >= 0, "0 or more GB")
    require("cluster.zones", cluster.zones, "" not in cluster.zones, "names")
    require("cluster.zones", cluster.zones, len(set(cluster.zones)) == len(cluster.zones), "different names")
    require("cluster.network_gbit", cluster.network_gbit, cluster.network_gbit >= 0, "0 or more Gbit/s")
    require("model.sequence_length", model.sequence_length, model.sequence_length >= 0, "0 or more tokens")
    require("job.global_batch", job.global_batch, job.global_batch >= 1, "at least 1 sample")
    require("job.fault_tolerance", job.fault_tolerance, job.fault_tolerance >= 0, "0 or more")
    require("job.samples", job.samples, job.samples >= 0, "0 or more")
    require("job.checkpoint_every", job.checkpoint_every, job.checkpoint_every >= 0, "0 or more steps")
    expected_s = job.mean_time_between_failures_s
    require("job.mean_time_between_failures_s", expected_s, expected_s > 0, "more than 0 s")
    require("job.min_nodes_per_pipeline", job.min_nodes_per_pipeline, job.min_nodes_per_pipeline >= 0, "0 or more")
    _check_shape(job, cluster.nodes)
    check_policies("job.policies", job.policies)
    check_failures(failures)
    if not failures.trace:
        _check_priced(scenario, cluster.zones, "zones of cluster.zones")
    for zone, price in scenario.prices.zones.items():
        require(f"prices.zones.{zone}", price, price >= 0, "0 or more dollars an hour")
    for name, price in (("spot", scenario.prices.spot), ("on_demand", scenario.prices.on_demand)):
        require(f"prices.{name}", price, price >= 0, "0 or more dollars an hour")
    for name in scenario.timings.__struct_fields__:
        value = getattr(scenario.timings, name)
        is_rate = name.endswith("_per_s")
        require(
            f"timings.{name}",
            value,
            value > 0 if is_rate else value >= 0,
            "a number above 0" if is_rate else "0 s or more",
        )
    _check_sweep(scenario.sweep, failures)


def _check_stages(cluster: ClusterPart) -> None:
    devices, per_node = cluster.devices_per_stage, cluster.devices_per_node
    if not isinstance(devices, StageDevices):
        divides = devices >= 1 and not per_node % devices
        require("cluster.devices_per_stage", devices, divides, f'a divisor of devices_per_node = {per_node}, or "auto"')


def _check_shape(job: JobPart, nodes: int) -> None:
    depth, number = job.nodes_per_pipeline, job.num_pipelines
    require("job.nodes_per_pipeline", depth, depth >= 0, "0 or more")
    require("job.num_pipelines", number, number >= 0, "0 or more")
    require("job.num_pipelines", number, bool(depth) or not number, "0 where nodes_per_pipeline is 0")
    require("job.nodes_per_pipeline", depth, depth <= nodes, f"at most cluster.nodes = {nodes}")
    require(
        "job.num_pipelines", number, number * depth <= nodes,
        f"at most {nodes // max(1, depth)}: cluster.nodes = {nodes} make no more of {depth}",
    )  # fmt: skip


def check_policies(field: str, names: Sequence[str]) -> None:
    """Raises UserError: one is unknown or named twice, or there is none."""
    known = [*(policy.value for policy in PolicyName), *REFERENCES]
    require(field, list(names), bool(names), "at least one policy")
    for name in names:
        require(field, name, name in known, f"policies among {', '.join(known)}")
    _require_different(field, names)


def _require_different(field: str, values: Sequence[object]) -> None:
    """Runs of what is named twice would be counted as other seeds'."""
    for at, value in enumerate(values):
        require(field, value, value not in values[:at], "each only once")


def check_zones_of(scenario: Scenario, trace: Trace) -> None:
    """Raises UserError: a price is for a zone in which the trace has no node."""
    zones = sorted({event.zone for event in trace.events if event.zone})
    _check_priced(scenario, zones, f"zones of trace {trace.name}")


def _check_priced(scenario: Scenario, zones: Sequence[str], whose: str) -> None:
    for zone in scenario.prices.zones:
        require("prices.zones", zone, zone in zones, f"{whose} ({', '.join(zones) or 'it has none'})")


def _check_sweep(sweep: SweepPart, failures: FailuresPart) -> None:
    if sweep.policies:
        check_policies("sweep.policies", sweep.policies)
    for field in ("nodes", "fault_tolerance", "hourly", "mean_bulk"):
        _require_different(f"sweep.{field}", getattr(sweep, field))
    for field in ("hourly", "mean_bulk"):
        if getattr(sweep, field) and (failures.trace or failures.kind not in OF_RATES):
            what = f"trace = {failures.trace!r}" if failures.trace else f"kind = {failures.kind.value!r}"
            raise UserError(
                f"sweep.{field} = {getattr(sweep, field)!r}: failures.{what} does not depend on it. Leave it out, or "
                'set failures.kind = "constant".'
            )


def check_devices_of(scenario: Scenario, trace: Trace) -> None:
    """Raises UserError: the trace loses a device that nodes have not, or losses are to be made up beside its own."""
    most = max((event.device for event in trace.device_events), default=0)
    per_node = scenario.cluster.devices_per_node
    if most >= per_node:
        raise UserError(
            f"cluster.devices_per_node = {per_node}: trace {trace.name} has a device {most} of a node. Set {most + 1} "
            "or more."
        )
    if trace.device_events and scenario.failures.device_hourly:
        raise UserError(
            f"failures.device_hourly = {scenario.failures.device_hourly:g}: trace {trace.name} has losses of devices "
            "of its own. Leave it out."
        )


def with_devices(scenario: Scenario, trace: Trace, seed: int) -> Trace:
    """Returns a trace of a seed with the losses of devices that the scenario makes up, if any."""
    failures = scenario.failures
    if not failures.device_hourly:
        return trace
    return_s = failures.device_return_s if failures.device_return_s >= 0 else None
    return with_lone_devices(trace, scenario.cluster.devices_per_node, failures.device_hourly, return_s, seed=seed)


def made_up(scenario: Scenario, seed: int) -> Trace:
    """Returns the trace of a seed, where the scenario names no file."""
    failures, cluster = scenario.failures, scenario.cluster
    assert not failures.trace
    process = process_of(failures)
    trace = generate(
        ConstantRate(hourly=0.0) if process is None else process,
        Population(
            nodes=cluster.nodes,
            zones=tuple(cluster.zones) or ("",),
            arrival_s=failures.arrival_s if failures.arrival_s >= 0 else None,
            notice_s=failures.notice_s,
        ),
        (failures.hours or DEFAULT_HOURS) * HOUR_S,
        seed=seed,
        name=f"{failures.kind.value}, seed {seed}",
    )
    return with_devices(scenario, trace, seed)


def experiment(scenario: Scenario, profile: ModelProfile, *, wants_timeline: bool = False) -> Experiment:
    """Returns what the scenario is about, with its model's costs.

    Raises:
        UserError: the batch is no whole number of microbatches.
    """
    cluster, job = scenario.cluster, scenario.job
    profile = profile.contended(cluster.devices_per_node)
    profile = profile.recomputed() if scenario.model.recompute else profile
    profile = msgspec.structs.replace(profile, links=_links(cluster, profile.links))
    try:
        num_microbatches = microbatches_of(job.global_batch, profile.microbatch_size, job.fault_tolerance + 1)
    except PlanError as error:
        raise UserError(f"job.global_batch = {job.global_batch}: {error}") from None
    depth = job.nodes_per_pipeline
    settings = PlannerSettings(
        num_microbatches=num_microbatches,
        fault_tolerance=job.fault_tolerance,
        num_nodes=cluster.nodes,
        devices_per_node=cluster.devices_per_node,
        devices_per_stage=0 if isinstance(cluster.devices_per_stage, StageDevices) else cluster.devices_per_stage,
        memory_bytes=int(cluster.memory_gb * 1e9) if cluster.memory_gb else profile.device.memory_bytes,
        min_nodes=job.min_nodes_per_pipeline,
        shape=(job.num_pipelines or cluster.nodes // depth, depth) if depth else None,
        schedule=cluster.schedule,
        redundancy=job.redundancy,
        may_restore=job.checkpoint_every > 0,
    )
    return Experiment(
        profile=profile,
        settings=settings,
        samples=job.samples or None,
        checkpoint_every=job.checkpoint_every,
        mean_time_between_failures_s=job.mean_time_between_failures_s,
        prices=scenario.prices,
        timings=scenario.timings,
        wants_timeline=wants_timeline,
    )


def _links(cluster: ClusterPart, links: Links) -> Links:
    between = links.between_nodes
    if cluster.network_gbit:
        between = LinkCost(latency_s=between.latency_s, bandwidth_bytes_per_s=cluster.network_gbit * 1e9 / 8)
    if cluster.network_latency_s >= 0 and math.isfinite(cluster.network_latency_s):
        between = LinkCost(latency_s=cluster.network_latency_s, bandwidth_bytes_per_s=between.bandwidth_bytes_per_s)
    return msgspec.structs.replace(links, between_nodes=between)
