"""State that a worker gets and is to give to others goes on when it is whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from planaria.plan.plan import Pipeline, Plan, Route, Stage, Transfer, WorkerId
from planaria.protocol.messages.from_worker import Damaged, FromWorker
from planaria.protocol.messages.to_worker import PlanMessage, Resend, StateSource
from planaria.protocol.step.damage import Damages
from planaria.protocol.worker.machine import WorkerMachine
from planaria.protocol.worker.mail import Key
from planaria.protocol.worker.state_transfers import StateTransfers
from tests.plan.profiles import uniform_profile

WORKERS = (WorkerId(0), WorkerId(2), WorkerId(3))
GROUPS = uniform_profile(2, tied=False).groups
HALVES = [(0, GROUPS[0].size_bytes // 2), (GROUPS[0].size_bytes // 2, GROUPS[0].size_bytes)]
TO_FIRST = [Transfer(group=0, source=WorkerId(at), target=WorkerId(2), part=part) for at, part in enumerate(HALVES)]
ONWARDS = Transfer(group=0, source=WorkerId(2), target=WorkerId(3))


def plan_of(*transfers: Transfer) -> Plan:
    stages = [(Stage(worker=WorkerId(worker), first_layer=0, end_layer=2),) for worker in range(4)]
    return Plan(
        generation=1,
        num_layers=2,
        num_microbatches=1,
        devices_per_node=2,
        devices_per_stage=2,
        groups=GROUPS,
        pipelines=tuple(Pipeline(stages=own) for own in stages),
        routes=(Route(hops=stages[0], microbatches=(0,), born=1, counted=(0, 1)),),
        sync_epochs=(1, 1),
        transfers=transfers,
    )


@dataclass
class Replica:
    step: int = 0
    pieces: list[object] = field(default_factory=list)


@dataclass
class Holdings:
    replicas: dict[int, Replica] = field(default_factory=dict)
    written: list[int] = field(default_factory=list)

    def new_replica(self, group: int, *, is_whole: bool = True) -> Replica:
        return Replica()

    def put(self, group: int, replica: Replica) -> None:
        self.replicas[group] = replica

    def note_written(self, groups: tuple[int, ...]) -> None:
        self.written += groups

    def forget_all(self) -> None:
        self.replicas.clear()

    def drop(self, groups: set[int]) -> None:
        self.replicas = {group: replica for group, replica in self.replicas.items() if group not in groups}

    def own_layers(self, layers: list[int]) -> None: ...


@dataclass
class Mail:
    came: dict[Key, object] = field(default_factory=dict)
    came_s: float = 0.0

    def poll(self, key: Key) -> object:
        return self.came.pop(key, None)

    def tell_damage_again(self) -> None: ...

    def forget_older_plans(self, generation: int) -> None: ...


class Moves(StateTransfers[Any]):
    def __init__(self, worker: WorkerId, machine: WorkerMachine, mail: Mail) -> None:
        self.sent: list[Key] = []
        self.given: list[Transfer] = []
        holdings: Any = Holdings()
        somewhere: Any = mail
        super().__init__(worker, machine, holdings, somewhere, self.hear, lambda: 0.0)

    def hear(self, message: FromWorker) -> None: ...

    def _load(self, replica: Any, group: int, message: PlanMessage) -> None: ...

    def _send(self, transfer: Transfer, key: Key) -> None:
        assert transfer.group in self._holdings.replicas
        self.sent.append(key)
        self.given.append(transfer)

    def _fill(self, replica: Any, transfer: Transfer, piece: object) -> None:
        replica.pieces.append(piece)


@pytest.fixture
def moves() -> Moves:
    machine = WorkerMachine()
    message = PlanMessage(plan=plan_of(*TO_FIRST, ONWARDS), step=1, addresses={}, exponents=(), source=StateSource.LIVE)
    machine.handle(message)
    found = Moves(WorkerId(2), machine, Mail())
    found.begin(message, forgets=False)
    return found


def arrive(moves: Moves, transfer: Transfer) -> None:
    mail: Any = moves._mail
    mail.came[moves._key(transfer)] = "state"
    moves.collect()


def test_nothing_goes_on_before_the_last_part_is_here(moves: Moves) -> None:
    assert moves.sent == []
    arrive(moves, TO_FIRST[0])
    assert moves.sent == []
    arrive(moves, TO_FIRST[1])
    assert moves.sent == [moves._key(ONWARDS)]
    moves.collect()
    assert len(moves.sent) == 1


def test_what_is_to_be_sent_again_waits_too(moves: Moves) -> None:
    moves.again(Resend(generation=1, step=1, transfer=ONWARDS, attempt=1))
    assert moves.sent == []
    for transfer in TO_FIRST:
        arrive(moves, transfer)
    assert {key.layer for key in moves.sent} == {1}


def test_who_gets_a_group_is_not_asked_to_send_it_again() -> None:
    plan = plan_of(*TO_FIRST, ONWARDS)
    told = Damaged(generation=1, step=1, source=WorkerId(2), kind="state", item=0)
    order = Damages().resend(plan, WorkerId(3), told, plan.workers)
    assert order is not None
    assert order.transfer.source in (0, 1)
