"""The interpreter: runs a worker's program, instruction by instruction, for any plan of any policy.

It owns what is under way inside a step: activations and gradients at the boundaries of its layers, which instructions
are done, the losses. It decides nothing: orders come through the mailbox and raise `Interrupted` wherever it waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from planaria.model.model import Batch, Tensors
from planaria.plan.ledger import Ledger
from planaria.plan.plan import Plan, WorkerId
from planaria.plan.program.instructions import COMPUTING, Instruction, Op, Program
from planaria.plan.program.programs import program
from planaria.protocol.commit import NOT_APPLIED
from planaria.protocol.messages import Commit, PlanMessage
from planaria.protocol.progress import Progress
from planaria.protocol.pulse import Activity
from planaria.protocol.shadowing import Fate, Shadows
from planaria.worker.compute import Work
from planaria.worker.engine import Engine
from planaria.worker.faults import FaultInjector
from planaria.worker.heartbeat import Heartbeat
from planaria.worker.holdings import Holdings
from planaria.worker.mailbox import Interrupted, Key, Kind, Mailbox
from planaria.worker.sync import Sync
from planaria.worker.trace import Trace
from planaria.worker.transport import Transport

FAULT_KINDS = {
    Op.LOAD: "load",
    Op.FORWARD: "forward",
    Op.BACKWARD: "backward",
    Op.BACKWARD_INPUT: "backward",
    Op.BACKWARD_WEIGHT: "weight",
    Op.SHADOW_FORWARD: "shadow",
    Op.SHADOW_BACKWARD: "shadow",
    Op.SEND_ACTIVATION: "send",
    Op.SEND_GRADIENT: "send",
    Op.RECV_ACTIVATION: "recv",
    Op.RECV_GRADIENT: "recv",
    Op.SYNC: "sync",
    Op.VOTE: "vote",
    Op.APPLY: "apply",
}
WORDS = {
    Op.LOAD: "load",
    Op.FORWARD: "forward",
    Op.BACKWARD: "backward",
    Op.BACKWARD_INPUT: "backward",
    Op.BACKWARD_WEIGHT: "backward",
    Op.SHADOW_FORWARD: "forward",
    Op.SHADOW_BACKWARD: "backward",
    Op.SEND_ACTIVATION: "sending",
    Op.SEND_GRADIENT: "sending",
    Op.RECV_ACTIVATION: "receipt",
    Op.RECV_GRADIENT: "receipt",
}


BringIn = Callable[[Plan, Instruction | None, Callable[[], bool]], None]


class Interpreter:
    """Runs the steps of one worker."""

    def __init__(
        self,
        worker: WorkerId,
        engine: Engine,
        holdings: Holdings,
        transport: Transport,
        mailbox: Mailbox,
        faults: FaultInjector,
        heartbeat: Heartbeat,
        trace: Trace | None = None,
    ) -> None:
        self._worker = worker
        self._model = engine.model
        self._batches = engine.batches
        self._holdings = holdings
        self._transport = transport
        self._mailbox = mailbox
        self._faults = faults
        self._device = engine.device
        self._pace = engine.pace
        self._heartbeat = heartbeat
        self._trace = trace
        self._sync = Sync(worker, holdings, transport, mailbox, engine.pace)
        self._plan: Plan | None = None
        self._step = 0
        self._program: Program = ()
        self._done = Progress()
        self._batch: dict[int, Batch] = {}
        self._activations: dict[tuple[Work, int], Tensors] = {}
        self._gradients: dict[tuple[Work, int], Tensors] = {}
        self.losses: dict[int, float] = {}
        self._shadows = Shadows()
        self.compute_s = 0.0
        self._run: dict[Op, Callable[[Instruction], None]] = {
            Op.LOAD: self._load,
            Op.FORWARD: self._forward,
            Op.BACKWARD: self._backward,
            Op.BACKWARD_INPUT: self._backward_input,
            Op.BACKWARD_WEIGHT: self._backward_weight,
            Op.SHADOW_FORWARD: self._shadow_forward,
            Op.SHADOW_BACKWARD: self._shadow_backward,
            Op.SEND_ACTIVATION: self._send_activation,
            Op.RECV_ACTIVATION: self._recv_activation,
            Op.SEND_GRADIENT: self._send_gradient,
            Op.RECV_GRADIENT: self._recv_gradient,
            Op.SYNC: self._start_sync,
            Op.VOTE: self._finish_syncs,
            Op.APPLY: lambda _: None,
        }

    # Plans and steps

    @property
    def plan(self) -> Plan:
        assert self._plan is not None
        return self._plan

    def adopt(self, message: PlanMessage, *, continues: bool) -> None:
        """Take a plan for the step in progress; what is done of it stays done if the step `continues`."""
        self._plan = message.plan
        self._program = program(self._plan, self._worker) if self._worker in self._plan.groups_of else ()
        self._pace.adopt(self._plan)
        if not continues:
            self._begin_step(message.step, message.exponents)
            return
        self._sync.adopt(message.plan)
        self._holdings.leave_out(message.plan.dropped)
        self.losses = {m: loss for m, loss in self.losses.items() if m not in message.plan.dropped}
        born = {(microbatch, route.born) for route in message.plan.routes for microbatch in route.microbatches}
        self._holdings.compute.forget(lambda work: work in born)
        for store in (self._activations, self._gradients):
            for entry in [entry for entry in store if entry[0] not in born]:
                del store[entry]
        self._take_over(message.plan)
        self._done.go_on(self._program)

    def _take_over(self, plan: Plan) -> None:
        """Copies of what a lost worker counted count from now on, if this worker goes on in its place."""
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
        """The same plan, the step after the committed one."""
        self._begin_step(commit.step + 1, commit.exponents)

    def _begin_step(self, step: int, exponents: tuple[int, ...]) -> None:
        assert self._plan is not None
        self._step = step
        if self._trace is not None:
            self._trace.flush()
        self._pace.begin_step()
        self._pace.slowness = self._faults.slowness(step)
        self.compute_s = 0.0
        self._batch.clear()
        self._activations.clear()
        self._gradients.clear()
        self.losses = {}
        self._shadows.clear()
        self._holdings.compute.forget(lambda work: False)
        self._holdings.begin_step(exponents)
        self._sync.begin_step(self._plan, step)
        self._mailbox.forget_before(step, self._plan.generation)
        self._done.begin(self._program)

    @property
    def next(self) -> Instruction | None:
        """The instruction under way, or to be done next; None at the program's end."""
        return self._done.next

    def run(self, bring_in: BringIn = lambda plan, instruction, idle: None) -> None:
        """Run what is left of the program. Raises Interrupted when there is an order; then `run` may go on later.

        Args:
            bring_in: state that is under way, as far as the instruction that comes next (None: the end) needs it.
        """
        while (instruction := self._done.next) is not None:
            if self._mailbox.has_orders:
                raise Interrupted
            bring_in(self.plan, instruction, self._progress)
            began_s = time.monotonic() if self._trace is not None else 0.0
            with self._heartbeat.during(Activity.COMPUTING):
                self._faults.check(FAULT_KINDS[instruction.op], self._step)
                if instruction.op in COMPUTING:
                    self._compute(instruction)
                else:
                    self._run[instruction.op](instruction)
            if self._trace is not None:
                self._trace.note(self._step, instruction, began_s, time.monotonic())
            self._done.finish()
        bring_in(self.plan, None, self._progress)

    def _compute(self, instruction: Instruction) -> None:
        """Timed. A device's stopwatch waits for the device, so it is read no oftener than it must be."""
        began = self._pace.stopwatch()
        self._run[instruction.op](instruction)
        ended = self._pace.stopwatch()
        if self._pace.slowness != 1.0:
            self._pace.slow_down(ended - began)
            ended = self._pace.stopwatch()
        self.compute_s += max(0.0, ended - began)

    def give_up(self) -> None:
        """Let go of what is kept for the step in progress: it will not be finished here."""
        self._batch.clear()
        self._activations.clear()
        self._gradients.clear()
        self._holdings.compute.forget(lambda work: False)

    @property
    def doing(self) -> str:
        """The instruction under way, for people."""
        instruction = self._done.next
        if instruction is None:
            return "at a step's end"
        if instruction.op in (Op.SYNC, Op.VOTE):
            return "in the sums of gradients"
        return f"in the {WORDS[instruction.op]} of microbatch {instruction.microbatch}"

    def apply(self, commit: Commit) -> None:
        assert self._plan is not None
        groups = self._plan.groups_of[self._worker]
        with self._heartbeat.during(Activity.COMPUTING):
            self._faults.check(FAULT_KINDS[Op.APPLY], commit.step)
            if commit.clip_factor != NOT_APPLIED:
                self._pace.apply(groups)
            self._holdings.apply(groups, commit.step, commit.clip_factor, commit.learning_rate)
        self._holdings.keep_only(groups)

    @property
    def ledger(self) -> Ledger:
        return self._holdings.ledger

    @property
    def norms(self) -> dict[int, float]:
        return self._sync.norms

    # Instructions

    def _load(self, instruction: Instruction) -> None:
        if instruction.microbatch not in self._batch:
            batch = self._batches.microbatch(self._step, instruction.microbatch)
            self._batch[instruction.microbatch] = {k: v.to(self._device) for k, v in batch.items()}

    def _forward(self, instruction: Instruction) -> None:
        """Of the layers whose forward was not run before, by another instruction."""
        loss = self._run_forwards(instruction, on_host=False)
        if loss is None and instruction.end_layer == len(self._model.layer_names):
            loss = self._shadows.losses.get(instruction.microbatch)
        if loss is not None:
            self.losses[instruction.microbatch] = loss

    def _shadow_forward(self, instruction: Instruction) -> None:
        """What has to be done already should its owner be lost later."""
        loss = self._run_forwards(instruction, on_host=True)
        if loss is not None:
            self._shadows.losses[instruction.microbatch] = loss

    def _run_forwards(self, instruction: Instruction, *, on_host: bool) -> float | None:
        """Returns the loss, if the last layer of the model is run."""
        work, left = (instruction.microbatch, instruction.born), self._done.forwards_left(instruction)
        batch = self._batch.get(instruction.microbatch)
        self._pace.compute(instruction, forwards=[layer for layers in left for layer in layers])
        loss: float | None = None
        for layers in left:
            tensors = self._taken_in(work, layers.start, stays=on_host)
            for layer in layers:
                tensors, loss = self._holdings.compute.forward(
                    self._step, work, layer, tensors, batch, keep=instruction.keeps, on_host=on_host
                )
                self._done.note_forward(work, layer)
            if loss is None:
                self._activations[work, layers.stop] = tensors
        return loss

    def _taken_in(self, work: Work, layer: int, *, stays: bool) -> Tensors:
        """A layer's input; it `stays` where it may have to be sent again."""
        if layer == 0:
            batch = self._batch[work[0]]
            return tuple(batch[name] for name in self._model.inputs)
        return self._activations[work, layer] if stays else self._activations.pop((work, layer))

    def _backward(self, instruction: Instruction) -> None:
        """Whole, except where the input's half was done under an earlier plan."""
        work, layers = (instruction.microbatch, instruction.born), self._done.backwards_left(instruction)
        inputs = [layer for layer in layers if not self._done.has_input(work, layer)]
        self._pace.compute(instruction, inputs=inputs, weights=_counted(instruction, layers))
        for layer in layers:
            counted = layer in instruction.counted
            if self._done.has_input(work, layer):
                self._holdings.compute.backward_weight(work, layer, counted=counted)
            else:
                given = self._gradients.pop((work, layer + 1), ())
                self._gradients[work, layer] = self._holdings.compute.backward(
                    self._step, work, layer, given, counted=counted
                )
            self._note_backward(work, layer, counted=counted)

    def _backward_input(self, instruction: Instruction) -> None:
        work, layers = (instruction.microbatch, instruction.born), self._done.inputs_left(instruction)
        self._pace.compute(instruction, inputs=layers)
        for layer in layers:
            given = self._gradients.pop((work, layer + 1), ())
            self._gradients[work, layer] = self._holdings.compute.backward_input(self._step, work, layer, given)
            self._done.note_input(work, layer)

    def _backward_weight(self, instruction: Instruction) -> None:
        work, layers = (instruction.microbatch, instruction.born), self._done.backwards_left(instruction)
        self._pace.compute(instruction, weights=_counted(instruction, layers))
        for layer in layers:
            counted = layer in instruction.counted
            self._holdings.compute.backward_weight(work, layer, counted=counted)
            self._note_backward(work, layer, counted=counted)

    def _shadow_backward(self, instruction: Instruction) -> None:
        """A second copy of what another worker counts, apart from all that counts here."""
        work, layers = (instruction.microbatch, instruction.born), self._done.backwards_left(instruction)
        self._pace.compute(instruction, inputs=layers, weights=_counted(instruction, layers))
        given = self._gradients.get((work, instruction.end_layer), ())
        for layer in layers:
            counted = layer in instruction.counted
            with self._holdings.counting_apart():
                given = self._holdings.compute.backward(self._step, work, layer, given, counted=counted)
            self._done.note_backward(work, layer)
            if counted:
                self._shadows.counted.add((layer, work))
        if layers:
            self._gradients[work, layers[-1]] = given

    def _note_backward(self, work: Work, layer: int, *, counted: bool) -> None:
        self._done.note_backward(work, layer)
        if counted:
            self._holdings.note_counted(layer, work[0])

    def _key(self, kind: str, sender: WorkerId, instruction: Instruction) -> Key:
        return Key(kind, sender, self._step, instruction.born, instruction.microbatch, instruction.first_layer)

    def _send_activation(self, instruction: Instruction) -> None:
        assert instruction.peer is not None
        tensors = self._to_send(self._activations, instruction)
        self._transport.send(instruction.peer, self._key(Kind.ACTIVATION, self._worker, instruction), tensors)

    def _to_send(self, store: dict[tuple[Work, int], Tensors], instruction: Instruction) -> Tensors:
        at = (instruction.microbatch, instruction.born), instruction.first_layer
        return store[at] if instruction.keeps else store.pop(at)

    def _recv_activation(self, instruction: Instruction) -> None:
        assert instruction.peer is not None
        tensors = self._take(self._key(Kind.ACTIVATION, instruction.peer, instruction))
        self._activations[(instruction.microbatch, instruction.born), instruction.first_layer] = tensors

    def _send_gradient(self, instruction: Instruction) -> None:
        assert instruction.peer is not None
        tensors = self._to_send(self._gradients, instruction)
        self._transport.send(instruction.peer, self._key(Kind.GRADIENT, self._worker, instruction), tensors)

    def _recv_gradient(self, instruction: Instruction) -> None:
        assert instruction.peer is not None
        tensors = self._take(self._key(Kind.GRADIENT, instruction.peer, instruction))
        self._gradients[(instruction.microbatch, instruction.born), instruction.first_layer] = tensors

    def _take(self, key: Key) -> Tensors:
        with self._heartbeat.during(Activity.WAITING, WorkerId(key.sender)):
            arrived = self._mailbox.take(key, self._progress)
        return tuple(tensor.to(self._device) for tensor in arrived)

    def _start_sync(self, instruction: Instruction) -> None:
        self._sync.start(instruction.group, instruction.epoch, instruction.round)

    def _finish_syncs(self, instruction: Instruction) -> None:
        with self._heartbeat.during(Activity.WAITING, self._sync.awaited()):
            self._mailbox.wait_until(self._sync.is_whole, self._progress)
        self._pace.drain()

    def _progress(self) -> bool:
        """A piece of a sum, while there is nothing else to do."""
        did = self._sync.progress()
        if did:
            self._heartbeat.advance()
        return did


def _counted(instruction: Instruction, layers: tuple[int, ...]) -> list[int]:
    return [layer for layer in layers if layer in instruction.counted]
