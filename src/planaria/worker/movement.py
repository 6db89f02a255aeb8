"""State on its way: what a plan moves from worker to worker, what is loaded from a checkpoint, what is sent again.

It fills the holdings while a program runs, which waits only before what needs the state (`planaria.protocol.awaiting`).
Whether a plan is taken is the machine's to say.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from planaria.checkpoint.manifest import read_manifest
from planaria.checkpoint.state import read_group
from planaria.model.model import Model
from planaria.plan.plan import Plan, Transfer, WorkerId
from planaria.plan.program.instructions import Instruction
from planaria.protocol.awaiting import needs_state
from planaria.protocol.messages import Damaged, Message, PlanMessage, Ready, Resend, StateSource
from planaria.protocol.pulse import Activity
from planaria.protocol.worker import WorkerMachine
from planaria.worker.faults import FaultInjector
from planaria.worker.heartbeat import Heartbeat
from planaria.worker.holdings import Holdings
from planaria.worker.mailbox import Key, Kind, Mailbox
from planaria.worker.pace import Pace
from planaria.worker.replica import Replica
from planaria.worker.transport import Transport


class Movement:
    """Of one worker.

    Args:
        worker: this one.
        seed: of the job's initial state.
        model: makes initial state.
        machine: asked for the generation and step in progress.
        holdings: where the state ends.
        transport: to peers.
        mailbox: of what comes from them.
        heartbeat: told who is waited for.
        faults: on the user's order.
        pace: of what is read from a checkpoint.
        send: to the coordinator.

    Attributes:
        is_settled: all state that the plan gives this worker is in place.
    """

    def __init__(
        self,
        worker: WorkerId,
        seed: int,
        model: Model,
        machine: WorkerMachine,
        holdings: Holdings,
        transport: Transport,
        mailbox: Mailbox,
        heartbeat: Heartbeat,
        faults: FaultInjector,
        pace: Pace,
        send: Callable[[Message], None],
    ) -> None:
        self.is_settled = True
        self._worker = worker
        self._seed = seed
        self._model = model
        self._machine = machine
        self._holdings = holdings
        self._transport = transport
        self._mailbox = mailbox
        self._heartbeat = heartbeat
        self._faults = faults
        self._pace = pace
        self._send = send
        self._incoming: list[Transfer] = []
        self._attempts: dict[Transfer, int] = {}
        self._arriving: Replica | None = None
        self._came_s: float | None = None
        """When the last came of what has come."""
        mailbox.when_damaged = self._damaged

    def begin(self, message: PlanMessage, *, forgets: bool) -> None:
        """Load or send what the plan says; what has to come from peers is brought in before what needs it.

        Args:
            message: the plan.
            forgets: whatever is held is of before the job went back.
        """
        plan, own = message.plan, self._worker
        if forgets:
            self._mailbox.forget_older_plans(message.lineage)
            self._holdings.forget_all()
        if message.source is not StateSource.LIVE:
            self._load(message)
        elif message.afresh:
            self._mailbox.forget_older_plans(plan.generation)
        outgoing = [t for t in plan.transfers if t.source == own]
        self._incoming = sorted((t for t in plan.transfers if t.target == own), key=lambda t: t.group)
        self._holdings.drop({transfer.group for transfer in self._incoming})
        self._arriving = self._came_s = None
        self._attempts.clear()
        self._mailbox.tell_damage_again()
        if outgoing or self._incoming:
            self._faults.check("transfer", message.step)
        for transfer in outgoing:
            self._move(plan, transfer)
        self.is_settled = False

    def bring_in(self, plan: Plan, instruction: Instruction | None, idle: Callable[[], bool]) -> None:
        """What has come; and what is still missing, where the next instruction needs it. Raises Interrupted.

        Args:
            plan: that was begun.
            instruction: the next one; None: the program is over.
            idle: see `Mailbox.take`.
        """
        if self.is_settled:
            return
        self._pace.finish_reading()
        while self._incoming:
            transfer = self._incoming[0]
            state = self._mailbox.poll(self._key(plan, transfer))
            if state is None:
                self._bind(plan)
                if not self._is_needed_by(plan, instruction):
                    return
                with self._heartbeat.during(Activity.WAITING, transfer.source):
                    state = self._mailbox.take(self._key(plan, transfer), idle)
            self._take(plan, transfer, state)
        self._bind(plan)
        self.is_settled = True
        since_s = 0.0 if self._came_s is None else max(0.0, time.monotonic() - self._came_s)
        self._send(Ready(generation=plan.generation, since_s=since_s))

    def _bind(self, plan: Plan) -> None:
        """The layers whose state is here."""
        held = plan.layers_held(self._holdings.replicas)
        self._holdings.own_layers([layer for layer in plan.layers_run_by.get(self._worker, ()) if layer in held])

    def _is_needed_by(self, plan: Plan, instruction: Instruction | None) -> bool:
        missing = {layer for transfer in self._incoming for layer in plan.groups[transfer.group].layers}
        return instruction is None or needs_state(instruction, missing)

    def again(self, plan: Plan, order: Resend) -> None:
        """Send a piece of state again, or await it from where the order says."""
        transfer = order.transfer
        self._attempts[transfer] = order.attempt
        if transfer.source == self._worker:
            self._move(plan, transfer)
        if transfer.target == self._worker:
            awaited = [(move.group, move.part) for move in self._incoming]
            if (transfer.group, transfer.part) in awaited:
                self._incoming[awaited.index((transfer.group, transfer.part))] = transfer

    def _load(self, message: PlanMessage) -> None:
        groups = message.plan.groups_of.get(self._worker, ())
        manifest = None
        if message.source is StateSource.CHECKPOINT:
            manifest = read_manifest(Path(message.folder), verify=False)
            self._pace.read(_read_by_node(message.plan, self._worker))
        for group in groups:
            replica = self._holdings.new_replica(group)
            if manifest is None:
                replica.initialise(self._model.initial_state(group, self._seed))
            else:
                replica.load_named(read_group(Path(message.folder), manifest, group), message.step - 1)
            self._holdings.put(group, replica)
            self._heartbeat.advance()

    def _move(self, plan: Plan, transfer: Transfer) -> None:
        replica = self._holdings.replicas[transfer.group]
        self._transport.send(transfer.target, self._key(plan, transfer), _moving(plan, transfer, replica))

    def _take(self, plan: Plan, transfer: Transfer, state: tuple[torch.Tensor, ...]) -> None:
        """The first that is awaited has come."""
        self._came_s = max(self._mailbox.came_s, self._came_s or 0.0)
        if self._arriving is None:
            self._arriving = self._holdings.new_replica(transfer.group)
        for own, given in zip(_moving(plan, transfer, self._arriving), state, strict=True):
            own.copy_(given)
        self._incoming.pop(0)
        # In the order of groups, so the parts of one come together.
        if not self._incoming or self._incoming[0].group != transfer.group:
            self._arriving.step = self._machine.step - 1
            self._holdings.put(transfer.group, self._arriving)
            self._arriving = None

    def _key(self, plan: Plan, transfer: Transfer) -> Key:
        attempt = self._attempts.get(transfer, 0)
        return Key(Kind.STATE, transfer.source, self._machine.step, plan.generation, transfer.group, attempt)

    def _damaged(self, key: Key) -> None:
        """What is wanted came, and cannot be used. It is waited for until there is an order."""
        part = self._incoming[0].part if key.kind == Kind.STATE else None
        self._send(
            Damaged(
                generation=self._machine.generation,
                step=self._machine.step,
                source=WorkerId(key.sender),
                kind=Kind.NAMES[key.kind],
                item=key.item,
                part=part,
            )
        )


def _read_by_node(plan: Plan, worker: WorkerId) -> int:
    """Bytes of a checkpoint that the worker's node reads."""
    node = plan.node_of(worker)
    held = [group for other, groups in plan.groups_of.items() if plan.node_of(other) == node for group in groups]
    return sum(plan.groups[group].moved_bytes for group in held)


def _moving(plan: Plan, transfer: Transfer, replica: Replica) -> tuple[torch.Tensor, ...]:
    """What the transfer moves of a replica of its group, as views."""
    if transfer.part is None:
        return replica.state
    return replica.part(*transfer.part, plan.groups[transfer.group].size_bytes)
