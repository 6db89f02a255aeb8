"""Slices of sums: they cover the vector once, hosts carry equally, and nothing crosses the wire twice."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria.plan.plan import WorkerId
from planaria.plan.sums.slices import slices_of


def workers(count: int) -> tuple[WorkerId, ...]:
    return tuple(WorkerId(3 * n + 1) for n in range(count))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(0, 3000).map(lambda n: 16 * n))
def test_slices_cover_the_vector_once_in_order(hosts: list[int], size: int) -> None:
    slices = slices_of(workers(len(hosts)), hosts)
    at = 0
    for owners in slices.hosts:
        for owner in owners:
            begin, end = slices.bounds(owner, size)
            assert begin == at <= end
            at = end
    assert at == size
    assert sum(map(slices.share, slices.owners)) == pytest.approx(1.0)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9))
def test_every_slice_has_one_carrier_on_each_other_host_and_carriers_take_turns(hosts: list[int]) -> None:
    owners = workers(len(hosts))
    slices = slices_of(owners, hosts)
    host_of = dict(zip(owners, hosts, strict=True))
    for owner in owners:
        carriers = slices.carriers(owner)
        assert sorted(host_of[carrier] for carrier in carriers) == sorted(set(hosts) - {host_of[owner]})
        assert all(owner in slices.carried_by(carrier) for carrier in carriers)
    for here in slices.hosts:
        carried = [len(slices.carried_by(owner)) for owner in here]
        assert max(carried) - min(carried) <= 1


def test_a_host_sends_and_receives_the_same_however_many_owners_it_has() -> None:
    slices = slices_of(workers(5), ("a", "a", "a", "b", "c"))
    assert [slices.share(owner) for owner in slices.owners] == pytest.approx([1 / 9] * 3 + [1 / 3] * 2)
    sent: Counter[str] = Counter()
    for owner in slices.owners:
        for carrier in slices.carriers(owner):
            host = next("abc"[at] for at, owners in enumerate(slices.hosts) if carrier in owners)
            sent[host] += round(9 * slices.share(owner))
    assert sent == {"a": 6, "b": 6, "c": 6}


def test_owners_on_one_host_carry_nothing() -> None:
    slices = slices_of(workers(3), (0, 0, 0))
    assert all(slices.carriers(owner) == () for owner in slices.owners)
    assert slices.bounds(WorkerId(4), 160) == (64, 112)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.lists(st.integers(0, 5), max_size=6))
def test_what_givers_count_goes_to_each_slices_owner_once_and_no_total_comes_back(
    hosts: list[int], givers_hosts: list[int]
) -> None:
    everybody = workers(len(hosts) + len(givers_hosts))
    owners, givers = everybody[: len(hosts)], everybody[len(hosts) :]
    slices, plain = slices_of(owners, hosts, givers, givers_hosts), slices_of(owners, hosts)
    host_of = dict(zip(everybody, (*hosts, *givers_hosts), strict=True))
    assert slices.owners == plain.owners
    for owner in owners:
        assert slices.bounds(owner, 1600) == plain.bounds(owner, 1600)
        assert slices.takers(owner) == plain.carriers(owner)
        carriers = slices.carriers(owner)
        assert sorted(host_of[carrier] for carrier in carriers) == sorted({*host_of.values()} - {host_of[owner]})
        assert all(owner in slices.carried_by(carrier) for carrier in carriers)
        assert {*slices.on_host_of(owner)} == {mate for mate in everybody if host_of[mate] == host_of[owner]}
    for giver in givers:
        assert slices.share(giver) == 0.0
        if host_of[giver] in hosts:
            assert slices.carried_by(giver) == (), "an owner of its host carries"
