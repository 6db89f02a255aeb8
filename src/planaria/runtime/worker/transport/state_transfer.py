"""Transfers state, as tensors: reads it from a checkpoint, and moves it from worker to worker.

It fills the holdings while a program runs, which waits only before what needs the state.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from planaria.checkpoint.manifest import Manifest, read_manifest
from planaria.checkpoint.state import read_group
from planaria.plan.plan import Plan, Transfer, WorkerId
from planaria.plan.program.instructions import Instruction
from planaria.protocol.messages.from_worker import Activity, FromWorker
from planaria.protocol.messages.to_worker import PlanMessage, StateSource
from planaria.protocol.worker.machine import WorkerMachine
from planaria.protocol.worker.state_transfers import StateTransfers
from planaria.runtime.worker.compute.device_clock import DeviceClock
from planaria.runtime.worker.compute.holdings import Holdings
from planaria.runtime.worker.compute.replica import Replica
from planaria.runtime.worker.faults import FaultInjector
from planaria.runtime.worker.heartbeat import Heartbeat
from planaria.runtime.worker.transport.mailbox import Key, Mailbox, Message
from planaria.runtime.worker.transport.outbox import Outbox


class StateTransfer(StateTransfers[Replica]):
    """The state transfers of one worker.

    Args:
        worker: the number of this worker.
        machine: asked for the generation and step in progress.
        holdings: where the state ends.
        outbox: to the other workers.
        mailbox: of what comes from them.
        heartbeat: told who is waited for.
        faults: on the user's order.
        pace: of what is read from a checkpoint.
        send: sends a message to the coordinator.
    """

    _holdings: Holdings

    def __init__(
        self,
        worker: WorkerId,
        machine: WorkerMachine,
        holdings: Holdings,
        outbox: Outbox,
        mailbox: Mailbox,
        heartbeat: Heartbeat,
        faults: FaultInjector,
        pace: DeviceClock,
        send: Callable[[FromWorker], None],
    ) -> None:
        super().__init__(worker, machine, holdings, mailbox, send, time.monotonic)
        self._outbox = outbox
        self._mailbox = mailbox
        self._heartbeat = heartbeat
        self._faults = faults
        self._pace = pace
        self._manifest: Manifest | None = None
        self._device = holdings.device
        self._prepared: dict[int, Replica] = {}
        mailbox.when_damaged = self.tell_damage

    def begin(self, message: PlanMessage, *, forgets: bool) -> None:
        if any(self._worker in (transfer.source, transfer.target) for transfer in message.plan.transfers):
            self._faults.check("transfer", message.step)
        if message.source is StateSource.CHECKPOINT:
            self._manifest = read_manifest(message.folder, verify=False)
            self._pace.read(_read_by_node(message.plan, self._worker))
        super().begin(message, forgets=forgets)

    def bring_in(self, instruction: Instruction | None, idle: Callable[[], bool]) -> None:
        """Takes state that has come; waits for what the next instruction needs. Raises Interrupted.

        Args:
            instruction: the next one; None: the program is over.
            idle: see `Mailbox.take`.
        """
        if self.is_complete:
            return
        self._pace.finish_reading()
        while (missing := self.collect()) is not None:
            if not self.is_needed_by(instruction):
                return
            with self._heartbeat.during(Activity.WAITING, missing.source):
                piece = self._mailbox.take(self._key(missing), idle)
            self._take(missing, piece)
        self.settle()

    def _load(self, replica: Replica, group: int, message: PlanMessage) -> None:
        if message.source is StateSource.INITIAL:
            self._holdings.initialise(replica, group)
        else:
            assert self._manifest is not None
            replica.load_named(read_group(message.folder, self._manifest, group), message.step - 1)
        self._heartbeat.advance()

    def _send(self, transfer: Transfer, key: Key) -> None:
        replica = self._holdings.replicas[transfer.group]
        self._outbox.give(transfer.target, key, _moving(self.plan, transfer, replica))

    def _fill(self, replica: Replica, transfer: Transfer, piece: Message) -> None:
        for own, given in zip(_moving(self.plan, transfer, replica), self._outbox.brought_in(piece), strict=True):
            if own.data_ptr() != given.data_ptr():
                own.copy_(given)

    def _await(self) -> None:
        """Has pieces read to where they belong, as far as that is the host's memory."""
        self._prepared.clear()
        places: dict[Key, tuple[torch.Tensor, ...]] = {}
        if self._device.is_on_host:
            for transfer in self._incoming:
                replica = self._prepared.get(transfer.group)
                if replica is None:
                    replica = self._prepared[transfer.group] = super()._new_replica(transfer.group)
                places[self._key(transfer)] = _moving(self.plan, transfer, replica)
        self._mailbox.expect(places)

    def _new_replica(self, group: int) -> Replica:
        prepared = self._prepared.pop(group, None)
        return super()._new_replica(group) if prepared is None else prepared


def _read_by_node(plan: Plan, worker: WorkerId) -> int:
    """Returns the bytes of a checkpoint that the worker's node reads."""
    node = plan.node_of(worker)
    held = [group for other, groups in plan.groups_of.items() if plan.node_of(other) == node for group in groups]
    return sum(plan.groups[group].moved_bytes for group in held)


def _moving(plan: Plan, transfer: Transfer, replica: Replica) -> tuple[torch.Tensor, ...]:
    """Returns what the transfer moves of a replica of its group, as views."""
    if not transfer.with_optimizer:
        return (replica.parameters,)
    if transfer.part is None:
        return replica.state
    return replica.part(*transfer.part, plan.groups[transfer.group].size_bytes)
