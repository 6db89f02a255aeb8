"""Sums over the devices of a stage: the bits of one tree, and nothing exchanged twice where a wait is put down."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import msgspec
import pytest
import torch

from planaria.job.registry import PolicyName
from planaria.model.tensors.virtual_shards import tree_sum
from planaria.plan.plan import NodeId, Plan, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from planaria.protocol.worker.mail import Key
from planaria.runtime.worker.transport.mailbox import Interrupted
from planaria.runtime.worker.transport.stage_mates import StageMates
from tests.plan.profiles import uniform_profile

DEVICES = 4
WORK = (3, 7)


def plan_of(devices: int = DEVICES) -> Plan:
    settings = PlannerSettings(
        num_microbatches=8,
        fault_tolerance=1,
        num_nodes=2,
        devices_per_node=devices,
        devices_per_stage=devices,
        share_microbatches=True,
    )
    policy = make_policy(PolicyName.TEMPLATES, Planner(uniform_profile(8), settings))
    return policy.initial([NodeId(0), NodeId(1)], 1).plan


class Post:
    """Carries parts between devices of the second node, each a thread."""

    def __init__(self) -> None:
        self.sent: list[Key] = []
        self.queues: dict[tuple[Key, WorkerId], Queue[torch.Tensor]] = {}
        self.interrupts = 0

    def of(self, worker: int) -> StageMates:
        def exchange(peer: WorkerId, key: Key, part: torch.Tensor | None) -> torch.Tensor:
            assert key.sender == worker
            if part is not None:
                self.sent.append(key)
                self.queue(key, peer).put(part)
            if self.interrupts:
                self.interrupts -= 1
                raise Interrupted
            return self.queue(key._replace(sender=peer), WorkerId(worker)).get(timeout=60)

        mates = StageMates(WorkerId(worker), exchange)
        mates.adopt(plan_of())
        return mates

    def queue(self, key: Key, to: WorkerId) -> Queue[torch.Tensor]:
        return self.queues.setdefault((key, to), Queue())


def parts() -> list[torch.Tensor]:
    return list(torch.randn(DEVICES, 100, generator=torch.Generator().manual_seed(1)) * 1e3)


def summed(devices: Sequence[StageMates], given: Sequence[torch.Tensor], among: int) -> list[torch.Tensor]:
    with ThreadPoolExecutor(DEVICES) as pool:
        return list(pool.map(lambda mates, part: mates.add_up(WORK, 5, part, among), devices, given))


def test_every_device_has_the_bits_of_the_tree() -> None:
    post = Post()
    devices = [post.of(DEVICES + place) for place in range(DEVICES)]
    assert [(mates.number, mates.place) for mates in devices] == [(DEVICES, place) for place in range(DEVICES)]
    given = parts()
    assert all(torch.equal(found, tree_sum(given)) for found in summed(devices, given, DEVICES))
    assert len(post.sent) == len(set(post.sent)) == 2 * DEVICES, "one message a round"


def test_a_sum_among_neighbours_asks_nobody_else() -> None:
    post = Post()
    devices = [post.of(DEVICES + place) for place in range(DEVICES)]
    given = parts()
    found = summed(devices, given, 2)
    assert all(torch.equal(found[at], tree_sum(given[at - at % 2 : at - at % 2 + 2])) for at in range(DEVICES))


def put_down() -> tuple[Post, list[StageMates], list[torch.Tensor]]:
    """Devices of which the first has put down a sum after its part had gone out."""
    post = Post()
    devices = [post.of(DEVICES + place) for place in range(DEVICES)]
    given = parts()
    post.interrupts = 1
    with pytest.raises(Interrupted):
        devices[0].add_up(WORK, 5, given[0], DEVICES)
    assert len(post.sent) == 1
    return post, devices, given


def test_what_was_exchanged_before_an_order_is_not_exchanged_again() -> None:
    post, devices, given = put_down()
    assert all(torch.equal(found, tree_sum(given)) for found in summed(devices, given, DEVICES))
    assert len(post.sent) == len(set(post.sent)) == 2 * DEVICES
    again = devices[0].add_up(WORK, 5, given[0], DEVICES)  # put down later in the layer: all of it has come
    assert torch.equal(again, tree_sum(given))
    assert len(post.sent) == 2 * DEVICES


def test_what_was_exchanged_stays_while_others_are_finished_and_under_another_plan() -> None:
    """As the layer that was put down may run again after all of that."""
    post, devices, given = put_down()
    devices[0].forget(lambda other, name: other != (4, 7))
    devices[0].forget(lambda other, name: name != 6)
    devices[0].adopt(plan_of())
    assert all(torch.equal(found, tree_sum(given)) for found in summed(devices, given, DEVICES))
    assert len(post.sent) == 2 * DEVICES
    for mates in devices:
        mates.forget(lambda other, name: (other, name) != (WORK, 5))
    assert all(torch.equal(found, tree_sum(given)) for found in summed(devices, given, DEVICES))
    assert len(post.sent) == 4 * DEVICES


def test_a_new_plan_may_share_nothing() -> None:
    mates = Post().of(DEVICES)
    mates.adopt(msgspec.structs.replace(plan_of(), shares_microbatches=False))
    assert (mates.number, mates.place) == (1, 0)
    part = torch.ones(3)
    assert mates.add_up(WORK, 1, part, mates.number) is part
