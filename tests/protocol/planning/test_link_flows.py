"""Flows between hosts: what counts as a change of a link, and what tells nothing."""

from __future__ import annotations

from planaria.plan.costs.network import HostPair
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import Flow
from planaria.protocol.planning.link_flows import LinkFlows

MB = 1_000_000
HOSTS = {0: "a", 1: "b", 2: "a"}
PAIR = ("a", "b")


class Wire:
    """What worker 0 tells of worker 1, a window at a time."""

    def __init__(self) -> None:
        self.flows = LinkFlows()
        self.size, self.busy_s = 0, 0.0

    def window(self, mb_per_s: float, size: int = 10 * MB, generation: int = 1, to: int = 1) -> dict[HostPair, float]:
        self.size += size
        self.busy_s += size / MB / mb_per_s
        told = {WorkerId(0): {WorkerId(to): Flow(self.size, self.busy_s)}}
        return {
            pair: round(factor, 3)
            for pair, factor in self.flows.measured(generation, told, lambda worker: HOSTS.get(worker)).items()
        }


def test_a_change_is_believed_once_two_windows_show_it() -> None:
    wire = Wire()
    found = [wire.window(rate) for rate in (100, 100, 90, 20, 10, 10, 110, 100)]
    assert found == [{}, {}, {}, {}, {PAIR: 0.1}, {}, {}, {PAIR: 10.0}]


def test_one_slow_window_is_no_change() -> None:
    wire = Wire()
    assert not any(wire.window(rate) for rate in (100, 100, 10, 100, 10, 100, 300, 20, 60))


def test_another_plan_begins_anew() -> None:
    wire = Wire()
    for rate in (100, 100, 100):
        wire.window(rate)
    assert not any(wire.window(rate, generation=2) for rate in (10, 10, 10, 10)), "it may share links otherwise"


def test_few_bytes_tell_nothing() -> None:
    wire = Wire()
    assert not any(wire.window(rate, size=1000) for rate in (100, 100, 1, 1, 1))


def test_a_new_connection_begins_at_nothing() -> None:
    wire = Wire()
    wire.window(100)
    wire.window(100)
    wire.size, wire.busy_s = 0, 0.0
    assert not any(wire.window(rate) for rate in (100, 100, 100))


def test_workers_of_one_host_or_of_an_unknown_one_tell_nothing() -> None:
    for peer in (2, 3):
        wire = Wire()
        assert not any(wire.window(rate, to=peer) for rate in (100, 100, 10, 10, 10))
