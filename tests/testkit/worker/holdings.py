"""What a simulated worker holds, in symbols: replicas and accumulators, and layers that compute with the replicas that
they were bound to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from planaria.plan.plan import Group
from planaria.protocol.messages.from_worker import Score
from planaria.protocol.worker.holdings import HeldState
from planaria.protocol.worker.progress import Work
from tests.testkit.promises.symbols import Algebra, Symbol


@dataclass(slots=True, eq=False)
class Replica:
    """A replica of one group: its history as a symbol, the last step it has been through, and that step's whole sum.

    `written`: what this worker itself made of the state last. `is_changed`: by a fault. `is_whole`: with the
    optimizer's state; else the symbol stands for the parameters alone.
    `pieces`: of the state, as they arrive, each with whether it is of the bytes that it is taken for.
    """

    group: int
    state: Symbol = 0
    step: int = 0
    gradient: Symbol | None = None
    written: Symbol | None = None
    is_changed: bool = False
    is_whole: bool = True
    pieces: list[tuple[Symbol, bool]] = field(default_factory=list)

    def leave_optimizer(self) -> None:
        self.is_whole = False

    def take(self, state: Symbol, *, is_right: bool) -> None:
        """Takes a piece of the state: one state is made, if all pieces are of it."""
        self.pieces.append((state, is_right))
        is_whole = all(right and piece == state for piece, right in self.pieces)
        self.state = state if is_whole else hash(tuple(self.pieces))


@dataclass(slots=True, eq=False)
class Accumulator:
    """The counts of one group in the step in progress; begun anew, it keeps its old sum until the first
    contribution."""

    total: Symbol = 0
    is_empty: bool = True
    exponent: int = 0

    def reset(self, exponent: int) -> None:
        self.is_empty = True
        self.exponent = exponent

    def add(self, contribution: Symbol) -> None:
        self.total = contribution if self.is_empty else self.total + contribution
        self.is_empty = False

    def add_all(self, other: Accumulator) -> None:
        if not other.is_empty:
            self.add(other.total)


def digest(symbol: Symbol) -> int:
    """Returns 64 bits of a symbol; a sum of many may have more."""
    return hash(symbol) & 0xFFFF_FFFF_FFFF_FFFF


class Layers:
    """Runs layers in symbols.

    Args:
        algebra: what they compute.
        count: of a microbatch, a layer, a gradient and what the layer's forward kept, the gradients of the layer's
            parameters are counted.
    """

    def __init__(self, algebra: Algebra, count: Callable[[int, int, Symbol, Symbol], None]) -> None:
        self._algebra = algebra
        self._count = count
        self._bound: dict[int, tuple[Replica, ...]] = {}
        self._kept: dict[tuple[Work, int], Symbol] = {}
        self._halves: dict[tuple[Work, int], tuple[Symbol, Symbol]] = {}

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(sorted(self._bound))

    def bind(self, layer: int, replicas: tuple[Replica, ...]) -> None:
        self._bound[layer] = replicas

    def drop_layer(self, layer: int) -> None:
        del self._bound[layer]

    def forget(self, keep: Callable[[Work], bool]) -> None:
        self._kept = {at: kept for at, kept in self._kept.items() if keep(at[0])}
        self._halves = {at: half for at, half in self._halves.items() if keep(at[0])}

    def forward(
        self,
        step: int,
        work: Work,
        layer: int,
        inputs: Symbol,
        batch: Symbol | None,
        *,
        keep: bool,
        on_host: bool = False,
    ) -> tuple[Symbol, float | None]:
        parameters = hash(tuple([replica.state for replica in self._bound[layer]]))
        value = self._algebra.forward(parameters, inputs, step, work[0], layer)
        if keep:
            self._kept[work, layer] = value
        if layer + 1 < self._algebra.num_layers:
            return value, None
        assert batch is not None, "no labels for the loss"
        return value, self._algebra.loss(step, work[0], value)

    def evaluate(
        self, step: int, work: Work, layer: int, inputs: Symbol, batch: Symbol | None
    ) -> tuple[Symbol, Score | None]:
        parameters = hash(tuple([replica.state for replica in self._bound[layer]]))
        value = self._algebra.forward(parameters, inputs, 0, work[0], layer)
        if layer + 1 < self._algebra.num_layers:
            return value, None
        assert batch is not None, "no labels for the loss"
        return value, self._algebra.score(value)

    def backward(self, step: int, work: Work, layer: int, gradients: Symbol, *, counted: bool) -> Symbol:
        given = self.backward_input(step, work, layer, gradients)
        self.backward_weight(work, layer, counted=counted)
        return given

    def backward_input(self, step: int, work: Work, layer: int, gradients: Symbol) -> Symbol:
        assert gradients or layer + 1 == self._algebra.num_layers, f"no gradient of what comes out of layer {layer}"
        kept = self._kept.pop((work, layer))
        self._halves[work, layer] = gradients, kept
        return self._algebra.backward(gradients, kept)

    def backward_weight(self, work: Work, layer: int, *, counted: bool) -> None:
        given, kept = self._halves.pop((work, layer))
        if counted:
            self._count(work[0], layer, given, kept)


class Holdings(HeldState[Replica, Accumulator]):
    """Replicas, accumulators and the ledger of one worker. `told` of each contribution: its group, layer, microbatch
    and value."""

    def __init__(
        self, algebra: Algebra, groups: Sequence[Group], told: Callable[[int, int, int, Symbol], None]
    ) -> None:
        super().__init__([group.layers for group in groups], algebra.num_layers)
        self.compute: Layers = Layers(algebra, self._count)
        self._algebra = algebra
        self._told = told

    def new_replica(self, group: int, *, is_whole: bool = True) -> Replica:
        return Replica(group, is_whole=is_whole)

    def _digest_of_state(self, replica: Replica) -> int:
        return digest(replica.state)

    def _digest_of_sum(self, replica: Replica) -> int:
        assert replica.gradient is not None
        return digest(replica.gradient)

    def _digest_of_counts(self, accumulator: Accumulator) -> int:
        return accumulator.total

    def _new_accumulator(self, group: int) -> Accumulator:
        return Accumulator()

    def _bind(self, layer: int) -> None:
        self.compute.bind(layer, tuple(self.replicas[group] for group in self._algebra.groups_of[layer]))

    def _count(self, microbatch: int, layer: int, given: Symbol, kept: Symbol) -> None:
        for group in self._algebra.groups_of[layer]:
            accumulator = self._in_use(group)
            contribution = self._algebra.contribution(given, kept, group, accumulator.exponent)
            accumulator.add(contribution)
            self._told(group, layer, microbatch, contribution)

    def apply(self, groups: Iterable[int], step: int, clip_factor: float, scale: float) -> None:
        for group in groups:
            replica = self.replicas[group]
            assert replica.gradient is not None, f"group {group} has no sum of step {step}"
            assert replica.is_whole, f"group {group} is applied without the optimizer's state"
            replica.state = self._algebra.applied(replica.state, replica.gradient, step, clip_factor, scale)
            replica.step = step
