"""Which hosts measure the links between them: a few each, and never one in two probes at once."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.plan.costs.network import host_pair
from planaria.protocol.membership.link_probes import LinkProbes
from planaria.protocol.thresholds import PROBED_ACROSS_ZONES, PROBED_IN_ZONE


def of_hosts(*hosts: str, zone: str = "") -> LinkProbes[str]:
    probes: LinkProbes[str] = LinkProbes()
    for host in hosts:
        probes.add(host, host, zone)
    return probes


def test_the_first_host_has_nobody_to_be_measured_with() -> None:
    probes = of_hosts("a")
    probes.offer("a")
    assert probes.begin() == []
    assert probes.done() == [("a", ())]
    assert probes.done() == [], "once"


def test_a_newcomer_is_measured_and_then_done() -> None:
    probes = of_hosts("a", "b")
    probes.offer("b")
    assert probes.begin() == [("b", "a")]
    assert probes.begin() == []
    assert probes.done() == []
    probes.answer("b", 1e-3, 1e6)
    ((key, (link,)),) = probes.done()
    assert (key, link.one, link.other, link.latency_s, link.bytes_per_s) == ("b", "b", "a", 1e-3, 1e6)


def test_a_host_out_of_reach_tells_nothing_and_holds_up_nobody() -> None:
    probes = of_hosts("a", "b", "c")
    probes.offer("c")
    probes.begin()
    probes.answer("c", 0.0, 0.0)
    probes.begin()
    probes.remove("b")
    assert probes.done() == [("c", ())]


def test_nodes_of_one_host_are_not_measured() -> None:
    probes: LinkProbes[int] = LinkProbes()
    for key in range(3):
        probes.add(key, "a", "")
    probes.offer(0)
    assert probes.begin() == []
    assert probes.done() == [(0, ())]


def test_a_host_that_comes_back_is_not_measured_again() -> None:
    probes = of_hosts("a", "b")
    probes.offer("b")
    probes.begin()
    probes.answer("b", 1e-3, 1e6)
    probes.done()
    probes.remove("b")
    probes.add("again", "b", "")
    probes.offer("again")
    assert probes.begin() == []


@settings(deadline=None)
@given(st.lists(st.sampled_from(["", "x", "y", "z"]), max_size=20), st.randoms(use_true_random=False))
def test_few_pairs_all_of_them_measured_and_no_host_twice_at_once(zones: list[str], random: object) -> None:
    probes: LinkProbes[int] = LinkProbes()
    under_way: dict[int, int] = {}
    asked: Counter[int] = Counter()
    pairs, done = set(), []
    for key, zone in enumerate(zones):
        probes.add(key, f"host{key}", zone)
    for key in range(len(zones)):
        probes.offer(key)
    while len(done) < len(zones):
        done += probes.done()
        under_way |= dict(begun := probes.begin())
        busy = [key for pair in under_way.items() for key in pair]
        assert len(busy) == len(set(busy))
        for one, other in begun:
            asked[one] += 1
            pair = host_pair(f"host{one}", f"host{other}")
            pairs.add(pair)
        if under_way:
            key = random.choice(sorted(under_way))  # type: ignore[attr-defined]
            del under_way[key]
            probes.answer(key, 1e-3, 1e6)
    assert max(asked.values(), default=0) <= PROBED_IN_ZONE + PROBED_ACROSS_ZONES
    assert {host_pair(link.one, link.other) for _, links in done for link in links} == pairs


def test_whoever_offers_twice_is_measured_once() -> None:
    probes = of_hosts("a", "b")
    probes.offer("b")
    probes.offer("b")
    assert probes.begin() == [("b", "a")]
    probes.answer("b", 1e-3, 1e6)
    assert [key for key, _ in probes.done()] == ["b"]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["offer", "answer", "remove", "add"])), max_size=60))
def test_hosts_that_come_and_go_are_never_in_two_probes_and_none_waits_for_one_that_is_gone(
    course: list[tuple[int, str]],
) -> None:
    """Each key is on one of four hosts, of two zones."""
    probes: LinkProbes[int] = LinkProbes()
    there: set[int] = set()
    under_way: dict[int, int] = {}
    waiting: set[int] = set()
    for key, what in course:
        if what == "add" and key not in there:
            probes.add(key, f"host{key % 4}", f"zone{key % 2}")
            there.add(key)
        elif what == "offer" and key in there:
            probes.offer(key)
            waiting.add(key)
        elif what == "answer":
            probes.answer(key, 1e-3, 1e6)
            under_way.pop(key, None)
        elif what == "remove":
            probes.remove(key)
            there.discard(key)
            waiting.discard(key)
            under_way = {one: other for one, other in under_way.items() if key not in (one, other)}
        waiting -= {done for done, _ in probes.done()}
        under_way |= dict(probes.begin())
        busy = [one % 4 for pair in under_way.items() for one in pair]
        assert len(busy) == len(set(busy))
        assert there.issuperset(one for pair in under_way.items() for one in pair)
    for _ in range(100):
        for key in list(under_way):
            probes.answer(key, 1e-3, 1e6)
        waiting -= {done for done, _ in probes.done()}
        under_way = dict(probes.begin())
    assert not waiting, "none waits for ever"
