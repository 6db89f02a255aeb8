"""Memory by what holds it, against sums made by hand."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.estimate.conditions import Conditions
from planaria.estimate.memory import MemoryUse, fullest_device_bytes, memory_use, worker_memory_bytes
from planaria.estimate.memory_walk import Walk
from planaria.plan.costs.byte_counts import held_bytes
from planaria.plan.costs.model_profile import DeviceKind, LayerCost, LayerTimes, LinkCost, Links, ModelProfile
from planaria.plan.costs.stage_costs import stage_costs
from planaria.plan.plan import Group, NodeId, Pipeline, Plan, Route, ScheduleKind, Stage, WorkerId
from planaria.plan.program.instructions import Instruction, Op, Program
from planaria.plan.program.programs import program
from planaria.plan.settings import PlannerSettings
from planaria.planner.instantiation.instantiate import initial_plan
from planaria.planner.templates.templates import make_templates
from tests.estimate.plans import cases, rings
from tests.plan.profiles import random_jobs
from tests.proof import examples

Case = tuple[Plan, ModelProfile, Conditions]

PARAMETERS, GRADIENTS, OPTIMIZER, KEPT, RECOMPUTED, OUTPUT, WORKSPACE = 100, 300, 200, 70, 10, 10, 40


def fullest_moment(profile: ModelProfile, instructions: Program) -> tuple[int, int]:
    """Bytes of activations, and of workspace, when they are largest together in a program on one device."""
    walk = Walk(profile)
    for instruction in instructions:
        walk.run(instruction)
    return walk.most


def profile_of(*, num_layers: int = 6, overhead: float = 0.0, tied: bool = False) -> ModelProfile:
    layers = []
    for number in range(num_layers):
        size = PARAMETERS + (50 if tied and number in (0, num_layers - 1) else 0)
        layers.append(
            LayerCost(
                name=f"block.{number}",
                times=(LayerTimes(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0),),
                parameter_bytes=size,
                gradient_bytes=3 * size,
                optimizer_bytes=2 * size,
                activation_bytes=KEPT,
                recompute_activation_bytes=RECOMPUTED,
                output_bytes=OUTPUT,
                workspace_bytes=WORKSPACE,
            )
        )
    groups = [Group(layers=(number,), size_bytes=PARAMETERS) for number in range(num_layers)]
    if tied:
        groups.append(Group(layers=(0, num_layers - 1), size_bytes=50))
    link = LinkCost(latency_s=0.0, bandwidth_bytes_per_s=1e9)
    return ModelProfile(
        layers=tuple(layers),
        groups=tuple(groups),
        links=Links(within_node=link, between_nodes=link),
        device=DeviceKind(name="test", process_bytes=1000, allocator_overhead=overhead),
    )


def plan_of(
    profile: ModelProfile, kind: ScheduleKind, *, microbatches: int = 8, stages: int = 3, devices: int = 1
) -> Plan:
    """One pipeline of equal stages."""
    each = profile.num_layers // stages
    hops = tuple(
        Stage(worker=WorkerId(at), first_layer=at * each, end_layer=(at + 1) * each, num_devices=devices)
        for at in range(stages)
    )
    route = Route(hops=hops, microbatches=tuple(range(microbatches)), born=1, counted=tuple(range(profile.num_layers)))
    return Plan(
        generation=1,
        num_layers=profile.num_layers,
        devices_per_node=1,
        num_microbatches=microbatches,
        groups=profile.groups,
        pipelines=(Pipeline(stages=hops),),
        routes=(route,),
        schedule=kind,
        sync_epochs=(1,) * len(profile.groups),
        transfers=(),
    )


@pytest.mark.parametrize(
    ("kind", "in_flight"),
    [
        (ScheduleKind.ONE_F_ONE_B, (3, 2, 1)),
        (ScheduleKind.EAGER_ONE_F_ONE_B, (5, 3, 1)),
        (ScheduleKind.GPIPE, (8, 8, 8)),
    ],
)
def test_every_part_is_what_the_schedule_says(kind: ScheduleKind, in_flight: tuple[int, ...]) -> None:
    """Two layers a stage; a kept forward also keeps the output that it sent, but for the loss."""
    profile = profile_of()
    plan = plan_of(profile, kind)
    for worker, flight in enumerate(in_flight):
        sent = OUTPUT if worker < 2 else 0
        assert memory_use(plan, profile, WorkerId(worker)) == MemoryUse(
            parameters=2 * PARAMETERS,
            gradients=2 * GRADIENTS,
            optimizer=2 * OPTIMIZER,
            activations=flight * (2 * KEPT + sent),
            workspace=WORKSPACE,
            messages=OUTPUT * (1 if worker in (0, 2) else 2),
            process=1000,
        )


def test_total_is_the_sum_of_the_parts() -> None:
    profile = profile_of()
    use = memory_use(plan_of(profile, ScheduleKind.GPIPE), profile, WorkerId(1))
    parts = [use.parameters, use.gradients, use.optimizer, use.activations, use.workspace, use.messages, use.process]
    assert use.total == sum(parts) == worker_memory_bytes(plan_of(profile, ScheduleKind.GPIPE), profile, WorkerId(1))
    assert use.state == 2 * (PARAMETERS + GRADIENTS + OPTIMIZER)


def test_recomputation_keeps_inputs_and_needs_the_layer_as_workspace() -> None:
    profile = profile_of().recomputed()
    use = memory_use(plan_of(profile, ScheduleKind.ONE_F_ONE_B), profile, WorkerId(0))
    assert use.activations == 3 * 2 * RECOMPUTED
    assert use.workspace == WORKSPACE + KEPT


def test_the_allocators_holes_count_where_forwards_and_backwards_alternate() -> None:
    plain, holed = profile_of(), profile_of(overhead=0.25)
    for kind, factor in ((ScheduleKind.ONE_F_ONE_B, 1.25), (ScheduleKind.GPIPE, 1.0)):
        before = memory_use(plan_of(plain, kind), plain, WorkerId(0))
        after = memory_use(plan_of(holed, kind), holed, WorkerId(0))
        assert after.activations == round(factor * before.activations)
        assert after.total - after.activations == before.total - before.activations


def test_devices_of_a_stage_share_all_but_the_process() -> None:
    profile = profile_of()
    one = memory_use(plan_of(profile, ScheduleKind.GPIPE), profile, WorkerId(1))
    two = memory_use(plan_of(profile, ScheduleKind.GPIPE, devices=2), profile, WorkerId(1))
    assert 2 * (two.total - two.process) == one.total - one.process
    assert two.process == one.process


def test_a_tied_group_counts_once_on_a_worker_with_both_its_layers() -> None:
    profile = profile_of(tied=True)
    alone = memory_use(plan_of(profile, ScheduleKind.GPIPE, stages=1), profile, WorkerId(0))
    assert alone.parameters == 6 * PARAMETERS + 50
    assert alone.optimizer == 2 * alone.parameters
    ends = [memory_use(plan_of(profile, ScheduleKind.GPIPE), profile, WorkerId(worker)) for worker in (0, 2)]
    assert [end.parameters for end in ends] == [2 * PARAMETERS + 50] * 2


def test_frozen_parameters_and_copies_of_weights_count_once_whatever_is_in_flight() -> None:
    """Of the layers that a worker runs, a shadow's too."""
    plain = profile_of()
    copying = msgspec.structs.replace(
        plain, layers=tuple(msgspec.structs.replace(layer, copy_bytes=3, frozen_bytes=4) for layer in plain.layers)
    )
    for kind in (ScheduleKind.ONE_F_ONE_B, ScheduleKind.GPIPE):
        plan = plan_of(copying, kind)
        before, after = (memory_use(plan, profile, WorkerId(0)) for profile in (plain, copying))
        assert after == dataclasses.replace(before, parameters=before.parameters + 2 * 7)
        assert fullest_device_bytes(plan, copying) == fullest_device_bytes(plan, plain) + 2 * 7
    more = stage_costs(copying).memory_bytes(1, 4, 2) - stage_costs(plain).memory_bytes(1, 4, 2)
    assert more == 3 * 7


@given(case=rings())
@settings(max_examples=examples(20), deadline=None)
def test_a_shadow_has_copies_too(case: Case) -> None:
    plan, plain, _ = case
    copying = msgspec.structs.replace(
        plain, layers=tuple(msgspec.structs.replace(layer, copy_bytes=1 << 20) for layer in plain.layers)
    )
    for worker in plan.workers:
        shadowed = {layer for stage in plan.shadows if stage.worker == worker for layer in stage.layers}
        num_copies = len(shadowed.union(plan.layers_of[worker]))
        more = memory_use(plan, copying, worker).parameters - memory_use(plan, plain, worker).parameters
        assert abs(more - (num_copies << 20) // plan.devices_of[worker]) <= 1


def step(op: Op, first: int, end: int, *, keeps: bool = True) -> Instruction:
    return Instruction(op=op, microbatch=0, born=1, first_layer=first, end_layer=end, keeps=keeps)


def test_a_split_backward_keeps_activations_and_output_gradients_until_the_weights() -> None:
    profile = profile_of()
    forward, both = step(Op.FORWARD, 0, 2), step(Op.BACKWARD, 0, 2)
    halves = (step(Op.BACKWARD_INPUT, 0, 2), step(Op.BACKWARD_WEIGHT, 0, 2))
    kept = 2 * KEPT + OUTPUT
    assert fullest_moment(profile, (forward, both)) == (kept, WORKSPACE)
    # When the weights' turn comes, the gradients of both outputs are there.
    assert fullest_moment(profile, (forward, *halves)) == (kept + 2 * OUTPUT, WORKSPACE)
    # Nothing is left over: a second microbatch finds what the first found.
    assert fullest_moment(profile, (forward, *halves) * 3) == (kept + 2 * OUTPUT, WORKSPACE)
    assert fullest_moment(profile, (forward, both) * 3) == (kept, WORKSPACE)


def test_a_forward_without_a_backward_keeps_nothing() -> None:
    profile = profile_of()
    passing = step(Op.FORWARD, 0, 2, keeps=False)
    assert fullest_moment(profile, (passing,) * 4) == (2 * KEPT, WORKSPACE)


@settings(max_examples=examples(50), deadline=None)
@given(job=random_jobs())
def test_no_part_is_negative_and_what_runs_is_there(job: tuple[ModelProfile, PlannerSettings]) -> None:
    profile, planner = job
    nodes = [NodeId(n) for n in range(planner.num_nodes)]
    plan = initial_plan(profile, make_templates(profile, planner), planner, nodes, 1)
    for worker in plan.workers:
        use = memory_use(plan, profile, worker)
        assert min(dataclasses.astuple(use)) >= 0
        assert use.state == sum(sum(held_bytes(profile, plan.groups[group])) for group in plan.groups_of[worker])
        layers = [profile.layers[layer] for layer in plan.layers_of[worker]]
        assert use.activations >= sum(layer.activation_bytes for layer in layers)


def two_pipelines(profile: ModelProfile, microbatches: int = 8) -> Plan:
    """Two pipelines of three stages: what the first one runs, the second could run again, and the other way round."""
    plan = plan_of(profile, ScheduleKind.GPIPE, microbatches=microbatches)
    (route,) = plan.routes
    others = tuple(msgspec.structs.replace(hop, worker=WorkerId(3 + at)) for at, hop in enumerate(route.hops))
    half = microbatches // 2
    routes = (
        msgspec.structs.replace(route, microbatches=route.microbatches[:half]),
        msgspec.structs.replace(route, hops=others, microbatches=route.microbatches[half:]),
    )
    return msgspec.structs.replace(plan, pipelines=(*plan.pipelines, Pipeline(stages=others)), routes=routes)


def test_what_is_to_be_run_again_waits_on_copies_of_what_went_in() -> None:
    profile = profile_of()
    plan = two_pipelines(profile)
    plain, audited = (memory_use(plan, profile, WorkerId(4), audit) for audit in (0.0, 1.0))
    assert audited == dataclasses.replace(plain, messages=plain.messages + 4 * 2 * OUTPUT)
    ends = [memory_use(plan, profile, WorkerId(worker), 1.0).messages for worker in (0, 2)]
    assert ends == [OUTPUT + 4 * OUTPUT] * 2, "the samples are read, and the last gradient is the loss's"


def test_of_few_audits_a_few_more_than_are_expected_have_room() -> None:
    profile = profile_of()
    plan = two_pipelines(profile, microbatches=200)
    use = {share: memory_use(plan, profile, WorkerId(4), share) for share in (0.0, 0.01, 0.25, 1.0)}
    copies = {share: (use[share].messages - use[0.0].messages) // (2 * OUTPUT) for share in use}
    assert copies == {0.0: 0, 0.01: 4, 0.25: 38, 1.0: 100}  # of 100: 1 + 3 * 0.995, 25 + 3 * 4.33


def test_what_an_audit_counts_is_apart_from_what_its_worker_counts() -> None:
    """Where one microbatch is in flight, nothing else needs as much."""
    profile = profile_of()
    plan = two_pipelines(profile, microbatches=2)
    plain, audited = (memory_use(plan, profile, WorkerId(5), audit) for audit in (0.0, 1.0))
    assert plain.activations == audited.activations
    assert audited.workspace == plain.workspace + GRADIENTS - PARAMETERS
    assert fullest_device_bytes(plan, profile, 1.0) == max(
        worker_memory_bytes(plan, profile, worker, 1.0) for worker in plan.workers
    )


@given(case=cases() | rings(), data=st.data())
@settings(max_examples=examples(200), deadline=None)
def test_units_of_work_need_what_the_program_needs(case: Case, data: st.DataObject) -> None:
    plan, profile, _ = case
    sizes = st.integers(0, 5)
    profile = msgspec.structs.replace(
        profile,
        layers=tuple(
            msgspec.structs.replace(layer, activation_bytes=data.draw(sizes), workspace_bytes=data.draw(sizes))
            for layer in profile.layers
        ),
        device=DeviceKind(name="host", is_host=data.draw(st.booleans())),
    )
    for worker in plan.workers:
        instructions = program(plan, worker)
        waiting: dict[object, int] = {}
        for i in instructions:
            if i.op in (Op.RECV_ACTIVATION, Op.RECV_GRADIENT):
                size = profile.layers[i.first_layer - 1].output_bytes
                waiting[i.op, i.peer] = max(size, waiting.get((i.op, i.peer), 0))
        expected = (*fullest_moment(profile, instructions), sum(waiting.values()))
        use, devices = memory_use(plan, profile, worker), plan.devices_of[worker]
        assert (use.activations, use.workspace, use.messages) == tuple(-(-size // devices) for size in expected)


@given(case=cases() | rings())
@settings(max_examples=examples(200), deadline=None)
def test_the_fullest_device_is_found_whatever_is_remembered(case: Case) -> None:
    """Of like pipelines one is looked at, and what was found of one plan is used for others."""
    plan, profile, _ = case
    expected = max(worker_memory_bytes(plan, profile, worker) for worker in plan.workers)
    assert fullest_device_bytes(plan, profile) == expected
    assert fullest_device_bytes(plan, profile) == expected
