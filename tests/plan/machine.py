"""A tiny executor of programs, independent of the real one: sets instead of tensors, any fair interleaving.

Sends do not wait, receives match by key, a sync hands over what the accumulator holds at that moment, and a
vote waits for all owners of the worker's groups. Every precondition is asserted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from planaria.plan.ledger import Ledger
from planaria.plan.plan import Plan, WorkerId
from planaria.plan.program.audits import Audit, with_audits
from planaria.plan.program.instructions import Instruction, Op
from planaria.plan.program.programs import program

_Work = tuple[int, int]


@dataclass
class Worker:
    program: list[Instruction]
    done: set[Instruction] = field(default_factory=set)
    loaded: set[int] = field(default_factory=set)
    activations: set[tuple[_Work, int]] = field(default_factory=set)
    gradients: set[tuple[_Work, int]] = field(default_factory=set)
    kept: set[tuple[_Work, int]] = field(default_factory=set)
    backward: set[tuple[_Work, int]] = field(default_factory=set)
    counted: Counter[tuple[int, int]] = field(default_factory=Counter)


class Machine:
    """Runs a plan's workers one random ready instruction at a time, with these audits.

    Attributes:
        audited: of each audit that was run, layer and microbatch.
    """

    def __init__(self, plan: Plan, seed: int, audits: tuple[Audit, ...] = ()) -> None:
        self.plan = plan
        self.random = random.Random(seed)
        self.audited: Counter[tuple[int, int]] = Counter()
        self.workers = {
            worker: Worker(list(with_audits(program(plan, worker), audits, worker, plan))) for worker in plan.workers
        }
        self.messages: set[tuple[Op, WorkerId, WorkerId, int, int, int]] = set()
        self.sums: dict[tuple[int, int, WorkerId], Counter[tuple[int, int]]] = {}
        self.executed: Counter[tuple[int, int, int]] = Counter()

    def run(self, limit: int | None = None) -> int:
        """Run at most `limit` instructions, or to the end; returns how many. Fails on a deadlock."""
        count = 0
        while limit is None or count < limit:
            waiting = [worker for worker, state in self.workers.items() if state.program]
            ready = [worker for worker in waiting if self._is_ready(worker)]
            if not waiting:
                return count
            assert ready, f"deadlock: {[(w, self.workers[w].program[0]) for w in waiting]}"
            worker = self.random.choice(ready)
            state = self.workers[worker]
            instruction = state.program.pop(0)
            self._execute(worker, state, instruction)
            state.done.add(instruction)
            count += 1
        return count

    def kill(self, workers: Collection[WorkerId]) -> None:
        for worker in workers:
            del self.workers[worker]

    def adopt(self, plan: Plan) -> None:
        """Go on under a plan that finishes the step: what is done stays done."""
        self.plan = plan
        born = {(m, route.born) for route in plan.routes for m in route.microbatches}
        for worker, state in self.workers.items():
            state.program = [i for i in program(plan, worker) if i not in state.done]
            state.activations = {entry for entry in state.activations if entry[0] in born}
            state.gradients = {entry for entry in state.gradients if entry[0] in born}
            state.kept = {entry for entry in state.kept if entry[0] in born}

    def ledger(self, worker: WorkerId) -> Ledger:
        counted = self.workers[worker].counted
        return Ledger.of({m for lay, m in counted if lay == layer} for layer in range(self.plan.num_layers))

    def check_sums(self) -> None:
        """Every group's sum has every microbatch exactly once for each of its layers."""
        for number, group in enumerate(self.plan.groups):
            total: Counter[tuple[int, int]] = Counter()
            for owner in self.plan.owners_of[number]:
                total += self.sums[number, self.plan.sync_epochs[number], owner]
            wanted = {(layer, m) for layer in group.layers for m in range(self.plan.num_microbatches)}
            assert total == Counter(wanted), f"group {number}"

    def _is_ready(self, worker: WorkerId) -> bool:
        instruction = self.workers[worker].program[0]
        match instruction.op:
            case Op.RECV_ACTIVATION | Op.RECV_GRADIENT:
                return self._key(instruction, worker) in self.messages
            case Op.VOTE:
                return all(
                    (group, self.plan.sync_epochs[group], owner) in self.sums
                    for group in self.plan.groups_of[worker]
                    for owner in self.plan.owners_of[group]
                )
            case _:
                return True

    def _key(self, instruction: Instruction, worker: WorkerId) -> tuple[Op, WorkerId, WorkerId, int, int, int]:
        assert instruction.peer is not None
        sends = instruction.op in (Op.SEND_ACTIVATION, Op.SEND_GRADIENT)
        kind = {Op.SEND_ACTIVATION: Op.RECV_ACTIVATION, Op.SEND_GRADIENT: Op.RECV_GRADIENT}
        sender, receiver = (worker, instruction.peer) if sends else (instruction.peer, worker)
        op = kind.get(instruction.op, instruction.op)
        return op, sender, receiver, instruction.born, instruction.microbatch, instruction.first_layer

    def _execute(self, worker: WorkerId, state: Worker, instruction: Instruction) -> None:
        work = (instruction.microbatch, instruction.born)
        at = (work, instruction.first_layer)
        match instruction.op:
            case Op.LOAD:
                state.loaded.add(instruction.microbatch)
            case Op.FORWARD:
                self._forward(state, instruction)
            case Op.BACKWARD | Op.BACKWARD_INPUT:
                self._backward(state, instruction)
            case Op.BACKWARD_WEIGHT:
                self._weight(state, instruction)
            case Op.SEND_ACTIVATION:
                self._give(state.activations, at, instruction, worker)
            case Op.SEND_GRADIENT:
                self._give(state.gradients, at, instruction, worker)
            case Op.RECV_ACTIVATION:
                self.messages.remove(self._key(instruction, worker))
                state.activations.add(at)
            case Op.RECV_GRADIENT:
                self.messages.remove(self._key(instruction, worker))
                state.gradients.add(at)
            case Op.AUDIT:
                self._audit(worker, state, instruction)
            case Op.SYNC:
                layers = set(self.plan.groups[instruction.group].layers)
                held = Counter({e: count for e, count in state.counted.items() if e[0] in layers})
                # Like the real one, it does not start a sum of the same group and epoch again.
                self.sums.setdefault((instruction.group, instruction.epoch, worker), held)
            case Op.VOTE | Op.APPLY:
                pass

    def _give(
        self, store: set[tuple[_Work, int]], at: tuple[_Work, int], instruction: Instruction, worker: WorkerId
    ) -> None:
        assert at in store
        if not instruction.keeps:
            store.remove(at)
        self._send(instruction, worker)

    def _audit(self, worker: WorkerId, state: Worker, instruction: Instruction) -> None:
        work, layers = (instruction.microbatch, instruction.born), range(instruction.first_layer, instruction.end_layer)
        assert set(layers) <= set(self.plan.layers_of[worker])
        if 0 in layers or self.plan.num_layers - 1 in layers:
            assert instruction.microbatch in state.loaded
        if layers.start:
            state.activations.remove((work, layers.start))
        if layers.stop < self.plan.num_layers:
            state.gradients.remove((work, layers.stop))
        self.audited.update((layer, instruction.microbatch) for layer in layers)

    def _send(self, instruction: Instruction, worker: WorkerId) -> None:
        key = self._key(instruction, worker)
        assert key not in self.messages
        self.messages.add(key)

    def _forward(self, state: Worker, instruction: Instruction) -> None:
        work = (instruction.microbatch, instruction.born)
        if instruction.first_layer == 0:
            assert instruction.microbatch in state.loaded
        else:
            state.activations.remove((work, instruction.first_layer))
        if instruction.end_layer == self.plan.num_layers:
            assert instruction.microbatch in state.loaded
        else:
            state.activations.add((work, instruction.end_layer))
        for layer in range(instruction.first_layer, instruction.end_layer):
            if instruction.keeps:
                state.kept.add((work, layer))

    def _backward(self, state: Worker, instruction: Instruction) -> None:
        work = (instruction.microbatch, instruction.born)
        for layer in reversed(range(instruction.first_layer, instruction.end_layer)):
            if (work, layer) in state.backward:
                continue
            assert (work, layer) in state.kept
            if layer + 1 < self.plan.num_layers:
                state.gradients.remove((work, layer + 1))
            state.gradients.add((work, layer))
            state.backward.add((work, layer))
            if instruction.op is Op.BACKWARD_INPUT:
                assert not instruction.counted
                continue
            state.kept.remove((work, layer))
            if layer in instruction.counted:
                state.counted[layer, instruction.microbatch] += 1

    def _weight(self, state: Worker, instruction: Instruction) -> None:
        """The input's gradient comes first, and what the forward kept lasts until now."""
        work = (instruction.microbatch, instruction.born)
        layers = range(instruction.first_layer, instruction.end_layer)
        assert instruction.counted
        assert set(instruction.counted) <= set(layers)
        for layer in layers:
            assert (work, layer) in state.backward
            state.kept.remove((work, layer))
        for layer in instruction.counted:
            state.counted[layer, instruction.microbatch] += 1
