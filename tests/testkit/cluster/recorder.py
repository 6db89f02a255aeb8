"""The recorder of a simulated run's history, for the witness (`tests.testkit.witness.history` names the entries).

It keeps what it is given, and makes plain values of it only when it is asked: nothing may change what was noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.messages.events import Event, Received, WriteManifest
from planaria.protocol.messages.from_worker import Returned, Vote
from planaria.protocol.messages.records import AnyRecord
from planaria.protocol.messages.to_worker import Commit, PlanMessage
from tests.testkit.schedules.faults import CLEAR, Fault
from tests.testkit.worker.holdings import Replica

BITS = (1 << 64) - 1
"""Bits of a state that a file's checksum has."""


class HistoryRecorder:
    """Records one run. `facts` of its job: see `tests.testkit.witness.history.Job`."""

    def __init__(self, **facts: int) -> None:
        self._entries: list[tuple[Any, ...]] = [("job", facts)]

    def wrote(self, entry: bytes) -> None:
        self._entries.append(("journal", entry))

    def lost_entries(self, kept: int) -> None:
        self._entries.append(("cut", kept))

    def heard(self, event: Event) -> None:
        if isinstance(event, Received) and isinstance(event.message, (Vote, Returned)):
            self._entries.append(("heard", event.worker, event.message))

    def adopted(self, worker: WorkerId, message: PlanMessage) -> None:
        self._entries.append(("adopted", worker, message.plan.generation, message.step, message.source.value))

    def applied(self, worker: WorkerId, commit: Commit, replicas: dict[int, Replica]) -> None:
        held = {group: replica.state & BITS for group, replica in replicas.items() if replica.step == commit.step}
        self._entries.append(("applied", worker, commit, held))

    def counted(
        self, worker: WorkerId, generation: int, step: int, group: int, layer: int, microbatch: int, value: int
    ) -> None:
        self._entries.append(("counted", worker, generation, step, group, layer, microbatch, value))

    def summed(
        self, worker: WorkerId, generation: int, step: int, given: Sequence[int], replicas: dict[int, Replica]
    ) -> None:
        totals = {group: replicas[group].gradient for group in given}
        self._entries.append(("summed", worker, generation, step, totals))

    def manifest(self, command: WriteManifest) -> None:
        groups = [(part.group, int(part.sha256, 16)) for part in command.groups]
        self._entries.append(("manifest", command.step, command.folder, groups, command.exponents))

    def told(self, record: AnyRecord) -> None:
        self._entries.append(("told", record))

    def befell(self, fault: Fault, nodes: Sequence[NodeId]) -> None:
        self._entries.append(("befell", fault.kind.value, list(nodes), fault.kind in CLEAR))

    def over(self, node: NodeId) -> None:
        self._entries.append(("over", node))

    def history(self) -> list[tuple[Any, ...]]:
        """Returns the history as plain values."""
        encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.decode
        made: list[tuple[Any, ...]] = []
        commits: dict[int, Any] = {}  # what workers were told together is one message
        for entry in self._entries:
            match entry:
                case ("journal", body):
                    made.append(("journal", decode(body)))
                case ("told", record):
                    made.append(("told", decode(encode(record))))
                case ("heard", worker, message):
                    made.append(("heard", worker, decode(encode(message))))
                case ("applied", worker, commit, states):
                    if id(commit) not in commits:
                        commits[id(commit)] = decode(encode(commit))
                    made.append(("applied", worker, commits[id(commit)], states))
                case _:
                    made.append(entry)
        return made
