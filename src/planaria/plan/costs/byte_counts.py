"""How many bytes a worker holds of a group, and how many a message, a sum and a move have. No other place says so.

Presets and measurements make profiles by it; the planner, the estimator, the simulator and emulated devices ask it what
a profile means; a test holds it against counters of real workers (tests/e2e/test_bytes.py). What a replica moves is
`Group.moved_bytes`, which follows from the groups made here.

Not counted: a frame's header (some 70 bytes a message), the list of values of an exact sum that 32 bits do not hold
(by experience below 1%), and the padding of each parameter to 64 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import Group, WorkerId
from planaria.plan.sums.slices import Slices


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueBytes:
    """Bytes of one value, by what it is.

    Attributes:
        parameter: as it is held and moved. What travels of a sum, parts and totals, has as many.
        accumulator: of a gradient while microbatches are counted; 0: they are counted where the sum is.
        optimizer: of the optimizer's state, a parameter.
        computed: of a value inside a layer.
        boundary: of a value that a layer passes on.
    """

    parameter: int
    accumulator: int
    optimizer: int
    computed: int
    boundary: int

    @property
    def gradient(self) -> int:
        """Bytes held of a parameter's gradient: the accumulator and the sum."""
        return self.accumulator + self.parameter

    @property
    def state(self) -> int:
        """Bytes held of a parameter in all."""
        return self.parameter + self.gradient + self.optimizer

    @property
    def added(self) -> int:
        """Bytes that go through memory to add one more owner's part: it is read, the sum is read and written."""
        return self.parameter + 2 * (self.accumulator or self.parameter)

    @property
    def updated(self) -> int:
        """Bytes that go through memory for the optimizer's step: gradient and state in, state and parameters out.

        Parameters come in too, unless (mixed precision) the state has a copy of higher precision.
        """
        return (2 if self.parameter == self.computed else 3) * self.parameter + 2 * self.optimizer

    @property
    def in_layer(self) -> int:
        """Bytes of a parameter while its layer runs: its gradient for one microbatch, and a copy to compute with."""
        return self.parameter + (self.computed if self.computed < self.parameter else 0)


EXACT = ValueBytes(parameter=4, accumulator=8, optimizer=8, computed=2, boundary=4)
"""Of a worker with exact numerics that computes in bfloat16: accumulators are float64, all else is float32. Parts of
sums travel as 32-bit integers."""

FAST = ValueBytes(parameter=4, accumulator=4, optimizer=8, computed=2, boundary=4)
"""Of a worker with fast numerics."""

MIXED = ValueBytes(parameter=2, accumulator=0, optimizer=12, computed=2, boundary=2)
"""Of published systems, not of Planaria: mixed precision with Adam (Rajbhandari et al., 2020, section 3.1). Parameters
and gradients of 2 bytes, a float32 copy and two moments."""

NUMERICS = {"exact": EXACT, "fast": FAST, "mixed": MIXED}
"""By the name that users give it."""


# What a profile means


class HeldBytes(NamedTuple):
    """Bytes that an owner holds of a group, before they are spread over its devices."""

    parameters: int
    accumulator: int
    sum: int
    optimizer: int

    @property
    def counted(self) -> int:
        """Bytes of what is counted of the group."""
        return self.accumulator or self.sum


def held_bytes(profile: ModelProfile, group: Group) -> HeldBytes:
    """Returns what an owner holds of a group: in the proportion of its first layer's."""
    layer = profile.layers[group.layers[0]]
    if not layer.parameter_bytes:
        return HeldBytes(0, 0, 0, 0)
    share = group.size_bytes / layer.parameter_bytes
    gradients = round(layer.gradient_bytes * share)
    total = min(gradients, group.size_bytes)
    return HeldBytes(group.size_bytes, gradients - total, total, round(layer.optimizer_bytes * share))


def message_bytes(profile: ModelProfile, boundary: int) -> int:
    """Returns the bytes of an activation, or a gradient, that passes the boundary before layer `boundary`."""
    return profile.layers[boundary - 1].output_bytes


def part_bytes(group: Group) -> int:
    """Returns the bytes of a group's whole vector as it travels in a sum, as parts or as totals."""
    return group.size_bytes


# Sums


def read_spread(num_owners: int, num_others: int, sent_bytes: float) -> float:
    """Returns what an owner reads for a sum whose owners are all on different hosts.

    Args:
        num_owners: of the group.
        num_others: owners but this one that counted something.
        sent_bytes: of the group's vector as it travels, or of a device's share of it.
    """
    return (num_others + num_owners - 1) * (sent_bytes / num_owners)


def read_in_memory(
    slices: Slices, worker: WorkerId, counting: frozenset[WorkerId], sent_bytes: float, counted_bytes: float
) -> Iterator[tuple[WorkerId, float]]:
    """Yields what an owner, or giver, reads of each other one on its host, in place: what those counted, and totals.

    Args:
        slices: of the group.
        worker: the one that reads.
        counting: those that counted something.
        sent_bytes: of the group's vector as it travels, or of a device's share of it; totals have as many.
        counted_bytes: of accumulators, or of a device's share of them.
    """
    adds = slices.share(worker) + sum(map(slices.share, slices.carried_by(worker)))
    for mate in slices.on_host_of(worker) if adds else ():
        if mate != worker:
            takes = worker in slices.places and mate in slices.places
            has = slices.share(mate) + sum(map(slices.share, slices.carried_by(mate))) if takes else 0.0
            yield mate, has * sent_bytes + (adds * counted_bytes if mate in counting else 0.0)


def read_from_hosts(
    slices: Slices, worker: WorkerId, counting: frozenset[WorkerId], sent_bytes: float
) -> Iterator[tuple[WorkerId, float]]:
    """Yields what comes to an owner from each one of another host: parts of its slice (0 bytes of a host that counted
    nothing), and totals of the slices that it carries for its own host. Nothing comes to a giver."""
    if worker not in slices.places:
        return
    own = slices.share(worker) * sent_bytes
    for carrier in slices.carriers(worker):
        yield carrier, 0.0 if counting.isdisjoint(slices.on_host_of(carrier)) else own
    for owner in slices.carried_by(worker):
        yield owner, slices.share(owner) * sent_bytes
