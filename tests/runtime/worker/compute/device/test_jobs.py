"""Whole jobs on the stand-in for a GPU, in virtual time: the reference's bits, and every order that is there is needed.

Each wait and each record of an event in the worker is left out, one at a time; each time a job finds a hazard, or ends
in other bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from planaria.job.sections.cluster import Device, OptimizerState, TransportKind
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.records import RunStatus
from planaria.runtime.worker.compute.device.device import here
from planaria.runtime.worker.compute.device.queues import Stream
from planaria.runtime.worker.compute.device.stand_in import StandInQueues
from planaria.runtime.worker.compute.device.streams import StreamDevice
from planaria.runtime.worker.heartbeat import Heartbeat
from planaria.runtime.worker.loop import WorkerLoop
from planaria.runtime.worker.transport.frames import Loan
from planaria.runtime.worker.transport.lending import Lending
from planaria.runtime.worker.transport.mailbox import Key, Kind, Mailbox
from planaria.runtime.worker.transport.outbox import Outbox
from tests.proof import rest_in_proof
from tests.runtime.worker.cluster import Kill, Visit, Weather
from tests.runtime.worker.compute.device.orders import Orders, Site, sites
from tests.runtime.worker.schedules import Schedule, any_policy, comings_and_goings, job_of, schedule
from tests.runtime.worker.test_cluster import Laboratory


def on_stand_in(plain: Schedule) -> Schedule:
    cluster = msgspec.structs.replace(plain.job.cluster, device=Device.STAND_IN)
    return replace(plain, job=msgspec.structs.replace(plain.job, cluster=cluster))


@pytest.mark.proof
@pytest.mark.parametrize("seeds", [range(at, at + 4) for at in range(0, 12, 4)], ids=str)
def test_random_schedules_keep_every_promise(seeds: range, laboratory: Laboratory) -> None:
    for seed in seeds:
        plain = (schedule, comings_and_goings, any_policy)[seed % 3](seed, str(laboratory.source))
        laboratory.reference(plain.job)  # made on processors
        with Orders().at_work():
            laboratory.run(on_stand_in(plain))


Scenario = Callable[[Laboratory], None]
"""Raises for a hazard, and for a broken promise."""


def job(
    kills: tuple[Kill, ...] = (),
    visits: tuple[Visit, ...] = (),
    *,
    one_host: bool = False,
    compares: bool = True,
    **given: Any,
) -> Scenario:
    """A whole job."""

    def run(laboratory: Laboratory) -> None:
        made, weather = job_of(source=str(laboratory.source), **given), Weather(one_host=one_host)
        resilience = msgspec.structs.replace(made.resilience, compare_replicas=compares)
        made = msgspec.structs.replace(made, resilience=resilience)
        plain = Schedule(seed=1, job=made, kills=kills, visits=visits, weather=weather, stop_at_s=None)
        laboratory.reference(made)
        outcome = laboratory.run(on_stand_in(plain))
        assert outcome.finish.status is not RunStatus.FAILED, outcome.finish.message

    return run


def adopt_on(device: StreamDevice, change: Callable[[], object]) -> None:
    """A worker on this device adopts a plan, which changes something."""
    worker = WorkerLoop.__new__(WorkerLoop)
    others = SimpleNamespace(
        set_peers=lambda peers: None,
        serve=lambda lending: None,
        begin=lambda message, forgets: None,
        adopt=lambda message, continues: change(),
    )
    worker._device, worker._transport, worker._worker = device, Outbox(WorkerId(0), others, device), WorkerId(0)  # type: ignore[arg-type]
    worker._transfers = worker._interpreter = others  # type: ignore[assignment]
    worker._heartbeat = Heartbeat(lambda message: None)
    message: Any = SimpleNamespace(plan=SimpleNamespace(generation=2, layers_of={}), step=1, addresses={})
    worker._adopt(message, continues=True, forgets=False)


def plan_in_the_middle_of_a_sum(laboratory: Laboratory) -> None:
    """What was counted is on its way to the host for a sum, or is being summed. Then a plan comes: more is counted,
    or another replica takes the place of this one.
    """
    device = StreamDevice(torch.device("cpu"), StandInQueues())
    with device.in_use():
        (counts,) = device.copied_in((torch.zeros(4),))
        held = [counts * 1.0]
        late = device.copied_out((counts,))
        with device.on_sums():
            device.fill(held[0], torch.ones(4))

        def change() -> None:
            held.clear()
            counts.add_(1.0)

        adopt_on(device, change)
        assert torch.equal(late.tensors()[0], torch.zeros(4))
        assert float(device.number(counts.sum())) == 4.0


def plan_in_the_middle_of_a_shadow(laboratory: Laboratory) -> None:
    """A shadow runs with parameters, and on an input that nobody else needs. Then a plan comes, which changes the
    parameters and goes on with what the shadow has made.
    """
    device = StreamDevice(torch.device("cpu"), StandInQueues())
    with device.in_use():
        parameters, given = device.copied_in((torch.ones(4), torch.ones(4)))
        with device.on_shadows((given,)):
            made = parameters + given
        del given
        device.copied_in((torch.zeros(4),))
        adopt_on(device, lambda: parameters.add_(made))
        assert torch.equal(here(device.copied_out((parameters,)))[0], torch.full((4,), 3.0))


def spread_in_one_memory(laboratory: Laboratory) -> None:
    """The devices of a stage read the parameters that the others have made, where these lie."""
    made = job_of(nodes=2, devices=2, smallest=1, steps=3, source=str(laboratory.source))
    cluster = msgspec.structs.replace(made.cluster, devices_per_stage=2, optimizer_state=OptimizerState.SPREAD)
    resilience = msgspec.structs.replace(made.resilience, compare_replicas=False)
    made = msgspec.structs.replace(made, cluster=cluster, resilience=resilience)
    weather = Weather(one_host=True)
    plain = Schedule(seed=1, job=made, kills=(), visits=(), weather=weather, stop_at_s=None)
    reference = laboratory.reference(made)
    assert laboratory.run(on_stand_in(plain)).weights == reference.weights


def tensors_that_a_group_sends(laboratory: Laboratory) -> None:
    """A group reads them in the device's memory, on a stream of its own, which begins when they are made."""
    device, sent = StreamDevice(torch.device("cpu"), StandInQueues()), list[torch.Tensor]()

    def send(peer: WorkerId, key: Key, tensors: tuple[torch.Tensor, ...], loan: Loan | None = None) -> None:
        with device.queues.on(Stream.COPIES_OUT):
            sent.extend(tensor.clone() for tensor in tensors)

    transport: Any = SimpleNamespace(
        send=send, serve=lambda lending: None, memory_of=lambda worker: worker, carries_devices_memory=True
    )
    outbox = Outbox(WorkerId(0), transport, device)
    with device.in_use():
        (ones,) = device.copied_in((torch.ones(4),))
        outbox.give(WorkerId(1), Key(Kind.ACTIVATION, 0, 1, 1, 0, 1), (ones + 1.0,))
        outbox.send_what_came()
        outbox.finish()
        device.after(Stream.COPIES_OUT)
        assert torch.equal(here(device.copied_out(sent))[0], torch.full((4,), 2.0))


class Pair:
    """Two workers whose devices read each other's memory."""

    def __init__(self) -> None:
        self.devices = [StreamDevice(torch.device("cpu"), StandInQueues(), lends=True) for _ in range(2)]
        self.mailboxes = [Mailbox(), Mailbox()]
        self.lendings: list[Lending] = []
        self.outboxes = [Outbox(WorkerId(own), self._wire(own), device) for own, device in enumerate(self.devices)]
        for own, outbox in enumerate(self.outboxes):
            outbox.set_peers({WorkerId(1 - own): ""})

    def _wire(self, own: int) -> Any:
        def send(peer: WorkerId, key: Key, tensors: tuple[torch.Tensor, ...], loan: Loan | None = None) -> None:
            here, there = self.devices[own].queues, self.devices[peer].queues
            assert isinstance(here, StandInQueues)
            assert isinstance(there, StandInQueues)
            there._clocks.after(there.host, here._clocks.now(here.host))
            self.lendings[peer].arrived(self.mailboxes[peer], key, loan, tensors)

        def nothing(addresses: object) -> None:
            pass

        return SimpleNamespace(send=send, serve=self.lendings.append, set_peers=nothing, memory_of=lambda worker: 0)

    def hand_over(self, values: torch.Tensor, number: int) -> torch.Tensor:
        """Sends values from the first worker to the second, which has read them and said so."""
        key = Key(Kind.ACTIVATION, 0, 1, 1, number, 1)
        with self.devices[0].in_use():
            self.outboxes[0].give(WorkerId(1), key, (values,))
            self.outboxes[0].finish()
        message = self.mailboxes[1].poll(key)
        assert message is not None
        with self.devices[1].in_use():
            (found,) = self.outboxes[1].brought_in(message)
            self.outboxes[1].send_what_came()
            self.outboxes[1].finish()
        return found


def slot_that_is_lent_again(laboratory: Laboratory) -> None:
    """A second message lies where the first one was, once that has been read."""
    pair = Pair()
    with pair.devices[0].in_use():
        first, second = pair.devices[0].copied_in((torch.ones(4), torch.zeros(4)))
    found = [pair.hand_over(first, 0), pair.hand_over(second, 1)]
    with pair.devices[1].in_use():
        ones, zeros = here(pair.devices[1].copied_out(found))
        assert torch.equal(ones, torch.ones(4))
        assert torch.equal(zeros, torch.zeros(4))


TWO_PIPELINES = {"nodes": 4, "smallest": 2, "steps": 2}
SPARE = {"nodes": 5, "smallest": 2, "steps": 3}
SHADOWS = {"nodes": 4, "smallest": 2, "steps": 3, "policy": "redundancy"}
SCENARIOS: dict[str, Scenario] = {
    "a plan in the middle of a sum": plan_in_the_middle_of_a_sum,
    "a plan in the middle of a shadow": plan_in_the_middle_of_a_shadow,
    "a slot that is lent again": slot_that_is_lent_again,
    "tensors that a group sends": tensors_that_a_group_sends,
    "one pipeline": job(nodes=2, smallest=2, fault_tolerance=0, steps=2, microbatches=2),
    "shadows run backwards": job(redundancy="eager-eager", **SHADOWS),
    "shadows keep nothing": job(redundancy="eager-lazy", activation_checkpointing=True, **SHADOWS),
    "a shadow takes over": job((Kill(node=1, at="backward", step=2),), redundancy="eager-lazy", **SHADOWS),
    "a shadow of the first layers takes over": job(
        (Kill(node=0, at="forward", step=2),), redundancy="eager-lazy", **SHADOWS
    ),
    "two pipelines": job(**TWO_PIPELINES),
    "a loss": job((Kill(node=1, at="backward", step=2),), checkpoint_every=1, **SPARE),
    "a loss at the vote": job((Kill(node=1, at="vote", step=2),), **SPARE),
    "a node comes": job(visits=(Visit(node=4, after="StepCommitted"),), nodes=4, smallest=2, steps=4),
    "a shadow's counts count": job((Kill(node=1, at="sync", step=2),), redundancy="eager-eager", **SHADOWS),
    "one pipeline in one memory": job(
        one_host=True, nodes=2, smallest=2, fault_tolerance=0, steps=3, microbatches=6, order="gpipe"
    ),
    "a spread optimizer in one memory": spread_in_one_memory,
    "two pipelines in one memory": job(one_host=True, **TWO_PIPELINES),
    "owners in one memory that compare nothing": job(one_host=True, compares=False, **TWO_PIPELINES),
}
SITES = sites()


@pytest.mark.parametrize("scenario", rest_in_proof(SCENARIOS))
def test_every_scenario_ends_well(scenario: str, laboratory: Laboratory) -> None:
    with Orders().at_work():
        SCENARIOS[scenario](laboratory)


def test_a_stages_devices_with_memories_of_their_own_give_a_keeper_what_they_counted(laboratory: Laboratory) -> None:
    made = job_of(nodes=3, devices=2, smallest=1, steps=3, source=str(laboratory.source))
    apart = {"optimizer_state": OptimizerState.SPREAD, "transport": TransportKind.TCP}
    cluster = msgspec.structs.replace(made.cluster, devices_per_stage=2, **apart)
    made = msgspec.structs.replace(made, cluster=cluster)
    kills = (Kill(node=1, at="backward", step=2),)
    plain = Schedule(seed=1, job=made, kills=kills, visits=(), weather=Weather(), stop_at_s=None)
    reference = laboratory.reference(made)
    with Orders().at_work():
        assert laboratory.run(on_stand_in(plain)).weights == reference.weights


@pytest.mark.parametrize("site", rest_in_proof(SITES), ids=str)
def test_without_any_one_order_a_scenario_fails(site: Site, laboratory: Laboratory) -> None:
    orders = Orders(site)
    for scenario in SCENARIOS.values():
        try:
            with orders.at_work():
                scenario(laboratory)
        except Exception:
            assert site in orders.passed
            return
    raise AssertionError("every scenario ends well without it: it is not needed, or a scenario is missing")


def test_every_kind_of_order_is_found() -> None:
    assert {site.call for site in SITES} == {"record", "wait", "synchronize", "uses", "after"}
    assert len(SITES) >= 15
