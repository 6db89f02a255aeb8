"""Audits at one worker: digests of its own work that others run again, and of others' work that it runs again.

Beside these it tells what went over the boundaries of a piece that is audited: its worker what it sent, and the next
worker of the route what it got. Of devices that share microbatches each tells of the part that it counts, and the first
one all else. Bookkeeping, and the second run itself. What is audited, and when, `planaria.plan.program.audits` says;
who is wrong where digests differ, `planaria.protocol.step.agreement`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Generic, SupportsFloat, TypeVar

from planaria.plan.plan import Plan, WorkerId
from planaria.plan.program.audits import Audit
from planaria.plan.program.instructions import Instruction
from planaria.protocol.messages.from_worker import LOSS, NO_SUM, PART, WEIGHTS, Computed
from planaria.protocol.worker.holdings import HeldState
from planaria.protocol.worker.layer_runner import LayerRunner
from planaria.protocol.worker.mail import Kind
from planaria.protocol.worker.progress import Work

Value = TypeVar("Value")


_UNAUDITED = nullcontext()

_BORN_OF_NONE = -1
"""Stands for a route's generation in what is run again: a shadow may keep its forward of the same work meanwhile."""


class Audits(Generic[Value]):
    """What is audited of the step in progress, at one worker.

    Args:
        worker: whose half this is.
        num_layers: the model's number of layers.
        holdings: what the worker holds.
        layers: what runs forwards and backwards.
        digest_of: returns a digest of activations or gradients at a boundary.
    """

    def __init__(
        self,
        worker: WorkerId,
        num_layers: int,
        holdings: HeldState[Any, Any],
        layers: LayerRunner[Any, Value],
        digest_of: Callable[[Value], int],
    ) -> None:
        self._worker = worker
        self._num_layers = num_layers
        self._holdings = holdings
        self._layers = layers
        self._digest_of = digest_of
        self._audits: tuple[Audit, ...] = ()
        self._first = worker
        self._weights = WEIGHTS
        self._told: dict[Work, dict[str, int | None]] = {}
        self._inputs: set[tuple[Work, str]] = set()
        self._again: list[Computed] = []

    def begin(self, plan: Plan, audits: Sequence[Audit]) -> None:
        """Begins a step of the plan with these audits; or goes on without any."""
        self._audits = tuple(audits)
        self._first = plan.first_of(self._worker)
        self._weights = PART if plan.num_sharing > 1 else WEIGHTS
        self._told, self._inputs = {}, set()
        for audit in self._audits:
            wanted = [name for name, _ in self._passed_on(audit)]
            if audit.worker == self._first:
                inputs = self._names_of_inputs(audit)
                wanted += [*inputs, *self._names_of_own(audit)]
                self._inputs.update(((audit.microbatch, audit.born), name) for name in inputs)
            self._told.setdefault((audit.microbatch, audit.born), {}).update(dict.fromkeys(wanted))
        self._again = []

    @property
    def computed(self) -> tuple[Computed, ...]:
        """All that there is to tell; of an audit whose inputs were not seen, nothing."""
        found: list[Computed] = []
        for audit in self._audits:
            told = self._told[audit.microbatch, audit.born]
            own = self._of(audit, told, self._names_of_own(audit)) if audit.worker == self._first else None
            found += [] if own is None else [own]
            for name, boundary in self._passed_on(audit):
                if (digest := told[name]) is not None:
                    found.append(Computed(audit.microbatch, boundary, boundary, (0, 0), {name: digest}))
        return (*found, *self._again)

    # The worker's own work

    def note(self, kind: str, work: Work, boundary: int, digest: Callable[[], int]) -> None:
        """Notes an activation or gradient that goes into or out of what is audited, as it is taken in or went out
        first."""
        if work in self._told and self._wants(work, name := f"{kind}{boundary}"):
            self._told[work][name] = digest()

    def note_sent(self, kind: str, work: Work, boundary: int, digest: Callable[[], int]) -> None:
        """Notes what was sent, unless it is a copy of what goes into an audited piece, for who runs that again."""
        if (work, f"{kind}{boundary}") not in self._inputs:
            self.note(kind, work, boundary, digest)

    def _wants(self, work: Work, name: str) -> bool:
        """Returns whether this is to be told of a microbatch, and is not noted yet."""
        told = self._told.get(work)
        return told is not None and name in told and told[name] is None

    def note_loss(self, work: Work, loss: SupportsFloat) -> None:
        if self._wants(work, LOSS):
            self._told[work][LOSS] = _bits(loss)

    def counting(self, work: Work, layer: int) -> AbstractContextManager[None]:
        """Notes what a layer's backward adds to sums of gradients while this is open."""
        if work in self._told and self._wants(work, name := f"{self._weights}{layer}"):
            return self._counting(self._told[work], name, layer)
        return _UNAUDITED

    @contextmanager
    def _counting(self, told: dict[str, int | None], name: str, layer: int) -> Iterator[None]:
        before = self._holdings.digest_of_counts(layer)
        yield
        if before is not None:  # else there is nothing to add to
            after = self._holdings.digest_of_counts(layer)
            told[name] = NO_SUM if after is None else (after - before) % (1 << 64)

    # Others' work

    def run_again(self, step: int, instruction: Instruction, value: Value, given: Value, batch: Any) -> None:
        """Runs again what another worker ran, on what that was given; it counts for nothing.

        Args:
            step: the step in progress.
            instruction: which layers, of which microbatch.
            value: what goes into the first of them.
            given: the gradient of what comes out of the last.
            batch: the microbatch, where one of them is the model's first or last.
        """
        audit = Audit(
            instruction.microbatch, instruction.born, instruction.first_layer, instruction.end_layer, self._worker, ()
        )
        work, first, end = (audit.microbatch, _BORN_OF_NONE), audit.first_layer, audit.end_layer
        told: dict[str, int | None] = {}
        self._note_inner(told, Kind.ACTIVATION, first, value)
        self._note_inner(told, Kind.GRADIENT, end, given)
        for layer in range(first, end):
            value, loss = self._layers.forward(step, work, layer, value, batch, keep=True)
            if loss is not None:
                told[LOSS] = _bits(loss)
        self._note_inner(told, Kind.ACTIVATION, end, value)
        for layer in reversed(range(first, end)):
            with self._holdings.counting_for_an_audit(), self._counting(told, f"{WEIGHTS}{layer}", layer):
                given = self._layers.backward(step, work, layer, given, counted=True)
        self._note_inner(told, Kind.GRADIENT, first, given)
        found = self._of(audit, told, self._names_of_results(audit))
        assert found is not None
        self._again.append(found)

    def _note_inner(self, told: dict[str, int | None], kind: str, boundary: int, value: Value) -> None:
        if 0 < boundary < self._num_layers:
            told[f"{kind}{boundary}"] = self._digest_of(value)

    # What is told of an audit

    def _names_of_inputs(self, audit: Audit) -> tuple[str, ...]:
        below = (f"{Kind.ACTIVATION}{audit.first_layer}",) if audit.first_layer else ()
        return (*below, f"{Kind.GRADIENT}{audit.end_layer}") if audit.end_layer < self._num_layers else below

    def _passed_on(self, audit: Audit) -> Iterator[tuple[str, int]]:
        """Yields the names of results that the audited worker sends, and the boundary that each of them passes."""
        if audit.end_layer < self._num_layers:
            yield f"{Kind.ACTIVATION}{audit.end_layer}", audit.end_layer
        if audit.first_layer:
            yield f"{Kind.GRADIENT}{audit.first_layer}", audit.first_layer

    def _names_of_results(self, audit: Audit, weights: str = WEIGHTS) -> tuple[str, ...]:
        above = f"{Kind.ACTIVATION}{audit.end_layer}" if audit.end_layer < self._num_layers else LOSS
        below = (f"{Kind.GRADIENT}{audit.first_layer}",) if audit.first_layer else ()
        return (above, *_of_layers(weights, audit), *below)

    def _names_of_own(self, audit: Audit) -> tuple[str, ...]:
        """Returns the names of what this worker tells of its own work, or of its part of a stage's."""
        if audit.worker == self._worker:
            return self._names_of_results(audit, self._weights)
        return _of_layers(self._weights, audit)

    def _of(self, audit: Audit, told: dict[str, int | None], names: Sequence[str]) -> Computed | None:
        given = {name[0]: told[name] for name in self._names_of_inputs(audit)}
        below, above = given.get(Kind.ACTIVATION, 0), given.get(Kind.GRADIENT, 0)
        if below is None or above is None:
            return None
        made = ((name, told.get(name)) for name in names)
        return Computed(
            audit.microbatch,
            audit.first_layer,
            audit.end_layer,
            (below, above),
            {name: digest for name, digest in made if digest is not None},
        )


def _of_layers(what: str, audit: Audit) -> tuple[str, ...]:
    return tuple(f"{what}{layer}" for layer in range(audit.first_layer, audit.end_layer))


def _bits(loss: SupportsFloat) -> int:
    return int.from_bytes(struct.pack("<d", float(loss)), "little")
