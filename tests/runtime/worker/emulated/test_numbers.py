"""An emulated device: how long things take, on a clock that the test turns; and numbers that miss nothing."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from planaria.job.sections.train import TrainSection
from planaria.plan.costs.model_profile import (
    DeviceKind,
    LayerCost,
    LayerTimes,
    LinkCost,
    Links,
    ModelProfile,
    StepCosts,
)
from planaria.plan.plan import Group, Pipeline, Plan, Route, Stage, Transfer, WorkerId
from planaria.plan.program.instructions import Instruction, Op
from planaria.plan.sums.slices import slices_of
from planaria.protocol.messages.to_worker import Stop
from planaria.protocol.worker.sums import Piece, Sum
from planaria.runtime.thresholds import AHEAD_S
from planaria.runtime.worker.emulated.numbers import (
    EmulatedBatches,
    EmulatedCompute,
    EmulatedModel,
    EmulatedNumbers,
    parameter_bytes,
)
from planaria.runtime.worker.emulated.time import EmulatedMailbox, EmulatedPace
from planaria.runtime.worker.transport.mailbox import Interrupted, Key, Kind

NEAR = LinkCost(latency_s=1.0, bandwidth_bytes_per_s=100.0)
FAR = LinkCost(latency_s=2.0, bandwidth_bytes_per_s=10.0)
ME, NEIGHBOUR, OTHER, FOURTH = (WorkerId(n) for n in (0, 1, 2, 3))
EVERYBODY_BUT_ME = (NEIGHBOUR, OTHER, FOURTH)


def profile(num_layers: int = 3) -> ModelProfile:
    """Layer n takes 1 + n, 10 + n and 100 + n seconds on one device, half of that on two; it has 40 bytes."""
    times = [
        tuple(
            LayerTimes(
                num_devices=count,
                forward_s=(1.0 + n) / count,
                backward_input_s=(10.0 + n) / count,
                backward_weight_s=(100.0 + n) / count,
            )
            for count in (1, 2)
        )
        for n in range(num_layers)
    ]
    layers = tuple(
        LayerCost(
            name=f"layer.{n}",
            times=times[n],
            parameter_bytes=40,
            gradient_bytes=120,
            optimizer_bytes=80,
            activation_bytes=1,
            recompute_activation_bytes=1,
            output_bytes=50,
        )
        for n in range(num_layers)
    )
    return ModelProfile(
        layers=layers,
        groups=tuple(Group(layers=(n,), size_bytes=40) for n in range(num_layers)),
        links=Links(within_node=NEAR, between_nodes=FAR),
        device=DeviceKind(name="made up", is_host=True),
        step=StepCosts(apply_s_per_byte=0.5, sum_s_per_byte=0.25),
    )


def plan(*, devices: int = 1) -> Plan:
    """Four workers, two a node, each with all layers."""
    pipelines = tuple(
        Pipeline(stages=(Stage(worker=worker, first_layer=0, end_layer=3, num_devices=devices),))
        for worker in (ME, *EVERYBODY_BUT_ME)
    )
    routes = tuple(
        Route(hops=pipeline.stages, microbatches=(n,), born=1, counted=(0, 1, 2))
        for n, pipeline in enumerate(pipelines)
    )
    return Plan(
        generation=1,
        num_layers=3,
        num_microbatches=4,
        devices_per_node=2,
        groups=profile().groups,
        pipelines=pipelines,
        routes=routes,
        sync_epochs=(1, 1, 1),
    )


class Clock:
    """Stands still, but for waits."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.interrupt = False

    def wait_until(self, moment_s: float) -> None:
        if self.interrupt:
            raise Interrupted
        self.now = max(self.now, moment_s)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def pace_of(clock: Clock, devices: int = 1, costs: ModelProfile | None = None) -> EmulatedPace:
    pace = EmulatedPace(ME, costs or profile(), clock.wait_until, clock)
    pace.adopt(plan(devices=devices))
    return pace


def forward(microbatch: int = 0, end: int = 3) -> Instruction:
    return Instruction(op=Op.FORWARD, microbatch=microbatch, born=1, first_layer=0, end_layer=end)


def key(kind: str, *, sender: int = ME, item: int = 0, layer: int = 0) -> Key:
    return Key(kind, sender, 1, 1, item, layer)


def piece(group: int, num_parts: int) -> Piece[str]:
    """My own slice of a sum, with so many parts."""
    slices = slices_of((ME, *EVERYBODY_BUT_ME), (0, 0, 1, 1))
    parts = {WorkerId(n): "part" for n in range(num_parts)}
    pending = Sum(epoch=1, round=0, slices=slices, unheard=[], carried=[], awaited=[], totals=[], parts=parts)
    return Piece(group, pending, ME)


# The device


@pytest.mark.parametrize(("devices", "seconds"), [(1, 1 + 2 + 3), (2, 3)])
def test_a_forward_takes_its_layers_times_on_the_stages_devices(clock: Clock, devices: int, seconds: float) -> None:
    pace_of(clock, devices).compute(forward(), forwards=range(3))
    assert clock.now == 1000 + seconds


def test_the_halves_of_a_backward_take_their_own_times(clock: Clock) -> None:
    pace = pace_of(clock)
    pace.compute(forward(0), inputs=(2, 1))
    assert clock.now == 1000 + 12 + 11
    pace.compute(forward(1), weights=(1,))
    assert clock.now == 1000 + 12 + 11 + 101


def test_a_slow_device_takes_longer_for_everything_and_its_stopwatch_tells(clock: Clock) -> None:
    pace = pace_of(clock)
    pace.slowness = 3.0
    pace.compute(forward(0), forwards=(0, 1))
    assert clock.now == 1000 + 3 * (1 + 2)
    assert pace.stopwatch() == 9
    assert pace.worked() == 9
    clock.now += 100
    assert (pace.stopwatch(), pace.worked()) == (9, 9)
    pace.slow_down(1.0)
    pace.apply([0, 1])
    pace.drain()
    assert clock.now == 1109 + 3 * 80 * 0.5
    assert pace.stopwatch() == 9, "the optimizer's time is not compared"


def test_the_hosts_work_between_instructions_is_hidden_up_to_a_limit(clock: Clock) -> None:
    pace = pace_of(clock)
    pace.compute(forward(0), forwards=(0,))
    clock.now += AHEAD_S / 2
    pace.compute(forward(1), forwards=(0,))
    assert clock.now == pytest.approx(1002)
    clock.now += 5 + AHEAD_S
    pace.compute(forward(2), forwards=(0,))
    assert clock.now == pytest.approx(1008)


def test_an_interrupted_instruction_goes_on_and_is_not_begun_again(clock: Clock) -> None:
    pace = pace_of(clock)
    clock.interrupt = True
    with pytest.raises(Interrupted):
        pace.compute(forward(), forwards=(2,))
    clock.interrupt = False
    clock.now += 1
    pace.compute(forward(), forwards=(2,))
    assert clock.now == 1003


def test_what_a_dropped_instruction_began_keeps_the_device_busy(clock: Clock) -> None:
    pace = pace_of(clock)
    clock.interrupt = True
    with pytest.raises(Interrupted):
        pace.compute(forward(0), forwards=(2,))
    clock.interrupt = False
    pace.adopt(plan())
    pace.compute(forward(1), forwards=(0,))
    assert clock.now == 1004


def test_nothing_begins_before_what_it_waited_for(clock: Clock) -> None:
    pace = pace_of(clock)
    clock.now = 1005
    pace.begin_step()
    pace.compute(forward(), forwards=(0,))
    assert clock.now == 1006


def test_sums_and_the_optimizer_take_time_by_bytes_on_each_device(clock: Clock) -> None:
    pace = pace_of(clock, devices=2)
    pace.add_up(piece(0, 3))
    pace.add_up(piece(1, 1))
    pace.drain()
    assert clock.now == 1000 + 2 * 20 / 4 * 0.25
    pace.apply((0, 1))
    pace.compute(forward(), forwards=(0,))
    assert clock.now == 1002.5 + 40 * 0.5 + 0.5


def test_a_checkpoint_is_read_in_the_storages_time_and_an_order_ends_the_wait_only(clock: Clock) -> None:
    pace = EmulatedPace(ME, profile(), clock.wait_until, clock, storage_bytes_per_s=50.0)
    pace.read(200)
    clock.interrupt = True
    with pytest.raises(Interrupted):
        pace.finish_reading()
    clock.interrupt = False
    pace.finish_reading()
    assert clock.now == 1004.0
    assert pace.free_at == 1004.0
    pace.finish_reading()
    assert clock.now == 1004.0


# The links


def test_messages_to_one_peer_follow_each_other(clock: Clock) -> None:
    pace = pace_of(clock)
    activation = key(Kind.ACTIVATION, layer=1)
    assert pace.sent(NEIGHBOUR, activation) == 1000 + 1 + 0.5
    assert pace.sent(NEIGHBOUR, activation) == 1000 + 2 * 1.5
    assert pace.sent(OTHER, activation) == 1000 + 2 + 5, "another node is further away, and its link is free"
    assert pace.arrived(activation, 1001.5, is_empty=False) == 1001.5


def test_a_replica_is_sent_while_the_device_computes(clock: Clock) -> None:
    pace = pace_of(clock)
    moves = tuple(Transfer(group=0, source=WorkerId(ME), target=WorkerId(peer)) for peer in (OTHER, NEIGHBOUR))
    pace.adopt(msgspec.structs.replace(plan(), transfers=moves))
    pace.add_up(piece(0, 9))
    assert pace.sent(OTHER, key(Kind.STATE)) == 1000 + 2 + 3 * 40 / 10
    assert pace.sent(OTHER, key(Kind.GRADIENT, layer=1)) == 1020 + 2 + 5


def test_a_part_of_a_replica_takes_its_share_of_the_time(clock: Clock) -> None:
    pace = pace_of(clock)
    half = Transfer(group=0, source=WorkerId(ME), target=WorkerId(OTHER), part=(0, 20))
    pace.adopt(msgspec.structs.replace(plan(), transfers=(half,)))
    assert pace.sent(OTHER, key(Kind.STATE)) == 1000 + 2 + 3 * 20 / 10


def test_parameters_are_sent_once_they_are_made(clock: Clock) -> None:
    pace = pace_of(clock)
    pace.apply([0])
    assert pace.sent(NEIGHBOUR, key(Kind.PARAMETERS)) == pytest.approx(pace.free_at + 1 + 40 / 100)


def test_the_parts_of_sums_are_read_one_after_another(clock: Clock) -> None:
    """Two nodes of two owners each: a slice is a quarter, and each owner carries one of the other node's."""
    pace = pace_of(clock)
    assert pace.sent(OTHER, key(Kind.SUM)) == 1000 + 2, "whoever reads it pays for its bytes"
    assert pace.arrived(key(Kind.SUM, sender=OTHER), 1002, is_empty=False) == 1002 + 1
    assert pace.arrived(key(Kind.SHARED_SUM, sender=NEIGHBOUR), 1001, is_empty=False) == 1003 + 0.4, "float64"
    assert pace.arrived(key(Kind.TOTAL, sender=OTHER, layer=OTHER), 1003, is_empty=False) == 1003.4 + 1
    assert pace.arrived(key(Kind.SUM, sender=FOURTH, item=1), 1020, is_empty=True) == 1020


def test_devices_with_memory_of_their_own_read_nothing_in_place(clock: Clock) -> None:
    pace = pace_of(clock)
    assert [pace.host_of(worker) for worker in (ME, NEIGHBOUR, OTHER)] == [0, 0, 1]
    pace = pace_of(clock, costs=msgspec.structs.replace(profile(), device=DeviceKind(name="made up")))
    assert [pace.host_of(worker) for worker in (ME, NEIGHBOUR, OTHER)] == [ME, NEIGHBOUR, OTHER]


# The mailbox


def letter(moment_s: float) -> tuple[torch.Tensor, ...]:
    return torch.tensor([7]), torch.tensor([moment_s], dtype=torch.float64)


def test_a_message_is_hidden_until_its_moment(clock: Clock) -> None:
    mailbox = EmulatedMailbox(clock)
    mailbox.pace = pace_of(clock)
    activation = key(Kind.ACTIVATION, sender=OTHER, layer=1)
    mailbox.put(activation, letter(1004.0))
    assert mailbox.poll(activation) is None
    clock.now = 1004.5
    found = mailbox.poll(activation)
    assert found is not None
    assert [tensor.tolist() for tensor in found] == [[7]]
    assert mailbox.poll(activation) is None
    assert mailbox.pace.free_at == 1004.0


def test_state_came_when_its_last_byte_was_here_not_when_it_was_looked_for(clock: Clock) -> None:
    mailbox = EmulatedMailbox(clock)
    mailbox.pace = pace_of(clock)
    state = key(Kind.STATE, sender=OTHER)
    mailbox.put(state, letter(1004.0))
    clock.now = 1007.0
    assert mailbox.poll(state) is not None
    assert mailbox.came_s == 1004.0


def test_a_sum_is_read_from_its_moment_on_and_visible_when_it_is_read(clock: Clock) -> None:
    mailbox = EmulatedMailbox(clock)
    mailbox.pace = pace_of(clock)
    part = key(Kind.SUM, sender=OTHER)
    mailbox.put(part, letter(1001.0))
    clock.now = 1001.9
    assert mailbox.poll(part) is None
    assert mailbox.poll(part) is None
    clock.now = 1002.0
    assert mailbox.poll(part) is not None


def test_what_is_forgotten_does_not_count_as_read(clock: Clock) -> None:
    mailbox = EmulatedMailbox(clock)
    mailbox.pace = pace_of(clock)
    part = key(Kind.SUM, sender=OTHER)
    mailbox.put(part, letter(1000.0))
    assert mailbox.poll(part) is None
    mailbox.forget_older_plans(2)
    clock.now = 1100.0
    assert mailbox.poll(part) is None
    assert not mailbox._arrivals_s


@pytest.fixture
def real_mailbox() -> EmulatedMailbox:
    mailbox = EmulatedMailbox()
    mailbox.pace = EmulatedPace(ME, profile(), mailbox.wait_until_moment)
    return mailbox


def test_a_wait_ends_when_a_hidden_message_becomes_visible(real_mailbox: EmulatedMailbox) -> None:
    activation = key(Kind.ACTIVATION, sender=OTHER, layer=1)
    moment = time.monotonic() + 0.02
    real_mailbox.put(activation, letter(moment))
    real_mailbox.take(activation, lambda: False)
    assert time.monotonic() >= moment


def test_an_order_ends_a_wait_for_a_moment(real_mailbox: EmulatedMailbox) -> None:
    threading.Timer(0.01, real_mailbox.put_order, [Stop(reason="test")]).start()
    with pytest.raises(Interrupted):
        real_mailbox.wait_until_moment(time.monotonic() + 3600)
    with pytest.raises(Interrupted):
        real_mailbox.wait_until_moment(0.0)


# The numbers


@pytest.fixture
def rig() -> Any:
    model = EmulatedModel(profile())
    train = TrainSection(steps=1, global_batch=4, microbatch=1, sequence_length=1)
    counted: dict[int, dict[str, torch.Tensor]] = {}
    numbers = EmulatedNumbers(model, train)
    compute = EmulatedCompute(numbers, lambda layer, gradients: counted.update({layer: dict(gradients)}))
    views = [{f"group.{n}": model.initial_state(n, 0)[f"group.{n}"].clone()} for n in range(3)]
    for n in range(3):
        compute.add_layer(n, model.build_layer(n), views[n])
    return SimpleNamespace(compute=compute, numbers=numbers, counted=counted, views=views)


def run(rig: Any, *, step: int = 1, microbatch: int = 0, split: bool = False) -> tuple[float, dict[int, Any]]:
    """Loss and gradients of one microbatch."""
    compute, work = rig.compute, (microbatch, 1)
    tensors = (EmulatedBatches(0).microbatch(step, microbatch)["number"],)
    for layer in range(3):
        tensors, loss = compute.forward(step, work, layer, tensors, None, keep=True)
    given: tuple[torch.Tensor, ...] = ()
    for layer in (2, 1, 0):
        if split:
            given = compute.backward_input(step, work, layer, given)
        else:
            given = compute.backward(step, work, layer, given, counted=True)
    for layer in range(3) if split else ():
        compute.backward_weight(work, layer, counted=True)
    assert given == ()
    return loss, {layer: gradients[f"group.{layer}"].tolist() for layer, gradients in rig.counted.items()}


def test_numbers_are_functions_of_step_and_microbatch(rig: Any) -> None:
    assert run(rig) == run(rig) == run(rig, split=True)
    results = [run(rig), run(rig, step=2), run(rig, microbatch=1)]
    assert len({loss for loss, _ in results}) == 3
    for layer in range(3):
        assert len({tuple(gradients[layer]) for _, gradients in results}) == 3


def test_every_layers_parameters_count(rig: Any) -> None:
    before = run(rig)
    rig.views[1]["group.1"].add_(1.0)
    rig.compute.add_layer(1, rig.numbers.model.build_layer(1), rig.views[1])
    loss, gradients = run(rig)
    assert loss != before[0]
    assert gradients[0] != before[1][0], "layer 1's backward reaches layer 0"
    assert (
        parameter_bytes({"b": torch.tensor([1.0]), "a": torch.tensor([2.0])})
        == torch.tensor([2.0, 1.0]).numpy().tobytes()
    )


def test_a_group_that_layers_share_belongs_to_each_of_them() -> None:
    costs = profile()
    tied = msgspec.structs.replace(costs, groups=(*costs.groups, Group(layers=(0, 2), size_bytes=8)))
    model = EmulatedModel(tied)
    assert [spec.layers for spec in model.groups] == [(0,), (1,), (2,), (0, 2)]
    assert model.groups[3].parameters[0].uses == ((0, "group.3"), (2, "group.3"))
