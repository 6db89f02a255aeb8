"""What a worker holds: replicas, accumulators, the ledger, and the layers bound to replicas.

What a replica and an accumulator are made of is a subclass's: tensors, or the symbols of a simulation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

from planaria.plan.ledger import Ledger, mask_of
from planaria.protocol.messages.from_worker import Digest


class LayerModules(Protocol):
    """Layers that can be run, each bound to the memory of replicas."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers that can be run, ascending."""
        ...

    def drop_layer(self, layer: int) -> None: ...


class AnyReplica(Protocol):
    """A copy of one group's state, as of the last `step` that it has been through.

    `written`: digest of the state as this worker itself wrote it last; None: it came from a peer, or none is made.
    `is_whole`: the optimizer's state is here; else another device of the stage has that, and gives the parameters.
    """

    step: int
    written: int | None
    is_whole: bool

    def leave_optimizer(self) -> None:
        """Drops the optimizer's state."""
        ...


class AnyAccumulator(Protocol):
    """Sum of what one group was given in the step in progress."""

    is_empty: bool

    def reset(self, exponent: int) -> None:
        """Begins a step with nothing counted."""
        ...

    def add_all(self, other: Any) -> None:
        """Adds all that the other accumulator has counted."""
        ...


Replica = TypeVar("Replica", bound=AnyReplica)
Accumulator = TypeVar("Accumulator", bound=AnyAccumulator)


class HeldState(ABC, Generic[Replica, Accumulator]):
    """Replicas, accumulators and the ledger of one worker.

    A group that the plan takes away stays until the next commit: until then it is as good a source as any.

    Args:
        layers_of: group -> its layers.
        num_layers: the model's number of layers.
        compares: digests are made of replicas and sums, for the coordinator to compare.

    Attributes:
        compute: runs the layers that are bound.
    """

    compute: LayerModules

    def __init__(self, layers_of: Sequence[Collection[int]], num_layers: int, *, compares: bool = True) -> None:
        self.replicas: dict[int, Replica] = {}
        self.accumulators: dict[int, Accumulator] = {}
        self.exponents: tuple[int, ...] = ()
        self._layers_of = layers_of
        self._compares = compares
        self._counted = [0] * num_layers
        self._shadows: dict[int, Accumulator] = {}
        self._counts_into = self.accumulators

    # State

    @abstractmethod
    def new_replica(self, group: int, *, is_whole: bool = True) -> Replica:
        """Returns an empty replica; it counts as held once it is given to `put`."""

    @abstractmethod
    def _new_accumulator(self, group: int) -> Accumulator: ...

    @abstractmethod
    def apply(self, groups: Iterable[int], step: int, clip_factor: float, rate: float, /) -> None:
        """Applies one optimizer step to these groups, or (`NOT_APPLIED`) none: then too they are as of `step`."""

    @abstractmethod
    def _bind(self, layer: int) -> None:
        """Makes a layer runnable with the replicas that are held now."""

    @abstractmethod
    def _digest_of_state(self, replica: Replica) -> int: ...

    @abstractmethod
    def _digest_of_sum(self, replica: Replica) -> int: ...

    @abstractmethod
    def _digest_of_counts(self, accumulator: Accumulator) -> int | None:
        """Returns a digest that adds up as counts do; None: something in it is no sum of counts."""

    def note_written(self, groups: Iterable[int]) -> None:
        """Notes that this worker itself has just written these groups' replicas."""
        for group in groups if self._compares else ():
            self.replicas[group].written = self._digest_of_state(self.replicas[group])

    def digests(self, groups: Iterable[int], *, with_sums: bool) -> dict[int, Digest]:
        """Returns digests of what is held of these groups now; nothing where replicas are not compared."""
        if not self._compares:
            return {}
        made = {}
        for group in groups:
            replica = self.replicas[group]
            total = self._digest_of_sum(replica) if with_sums else 0
            made[group] = Digest(self._digest_of_state(replica), total, replica.written)
        return made

    def put(self, group: int, replica: Replica) -> None:
        """Holds this replica. Layers that were bound to an older one are dropped, to be bound anew."""
        self._unbind(group)
        self.replicas[group] = replica

    def _unbind(self, group: int) -> None:
        for layer in self._layers_of[group]:
            if layer in self.compute.layers:
                self.compute.drop_layer(layer)

    def drop(self, groups: Collection[int]) -> None:
        """Drops replicas that are of an older step, and that others will replace."""
        for group in groups:
            self._unbind(group)
        self.keep_only([group for group in self.replicas if group not in groups])

    def held_at(self, step: int) -> tuple[int, ...]:
        """Returns the groups whose replica is whole, and up to date after `step`."""
        held = self.replicas
        return tuple(group for group in sorted(held) if held[group].is_whole and held[group].step == step)

    def own_layers(self, layers: Collection[int]) -> None:
        """Makes exactly these layers runnable."""
        for layer in self.compute.layers:
            if layer not in layers:
                self.compute.drop_layer(layer)
        for layer in sorted(layers):
            if layer not in self.compute.layers:
                self._bind(layer)

    def keep_only(self, groups: Collection[int]) -> None:
        for group in [group for group in self.replicas if group not in groups]:
            del self.replicas[group]
            self.accumulators.pop(group, None)
            self._shadows.pop(group, None)

    def leave_optimizer(self, groups: Iterable[int], step: int | None) -> None:
        """Leaves the optimizer's state of these groups to other devices; with `step`, no parameters come of it."""
        for group in groups:
            replica = self.replicas[group]
            replica.leave_optimizer()
            replica.step = replica.step if step is None else step

    def forget_all(self) -> None:
        """Drops every replica and layer: the job goes back to another state."""
        self.own_layers(())
        self.keep_only(())

    # Gradients

    def begin_step(self, exponents: Sequence[int]) -> None:
        """Begins a step with nothing counted."""
        self.exponents = tuple(exponents)
        self._counted = [0] * len(self._counted)
        for group, accumulator in self.accumulators.items():
            accumulator.reset(self.exponents[group])
        self.drop_shadows()

    def void(self) -> None:
        """Voids all that is counted of the step."""
        self.begin_step(self.exponents)

    def accumulator(self, group: int) -> Accumulator:
        return self._found(group, self.accumulators)

    def _in_use(self, group: int) -> Accumulator:
        """Returns the accumulator to which contributions are added now."""
        return self._found(group, self._counts_into)

    def _found(self, group: int, accumulators: dict[int, Accumulator]) -> Accumulator:
        found = accumulators.get(group)
        if found is None:
            assert group in self.replicas, f"group {group} is counted, and there is no replica of it"
            found = accumulators[group] = self._new_accumulator(group)
            found.reset(self.exponents[group])
        return found

    @contextmanager
    def counting_apart(self) -> Iterator[None]:
        """Counts, while open, into the second copy of what another worker counts, which is part of no sum."""
        with self._counting_into(self._shadows):
            yield

    @contextmanager
    def counting_for_an_audit(self) -> Iterator[None]:
        """Counts, while open, what is dropped at its end."""
        with self._counting_into({}):
            yield

    @contextmanager
    def _counting_into(self, accumulators: dict[int, Accumulator]) -> Iterator[None]:
        self._counts_into = accumulators
        try:
            yield
        finally:
            self._counts_into = self.accumulators

    def digest_of_counts(self, layer: int) -> int | None:
        """Returns a digest of what is counted of a layer's groups, where counts go now: what adds to one adds to the
        other. None: something in it is no sum of counts, but infinite, for instance."""
        total = 0
        for group, layers in enumerate(self._layers_of):
            counts = self._counts_into.get(group) if layer in layers else None
            if counts is not None and not counts.is_empty:
                made = self._digest_of_counts(counts)
                if made is None:
                    return None
                total += made
        return total

    def promote_shadows(self) -> None:
        """Lets the copies count, because the other worker is lost."""
        for group, shadow in self._shadows.items():
            self.accumulator(group).add_all(shadow)
        self.drop_shadows()

    def drop_shadows(self) -> None:
        """Empties the copies, which are of no use any more."""
        for group, shadow in self._shadows.items():
            shadow.reset(self.exponents[group])

    def note_counted(self, layer: int, microbatch: int) -> None:
        assert not self._counted[layer] >> microbatch & 1, (
            f"microbatch {microbatch} is counted for layer {layer} already"
        )
        self._counted[layer] |= 1 << microbatch

    @property
    def counted(self) -> Sequence[int]:
        """For each layer, the bit mask of the microbatches that are counted."""
        return self._counted

    @property
    def ledger(self) -> Ledger:
        return Ledger.from_bits(self._counted)

    def leave_out(self, microbatches: Sequence[int]) -> None:
        """Voids what is counted of microbatches that a plan drops; an accumulator has only them, or none of them."""
        left_out = mask_of(microbatches)
        if not any(mask & left_out for mask in self._counted):
            return
        assert not any(mask & ~left_out for mask in self._counted), "a sum cannot be left out in part"
        self.void()
