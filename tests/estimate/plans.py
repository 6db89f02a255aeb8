"""Random plans with profiles for them: pipelines of any cut, detours, multi-device stages, all schedules.

Times are multiples of 2^-10 s and sizes of powers of two, so that sums of them are exact in any order, and what
happens at one time in one simulation happens at one time in another.
"""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import strategies as st

from planaria.estimate.conditions import Conditions
from planaria.plan.costs.model_profile import (
    DeviceKind,
    LayerCost,
    LayerTimes,
    LinkCost,
    Links,
    ModelProfile,
    StepCosts,
)
from planaria.plan.costs.network import Network
from planaria.plan.plan import Group, NodeId, Pipeline, Plan, Redundancy, Route, ScheduleKind, Stage, WorkerId
from tests.plan.shadowed import ring_plan

_TICK_S = 2.0**-10
_DEVICES = (1, 2, 4)
SLOTS = 4
"""Devices from one worker to the next, so that any stage has room."""


@st.composite
def profiles(draw: st.DrawFn, num_layers: int, *, exact: bool = True) -> ModelProfile:
    """`exact`: of dyadic times; else of any."""

    def time_s(low: int, high: int) -> float:
        if exact:
            return draw(st.integers(low, high)) * _TICK_S
        return draw(st.floats(low * 1e-3, high * 1e-3))

    layers = []
    tied = (0, num_layers - 1) if num_layers > 1 and draw(st.booleans()) else ()
    counted = draw(st.integers(0, 2))
    own = [draw(st.integers(0, 3)) * 1024 for _ in range(num_layers)]
    for number in range(num_layers):
        parameter_bytes = own[number] + (4096 if number in tied else 0)
        layers.append(
            LayerCost(
                name=f"layer.{number}",
                times=tuple(
                    LayerTimes(
                        num_devices=devices,
                        forward_s=time_s(1, 20),
                        backward_input_s=time_s(0, 20),
                        backward_weight_s=time_s(0, 20),
                    )
                    for devices in _DEVICES
                ),
                parameter_bytes=parameter_bytes,
                gradient_bytes=(1 + counted) * parameter_bytes,
                optimizer_bytes=2 * parameter_bytes,
                activation_bytes=1,
                recompute_activation_bytes=1,
                output_bytes=draw(st.integers(0, 4)) * 256,
            )
        )
    groups = [Group(layers=(n,), size_bytes=size_bytes) for n, size_bytes in enumerate(own)]
    if tied:
        groups.append(Group(layers=tied, size_bytes=4096))
    links = [LinkCost(latency_s=time_s(0, 6), bandwidth_bytes_per_s=2.0 ** draw(st.integers(15, 20))) for _ in range(3)]
    costs = st.sampled_from([0.0, 2.0**-20, 2.0**-17])
    return ModelProfile(
        layers=tuple(layers),
        groups=tuple(groups),
        links=Links(
            within_node=links[0], between_nodes=links[1], across_zones=links[2] if draw(st.booleans()) else None
        ),
        device=DeviceKind(name="random", is_host=draw(st.booleans())),
        step=StepCosts(vote_s=time_s(0, 3), apply_s_per_byte=draw(costs), sum_s_per_byte=draw(costs) if exact else 0.0),
    )


@st.composite
def pipelines(draw: st.DrawFn, num_layers: int, first_worker: int) -> Pipeline:
    num_stages = draw(st.integers(1, min(4, num_layers)))
    inner = draw(
        st.lists(st.integers(1, max(1, num_layers - 1)), min_size=num_stages - 1, max_size=num_stages - 1, unique=True)
    )
    cuts = [0, *sorted(inner), num_layers]
    return Pipeline(
        stages=tuple(
            Stage(
                worker=WorkerId(SLOTS * (first_worker + place)),
                first_layer=first,
                end_layer=end,
                num_devices=draw(st.sampled_from(_DEVICES)),
            )
            for place, (first, end) in enumerate(itertools.pairwise(cuts))
        )
    )


@st.composite
def detours(draw: st.DrawFn, hops: tuple[Stage, ...], stages: list[Stage]) -> tuple[Stage, ...]:
    """The same way, with some hops done, in pieces, by others that own the layers."""
    result: list[Stage] = []
    for hop in hops:
        position = hop.first_layer
        while position < hop.end_layer:
            able = [stage for stage in stages if stage.first_layer <= position < stage.end_layer]
            stage = draw(st.sampled_from(able))
            end = draw(st.integers(position + 1, min(stage.end_layer, hop.end_layer)))
            result.append(
                Stage(worker=stage.worker, first_layer=position, end_layer=end, num_devices=stage.num_devices)
            )
            position = end
    return tuple(result)


def _moved(pipeline: Pipeline, first_worker: int) -> Pipeline:
    """The same, of other workers."""
    stages = (
        msgspec.structs.replace(stage, worker=WorkerId(SLOTS * (first_worker + place)))
        for place, stage in enumerate(pipeline.stages)
    )
    return Pipeline(stages=tuple(stages))


@st.composite
def plans(draw: st.DrawFn, profile: ModelProfile, *, irregular: bool | None = None) -> Plan:
    """Pipelines, often alike, with microbatches of their own; some of a later birth that count a part; some on
    detours."""
    num_layers = profile.num_layers
    whole: list[Pipeline] = []
    alike = draw(st.booleans())
    for _ in range(draw(st.integers(1, 3))):
        first_worker = sum(len(p.stages) for p in whole)
        whole.append(_moved(whole[0], first_worker) if whole and alike else draw(pipelines(num_layers, first_worker)))
    stages = [stage for pipeline in whole for stage in pipeline.stages]
    everything = tuple(range(num_layers))
    parts = [everything, tuple(sorted(draw(st.frozensets(st.sampled_from(everything), min_size=1))))]
    routes: list[Route] = []
    given = 0
    for pipeline in whole:
        number = draw(st.integers(2, 4) if alike else st.integers(1, 10))
        which = [draw(st.integers(0, 3)) // 3 for _ in range(number)]
        for at, part in enumerate(parts):
            microbatches = tuple(given + m for m in range(number) if which[m] == at)
            if not microbatches:
                continue
            hops = pipeline.stages
            if irregular or (irregular is None and draw(st.integers(0, 3)) == 0):
                hops = draw(detours(hops, stages))
            routes.append(Route(hops=hops, microbatches=microbatches, born=1, counted=part))
            rest = tuple(layer for layer in everything if layer not in part)
            if rest:
                routes.append(Route(hops=pipeline.stages, microbatches=microbatches, born=2, counted=rest))
        given += number
    return Plan(
        generation=2,
        num_layers=num_layers,
        num_microbatches=given,
        devices_per_node=SLOTS * draw(st.sampled_from([1, 2, 3])),
        groups=profile.groups,
        pipelines=tuple(whole),
        routes=tuple(routes),
        sync_epochs=(1,) * len(profile.groups),
        schedule=draw(st.sampled_from(ScheduleKind)),
    )


@st.composite
def cases(
    draw: st.DrawFn, *, exact: bool = True, irregular: bool | None = None
) -> tuple[Plan, ModelProfile, Conditions]:
    profile = draw(profiles(draw(st.integers(1, 6)), exact=exact))
    plan = draw(plans(profile, irregular=irregular))
    speeds = draw(st.dictionaries(st.sampled_from(plan.nodes), st.sampled_from([0.25, 0.5, 2.0]), max_size=2))
    conditions = Conditions(
        overlap=draw(st.booleans()),
        node_speeds={NodeId(node): speed for node, speed in speeds.items()},
        num_cores=draw(st.sampled_from([None, None, 1, 2, 4])),
        network=draw(networks(plan, profile)),
    )
    return plan, profile, conditions


@st.composite
def networks(draw: st.DrawFn, plan: Plan, profile: ModelProfile) -> Network | None:
    """Two zones, a host for some nodes together, a pair that is far off; or links that are alike."""
    if draw(st.booleans()):
        return None
    zones = {node: draw(st.sampled_from(["a", "b"])) for node in plan.nodes if draw(st.booleans())}
    hosts = {node: draw(st.sampled_from(["x", "y", "z"])) for node in plan.nodes} if draw(st.booleans()) else {}
    slow = LinkCost(latency_s=4 * _TICK_S, bandwidth_bytes_per_s=2.0**13)
    network = Network(zones=zones, hosts=hosts, pairs={("x", "y"): slow} if hosts and draw(st.booleans()) else {})
    return None if network.is_even(profile.links) else network


@st.composite
def rings(draw: st.DrawFn) -> tuple[Plan, ModelProfile, Conditions]:
    """Pipelines whose workers shadow each other, or nobody; of all schedules; each with microbatches of one kind, as
    many as it likes."""
    depth = draw(st.integers(1, 5))
    layers = draw(st.integers(depth, 8))
    number = draw(st.integers(1, 3))
    profile = draw(profiles(layers, exact=False))
    shares = [draw(st.integers(1, 12)) for _ in range(number)]
    plan = ring_plan(
        draw(st.sampled_from([None, *Redundancy])),
        pipelines=number,
        depth=depth,
        layers=layers,
        microbatches=number,
        schedule=draw(st.sampled_from(ScheduleKind)),
    )
    counted = tuple(range(layers))
    if draw(st.booleans()):
        counted = tuple(sorted(draw(st.frozensets(st.sampled_from(counted), min_size=1))))
    routes = tuple(
        Route(
            hops=route.hops,
            microbatches=tuple(range(sum(shares[:at]), sum(shares[: at + 1]))),
            born=1,
            counted=counted,
        )
        for at, route in enumerate(plan.routes)
    )
    plan = msgspec.structs.replace(
        plan,
        groups=profile.groups,
        sync_epochs=(1,) * len(profile.groups),
        num_microbatches=sum(shares),
        routes=routes,
    )
    speeds = draw(st.dictionaries(st.sampled_from(plan.nodes), st.sampled_from([0.25, 0.7, 2.0]), max_size=2))
    late = draw(st.dictionaries(st.sampled_from(plan.workers), st.floats(0.0, 0.1), max_size=2))
    return plan, profile, Conditions(overlap=draw(st.booleans()), node_speeds=speeds, late_s=late)
