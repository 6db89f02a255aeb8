"""The interpreter: runs a worker's program on its device, instruction by instruction, for any plan of any policy.

What an instruction does is said by `planaria.protocol.worker.step_work`. It decides nothing: orders come through the
mailbox and raise `Interrupted` wherever it waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import msgspec
import torch

from planaria.model.model import Batch, Tensors
from planaria.plan.plan import WorkerId
from planaria.plan.program.audits import Audit
from planaria.plan.program.instructions import COMPUTING, Instruction, Op
from planaria.protocol.messages.from_worker import Activity, Vote
from planaria.protocol.messages.to_worker import NOT_APPLIED, Commit, PlanMessage
from planaria.protocol.thresholds import FLOWS_EVERY
from planaria.protocol.worker.progress import Work
from planaria.protocol.worker.step_work import StepWork
from planaria.runtime.worker.compute.device.device import here
from planaria.runtime.worker.compute.device.queues import Stream
from planaria.runtime.worker.compute.engine import Engine
from planaria.runtime.worker.compute.holdings import Holdings
from planaria.runtime.worker.compute.layers import Compute
from planaria.runtime.worker.compute.replica import digest_of_values
from planaria.runtime.worker.faults import FaultInjector
from planaria.runtime.worker.heartbeat import Heartbeat
from planaria.runtime.worker.instruction_trace import Trace
from planaria.runtime.worker.transport.mailbox import Interrupted, Key, Mailbox
from planaria.runtime.worker.transport.outbox import Outbox
from planaria.runtime.worker.transport.stage_mates import StageMates
from planaria.runtime.worker.transport.sync import Sync

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
    Op.AUDIT: "audit",
    Op.SYNC: "sync",
    Op.VOTE: "vote",
    Op.APPLY: "apply",
}
CORRUPTIBLE = {
    Op.FORWARD: "forward",
    Op.VOTE: "sync",
}
"""Instructions whose results a fault may change; what a backward counts, it may change layer by layer."""
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
    Op.AUDIT: "audit",
}


BringIn = Callable[[Instruction | None, Callable[[], bool]], None]


class Interpreter(StepWork[Batch, Tensors]):
    """Runs the steps of one worker, with tensors."""

    def __init__(
        self,
        worker: WorkerId,
        engine: Engine,
        holdings: Holdings,
        outbox: Outbox,
        mailbox: Mailbox,
        faults: FaultInjector,
        heartbeat: Heartbeat,
        trace: Trace | None = None,
    ) -> None:
        self._sync = Sync(worker, holdings, outbox, mailbox, engine.pace)
        num_layers = len(engine.model.layer_names)
        super().__init__(worker, num_layers, holdings, holdings.compute, self._sync, mailbox, (), engine.pace.compute)
        self._model = engine.model
        self._sampled = engine.batches
        self._outbox = outbox
        self._mailbox = mailbox
        self._faults = faults
        self._device = engine.device
        self._pace = engine.pace
        self._heartbeat = heartbeat
        self._trace = trace
        self._exchanged_s = 0.0
        self._mates = StageMates(worker, self._exchange)
        if isinstance(holdings.compute, Compute):
            holdings.compute.mates = self._mates
            self._counts_parts = True
        self._timed: list[tuple[Any, Any, list[tuple[Any, Any]], float]] = []
        """Marks of what the device computed in the step, those of its waits for others of its stage, and by how many
        times longer it was made to take."""
        self._exchanges: list[tuple[Any, Any]] = []

    # Plans and steps

    def adopt(self, message: PlanMessage, *, continues: bool) -> None:
        self._pace.adopt(message.plan)
        self._sync.wire_bytes_per_s = message.wire_bytes_per_s
        self._mates.adopt(message.plan)
        super().adopt(message, continues=continues)

    def close(self) -> None:
        """Writes what is kept of the last step's trace."""
        if self._trace is not None:
            self._trace.flush()

    def _begin_step(self, step: int, exponents: tuple[int, ...], audits: tuple[Audit, ...]) -> None:
        if self._trace is not None:
            self._trace.flush()
        self._pace.begin_step()
        self._pace.slowness = self._faults.slowness(step)
        self._timed.clear()
        super()._begin_step(step, exponents, audits)

    def vote(self, generation: int, step: int) -> Vote:
        for first, last, exchanges, factor in self._timed:
            exchanged_s = sum(self._device.seconds_between(*exchange) for exchange in exchanges)
            self.compute_s += max(self._device.seconds_between(first, last) - exchanged_s, 0.0) * factor
        self._timed.clear()
        self._device.finish()  # once the step is committed, others write what is read here in place
        vote = super().vote(generation, step)
        return vote if step % FLOWS_EVERY else msgspec.structs.replace(vote, flows=self._outbox.flows())

    def run(self, bring_in: BringIn = lambda instruction, idle: None) -> None:
        """Runs what is left of the program. Raises Interrupted when there is an order; then `run` may go on later.

        Args:
            bring_in: state that is under way, as far as the instruction that comes next (None: the end) needs it.
        """
        while (instruction := self.progress.next) is not None:
            if self._mailbox.has_orders:
                raise Interrupted
            bring_in(instruction, self._idle)
            began_s = time.monotonic() if self._trace is not None else 0.0
            with self._heartbeat.during(Activity.COMPUTING):
                self._faults.check(*self._fault_point(instruction))
                self._faults.corrupt("rest", self.step, self._replicas)
                if instruction.op in COMPUTING:
                    self._compute(instruction)
                else:
                    self.perform(instruction)
                if instruction.op in CORRUPTIBLE and self.plan.evaluation is None:
                    self._faults.corrupt(CORRUPTIBLE[instruction.op], self.step, partial(self._made_by, instruction))
            if self._trace is not None:
                self._trace.note(self.step, instruction, began_s, time.monotonic())
            self.progress.finish()
            self._outbox.send_what_came()
            while not self.progress.has_sends and not self._mailbox.has_orders and self._add_up():
                pass  # other owners wait for what is added up here, and nobody for what is computed
        bring_in(None, self._idle)

    def _replicas(self) -> list[torch.Tensor]:
        """Returns all that is held of the groups that the plan has this worker keep."""
        held = self._holdings.replicas
        return [vector for group in self.kept if group in held for vector in held[group].state]

    def _made_by(self, instruction: Instruction) -> list[torch.Tensor]:
        """Returns what an instruction has just made: activations, or whole sums."""
        if instruction.op is Op.FORWARD:
            work = instruction.microbatch, instruction.born
            return list(self._activations.get((work, instruction.end_layer), ()))
        return [self._holdings.replicas[group].gradient for group in self.kept]

    def _note_backward(self, work: Work, layer: int, *, counted: bool) -> None:
        super()._note_backward(work, layer, counted=counted)
        if counted:
            self._faults.corrupt("backward", self.step, partial(self._counts_of, layer))

    def _counts_of(self, layer: int) -> list[torch.Tensor]:
        """Returns what is counted of a layer's groups."""
        groups = (group for group in self.given if layer in self.plan.groups[group].layers)
        counts = (self._holdings.accumulators.get(group) for group in groups)
        return [one.total for one in counts if one and not one.is_empty]

    def _fault_point(self, instruction: Instruction) -> tuple[str, int]:
        if self.plan.evaluation is not None and instruction.op is Op.FORWARD:
            return "evaluate", self.step - 1
        return FAULT_KINDS[instruction.op], self.step

    def _compute(self, instruction: Instruction) -> None:
        """Performs and times an instruction."""
        if not self._device.is_on_host:
            self._launch(instruction)
            return
        began, exchanged_s = self._pace.stopwatch(), self._exchanged_s
        self.perform(instruction)
        ended = self._pace.stopwatch() - (self._exchanged_s - exchanged_s)
        if self._pace.slowness != 1.0:
            self._pace.slow_down(ended - began)
            ended = self._pace.stopwatch()
        if instruction.op is not Op.AUDIT:  # nothing of it is the plan's
            self.compute_s += max(0.0, ended - began)

    def _launch(self, instruction: Instruction) -> None:
        """Gives an instruction to the device, which does and times it while its host goes on."""
        self._exchanges = []
        began = self._device.mark()
        self.perform(instruction)
        ended = self._device.mark()
        if self._pace.slowness != 1.0:
            self._pace.slow_down(self._device.seconds_between(began, ended))
        if instruction.op is not Op.AUDIT:  # nothing of it is the plan's
            self._timed.append((began, ended, self._exchanges, self._pace.slowness))

    @property
    def doing(self) -> str:
        """Describes the instruction under way, for people."""
        instruction = self.progress.next
        if instruction is None:
            return "at a step's end"
        if instruction.op in (Op.SYNC, Op.VOTE):
            return "in the sums of gradients"
        return f"in the {WORDS[instruction.op]} of microbatch {instruction.microbatch}"

    def _update(self, groups: Collection[int], commit: Commit) -> None:
        with self._heartbeat.during(Activity.COMPUTING):
            self._faults.check(FAULT_KINDS[Op.APPLY], commit.step)
            if commit.clip_factor != NOT_APPLIED:
                self._pace.apply(groups)
            self._holdings.apply(groups, commit.step, commit.clip_factor, commit.learning_rate)
            self._faults.corrupt(FAULT_KINDS[Op.APPLY], commit.step, self._replicas)

    # Instructions

    def _batch(self, microbatch: int) -> Batch:
        is_step, sampled = self.plan.evaluation is None, self._sampled
        with self._heartbeat.during(Activity.BUSY):  # nobody estimates how long the user's items take
            batch = sampled.microbatch(self.step, microbatch) if is_step else sampled.eval_microbatch(microbatch)
        return dict(zip(batch, self._device.copied_in(tuple(batch.values())), strict=True))

    def _inputs(self, batch: Batch) -> Tensors:
        return tuple(batch[name] for name in self._model.inputs)

    def _send(self, peer: WorkerId, key: Key, value: Tensors) -> Callable[[], int]:
        sent = [value]

        def own_copy() -> Tensors:
            sent[0] = tuple(tensor.clone() for tensor in value)
            return sent[0]

        self._faults.corrupt("send", self.step, own_copy)
        self._outbox.give(peer, key, sent[0])
        return lambda: self._digest_of(sent[0])

    def _take(self, key: Key) -> Tensors:
        with self._heartbeat.during(Activity.WAITING, WorkerId(key.sender)):
            arrived = self._mailbox.take(key, self._idle)
        return self._outbox.brought_in(arrived)

    def _exchange(self, peer: WorkerId, key: Key, part: torch.Tensor | None) -> torch.Tensor:
        """Sends another device of the stage a part of a sum, unless it has that, and returns its own."""
        self._faults.check("exchange", self.step)
        if part is not None:
            self._outbox.give(peer, key._replace(step=self.step), (part,))
        began, first = self._pace.stopwatch(), self._device.mark()
        try:
            (found,) = self._take(key._replace(sender=peer, step=self.step))
        finally:
            self._exchanged_s += self._pace.stopwatch() - began
            if not self._device.is_on_host:
                self._exchanges.append((first, self._device.mark()))
        return found

    def _audit(self, instruction: Instruction) -> None:
        with self._mates.alone():
            super()._audit(instruction)

    def _digest_of(self, value: Tensors) -> int:
        return digest_of_values(here(self._device.copied_out(value)))

    def _finish_sums(self, instruction: Instruction) -> None:
        with self._heartbeat.during(Activity.WAITING, self._sync.awaited()):
            self._mailbox.wait_until(self._sync.is_whole, self._idle)
        self._device.after(Stream.SUMS, Stream.SHADOWS)  # the optimizer, and digests
        self._pace.drain()

    def _idle(self) -> bool:
        """Computes a piece of a sum, while there is nothing else to do; or waits for what is to be sent."""
        return self._add_up() or self._outbox.send_next()

    def _add_up(self) -> bool:
        """Computes a piece of a sum, if there is one."""
        did = self._sync.progress()
        if did:
            self._heartbeat.advance()
        return did
