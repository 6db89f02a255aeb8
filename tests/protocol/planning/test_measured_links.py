"""Links between hosts: classes and far pairs from probes, what follows for plans, and the same after a restart."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import msgspec
import pytest

from planaria.job.sections.train import TrainSection
from planaria.plan.costs.model_profile import LinkCost
from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.messages.events import Event, LinksMeasured, Publish, Received, WorkerJoined
from planaria.protocol.messages.from_worker import Flow, Vote
from planaria.protocol.messages.journal import JournalEntry, decode_entry, encode_entry
from planaria.protocol.messages.records import EstimateCorrected, LinkChanged
from planaria.protocol.messages.run_measurements import HostLink
from planaria.protocol.planning.measured_links import MeasuredLinks
from planaria.protocol.run.replay import JournalState
from planaria.protocol.thresholds import CALIBRATED_AFTER, FLOWS_EVERY
from tests.plan.profiles import uniform_profile
from tests.protocol.test_coordinator import make_machine, vote

LOOPBACK = LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=1e9)
GIVEN = uniform_profile(4, tied=False, link=LOOPBACK)


def link(one: str, other: str, mbit: float, latency_s: float = 1e-3, *, across: bool = False) -> HostLink:
    return HostLink(one=one, other=other, latency_s=latency_s, bytes_per_s=mbit * 1e6 / 8, across_zones=across)


def measured(*links: HostLink) -> MeasuredLinks:
    found = MeasuredLinks(GIVEN)
    found.measured(NodeId(0), "a", links)
    return found


def test_nothing_measured_leaves_the_profile() -> None:
    assert measured().profile is GIVEN
    assert measured().wire_bytes_per_s == 0.0
    assert measured().figures == ()


def test_a_class_has_the_median_over_the_transport() -> None:
    found = measured(link("a", "b", 190), link("a", "c", 200), link("b", "c", 210, 9e-3))
    between = found.profile.links.between_nodes
    assert between.bandwidth_bytes_per_s == found.wire_bytes_per_s == 25e6
    assert between.latency_s == pytest.approx(1.1e-3), "the wire's beside the transport's"
    assert found.profile.links.within_node == LOOPBACK
    assert found.profile.links.across_zones is None
    assert found.profile.step.vote_s == pytest.approx(GIVEN.step.vote_s + 2e-3), "a vote and its commit"
    assert not found.far_pairs


def test_no_link_is_faster_than_the_transport() -> None:
    assert measured(link("a", "b", 100_000)).profile.links.between_nodes.bandwidth_bytes_per_s == 1e9


def test_zones_are_a_class_where_it_matters() -> None:
    near = [link("a", "b", 1000), link("c", "d", 1000)]
    far = [link("a", "c", 200, 5e-3, across=True), link("b", "d", 200, 5e-3, across=True)]
    links = measured(*near, *far).profile.links
    assert links.between_nodes.bandwidth_bytes_per_s == 125e6
    assert links.across_zones is not None
    assert links.across_zones.bandwidth_bytes_per_s == 25e6
    alike = [link("a", "c", 950, across=True), link("b", "d", 950, across=True)]
    assert measured(*near, *alike).profile.links.across_zones is None
    assert measured(*far).profile.links.between_nodes.bandwidth_bytes_per_s == 25e6, "the only class there is"


def test_a_pair_far_off_its_class_counts_by_itself() -> None:
    hosts = "abcd"
    slow = {("a", "d")}
    found = measured(*(link(*pair, 10 if pair in slow else 1000) for pair in combinations(hosts, 2)))
    assert found.profile.links.between_nodes.bandwidth_bytes_per_s == 125e6
    assert {pair: cost.bandwidth_bytes_per_s for pair, cost in found.far_pairs.items()} == {("a", "d"): 1.25e6}
    assert [(row.name, row.pairs) for row in found.figures] == [("between_nodes", 6), ("a - d", 1)]


def test_a_later_probe_of_a_pair_counts() -> None:
    found = measured(link("a", "b", 1000))
    found.measured(NodeId(1), "b", [link("b", "a", 100)])
    assert found.profile.links.between_nodes.bandwidth_bytes_per_s == 12.5e6


def test_plans_use_what_was_measured_and_a_successor_knows_it() -> None:
    machine = make_machine()
    entries: list[JournalEntry] = []
    expected_s = make_and_join(machine_of_today := make_machine(), {})
    slow = {1: (link("host0", "host1", 10),), 2: (link("host0", "host2", 10), link("host1", "host2", 10))}
    measured_s = make_and_join(machine, slow, entries)
    assert measured_s > 2 * expected_s, "the sums travel over 10 Mbit/s"
    assert [(row.name, row.pairs) for row in machine.state.links] == [("between_nodes", 3)]
    assert machine_of_today.state.links == ()
    past = JournalState.of(decode_entry(encode_entry(entry)) for entry in entries)
    successor = make_machine(past)
    assert successor.learnt.links == machine.learnt.links
    assert successor.state.links == machine.state.links
    assert successor.policy.planner.profile == machine.policy.planner.profile
    assert successor.policy.estimated(machine.plan).step_time_s == pytest.approx(measured_s)


def make_and_join(
    machine: Coordinator, links: dict[int, tuple[HostLink, ...]], journal: list[JournalEntry] | None = None
) -> float:
    """Lets three nodes join, each with what its host measured; returns the estimate of the first plan's step."""
    for node in range(3):
        events: list[Event] = [WorkerJoined(WorkerId(node), f"host{node}:1")]
        if links:
            events.insert(0, LinksMeasured(NodeId(node), f"host{node}", links.get(node, ())))
        for event in events:
            commands = machine.handle(event, 0.0)
            if journal is not None:
                journal += [command for command in commands if isinstance(command, JournalEntry)]
    return machine.step_times.step_s


def test_links_count_as_steps_show() -> None:
    found = measured(link("a", "b", 80, 0.0))
    at_10_mb = found.profile.links.between_nodes.bandwidth_bytes_per_s

    def step_s(links: MeasuredLinks) -> float:
        return 0.1 + 1e6 / links.profile.links.between_nodes.bandwidth_bytes_per_s

    assert found.explain(0.5, step_s)
    slowdown = found.slowdown
    assert slowdown == pytest.approx(4.0, rel=0.01)
    assert found.profile.links.between_nodes.bandwidth_bytes_per_s == pytest.approx(at_10_mb / 4, rel=0.01)
    assert not found.explain(0.05, step_s), "no link is so fast"
    assert not found.explain(60.0, step_s), "and this has another reason"
    assert found.slowdown == slowdown
    again = MeasuredLinks(GIVEN)
    again.recall(found.learnt)
    assert again.profile == found.profile
    assert not measured().explain(1.0, step_s), "nothing is known of links"


def test_the_link_of_a_pair_changes() -> None:
    found = measured(link("a", "b", 1000), link("a", "c", 1000), link("b", "c", 1000))
    assert found.change(("a", "b"), 0.1, across_zones=False).bytes_per_s == pytest.approx(12.5e6)
    assert list(found.far_pairs) == [("a", "b")]
    unknown = found.change(("c", "d"), 0.1, across_zones=False)
    assert unknown.bytes_per_s == pytest.approx(12.5e6), "a pair that was never probed was as its class"
    assert set(found.far_pairs) == {("a", "b"), ("c", "d")}
    found.change(("a", "b"), 10.0, across_zones=False)
    assert list(found.far_pairs) == [("c", "d")]


@pytest.mark.parametrize(("times", "is_reviewed"), [(3.0, True), (1.2, False), (1.02, None)])
def test_steps_off_their_estimate_correct_it(times: float, is_reviewed: bool | None) -> None:
    """And have the plan reviewed, where links must be far otherwise than they were probed."""
    machine = make_machine(train=TrainSection(steps=20, global_batch=4, microbatch=1, sequence_length=8))
    entries: list[JournalEntry] = []
    slow = {1: (link("host0", "host1", 10),), 2: (link("host0", "host2", 10), link("host1", "host2", 10))}
    step_s = make_and_join(machine, slow, entries)
    news = run_steps(machine, 12, lambda step: times * step_s, entries=entries)
    if is_reviewed is None:
        assert not news
        return
    ((step, corrected),) = news
    assert isinstance(corrected, EstimateCorrected)
    assert step == corrected.step + 1 == CALIBRATED_AFTER + 2
    assert (corrected.before_s, corrected.step_s) == pytest.approx((step_s, times * step_s))
    assert corrected.is_reviewed == is_reviewed
    assert machine.policy.estimated(machine.plan).step_time_s == pytest.approx(times * step_s, rel=1e-6)
    past = JournalState.of(decode_entry(encode_entry(entry)) for entry in entries)
    assert make_machine(past).policy.planner.profile == machine.policy.planner.profile


def test_a_link_that_becomes_slow_is_seen_in_what_flows() -> None:
    machine = make_machine(train=TrainSection(steps=60, global_batch=4, microbatch=1, sequence_length=8))
    fast = {1: (link("host0", "host1", 1000),), 2: (link("host0", "host2", 1000), link("host1", "host2", 1000))}
    step_s = make_and_join(machine, fast)
    size = 10_000_000

    def flows(worker: int, step: int) -> dict[WorkerId, Flow]:
        """Ten megabytes a step to each other worker, at 100 MB a second; from step 20 on worker 2's link does 10."""
        if step % FLOWS_EVERY:
            return {}
        slow_steps = max(0, step - 20)
        told = {}
        for peer in {0, 1, 2} - {worker}:
            extra_s = 0.9 * slow_steps if 2 in (worker, peer) else 0.0
            told[WorkerId(peer)] = Flow(step * size, step * 0.1 + extra_s)
        return told

    news = [one for one in run_steps(machine, 56, lambda step: step_s, flows) if isinstance(one[1], LinkChanged)]
    assert {record.hosts for _, record in news} == {("host0", "host2"), ("host1", "host2")}
    assert {record.step for _, record in news} == {32}, "two windows have shown it"
    assert all(record.factor == pytest.approx(0.1) for _, record in news)
    slow = {row.name for row in machine.state.links} - {"between_nodes"}
    assert len(slow) in (1, 2), "pairs far off their class"


def run_steps(
    machine: Coordinator,
    until: int,
    took_s: Callable[[int], float],
    flows: Callable[[int, int], dict[WorkerId, Flow]] = lambda worker, step: {},
    entries: list[JournalEntry] | None = None,
) -> list[tuple[int, EstimateCorrected | LinkChanged]]:
    """Votes for steps until this one; returns what was told of links, and the step in progress then."""
    now, news = 0.0, []
    while (step := machine.step) <= until:
        now += took_s(step)
        for worker in range(3):
            event = vote(machine, worker)
            assert isinstance(event.message, Vote)
            told = msgspec.structs.replace(event.message, flows=flows(worker, step))
            for command in machine.handle(Received(WorkerId(worker), told), now):
                if isinstance(command, JournalEntry) and entries is not None:
                    entries.append(command)
                elif isinstance(command, Publish) and isinstance(command.record, EstimateCorrected | LinkChanged):
                    news.append((machine.step, command.record))
    return news
