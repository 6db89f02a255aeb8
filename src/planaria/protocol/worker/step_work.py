"""A worker's part of a step: what each instruction of its program does, and what stays done when the plan changes.

It owns what is under way inside a step: activations and gradients at the boundaries of layers, which instructions are
done, the losses. It decides nothing and knows neither tensor nor thread: what values are, how they are sent and awaited
and what computing costs is a subclass's, a real worker's or a simulated one's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, SupportsFloat, TypeVar

from planaria.plan.ledger import Ledger
from planaria.plan.plan import Plan, WorkerId
from planaria.plan.program.audits import Audit, with_audits
from planaria.plan.program.instructions import Instruction, Op, Program
from planaria.plan.program.programs import program
from planaria.protocol.messages.from_worker import Score, Vote
from planaria.protocol.messages.to_worker import NOT_APPLIED, Commit, PlanMessage
from planaria.protocol.worker.audits import Audits
from planaria.protocol.worker.holdings import HeldState
from planaria.protocol.worker.layer_runner import LayerRunner
from planaria.protocol.worker.mail import Key, Kind, MailStore
from planaria.protocol.worker.progress import Progress, Work
from planaria.protocol.worker.shadow_counts import Fate, Shadows
from planaria.protocol.worker.sums import Sums

Batch = TypeVar("Batch")
Value = TypeVar("Value")
"""Activations or gradients at a boundary of layers."""


class StepWork(ABC, Generic[Batch, Value]):
    """One worker's part of the step in progress.

    Args:
        worker: the worker whose half this is.
        num_layers: the model's number of layers.
        holdings: what the worker holds.
        layers: what runs forwards and backwards.
        sums: of gradients, with other owners.
        mail: what has come from peers.
        nothing: the gradient of what comes out of the last layer.
        before: told of each instruction that computes, and of which layers it is about to run `forwards`, or to give
            gradients of `inputs` and `weights`.

    Attributes:
        progress: what is done of the program.
        losses: of microbatches whose last layer ran here; a device may have them later than its host.
        scores: of those that were evaluated, of an evaluation in place of the step.
        compute_s: seconds that the step's instructions computed.
        step: the step in progress.
    """

    def __init__(
        self,
        worker: WorkerId,
        num_layers: int,
        holdings: HeldState[Any, Any],
        layers: LayerRunner[Batch, Value],
        sums: Sums[Any, Any, Any],
        mail: MailStore[Any],
        nothing: Value,
        before: Callable[..., None] = lambda instruction, **layers: None,
    ) -> None:
        self.progress = Progress()
        self.losses: dict[int, SupportsFloat] = {}
        self.scores: dict[int, Score] = {}
        self.compute_s = 0.0
        self.step = 0
        self._worker = worker
        self._num_layers = num_layers
        self._holdings = holdings
        self._layers = layers
        self._sums = sums
        self._mail = mail
        self._nothing = nothing
        self._before = before
        self._plan: Plan | None = None
        self._leads = True
        self._program: Program = ()
        self._batches: dict[int, Batch] = {}
        self._activations: dict[tuple[Work, int], Value] = {}
        self._gradients: dict[tuple[Work, int], Value] = {}
        self._shadows = Shadows()
        self._audits = Audits(worker, num_layers, holdings, layers, self._digest_of)
        self._run: dict[Op, Callable[[Instruction], None]] = {
            Op.LOAD: self._load,
            Op.FORWARD: self._forward,
            Op.BACKWARD: self._backward,
            Op.BACKWARD_INPUT: self._backward_input,
            Op.BACKWARD_WEIGHT: self._backward_weight,
            Op.SHADOW_FORWARD: self._shadow_forward,
            Op.SHADOW_BACKWARD: self._shadow_backward,
            Op.SEND_ACTIVATION: partial(self._send_value, Kind.ACTIVATION, self._activations),
            Op.RECV_ACTIVATION: partial(self._receive_value, Kind.ACTIVATION, self._activations),
            Op.SEND_GRADIENT: partial(self._send_value, Kind.GRADIENT, self._gradients),
            Op.RECV_GRADIENT: partial(self._receive_value, Kind.GRADIENT, self._gradients),
            Op.AUDIT: self._audit,
            Op.SYNC: self._start_sum,
            Op.VOTE: self._finish_sums,
        }
        self._run_evaluating: dict[Op, Callable[[Instruction], None]] = {
            **self._run,
            Op.FORWARD: self._evaluate,
            Op.SEND_GRADIENT: self._tell_taken,
            Op.RECV_GRADIENT: self._await_taken,
            Op.VOTE: lambda instruction: None,
        }
        self._performs = self._run

    _counts_parts = False
    """Whether a device that shares microbatches with the first one of its stage counts a part of their gradients. Where
    layers are not really split, the first one counts all of them."""

    # What a worker does for it

    @abstractmethod
    def _batch(self, microbatch: int) -> Batch:
        """Returns the samples of one microbatch of the step in progress, or of the evaluation before it."""

    @abstractmethod
    def _inputs(self, batch: Batch) -> Value:
        """Returns what of the samples goes into the first layer."""

    @abstractmethod
    def _send(self, peer: WorkerId, key: Key, value: Value) -> Callable[[], int]:
        """Sends a value; returns what tells the digest of that which goes out, be it the same or not."""

    @abstractmethod
    def _take(self, key: Key) -> Value:
        """Returns the message of this name, once it is here."""

    @abstractmethod
    def _digest_of(self, value: Value) -> int:
        """Returns a digest of activations or gradients, bit for bit."""

    @abstractmethod
    def _finish_sums(self, instruction: Instruction) -> None:
        """Returns when every sum that the plan gives this worker is whole."""

    @abstractmethod
    def _update(self, groups: Collection[int], commit: Commit) -> None:
        """Applies one optimizer step to these groups."""

    # Plans and steps

    @property
    def plan(self) -> Plan:
        assert self._plan is not None
        return self._plan

    @property
    def given(self) -> tuple[int, ...]:
        """Groups that the plan gives this worker; none before its first plan."""
        return () if self._plan is None else self._plan.groups_of.get(self._worker, ())

    @property
    def kept(self) -> tuple[int, ...]:
        """Groups that the plan has this worker keep whole; none before its first plan."""
        return () if self._plan is None else self._plan.kept_of.get(self._worker, ())

    @property
    def ledger(self) -> Ledger:
        """What this worker tells to be counted: of what the devices of a stage count together, the first one tells."""
        return self._holdings.ledger if self._leads else Ledger.empty(self._num_layers)

    def adopt(self, message: PlanMessage, *, continues: bool) -> None:
        """Takes a plan for the step in progress; what is done of it stays done if the step `continues`."""
        self._plan = message.plan
        self._leads = message.plan.first_of(self._worker) == self._worker
        self._performs = self._run if message.plan.evaluation is None else self._run_evaluating
        self._program = program(self._plan, self._worker) if self._worker in self._plan.groups_of else ()
        if not continues:
            self._begin_step(message.step, message.exponents, message.audits)
            return
        self._audits.begin(message.plan, message.audits)
        self._sums.adopt(message.plan)
        now = message.plan.of_pass
        is_evaluated = message.plan.evaluation is not None
        if now.shares_microbatches and self.progress.counts_anew(self._holdings.counted, now.routes, is_evaluated):
            # Each device counts a part: what one of them has and another lacks is no part of a whole.
            self._holdings.void()
            self.losses, self.scores = {}, {}
        self._holdings.leave_out(now.dropped)
        self.losses = {m: loss for m, loss in self.losses.items() if m not in now.dropped}
        born = {(m, route.born) for route in now.routes for m in route.microbatches}
        self._layers.forget(lambda work: work in born)
        for store in (self._activations, self._gradients):
            for entry in [entry for entry in store if entry[0] not in born]:
                del store[entry]
        self._take_over(message.plan)
        self.progress.go_on(self._program)

    def _take_over(self, plan: Plan) -> None:
        """Promotes, keeps or drops the redundant copies, as the plan has this worker replace a lost one or not."""
        match self._shadows.fate(plan, self._worker):
            case Fate.PROMOTED:
                self._holdings.promote_shadows()
                for layer, (microbatch, _) in self._shadows.counted:
                    self._holdings.note_counted(layer, microbatch)
                self._shadows.counted.clear()
            case Fate.DROPPED:
                self._holdings.drop_shadows()
                self._shadows.counted.clear()
            case Fate.KEPT:
                pass

    def begin_next_step(self, commit: Commit) -> None:
        """Begins the step after the committed one under the same plan."""
        self._begin_step(commit.step + 1, commit.exponents, commit.audits)

    def _begin_step(self, step: int, exponents: tuple[int, ...], audits: tuple[Audit, ...]) -> None:
        self.step = step
        self.compute_s = 0.0
        self.losses, self.scores = {}, {}
        self._shadows.clear()
        self.give_up()
        self._holdings.begin_step(exponents)
        self._sums.begin_step(self.plan, step)
        self._mail.forget_before(step, self.plan.generation)
        self._audits.begin(self.plan, audits)
        self.progress.begin(with_audits(self._program, audits, self._worker, self.plan))

    def give_up(self) -> None:
        """Drops what is kept for the step in progress: it will not be finished here."""
        self._batches.clear()
        self._activations.clear()
        self._gradients.clear()
        self._layers.forget(lambda work: False)

    def apply(self, commit: Commit) -> None:
        groups, kept = self.plan.groups_of[self._worker], self.kept
        self._update(kept, commit)
        self._holdings.note_written(kept)
        self._holdings.keep_only(groups)
        left = [group for group in groups if group not in kept]
        self._holdings.leave_optimizer(left, commit.step if commit.clip_factor == NOT_APPLIED else None)

    def vote(self, generation: int, step: int) -> Vote:
        """Returns this worker's vote for the step that it has done."""
        return Vote(
            generation=generation,
            step=step,
            norms=self._sums.norms,
            losses={microbatch: float(loss) for microbatch, loss in self.losses.items()},
            ledger=self.ledger,
            compute_s=self.compute_s,
            scores=dict(self.scores),
            digests=self._holdings.digests(self.kept, with_sums=self.plan.evaluation is None),
            computed=self._audits.computed,
        )

    # Instructions

    def perform(self, instruction: Instruction) -> None:
        """Performs the instruction; it counts as done once `progress` is told so."""
        self._performs[instruction.op](instruction)

    def _load(self, instruction: Instruction) -> None:
        if instruction.microbatch not in self._batches:
            self._batches[instruction.microbatch] = self._batch(instruction.microbatch)

    def _forward(self, instruction: Instruction) -> None:
        """Runs the forward of the layers that no other instruction has run before."""
        loss = self._run_forwards(instruction, on_host=False)
        if loss is None and instruction.end_layer == self._num_layers:
            loss = self._shadows.losses.get(instruction.microbatch)
        if loss is not None and self._leads:
            self.losses[instruction.microbatch] = loss
            self._audits.note_loss(_work(instruction), loss)

    def _shadow_forward(self, instruction: Instruction) -> None:
        """Runs forwards redundantly, in case their owner is lost later."""
        loss = self._run_forwards(instruction, on_host=True)
        if loss is not None:
            self._shadows.losses[instruction.microbatch] = loss

    def _run_forwards(self, instruction: Instruction, *, on_host: bool) -> SupportsFloat | None:
        """Runs the forwards that are left; returns the loss, if the last layer of the model is run."""
        work, left = _work(instruction), self.progress.forwards_left(instruction)
        batch = self._batches.get(instruction.microbatch)
        self._before(instruction, forwards=[layer for layers in left for layer in layers])
        loss: SupportsFloat | None = None
        for layers in left:
            value = self._taken_in(work, layers.start, stays=on_host)
            for layer in layers:
                with self._putting_back(self._activations, work, layer, value):
                    value, loss = self._layers.forward(
                        self.step, work, layer, value, batch, keep=instruction.keeps, on_host=on_host
                    )
                self.progress.note_forward(work, layer)
            if loss is None:
                self._activations[work, layers.stop] = value
        return loss

    def _taken_in(self, work: Work, layer: int, *, stays: bool) -> Value:
        """Returns a layer's input; it `stays` where it may have to be sent again."""
        if layer == 0:
            return self._inputs(self._batches[work[0]])
        value = self._activations[work, layer] if stays else self._activations.pop((work, layer))
        self._audits.note(Kind.ACTIVATION, work, layer, partial(self._digest_of, value))
        return value

    @contextmanager
    def _putting_back(
        self, store: dict[tuple[Work, int], Value], work: Work, boundary: int, value: Value
    ) -> Iterator[None]:
        """Puts back what was taken for a layer that is put down before its end, and runs again; samples have stayed."""
        try:
            yield
        except BaseException:
            if boundary > 0:
                store[work, boundary] = value
            raise

    def _given(self, work: Work, layer: int) -> Value:
        """Takes the gradient of a layer's output."""
        value = self._gradients.pop((work, layer + 1), self._nothing)
        self._audits.note(Kind.GRADIENT, work, layer + 1, partial(self._digest_of, value))
        return value

    def _backward(self, instruction: Instruction) -> None:
        """Runs the backward of layers: whole, except where the input's half was done under an earlier plan."""
        work, layers = _work(instruction), self.progress.backwards_left(instruction)
        inputs = [layer for layer in layers if not self.progress.has_input(work, layer)]
        self._before(instruction, inputs=inputs, weights=_counted(instruction, layers))
        for layer in layers:
            counted = layer in instruction.counted
            counts = counted and self._counts_here
            with self._audits.counting(work, layer):
                if self.progress.has_input(work, layer):
                    self._layers.backward_weight(work, layer, counted=counts)
                else:
                    given = self._given(work, layer)
                    with self._putting_back(self._gradients, work, layer + 1, given):
                        self._gradients[work, layer] = self._layers.backward(
                            self.step, work, layer, given, counted=counts
                        )
                self._note_backward(work, layer, counted=counted)

    def _backward_input(self, instruction: Instruction) -> None:
        work, layers = _work(instruction), self.progress.inputs_left(instruction)
        self._before(instruction, inputs=layers)
        for layer in layers:
            given = self._given(work, layer)
            with self._putting_back(self._gradients, work, layer + 1, given):
                self._gradients[work, layer] = self._layers.backward_input(self.step, work, layer, given)
            self.progress.note_input(work, layer)

    def _backward_weight(self, instruction: Instruction) -> None:
        work, layers = _work(instruction), self.progress.backwards_left(instruction)
        self._before(instruction, weights=_counted(instruction, layers))
        for layer in layers:
            counted = layer in instruction.counted
            with self._audits.counting(work, layer):
                self._layers.backward_weight(work, layer, counted=counted and self._counts_here)
                self._note_backward(work, layer, counted=counted)

    def _shadow_backward(self, instruction: Instruction) -> None:
        """Runs a backward redundantly: a copy of what another worker counts, apart from all that counts here."""
        work, layers = _work(instruction), self.progress.backwards_left(instruction)
        self._before(instruction, inputs=layers, weights=_counted(instruction, layers))
        for layer in layers:
            counted = layer in instruction.counted
            given = self._gradients.get((work, layer + 1), self._nothing)
            with self._holdings.counting_apart():
                found = self._layers.backward(self.step, work, layer, given, counted=counted and self._counts_here)
            self._gradients[work, layer] = found
            if layer + 1 < instruction.end_layer:
                del self._gradients[work, layer + 1]
            self.progress.note_backward(work, layer)
            if counted:
                self._shadows.counted.add((layer, work))

    def _note_backward(self, work: Work, layer: int, *, counted: bool) -> None:
        self.progress.note_backward(work, layer)
        if counted:
            self._holdings.note_counted(layer, work[0])

    @property
    def _counts_here(self) -> bool:
        """Whether this device counts gradients, all of them or its part."""
        return self._leads or self._counts_parts

    def _audit(self, instruction: Instruction) -> None:
        """Runs again what another worker ran, on what that was given."""
        work, first, end = _work(instruction), instruction.first_layer, instruction.end_layer
        layers = instruction.counted
        self._before(instruction, forwards=layers, inputs=layers[::-1], weights=layers[::-1])
        value = self._inputs(self._batches[work[0]]) if first == 0 else self._activations.pop((work, first))
        given = self._gradients.pop((work, end), self._nothing)
        self._audits.run_again(self.step, instruction, value, given, self._batches.get(work[0]))

    def _evaluate(self, instruction: Instruction) -> None:
        """Runs the forwards that are left without keeping anything; what was scored counts for the last layer."""
        work, left = _work(instruction), self.progress.forwards_left(instruction)
        if left and (instruction.first_layer == 0 or instruction.end_layer == self._num_layers):
            self._load(instruction)  # a worker of both ends has dropped it
        self._before(instruction, forwards=[layer for layers in left for layer in layers])
        for layers in left:
            value = self._taken_in(work, layers.start, stays=False)
            score: Score | None = None
            for layer in layers:
                with self._putting_back(self._activations, work, layer, value):
                    value, score = self._layers.evaluate(self.step, work, layer, value, self._batches.get(work[0]))
                self.progress.note_forward(work, layer)
            if score is None:
                self._activations[work, layers.stop] = value
            else:
                if self._leads:
                    self.scores[work[0]] = score
                self._holdings.note_counted(self._num_layers - 1, work[0])
        self._batches.pop(work[0], None)

    def _tell_taken(self, instruction: Instruction) -> None:
        assert instruction.peer is not None
        self._send(instruction.peer, self._key(Kind.GRADIENT, self._worker, instruction), self._nothing)

    def _await_taken(self, instruction: Instruction) -> None:
        self._take(self._key(Kind.GRADIENT, instruction.peer, instruction))

    def _key(self, kind: str, sender: WorkerId | None, instruction: Instruction) -> Key:
        assert sender is not None
        return Key(kind, sender, self.step, instruction.born, instruction.microbatch, instruction.first_layer)

    def _send_value(self, kind: str, store: dict[tuple[Work, int], Value], instruction: Instruction) -> None:
        assert instruction.peer is not None
        at = _work(instruction), instruction.first_layer
        value = store[at] if instruction.keeps else store.pop(at)
        digest = self._send(instruction.peer, self._key(kind, self._worker, instruction), value)
        self._audits.note_sent(kind, *at, digest)

    def _receive_value(self, kind: str, store: dict[tuple[Work, int], Value], instruction: Instruction) -> None:
        value = self._take(self._key(kind, instruction.peer, instruction))
        store[_work(instruction), instruction.first_layer] = value

    def _start_sum(self, instruction: Instruction) -> None:
        self._sums.start(instruction.group, instruction.epoch, instruction.round)


def _work(instruction: Instruction) -> Work:
    return instruction.microbatch, instruction.born


def _counted(instruction: Instruction, layers: tuple[int, ...]) -> list[int]:
    return [layer for layer in layers if layer in instruction.counted]
