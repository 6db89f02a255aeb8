"""How fast sums go to several hosts: to each its part of the wire, as probed or as steps that go freely show it."""

from __future__ import annotations

from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import Flow
from planaria.runtime.thresholds import PACED_BELOW_BYTES_PER_S, UNPACED_EVERY
from planaria.runtime.worker.transport.pacing import Pacing

WIRE = 24e6


class Wire:
    """Three connections over one wire, and what they have sent so far.

    Args:
        bytes_per_s: that the wire really takes.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._sent, self._busy_s = 0, 0.0

    def step(self, pace: float | None) -> dict[WorkerId, Flow]:
        """Sends a step's sums, 4 MB to each of the three."""
        each = min(self._bytes_per_s / 3, self._bytes_per_s if pace is None else pace)
        self._sent += 4_000_000
        self._busy_s += 4_000_000 / each
        return {WorkerId(peer): Flow(self._sent, self._busy_s) for peer in (1, 2, 3)}


def paces(pacing: Pacing, wire: Wire, steps: int) -> list[float | None]:
    found: list[float | None] = []
    flows: dict[WorkerId, Flow] = {}
    for _ in range(steps):
        found.append(pacing.next_step(flows))
        flows = wire.step(found[-1])
    return found


def begun(wire_bytes_per_s: float = WIRE, num_hosts: int = 3) -> Pacing:
    pacing = Pacing()
    pacing.begin_plan(wire_bytes_per_s, num_hosts)
    return pacing


def test_each_host_has_its_part_of_the_wire_but_in_some_steps() -> None:
    found = paces(begun(), Wire(WIRE), UNPACED_EVERY)
    assert found == [WIRE / 3] * (UNPACED_EVERY - 1) + [None]


def test_a_wire_that_was_probed_while_it_was_busy_is_known_after_a_free_step() -> None:
    found = paces(begun(), Wire(2 * WIRE), UNPACED_EVERY + 1)
    assert found[-2:] == [None, 2 * WIRE / 3]


def test_a_wire_that_is_slower_than_probed_is_left_to_itself() -> None:
    found = paces(begun(), Wire(WIRE / 2), UNPACED_EVERY + 1)
    assert found[-1] == WIRE / 3


def test_nothing_is_paced_for_one_host_or_a_fast_wire_or_an_unknown_one() -> None:
    assert not begun(num_hosts=1).is_on
    assert not begun(PACED_BELOW_BYTES_PER_S).is_on
    assert not begun(0.0).is_on


def test_a_wire_that_shows_to_be_fast_is_not_paced_any_more() -> None:
    pacing = begun()
    assert paces(pacing, Wire(2 * PACED_BELOW_BYTES_PER_S), UNPACED_EVERY + 1)[-1] is None
    assert not pacing.is_on
