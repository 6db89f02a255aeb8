"""Bytes of sums and of what is held, against what follows from the slices alone."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria.plan.costs.byte_counts import (
    EXACT,
    FAST,
    MIXED,
    ValueBytes,
    held_bytes,
    message_bytes,
    read_from_hosts,
    read_in_memory,
    read_spread,
)
from planaria.plan.plan import Group, WorkerId
from planaria.plan.sums.slices import slices_of
from tests.plan.profiles import uniform_profile

SENT, COUNTED = 4.0, 8.0

PLACES = st.lists(st.integers(0, 3), min_size=1, max_size=8)


@given(hosts=PLACES)
def test_two_vectors_less_a_share_leave_each_host(hosts: list[int]) -> None:
    """Reduce-scatter and all-gather between hosts, however many owners they have."""
    owners = [WorkerId(number) for number in range(len(hosts))]
    slices, counting = slices_of(owners, hosts), frozenset(owners)
    left = dict.fromkeys(hosts, 0.0)
    for owner in owners:
        for sender, size_bytes in read_from_hosts(slices, owner, counting, SENT):
            assert hosts[sender] != hosts[owner]
            left[hosts[sender]] += size_bytes
    num = len(left)
    assert list(left.values()) == pytest.approx([2 * (num - 1) / num * SENT] * num)


@given(count=st.integers(1, 8), silent=st.integers(0, 8))
def test_owners_on_hosts_of_their_own_read_what_the_short_form_says(count: int, silent: int) -> None:
    owners = [WorkerId(number) for number in range(count)]
    slices, counting = slices_of(owners, owners), frozenset(owners[silent:])
    for owner in owners:
        read = sum(size_bytes for _, size_bytes in read_from_hosts(slices, owner, counting, SENT))
        assert read == pytest.approx(read_spread(count, len(counting - {owner}), SENT) if count > 1 else 0.0)
        assert not list(read_in_memory(slices, owner, counting, SENT, COUNTED))


def test_in_memory_what_is_counted_is_read_as_it_lies_there() -> None:
    """Two owners of one host: each reads the other's float64 of its own half, and float32 of the other."""
    owners = [WorkerId(0), WorkerId(1)]
    slices = slices_of(owners, [0, 0])
    assert list(read_in_memory(slices, owners[0], frozenset(owners), SENT, COUNTED)) == [(1, COUNTED / 2 + SENT / 2)]
    assert list(read_in_memory(slices, owners[0], frozenset(owners[:1]), SENT, COUNTED)) == [(1, SENT / 2)]
    assert not list(read_from_hosts(slices, owners[0], frozenset(owners), SENT))


@given(hosts=PLACES, givers_hosts=PLACES)
def test_givers_read_nothing_but_to_carry_what_their_host_counted(hosts: list[int], givers_hosts: list[int]) -> None:
    everybody = [WorkerId(number) for number in range(len(hosts) + len(givers_hosts))]
    givers, counting = everybody[len(hosts) :], frozenset(everybody)
    slices = slices_of(everybody[: len(hosts)], hosts, givers, givers_hosts)
    for giver, host in zip(givers, givers_hosts, strict=True):
        assert not list(read_from_hosts(slices, giver, counting, SENT))
        read = sum(size_bytes for _, size_bytes in read_in_memory(slices, giver, counting, SENT, COUNTED))
        mates = len(slices.on_host_of(giver)) - 1
        carried = sum(map(slices.share, slices.carried_by(giver)))
        assert read == pytest.approx(mates * COUNTED * carried)
        assert host not in hosts or not read
    given = sum(sum(size for _, size in read_from_hosts(slices, owner, counting, SENT)) for owner in slices.owners)
    others = len({*hosts, *givers_hosts}) - 1
    assert given == pytest.approx((others + len(set(hosts)) - 1) * SENT), "parts of every other host, and totals back"


@pytest.mark.parametrize(("values", "counted"), [(EXACT, 8), (FAST, 4), (MIXED, 2)])
def test_an_owner_holds_a_groups_part_of_its_layer(values: ValueBytes, counted: int) -> None:
    """A layer of 1000 parameters, of which the group has 250."""
    plain = uniform_profile(1)
    layer = msgspec.structs.replace(
        plain.layers[0],
        parameter_bytes=1000 * values.parameter,
        gradient_bytes=1000 * values.gradient,
        optimizer_bytes=1000 * values.optimizer,
    )
    profile = msgspec.structs.replace(plain, layers=(layer,))
    held = held_bytes(profile, Group(layers=(0,), size_bytes=250 * values.parameter))
    assert sum(held) == 250 * values.state
    assert held.parameters == 250 * values.parameter
    assert (held.counted, held.optimizer) == (250 * counted, 250 * values.optimizer)


def test_a_boundary_passes_what_the_layer_below_gives() -> None:
    profile = uniform_profile(2)
    assert message_bytes(profile, 1) == profile.layers[0].output_bytes
