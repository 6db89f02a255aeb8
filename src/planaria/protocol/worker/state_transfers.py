"""Transfers of state to and from a worker: which pieces are sent and awaited under a plan, in which order, under which
names, and when all of it is in place.

One piece is taken after the other, in the order of groups, so that the parts of one come together. What a worker gets
and is to give to others it passes on when it is whole. A piece that came damaged is awaited again, from wherever the
coordinator's order says. How bytes are read and moved is a subclass's.

Where the devices of a stage spread the optimizer's state, each gives the others, after each step, the parameters that
it has made, without a word to the coordinator: nobody counts on what they have of a group that they do not keep.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic

from planaria.plan.plan import Plan, Transfer, WorkerId
from planaria.plan.program.instructions import COMPUTING, Instruction, Op
from planaria.protocol.messages.from_worker import Damaged, FromWorker, Ready
from planaria.protocol.messages.to_worker import NOT_APPLIED, Commit, PlanMessage, Resend, StateSource
from planaria.protocol.worker.holdings import HeldState, Replica
from planaria.protocol.worker.machine import WorkerMachine
from planaria.protocol.worker.mail import Key, Kind, MailStore


class StateTransfers(ABC, Generic[Replica]):
    """Transfers of one worker's state, under the plan that it has.

    Args:
        worker: the worker whose half this is.
        machine: asked for the generation and step in progress.
        holdings: where the state ends.
        mail: what has come from peers.
        tell: tells the coordinator.
        now: monotonic seconds.

    Attributes:
        is_settled: all state that the plan gives this worker is in place, and the coordinator was told.
    """

    def __init__(
        self,
        worker: WorkerId,
        machine: WorkerMachine,
        holdings: HeldState[Replica, Any],
        mail: MailStore[Any],
        tell: Callable[[FromWorker], None],
        now: Callable[[], float],
    ) -> None:
        self.is_settled = True
        self._worker = worker
        self._machine = machine
        self._holdings = holdings
        self._mail = mail
        self._tell = tell
        self._now = now
        self._plan: Plan | None = None
        self._incoming: list[Transfer] = []
        self._to_pass_on: list[Transfer] = []
        """Moves that begin here, of groups that are on their way to this worker."""
        self._attempts: dict[Transfer, int] = {}
        self._made: dict[Transfer, Key] = {}
        """Parameters of the last step that other devices of the stage have made, and that are not here yet."""
        self._arriving: Replica | None = None
        self._came_s: float | None = None
        """When the last of the pieces arrived that were taken so far."""

    @abstractmethod
    def _load(self, replica: Replica, group: int, message: PlanMessage) -> None:
        """Loads into the replica the state with which the job begins, or goes on from a checkpoint."""

    @abstractmethod
    def _send(self, transfer: Transfer, key: Key) -> None: ...

    @abstractmethod
    def _fill(self, replica: Replica, transfer: Transfer, piece: Any) -> None:
        """Fills the replica with a piece that arrived."""

    @property
    def plan(self) -> Plan:
        assert self._plan is not None
        return self._plan

    @property
    def is_complete(self) -> bool:
        """Whether all state is in place, and the parameters of the last step too."""
        return self.is_settled and not self._made

    def begin(self, message: PlanMessage, *, forgets: bool) -> None:
        """Loads or sends what the plan says; what has to come from peers is brought in before what needs it.

        Args:
            message: the plan.
            forgets: whatever is held is of before the job went back.
        """
        goes_on = message.source is StateSource.LIVE and not forgets
        self._made = {gift: key for gift, key in self._made.items() if goes_on and key.step == message.step}
        self._take_made()
        self._plan = plan = message.plan
        kept = plan.kept_of.get(self._worker, ())
        if forgets:
            self._mail.forget_older_plans(message.lineage)
            self._holdings.forget_all()
        if message.source is not StateSource.LIVE:
            for group in plan.groups_of.get(self._worker, ()):
                replica = self._holdings.new_replica(group, is_whole=group in kept)
                self._load(replica, group, message)
                self._holdings.put(group, replica)
                self._holdings.note_written((group,) if group in kept else ())
        elif message.afresh:
            self._mail.forget_older_plans(plan.generation)
        self._incoming = sorted((t for t in plan.transfers if t.target == self._worker), key=lambda t: t.group)
        come = {transfer.group for transfer in self._incoming}
        due = set(plan.groups_of.get(self._worker, ())) - come
        self._made = {gift: key for gift, key in self._made.items() if gift.group in due}
        self._holdings.drop(come)
        self._arriving = self._came_s = None
        self._attempts.clear()
        self._await()
        self._mail.tell_damage_again()
        self._to_pass_on.clear()
        for transfer in plan.transfers:
            if transfer.source == self._worker:
                self._give(transfer)
        self.is_settled = False

    def again(self, order: Resend) -> None:
        """Sends a piece of state again, or awaits it from where the order says."""
        transfer = order.transfer
        self._attempts[transfer] = order.attempt
        if transfer.source == self._worker:
            self._give(transfer)
        if transfer.target == self._worker:
            awaited = [(move.group, move.part) for move in self._incoming]
            if (transfer.group, transfer.part) in awaited:
                self._incoming[awaited.index((transfer.group, transfer.part))] = transfer

    def give_parameters(self, commit: Commit) -> None:
        """Gives the other devices of the stage what this one has made in the step, and awaits what they have."""
        plan, kept = self.plan, self.plan.kept_of
        own = plan.groups_of[self._worker]
        if kept is plan.groups_of or commit.clip_factor == NOT_APPLIED:
            return
        for mate in next(mates for mates in plan.stage_mates if self._worker in mates):
            for group in own if mate != self._worker else ():
                here, there = group in kept[self._worker], group in kept[mate]
                if here and not there:
                    gift = Transfer(group=group, source=self._worker, target=mate, with_optimizer=False)
                    self._send(gift, self._key_of_made(gift))
                elif there and not here:
                    gift = Transfer(group=group, source=mate, target=self._worker, with_optimizer=False)
                    self._made[gift] = self._key_of_made(gift)

    def _key_of_made(self, gift: Transfer) -> Key:
        return Key(Kind.PARAMETERS, gift.source, self._machine.step, self.plan.generation, gift.group, 0)

    def _take_made(self) -> None:
        """Takes the parameters that have come of those that other devices made."""
        for transfer, key in list(self._made.items()):
            piece = self._mail.poll(key)
            if piece is not None:
                self._take(transfer, piece)

    def _give(self, transfer: Transfer) -> None:
        """Sends a piece, once the group is here."""
        if any(move.group == transfer.group for move in self._incoming):
            self._to_pass_on.append(transfer)
        else:
            self._send(transfer, self._key(transfer))

    def is_needed_by(self, instruction: Instruction | None) -> bool:
        """Returns whether an instruction has to wait for missing state; None: the program's end, which does.

        A layer computes with its parameters, so that needs them. A vote needs all that the plan gives the worker: once
        the step is committed, the source is free to change what it has sent. Sends, receipts and the worker's own part
        of a sum, which is empty for what it does not hold, need nothing.
        """
        if instruction is None or instruction.op is Op.VOTE:
            return True
        layers = range(instruction.first_layer, instruction.end_layer) if instruction.op in COMPUTING else ()
        groups = self.plan.groups
        awaited = (*self._made, *self._incoming)
        return any(layer in layers for transfer in awaited for layer in groups[transfer.group].layers)

    def collect(self) -> Transfer | None:
        """Takes what arrived, and binds the layers that it makes whole; returns the first piece still missing."""
        self._take_made()
        missing: Transfer | None = None
        while self._incoming and missing is None:
            piece = self._mail.poll(self._key(self._incoming[0]))
            if piece is None:
                missing = self._incoming[0]
            else:
                self._take(self._incoming[0], piece)
        held = self.plan.layers_held(self._holdings.replicas)
        mine = self.plan.layers_run_by.get(self._worker, ())
        self._holdings.own_layers([layer for layer in mine if layer in held])
        return missing or next(iter(self._made), None)

    def _take(self, transfer: Transfer, piece: Any) -> None:
        """Takes the first awaited piece, or parameters that another device made, which have arrived."""
        if (key := self._made.pop(transfer, None)) is not None:
            replica = self._holdings.replicas[transfer.group]
            self._fill(replica, transfer, piece)
            replica.step = key.step - 1
            return
        self._came_s = max(self._mail.came_s, self._came_s or 0.0)
        if self._arriving is None:
            self._arriving = self._new_replica(transfer.group)
        self._fill(self._arriving, transfer, piece)
        self._incoming.pop(0)
        if not self._incoming or self._incoming[0].group != transfer.group:
            self._arriving.step = self._machine.step - 1
            self._holdings.put(transfer.group, self._arriving)
            self._arriving = None
            for move in [move for move in self._to_pass_on if move.group == transfer.group]:
                self._to_pass_on.remove(move)
                self._send(move, self._key(move))

    def _await(self) -> None:
        """Prepares for the pieces that are about to come; nothing by default."""
        return

    def _new_replica(self, group: int) -> Replica:
        """Returns the replica that the pieces of a group fill."""
        return self._holdings.new_replica(group, is_whole=group in self.plan.kept_of[self._worker])

    def settle(self) -> None:
        """Tells the coordinator that no state is missing, if it does not know."""
        if self.is_settled:
            return
        self.is_settled = True
        since_s = 0.0 if self._came_s is None else max(0.0, self._now() - self._came_s)
        self._tell(Ready(generation=self.plan.generation, since_s=since_s))

    def tell_damage(self, key: Key) -> None:
        """Reports a wanted piece that arrived damaged; it is awaited until there is an order."""
        self._tell(
            Damaged(
                generation=self._machine.generation,
                step=self._machine.step,
                source=WorkerId(key.sender),
                kind=Kind.NAMES[key.kind],
                item=key.item,
                part=self._incoming[0].part if key.kind == Kind.STATE else None,
            )
        )

    def _key(self, transfer: Transfer) -> Key:
        if transfer in self._made:
            return self._made[transfer]
        attempt, step = self._attempts.get(transfer, 0), self._machine.step
        return Key(Kind.STATE, transfer.source, step, self.plan.generation, transfer.group, attempt)
