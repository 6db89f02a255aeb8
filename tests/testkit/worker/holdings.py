"""What a simulated worker holds: replicas and accumulators of its groups, and the layers bound to them, in symbols.

It keeps the rules of the real one (`planaria.worker.holdings`): a replica that a plan takes away stays until the next
commit, layers compute with what they were bound to, an accumulator that is begun anew keeps its old sum until the first
contribution.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from planaria.plan.ledger import Ledger, mask_of
from planaria.plan.plan import Group
from tests.testkit.promises.symbols import Algebra, Symbol


@dataclass(slots=True, eq=False)
class Replica:
    """Of one group: its history as a symbol, the last step it has been through, and that step's whole sum."""

    group: int
    state: Symbol
    step: int
    gradient: Symbol | None = None


@dataclass(slots=True, eq=False)
class Accumulator:
    """What is counted of one group in the step in progress."""

    total: Symbol = 0
    is_empty: bool = True
    exponent: int = 0

    def reset(self, exponent: int) -> None:
        self.is_empty = True
        self.exponent = exponent

    def add(self, contribution: Symbol) -> None:
        self.total = contribution if self.is_empty else self.total + contribution
        self.is_empty = False


class Holdings:
    """Replicas, accumulators and the ledger of one worker."""

    def __init__(self, algebra: Algebra, groups: Sequence[Group]) -> None:
        self.replicas: dict[int, Replica] = {}
        self.accumulators: dict[int, Accumulator] = {}
        self.bound: dict[int, tuple[Replica, ...]] = {}
        """layer -> the replicas whose memory it computes with"""
        self.counted: list[int] = [0] * algebra.num_layers
        self.exponents: tuple[int, ...] = ()
        self._shadows: dict[int, Accumulator] = {}
        self._algebra = algebra
        self._groups = groups

    def put(self, replica: Replica) -> None:
        for layer in self._groups[replica.group].layers:
            self.bound.pop(layer, None)
        self.replicas[replica.group] = replica

    def held_at(self, step: int) -> tuple[int, ...]:
        return tuple(group for group in sorted(self.replicas) if self.replicas[group].step == step)

    def own_layers(self, layers: Collection[int]) -> None:
        """Be able to compute exactly these layers."""
        for layer in [layer for layer in self.bound if layer not in layers]:
            del self.bound[layer]
        for layer in layers:
            if layer not in self.bound:
                self.bound[layer] = tuple(self.replicas[group] for group in self._algebra.groups_of[layer])

    def parameters(self, layer: int) -> Symbol:
        bound = self.bound[layer]
        return hash(tuple([replica.state for replica in bound]))

    def drop(self, groups: Collection[int]) -> None:
        """Replicas that are of an older step, and that others will replace."""
        for layer in [layer for layer in self.bound if set(groups).intersection(self._algebra.groups_of[layer])]:
            del self.bound[layer]
        self.keep_only([group for group in self.replicas if group not in groups])

    def keep_only(self, groups: Collection[int]) -> None:
        for group in [group for group in self.replicas if group not in groups]:
            del self.replicas[group]
            self.accumulators.pop(group, None)
            self._shadows.pop(group, None)

    def forget_all(self) -> None:
        self.own_layers(())
        self.keep_only(())

    def begin_step(self, exponents: Sequence[int]) -> None:
        self.exponents = tuple(exponents)
        self.counted = [0] * len(self.counted)
        for group, accumulator in self.accumulators.items():
            accumulator.reset(self.exponents[group])
        self.drop_shadows()

    def accumulator(self, group: int) -> Accumulator:
        return self._found(group, self.accumulators)

    def _found(self, group: int, accumulators: dict[int, Accumulator]) -> Accumulator:
        found = accumulators.get(group)
        if found is None:
            assert group in self.replicas, f"group {group} is counted, and there is no replica of it"
            found = accumulators[group] = Accumulator(exponent=self.exponents[group])
        return found

    def count_apart(self, layer: int, given: Symbol, kept: Symbol) -> None:
        """A second copy of what another worker counts: no part of any sum."""
        for group in self._algebra.groups_of[layer]:
            accumulator = self._found(group, self._shadows)
            accumulator.add(self._algebra.contribution(given, kept, group, accumulator.exponent))

    def promote_shadows(self, counted: Collection[tuple[int, int]]) -> None:
        """The other worker is lost: its contributions, as (layer, microbatch), are what these copies are."""
        for group, shadow in self._shadows.items():
            if not shadow.is_empty:
                self.accumulator(group).add(shadow.total)
        for layer, microbatch in counted:
            assert not self.counted[layer] >> microbatch & 1, f"microbatch {microbatch} counts twice for layer {layer}"
            self.counted[layer] |= 1 << microbatch
        self.drop_shadows()

    def drop_shadows(self) -> None:
        """The copies are of no use, or a new step begins."""
        for group, shadow in self._shadows.items():
            shadow.reset(self.exponents[group])

    def count(self, layer: int, microbatch: int, given: Symbol, kept: Symbol) -> None:
        """Add one microbatch's gradients of a layer."""
        assert not self.counted[layer] >> microbatch & 1, f"microbatch {microbatch} counts twice for layer {layer}"
        for group in self._algebra.groups_of[layer]:
            accumulator = self.accumulator(group)
            accumulator.add(self._algebra.contribution(given, kept, group, accumulator.exponent))
        self.counted[layer] |= 1 << microbatch

    @property
    def ledger(self) -> Ledger:
        return Ledger.from_bits(self.counted)

    def leave_out(self, microbatches: Sequence[int]) -> None:
        """What is counted of these is void. An accumulator has nothing but them, or none of them."""
        left_out = mask_of(microbatches)
        if not any(mask & left_out for mask in self.counted):
            return
        assert not any(mask & ~left_out for mask in self.counted), "a sum cannot be left out in part"
        self.begin_step(self.exponents)

    def apply(self, groups: Iterable[int], step: int, factor: float, scale: float) -> None:
        for group in groups:
            replica = self.replicas[group]
            assert replica.gradient is not None, f"group {group} has no sum of step {step}"
            replica.state = self._algebra.applied(replica.state, replica.gradient, step, factor, scale)
            replica.step = step
