"""Stages whose devices share each microbatch, with real tensors in virtual time: whatever is lost at whichever
instruction, or within an exchange, the bits are those of one process that computes all shards."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import product

import msgspec
import pytest
import torch
from _pytest.mark import ParameterSet

from planaria.job.sections.cluster import Device, StageParallelism
from planaria.job.sections.model import ModelSection
from planaria.plan.ledger import Ledger
from planaria.plan.plan import Plan, WorkerId
from planaria.protocol.handlers import salvage
from planaria.protocol.messages.from_worker import Computed
from planaria.protocol.messages.records import ComputedWrong, DeviceLost, NodeLost, Note, PlanTaken
from planaria.protocol.phases import Purpose
from planaria.protocol.step.agreement import Claims, claims_of
from planaria.protocol.step.halt_reports import Salvage
from planaria.protocol.worker.mail import Key
from planaria.runtime.worker.interpreter import Interpreter
from planaria.runtime.worker.transport.stage_mates import StageMates
from tests.proof import batches, rest_in_proof
from tests.runtime.worker.cluster import Kill, Weather
from tests.runtime.worker.compute.device.orders import Orders
from tests.runtime.worker.schedules import (
    Schedule,
    any_policy,
    comings_and_goings,
    job_of,
    on_devices,
    restarts,
    schedule,
    switching,
    with_devices_alone,
)
from tests.runtime.worker.test_cluster import Laboratory

KINDS: tuple[Callable[[int, str], Schedule], ...] = (schedule, comings_and_goings, restarts, any_policy, switching)


def model_of(kind: str, blocks: int, devices: int) -> ModelSection:
    """A model in four shards, or as many as devices; of Llama's two key-value heads each serves half of them."""
    shards = max(4, devices)
    config = {
        "gpt2": {"n_layer": blocks, "n_embd": 2 * shards, "n_head": shards, "n_positions": 8},
        "llama": {
            "num_hidden_layers": blocks, "hidden_size": 4 * shards, "num_attention_heads": shards,
            "num_key_value_heads": 2, "intermediate_size": 16, "max_position_embeddings": 8,
        },
    }[kind]  # fmt: skip
    return ModelSection(type=kind, config=config, virtual_shards=shards)


def tensor(plain: Schedule) -> Schedule:
    """The schedule on stages of 2, 4 or 8 devices that share microbatches; some kills strike in an exchange."""
    draw = random.Random(f"tensor {plain.seed}")
    devices = draw.choice([2, 2, 4, 4, 8])
    blocks = max(1, int(plain.job.model.config["depth"]))
    on = on_devices(plain, devices)
    job = msgspec.structs.replace(
        on.job,
        model=model_of(draw.choice(["gpt2", "llama"]), blocks, devices),
        cluster=msgspec.structs.replace(on.job.cluster, stage_parallelism=StageParallelism.TENSOR),
    )
    moved = ("load", "forward", "backward", "recv")
    kills = (replace(k, at="exchange") if k.at in moved and draw.random() < 0.6 else k for k in on.kills)
    found = replace(on, job=job, kills=tuple(kills))
    return with_devices_alone(found) if draw.random() < 0.4 else found


@pytest.mark.parametrize("batch", batches(range(9), size=4, kept=1), ids=str)
def test_devices_that_share_microbatches_keep_every_promise(batch: range, laboratory: Laboratory) -> None:
    """Under all policies, with deaths at any instruction, comings, goings and restarts."""
    laboratory.run_all(batch, lambda seed, source: tensor(KINDS[seed % 5](seed, source)))


@pytest.mark.parametrize("batch", batches(range(40, 46), size=2, kept=1), ids=str)
def test_devices_with_a_memory_that_each_of_them_reads_keep_every_promise(batch: range, laboratory: Laboratory) -> None:
    def on_stand_in(seed: int, source: str) -> Schedule:
        plain = tensor(KINDS[seed % 5](seed, source))
        cluster = msgspec.structs.replace(plain.job.cluster, device=Device.STAND_IN)
        job = msgspec.structs.replace(plain.job, cluster=cluster)
        return replace(plain, job=job, weather=replace(plain.weather, one_host=seed % 4 != 0))

    with Orders().at_work():
        laboratory.run_all(batch, on_stand_in)


@pytest.mark.parametrize("batch", batches(range(20, 26), size=5, kept=1), ids=str)
def test_one_device_runs_again_what_several_did_with_the_same_bits(
    batch: range, laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def claims(computed: Mapping[WorkerId, Collection[Computed]], num_sharing: int) -> Claims:
        told.extend(name for ones in computed.values() for one in ones for name in one.made)
        return claims_of(computed, num_sharing)

    monkeypatch.setattr(salvage, "claims_of", claims)
    for seed in batch:
        plain = tensor(KINDS[seed % 5](seed, str(laboratory.source)))
        resilience = msgspec.structs.replace(plain.job.resilience, audit=1.0)
        outcome = laboratory.run(replace(plain, job=msgspec.structs.replace(plain.job, resilience=resilience)))
        assert not outcome.of(ComputedWrong), f"seed {seed}"
        assert not [note for note in outcome.of(Note) if note.text.startswith(("computations", "messages"))]
    assert {"p1", "w1"} <= set(told), "parts of what is run again as a whole"


def plain_job(source: str, devices: int, **changes: object) -> Schedule:
    asked = {"nodes": 3, "depth": 2, "devices": devices, "microbatches": 4, "source": source, **changes}
    job = job_of(**asked)  # type: ignore[arg-type]
    cluster = msgspec.structs.replace(job.cluster, devices_per_stage=devices, stage_parallelism=StageParallelism.TENSOR)
    job = msgspec.structs.replace(job, model=model_of("llama", 2, devices), cluster=cluster)
    return Schedule(seed=1, job=job, kills=(), weather=Weather(), stop_at_s=None)


def every(*devices: int) -> list[ParameterSet]:
    return [pytest.param(*case) for case in product(devices, (True, False), ("zb-h1", "eager-1f1b"))]


@pytest.mark.parametrize(("devices", "recomputes", "order"), [*every(2), *rest_in_proof(every(4, 8), kept=0)])
def test_every_number_of_devices_has_the_same_bits(
    devices: int,
    recomputes: bool,
    order: str,
    laboratory: Laboratory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exchanged = 0

    def add_up(self: StageMates, *arguments: object) -> object:
        nonlocal exchanged
        exchanged += self.number == devices
        return usual(self, *arguments)

    usual = StageMates.add_up
    monkeypatch.setattr(StageMates, "add_up", add_up)
    plain = plain_job(str(laboratory.source), devices, order=order, activation_checkpointing=recomputes)
    outcome = laboratory.cluster(plain).run()
    assert outcome.weights == laboratory.reference(plain.job).weights
    assert exchanged


@pytest.mark.parametrize("lost", ["node", "device"])
def test_after_a_death_within_an_exchange_the_others_go_on(
    lost: str,
    laboratory: Laboratory,
) -> None:
    plain = plain_job(str(laboratory.source), 2)
    kill = Kill(node=1, at="exchange", step=2, delay_s=1e-6, device=1 if lost == "device" else -1)
    cluster = laboratory.cluster(replace(plain, kills=(kill,)))
    outcome = cluster.run()
    assert outcome.weights == laboratory.reference(plain.job).weights
    assert len(outcome.of(DeviceLost if lost == "device" else NodeLost)) == 1
    plan: Plan = cluster.machine.plan
    assert plan.shares_microbatches == (lost == "node")
    finishing = [plan.shares_microbatches for plan in outcome.of(PlanTaken) if plan.purpose == Purpose.FINISH_STEP]
    assert finishing == [True]


def test_what_all_devices_of_a_stage_have_counted_is_not_done_again(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage dies in a backward: the one after it, which is halted, has counted that microbatch already."""
    kept: list[Ledger] = []

    def counted(self: Salvage, num_layers: int) -> Ledger:
        kept.append(usual(self, num_layers))
        return kept[-1]

    usual = Salvage.counted
    monkeypatch.setattr(Salvage, "counted", counted)
    plain = plain_job(str(laboratory.source), 2, nodes=4, smallest=2)
    outcome = laboratory.run(replace(plain, kills=(Kill(node=0, at="backward", step=2, delay_s=1e-6),)))
    assert any(plan.purpose == Purpose.FINISH_STEP for plan in outcome.of(PlanTaken))
    assert any(not ledger.is_empty for ledger in kept)


@pytest.mark.parametrize("redundancy", rest_in_proof(["eager-eager", "eager-lazy", "lazy-lazy"]))
def test_the_devices_of_a_shadow_go_on_in_the_place_of_a_lost_stage(
    redundancy: str, laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = 0

    def add_up(self: StageMates, *arguments: object) -> object:
        nonlocal shared
        shared += self.number == 2
        return usual(self, *arguments)

    usual = StageMates.add_up
    monkeypatch.setattr(StageMates, "add_up", add_up)
    plain = plain_job(str(laboratory.source), 2, nodes=4, smallest=2, policy="redundancy", redundancy=redundancy)
    outcome = laboratory.run(replace(plain, kills=(Kill(node=1, at="backward", step=2, delay_s=1e-6),)))
    assert all(plan.shares_microbatches for plan in outcome.of(PlanTaken))
    (finishing,) = (plan for plan in outcome.of(PlanTaken) if plan.purpose == Purpose.FINISH_STEP)
    places = [[worker for worker, _, _ in stages] for stages in finishing.pipelines]
    assert sorted({worker for workers in places for worker in workers if workers.count(worker) > 1}) == [0, 1]
    assert shared


@pytest.mark.parametrize(("devices", "order"), rest_in_proof([pytest.param(2, "zb-h1"), pytest.param(4, "1f1b")]))
def test_devices_that_go_on_exchange_nothing_twice(
    devices: int, order: str, laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever each of them was doing when it was told of another plan, and whichever microbatches came with that."""
    sent: Counter[tuple[object, int, Key]] = Counter()

    def exchange(self: Interpreter, peer: WorkerId, key: Key, part: torch.Tensor | None) -> torch.Tensor:
        sent[self, self.step, key] += part is not None
        return usual(self, peer, key, part)

    usual = Interpreter._exchange
    monkeypatch.setattr(Interpreter, "_exchange", exchange)
    plain = plain_job(str(laboratory.source), devices, order=order)
    for at, late in product(("forward", "backward", "exchange"), range(3)):
        kill = Kill(node=late, at=at, step=2, delay_s=late * 0.004)
        outcome = laboratory.cluster(replace(plain, kills=(kill,))).run()
        assert outcome.weights == laboratory.reference(plain.job).weights
    assert set(sent.values()) == {1}
