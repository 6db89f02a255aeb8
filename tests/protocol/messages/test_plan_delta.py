"""Plans on the wire: an update gives back the very message, whatever changed; and what is no update is refused."""

from __future__ import annotations

import contextlib
import random
import zlib
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.plan.costs.model_profile import DeviceKind, LayerCost, LayerTimes, LinkCost, Links, ModelProfile
from planaria.plan.ledger import Ledger
from planaria.plan.plan import Evaluation, Group, NodeId, Plan, Redundancy, WorkerId
from planaria.plan.program.audits import audits_of
from planaria.plan.settings import PlannerSettings
from planaria.planner.finish_step.salvage import to_halt
from planaria.planner.finish_step.shadow_takeover import resume
from planaria.policy.interface import FinishRequest, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol.messages import plan_delta
from planaria.protocol.messages.message import encode
from planaria.protocol.messages.plan_delta import (
    CompressedPlan,
    Orders,
    UpdateError,
    decode_order,
    difference,
    encoded,
    updated,
)
from planaria.protocol.messages.to_worker import Halt, PlanMessage, StateSource, ToWorker
from tests.plan.shadowed import ring_plan
from tests.proof import examples

LAYERS, NODES = 8, 13
LAYER = LayerCost(
    name="layer",
    times=(LayerTimes(forward_s=1e-3, backward_input_s=1e-3, backward_weight_s=1e-3),),
    parameter_bytes=1000,
    gradient_bytes=2000,
    optimizer_bytes=2000,
    activation_bytes=1,
    recompute_activation_bytes=1,
    output_bytes=1,
)
LINK = LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=1e9)
PROFILE = ModelProfile(
    layers=(LAYER,) * LAYERS,
    groups=tuple(Group(layers=(at,), size_bytes=1000) for at in range(LAYERS)),
    links=Links(within_node=LINK, between_nodes=LINK),
    device=DeviceKind(name="none"),
)
POLICY = TemplatesPolicy.of(
    Planner(
        PROFILE,
        PlannerSettings(num_microbatches=24, fault_tolerance=1, num_nodes=NODES, devices_per_node=1, min_nodes=2),
    )
)


def message(plan: Plan, step: int = 1) -> PlanMessage:
    return PlanMessage(
        plan=plan,
        step=step,
        addresses={worker: f"10.0.0.{worker}:{plan.generation % 2}" for worker in plan.workers},
        exponents=(plan.generation,) * LAYERS,
        source=StateSource.LIVE,
        begun=plan.generation,
        lineage=plan.generation // 2,
        audits=audits_of(plan, 1, step, 0.5),
        wire_bytes_per_s=step * 1e6,
    )


def history(seed: int) -> list[PlanMessage]:
    """A job's plans: losses at random, steps finished, placements, warm-ups for nodes that come."""
    draw = random.Random(seed)
    plan = POLICY.initial([NodeId(node) for node in range(NODES)], 1).plan
    found = [message(plan)]
    live = set(range(NODES))
    for turn in range(3):
        victim = draw.choice(sorted(live))
        live.discard(victim)
        workers = [WorkerId(node) for node in sorted(live)]
        halted = to_halt(plan, workers)
        holders = {worker: plan.groups_of.get(worker, ()) for worker in workers}
        layers = {worker: plan.layers_held(groups) for worker, groups in holders.items()}
        finishing = POLICY.finish_step(
            FinishRequest(
                plan=plan,
                live=workers,
                halted=halted,
                counted=Ledger.empty(LAYERS),
                holders=layers,
                generation=10 * turn + 2,
            )
        ).plan
        placed = POLICY.reconfigure(
            ReplanRequest(plan=finishing, lost=[NodeId(victim)], holders=holders, generation=10 * turn + 3)
        ).plan
        live.add(NODES + turn)
        newcomer = WorkerId(NODES + turn)
        held = {**{w: placed.groups_of.get(w, ()) for w in workers}, newcomer: ()}
        target = POLICY.reconfigure(ReplanRequest(plan=placed, lost=[], holders=held, generation=10 * turn + 4))
        all_done = placed.renewed(evaluation=Evaluation(num_microbatches=5, routes=()))
        found += [message(finishing, turn + 1), message(placed.evaluating(5), turn + 2)]
        found += [message(all_done, turn + 2), message(placed, turn + 2)]
        warming = POLICY.warm_up(placed, target, 10 * turn + 5)
        assert warming is not None
        found += [message(warming.plan, turn + 3), message(target.plan, turn + 4)]
        plan = target.plan
    return found


@pytest.mark.parametrize("seed", range(6))
def test_an_update_gives_back_the_message(seed: int) -> None:
    plans = history(seed)
    orders = Orders()
    assert orders.decode(encode(plans[0])) == plans[0]
    for before, after in pairwise(plans):
        update = difference(before, after)
        assert update is not None
        body = encode(update)
        assert orders.decode(body) == after
        assert len(body) < len(encode(after))


@pytest.mark.parametrize(("first", "second"), [(0, 3), (4, 1), (2, 2), (7, 12)])
def test_any_plan_may_follow_any(first: int, second: int) -> None:
    plans = history(1)
    update = difference(plans[first], plans[second])
    assert update is not None
    assert updated(plans[first], update) == plans[second]


@pytest.fixture
def compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_delta, "COMPRESSED_FROM_BYTES", 1)


@pytest.mark.usefixtures("compressed")
def test_a_long_plan_travels_compressed_and_is_the_same() -> None:
    plans = history(2)
    orders = Orders()
    for before, after in pairwise([None, *plans]):
        assert after is not None
        body = encoded(after, before)
        assert b"compressed_plan" in body
        assert orders.decode(body) == after
    assert len(encoded(plans[0], None)) < len(encode(plans[0])) / 2


def test_a_short_plan_travels_as_it_is() -> None:
    first, second = history(2)[:2]
    assert encoded(first, None) == encode(first)
    update = difference(first, second)
    assert update is not None
    assert encoded(second, first) == encode(update)


@pytest.mark.usefixtures("compressed")
def test_a_compressed_plan_that_is_damaged_or_grows_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    body = msgspec.msgpack.decode(encoded(_FIRST, None))["body"]
    for wrong in (b"", b"no zlib", body[:-9], body[: len(body) // 2] + b"x" + body[len(body) // 2 + 1 :]):
        with pytest.raises(ValueError, match="plan"):
            decode_order(encode(CompressedPlan(body=wrong)), None)
    halt = CompressedPlan(body=zlib.compress(encode(Halt(generation=1, step=2))))
    with pytest.raises(ValueError, match="halt"):
        decode_order(encode(halt), None)
    monkeypatch.setattr(plan_delta, "MAX_FRAME_BYTES", len(encode(_FIRST)) - 1)
    with pytest.raises(ValueError, match="over"):
        decode_order(encode(CompressedPlan(body=body)), None)


def test_plans_of_other_jobs_are_sent_whole() -> None:
    first = history(1)[0]
    other = msgspec.structs.replace(first, plan=msgspec.structs.replace(first.plan, num_microbatches=25))
    assert difference(first, other) is None
    partial = msgspec.structs.replace(first, addresses=dict(list(first.addresses.items())[1:]))
    assert difference(first, partial) is None


def test_an_update_without_its_plan_is_refused() -> None:
    plans = history(1)
    update = difference(plans[0], plans[1])
    assert update is not None
    with pytest.raises(UpdateError, match="came before any plan"):
        Orders().decode(encode(update))
    with pytest.raises(UpdateError, match="an update of plan 1 came after plan 2"):
        updated(plans[1], update)
    for change, match in (
        ({"pipelines": (99,)}, "number 99 of"),
        ({"routes": (-1,)}, "number -1 of"),
        ({"shadows": ((77, 0, 8, 1),)}, "no address of worker 77"),
    ):
        wrong = msgspec.msgpack.encode({**msgspec.msgpack.decode(encode(update)), **change})
        with pytest.raises(UpdateError, match=match):
            decode_order(wrong, plans[0])


def test_orders_that_are_no_plans_pass_as_they_are() -> None:
    halt: ToWorker = Halt(generation=1, step=2)
    assert Orders().decode(encode(halt)) == halt


@settings(max_examples=examples(200), deadline=None)
@given(data=st.binary(max_size=200), at=st.integers(0, 400), cut=st.integers(0, 3))
def test_damaged_updates_are_refused_or_are_updates(data: bytes, at: int, cut: int) -> None:
    """Whatever comes instead of an update: a message, or a ValueError."""
    update = difference(_FIRST, _SECOND)
    assert update is not None
    body = encode(update)
    damaged = body[:at] + data + body[at + cut :]
    with contextlib.suppress(ValueError):
        decode_order(damaged, _FIRST)


_FIRST, _SECOND = history(3)[:2]


def test_the_order_of_rerouted_work_is_told() -> None:
    """A plan that is rerouted has what others do without: how much more workers may keep, and how long layers take."""
    before, after = history(1)[:2]
    units = tuple((1 + layer, 2, 3) for layer in range(after.plan.num_layers))
    rerouted = msgspec.structs.replace(
        after, plan=msgspec.structs.replace(after.plan, spare_in_flight=4, layer_units=units)
    )
    later = msgspec.structs.replace(rerouted, plan=msgspec.structs.replace(rerouted.plan, generation=99))
    orders = Orders()
    orders.decode(encode(before))
    for one, other in ((before, rerouted), (rerouted, later), (later, after)):
        update = difference(one, other)
        assert update is not None
        assert (update.layer_units is None) == (other is later)
        assert orders.decode(encode(update)) == other


def test_a_takeover_is_told_as_a_change() -> None:
    """Shadows that compute, and routes that are resumed."""
    before = ring_plan(Redundancy.EAGER_LAZY, pipelines=3, depth=3, microbatches=9)
    live = [worker for worker in before.workers if worker != 4]
    holders = {worker: before.layers_held(before.groups_of[worker]) for worker in live}
    counted = Ledger.of([[3]] * 2 + [[]] * 4)  # of pipeline 1, the first stage
    after = resume(before, live, to_halt(before, live), counted, holders, 2)
    assert after is not None
    assert {route.reached for route in after.routes} == {None, 0, before.num_layers}
    update = difference(message(before), message(after))
    assert update is not None
    assert updated(message(before), update) == message(after)
    plain = msgspec.structs.replace(after, redundancy=None)
    assert difference(message(before), message(plain)) is None
