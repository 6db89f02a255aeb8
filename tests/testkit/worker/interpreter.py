"""The interpreter in symbols: what each instruction of a program does to what one worker holds.

It keeps the books that the real one keeps (`Progress`, `Sums`), with its rules for what a new plan keeps and voids.
When things happen, how long they take and who waits is the worker's business (`tests.testkit.worker.worker`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planaria.plan.plan import Plan, WorkerId
from planaria.plan.program.instructions import Instruction, Op, Program
from planaria.plan.program.programs import program
from planaria.protocol.mail import Key, Kind, Mail
from planaria.protocol.messages import Commit, PlanMessage
from planaria.protocol.progress import Progress, Work
from planaria.protocol.shadowing import Fate, Shadows
from planaria.protocol.sums import Sum, Sums
from tests.testkit.promises.symbols import Algebra, Symbol
from tests.testkit.worker.holdings import Accumulator, Holdings

Read = Callable[[], Any]
"""Gives a message's content, read when it arrives: whoever changes what is being sent is found out."""

Send = Callable[[WorkerId, Key, Read], None]
Part = Symbol | Accumulator
"""A sum's part: as it arrived, or where it lies in the memory of the host."""


class Interpreter:
    """Runs the instructions of one worker.

    Args:
        worker: whose.
        algebra: what layers compute.
        holdings: the worker's.
        mail: the worker's.
        send: to a peer.
        is_on_this_host: whether a peer reads sums in place.
        complain: told of a wanted message that came damaged.
    """

    def __init__(
        self,
        worker: WorkerId,
        algebra: Algebra,
        holdings: Holdings,
        mail: Mail[Any],
        send: Send,
        is_on_this_host: Callable[[WorkerId], bool],
        complain: Callable[[Key], None],
    ) -> None:
        self.progress = Progress()
        self.sums: Sums[Part] = Sums(worker)
        self.losses: dict[int, float] = {}
        self.compute_s = 0.0
        self.step = 0
        self._worker = worker
        self._algebra = algebra
        self._holdings = holdings
        self._mail = mail
        self._send = send
        self._is_on_this_host = is_on_this_host
        self._complain = complain
        self._plan: Plan | None = None
        self._program: Program = ()
        self._loaded: dict[int, Symbol] = {}
        self._activations: dict[tuple[Work, int], Symbol] = {}
        self._gradients: dict[tuple[Work, int], Symbol] = {}
        self._kept: dict[tuple[Work, int], Symbol] = {}
        self._shadows = Shadows()
        self._halves: dict[tuple[Work, int], tuple[Symbol, Symbol]] = {}
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
            Op.SYNC: self._start_sum,
            Op.VOTE: lambda _: None,
        }

    @property
    def plan(self) -> Plan:
        assert self._plan is not None
        return self._plan

    @property
    def has_plan(self) -> bool:
        return self._plan is not None

    # Plans and steps

    def adopt(self, message: PlanMessage, *, continues: bool) -> None:
        """Take a plan for the step in progress; what is done of it stays done if the step `continues`."""
        self._plan = message.plan
        self._program = program(message.plan, self._worker) if self._worker in message.plan.groups_of else ()
        if not continues:
            self._begin_step(message.step, message.exponents)
            return
        self._holdings.leave_out(message.plan.dropped)
        self.losses = {m: loss for m, loss in self.losses.items() if m not in message.plan.dropped}
        born = {(microbatch, route.born) for route in message.plan.routes for microbatch in route.microbatches}
        stores: tuple[dict[tuple[Work, int], Any], ...] = (
            self._kept,
            self._halves,
            self._activations,
            self._gradients,
        )
        for store in stores:
            for entry in [entry for entry in store if entry[0] not in born]:
                del store[entry]
        fate = self._shadows.fate(message.plan, self._worker)
        if fate is Fate.PROMOTED:
            self._holdings.promote_shadows([(layer, work[0]) for layer, work in self._shadows.counted])
        elif fate is Fate.DROPPED:
            self._holdings.drop_shadows()
        if fate is not Fate.KEPT:
            self._shadows.counted.clear()
        self.progress.go_on(self._program)

    def begin_next_step(self, commit: Commit) -> None:
        """The same plan, the step after the committed one."""
        self._begin_step(commit.step + 1, commit.exponents)

    def _begin_step(self, step: int, exponents: tuple[int, ...]) -> None:
        self.step = step
        self.losses = {}
        self._shadows.clear()
        self.compute_s = 0.0
        for store in (self._loaded, self._activations, self._gradients, self._kept, self._halves):
            store.clear()
        self._holdings.begin_step(exponents)
        self.sums.clear()
        self._mail.forget_before(step, self.plan.generation)
        self.progress.begin(self._program)

    def apply(self, commit: Commit) -> None:
        groups = self.plan.groups_of[self._worker]
        self._holdings.apply(groups, commit.step, commit.clip_factor, commit.scale)
        self._holdings.keep_only(groups)

    def give_up(self) -> None:
        """Let go of what is kept for the step in progress: it will not be finished here."""
        for store in (self._loaded, self._activations, self._gradients, self._kept, self._halves):
            store.clear()

    # Instructions

    def is_ready(self, instruction: Instruction) -> bool:
        """Whether it can run now: what it waits for is here."""
        match instruction.op:
            case Op.RECV_ACTIVATION:
                return self.has_come(self._key(Kind.ACTIVATION, instruction.peer, instruction))
            case Op.RECV_GRADIENT:
                return self.has_come(self._key(Kind.GRADIENT, instruction.peer, instruction))
            case Op.VOTE:
                return self.sums.is_whole(self.plan)
            case _:
                return True

    def has_come(self, key: Key) -> bool:
        """Whether a wanted message is here; one that came damaged is complained of."""
        if self._mail.came_damaged(key):
            self._complain(key)
        return key in self._mail

    def awaited(self, instruction: Instruction) -> WorkerId | None:
        """From whom something is missing that it waits for."""
        return self.sums.awaited() if instruction.op is Op.VOTE else instruction.peer

    def execute(self, instruction: Instruction) -> None:
        self._run[instruction.op](instruction)
        self.progress.finish()

    def _load(self, instruction: Instruction) -> None:
        self._loaded[instruction.microbatch] = self._algebra.batch(self.step, instruction.microbatch)

    def _forward(self, instruction: Instruction) -> None:
        loss = self._run_forwards(instruction, stays=False)
        if loss is None and instruction.end_layer == self._algebra.num_layers:
            loss = self._shadows.losses.get(instruction.microbatch)
        if loss is not None:
            self.losses[instruction.microbatch] = loss

    def _shadow_forward(self, instruction: Instruction) -> None:
        loss = self._run_forwards(instruction, stays=True)
        if loss is not None:
            self._shadows.losses[instruction.microbatch] = loss

    def _run_forwards(self, instruction: Instruction, *, stays: bool) -> float | None:
        microbatch, work = instruction.microbatch, (instruction.microbatch, instruction.born)
        loss: float | None = None
        for layers in self.progress.forwards_left(instruction):
            at = (work, layers.start)
            if layers.start == 0:
                value = self._loaded[microbatch]
            else:
                value = self._activations[at] if stays else self._activations.pop(at)
            for layer in layers:
                value = self._algebra.forward(self._holdings.parameters(layer), value, self.step, microbatch, layer)
                if instruction.keeps:
                    self._kept[work, layer] = value
                self.progress.note_forward(work, layer)
            if layers.stop == self._algebra.num_layers:
                assert microbatch in self._loaded, "no labels for the loss"
                loss = self._algebra.loss(self.step, microbatch, value)
            else:
                self._activations[work, layers.stop] = value
        return loss

    def _backward(self, instruction: Instruction) -> None:
        work = (instruction.microbatch, instruction.born)
        for layer in self.progress.backwards_left(instruction):
            if not self.progress.has_input(work, layer):
                self._input_gradient(work, layer)
            self._weight_gradients(work, layer, counted=layer in instruction.counted)

    def _backward_input(self, instruction: Instruction) -> None:
        work = (instruction.microbatch, instruction.born)
        for layer in self.progress.inputs_left(instruction):
            self._input_gradient(work, layer)
            self.progress.note_input(work, layer)

    def _backward_weight(self, instruction: Instruction) -> None:
        work = (instruction.microbatch, instruction.born)
        for layer in self.progress.backwards_left(instruction):
            self._weight_gradients(work, layer, counted=layer in instruction.counted)

    def _shadow_backward(self, instruction: Instruction) -> None:
        work = (instruction.microbatch, instruction.born)
        given = self._gradients.get((work, instruction.end_layer), 0)
        for layer in self.progress.backwards_left(instruction):
            kept = self._kept.pop((work, layer))
            if layer in instruction.counted:
                self._holdings.count_apart(layer, given, kept)
                self._shadows.counted.add((layer, work))
            self.progress.note_backward(work, layer)
            given = self._gradients[work, layer] = self._algebra.backward(given, kept)

    def _input_gradient(self, work: Work, layer: int) -> None:
        given = 0 if layer + 1 == self._algebra.num_layers else self._gradients.pop((work, layer + 1))
        kept = self._kept.pop((work, layer))
        self._gradients[work, layer] = self._algebra.backward(given, kept)
        self._halves[work, layer] = (given, kept)

    def _weight_gradients(self, work: Work, layer: int, *, counted: bool) -> None:
        given, kept = self._halves.pop((work, layer))
        self.progress.note_backward(work, layer)
        if counted:
            self._holdings.count(layer, work[0], given, kept)

    # Messages

    def _key(self, kind: str, sender: WorkerId | None, instruction: Instruction) -> Key:
        assert sender is not None
        return Key(kind, sender, self.step, instruction.born, instruction.microbatch, instruction.first_layer)

    def _at(self, instruction: Instruction) -> tuple[Work, int]:
        return (instruction.microbatch, instruction.born), instruction.first_layer

    def _send_activation(self, instruction: Instruction) -> None:
        self._send_value(Kind.ACTIVATION, instruction, self._activations)

    def _send_gradient(self, instruction: Instruction) -> None:
        self._send_value(Kind.GRADIENT, instruction, self._gradients)

    def _send_value(self, kind: str, instruction: Instruction, store: dict[tuple[Work, int], Symbol]) -> None:
        assert instruction.peer is not None
        at = self._at(instruction)
        value = store[at] if instruction.keeps else store.pop(at)
        self._send(instruction.peer, self._key(kind, self._worker, instruction), lambda: value)

    def _recv_activation(self, instruction: Instruction) -> None:
        self._activations[self._at(instruction)] = self._taken(Kind.ACTIVATION, instruction)

    def _recv_gradient(self, instruction: Instruction) -> None:
        self._gradients[self._at(instruction)] = self._taken(Kind.GRADIENT, instruction)

    def _taken(self, kind: str, instruction: Instruction) -> Symbol:
        value = self._mail.take(self._key(kind, instruction.peer, instruction))
        assert isinstance(value, Symbol)
        return value

    # Sums

    def _start_sum(self, instruction: Instruction) -> None:
        """This worker's accumulator of the group is whole; of a group whose state is on its way it has none."""
        group, epoch = instruction.group, instruction.epoch
        if self.sums.is_begun(group, epoch):
            return
        owners = self.plan.owners_of[group]
        accumulator = self._holdings.accumulator(group) if group in self._holdings.replicas else None
        for owner in owners:
            if owner != self._worker:
                self._send_part(owner, group, epoch, accumulator)
        own = None if accumulator is None or accumulator.is_empty else accumulator
        self.sums.begin(group, epoch, instruction.round, owners, own)

    def _send_part(self, owner: WorkerId, group: int, epoch: int, accumulator: Accumulator | None) -> None:
        if accumulator is None or accumulator.is_empty:
            self._send(owner, Key(Kind.SUM, self._worker, self.step, epoch, group, 0), lambda: (None,))
            return
        is_shared = self._is_on_this_host(owner)
        key = Key(Kind.SHARED_SUM if is_shared else Kind.SUM, self._worker, self.step, epoch, group, 0)
        if is_shared:
            self._send(owner, key, lambda: (accumulator,))
        else:
            self._send(owner, key, lambda: (accumulator.total,))

    def collect(self) -> tuple[int, Sum[Part]] | None:
        """A group all of whose parts are here, to be added up."""
        return self.sums.collect(self._part, self._holdings.replicas)

    def _part(self, owner: WorkerId, group: int, epoch: int) -> tuple[Part | None] | None:
        for kind in (Kind.SUM, Kind.SHARED_SUM):
            key = Key(kind, owner, self.step, epoch, group, 0)
            if self.has_come(key):
                found: tuple[Part | None] | None = self._mail.take(key)
                return found
        return None

    def add_up(self, group: int, pending: Sum[Part]) -> None:
        total = 0
        for owner in sorted(pending.parts):
            part = pending.parts[owner]
            total += part.total if isinstance(part, Accumulator) else part
        self._holdings.replicas[group].gradient = total
        pending.norm = self._algebra.norm(total) if self.sums.tells(self.plan, group) else None
        pending.is_done = True
        pending.parts.clear()
