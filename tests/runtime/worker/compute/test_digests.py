"""Digests of what a worker holds, as its votes have them."""

from __future__ import annotations

from random import Random

import pytest
import torch

from planaria.job.faults import Fault, FaultKind
from planaria.job.sections.train import TrainSection
from planaria.model.load import load_model
from planaria.runtime.worker.compute.device.device import HostDevice
from planaria.runtime.worker.compute.holdings import Holdings
from planaria.runtime.worker.compute.replica import digest_of_values
from planaria.runtime.worker.faults import FaultInjector, flip
from tests.model.small_models import TRAIN, VOCAB_SIZE, small_section

CPU = HostDevice()


def held(train: TrainSection = TRAIN, *, compares: bool = True) -> Holdings:
    """One worker with every group of a small model."""
    model = load_model(small_section("gpt2"), train, vocab_size=VOCAB_SIZE)
    holdings = Holdings(model, train, CPU, compares=compares)
    for group in range(len(model.groups)):
        replica = holdings.new_replica(group)
        holdings.initialise(replica, group)
        holdings.put(group, replica)
    holdings.note_written(holdings.replicas)
    return holdings


def test_two_that_hold_the_same_tell_the_same() -> None:
    one, other = held(), held()
    assert one.digests(one.replicas, with_sums=True) == other.digests(other.replicas, with_sums=True)
    assert all(digest.state == digest.written for digest in one.digests(one.replicas, with_sums=True).values())


def test_nothing_is_told_where_replicas_are_not_compared() -> None:
    holdings = held(compares=False)
    assert holdings.digests(holdings.replicas, with_sums=True) == {}
    assert all(replica.written is None for replica in holdings.replicas.values())


@pytest.mark.parametrize("which", range(3))
def test_a_flipped_bit_of_parameters_or_optimizer_shows_that_it_was_not_written(which: int) -> None:
    holdings = held()
    flip([holdings.replicas[1].state[which]], Random(which), bits=1)
    digest = holdings.digests((1,), with_sums=True)[1]
    assert digest.state != digest.written
    holdings.note_written((1,))
    digest = holdings.digests((1,), with_sums=True)[1]
    assert digest.state == digest.written


def test_a_flipped_bit_of_a_sum_shows_in_the_sum_alone() -> None:
    holdings = held()
    before = holdings.digests((1,), with_sums=True)[1]
    flip([holdings.replicas[1].gradient], Random(0), bits=1)
    after = holdings.digests((1,), with_sums=True)[1]
    assert (after.state, after.written) == (before.state, before.written)
    assert after.sum != before.sum
    assert holdings.digests((1,), with_sums=False)[1].sum == 0


def test_a_replica_that_comes_from_a_peer_was_written_by_nobody_here() -> None:
    holdings = held()
    holdings.put(1, holdings.new_replica(1))
    assert holdings.digests((1,), with_sums=False)[1].written is None


def counted(holdings: Holdings, *microbatches: int) -> None:
    """Counts made-up gradients of a layer, one lot a microbatch."""
    for microbatch in microbatches:
        draw = torch.Generator().manual_seed(microbatch)
        shapes = {name: view.shape for name, view in holdings.views(1).items()}
        holdings.count(1, {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()})


def digest_after(*microbatches: int) -> int:
    holdings = held()
    holdings.begin_step([4] * len(holdings.replicas))
    counted(holdings, *microbatches)
    found = holdings.digest_of_counts(1)
    assert found is not None
    return found


def test_a_digest_of_counts_adds_up_as_they_do() -> None:
    assert digest_after() == 0
    one, two, both = digest_after(1), digest_after(2), digest_after(2, 1)
    assert (one + two - both) % (1 << 64) == 0
    assert one != two


def test_what_is_counted_for_an_audit_counts_for_nothing() -> None:
    holdings = held()
    holdings.begin_step([4] * len(holdings.replicas))
    counted(holdings, 2)
    with holdings.counting_for_an_audit():
        assert holdings.digest_of_counts(1) == 0
        counted(holdings, 1)
        assert holdings.digest_of_counts(1) == digest_after(1)
    assert holdings.digest_of_counts(1) == digest_after(2)


@pytest.mark.parametrize("bit", [0, 20, 51, 62])
def test_a_flipped_bit_of_what_is_counted_shows_be_it_below_the_grid(bit: int) -> None:
    holdings = held()
    holdings.begin_step([4] * len(holdings.replicas))
    counted(holdings, 1, 2)
    before = holdings.digest_of_counts(1)
    (group, *_) = (g for g, counts in holdings.accumulators.items() if not counts.is_empty)
    words = holdings.accumulators[group].total.view(torch.int64)
    words[0] ^= 1 << bit
    assert holdings.digest_of_counts(1) != before


def test_tensors_of_any_type_and_shape_have_a_digest() -> None:
    tensors = (torch.ones(2, 3, dtype=torch.bfloat16), torch.tensor(3), torch.zeros(0), torch.tensor([True, False]))
    first = digest_of_values(tensors)
    assert digest_of_values(tuple(tensor.clone() for tensor in tensors)) == first
    assert digest_of_values((tensors[0].T, *tensors[1:])) == first, "equal values: all are 1"
    assert digest_of_values((*tensors[:3], torch.tensor([True, True]))) != first


@pytest.mark.parametrize(("repeats", "struck"), [(False, [3]), (True, [3, 4, 5])])
def test_bits_are_flipped_once_or_in_each_step_from_then_on(repeats: bool, struck: list[int]) -> None:
    fault = Fault(node=0, step=3, at="rest", kind=FaultKind.CORRUPT, bits=2, repeats=repeats)
    told: list[float] = []
    injector = FaultInjector([fault], told.append, lambda grace_s: None)
    changed = []
    for step in range(1, 6):
        for at in ("rest", "apply", "rest"):
            vector = torch.ones(64)
            injector.corrupt(at, step, lambda: [vector])  # noqa: B023 (called at once)
            if not torch.equal(vector, torch.ones(64)):
                changed.append(step)
                assert at == "rest"
    assert changed == struck
    assert len(told) == len(struck)
