"""Carries out what the coordinator's machine commands, in order: tells, writes, publishes, kills. It decides
nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from planaria.plan.plan import WorkerId
from planaria.protocol.membership.admission import Admission
from planaria.protocol.messages.agent import Farewell
from planaria.protocol.messages.events import Command, Discard, Finish, Publish, Send, SetTimer, WriteManifest
from planaria.protocol.messages.journal import JournalEntry
from planaria.protocol.messages.message import Message
from planaria.protocol.messages.plan_delta import encoded
from planaria.protocol.messages.records import AnyRecord, Note, RunStatus
from planaria.protocol.messages.to_worker import PlanMessage, ToWorker
from planaria.protocol.step.telling_order import WaitingPlans
from planaria.runtime.coordinator.agents import Agents
from planaria.runtime.coordinator.manifests import ManifestWriter
from planaria.runtime.journal.journal import Journal
from planaria.runtime.thresholds import FRAMES_KEPT, TOLD_AT_A_TIME
from planaria.runtime.wire.connection import Connection
from planaria.runtime.wire.control_frames import control_frame
from planaria.runtime.wire.socket_server import SocketServer

Observer = Callable[[AnyRecord, float], None]


class Executor:
    """Carries out what the machine of one coordinator commands.

    Args:
        socket_server: the way to connections.
        admission: whose connection is whose.
        agents: of nodes on other hosts, if nodes are there.
        journal: the open journal.
        manifests: makes checkpoints whole.
        observers: functions that get every record.
        tell_again: gets records that an earlier coordinator may have published.

    Attributes:
        finished: how the run ended, once it has.
        timer_s: monotonic seconds at which the machine's timer is due; None: it is not set.
    """

    def __init__(
        self,
        socket_server: SocketServer,
        admission: Admission[Connection],
        agents: Agents | None,
        journal: Journal,
        manifests: ManifestWriter,
        observers: Sequence[Observer],
        tell_again: Observer,
    ) -> None:
        self.finished: Finish | None = None
        self.timer_s: float | None = None
        self._socket_server = socket_server
        self._admission = admission
        self._agents = agents
        self._journal = journal
        self._manifests = manifests
        self._observers = tuple(observers)
        self._tell_again = tell_again
        self._waiting = WaitingPlans()
        self._encoded: deque[tuple[Message, PlanMessage | None, bytes]] = deque(maxlen=FRAMES_KEPT)

    def carry_out(self, command: Command) -> None:
        match command:
            case Send(worker, PlanMessage() as message, may_wait=True):
                self._waiting.wait(worker, message)
            case Send(worker, message):
                self.send(worker, message)
            case JournalEntry():
                self._journal.write(command)
            case Publish(record, again=True):
                self._tell_again(record, time.time())
            case Publish(record):
                self._publish(record)
            case WriteManifest() | Discard():
                self._manifests.order(command)
            case SetTimer(seconds):
                self.timer_s = time.monotonic() + seconds
            case Finish(status):
                self.finished = command
                if self._agents is not None:
                    is_over = status in (RunStatus.COMPLETED, RunStatus.FAILED)
                    self._agents.dismiss(Farewell.OVER if is_over else Farewell.SUSPENDED)

    @property
    def has_waiting(self) -> bool:
        """Whether workers are to be told a plan when there is time."""
        return bool(self._waiting)

    def tell_waiting(self) -> None:
        """Tells some of the workers that are to be told a plan when there is time."""
        for worker, plan in self._waiting.next(TOLD_AT_A_TIME):
            self._send(worker, plan)

    def send(self, worker: WorkerId, message: ToWorker) -> None:
        """Sends a message, after the plan that waits for the worker, if one does."""
        if (plan := self._waiting.before(worker, message)) is not None:
            self._send(worker, plan)
        self._send(worker, message)

    def _send(self, worker: WorkerId, message: ToWorker) -> None:
        """Sends a message; a plan goes as its change from the last one, encoded once for workers that had the same."""
        connection = self._admission.connection_of(worker)
        if connection is None:
            return
        before = None
        if isinstance(message, PlanMessage):
            before, connection.plan = connection.plan, message
        self._socket_server.say_frame(connection, self._frame(message, before))

    def _frame(self, message: Message, before: PlanMessage | None) -> bytes:
        for known, known_before, frame in self._encoded:
            if known is message and known_before is before:
                return frame
        frame = control_frame(encoded(message, before))
        self._encoded.appendleft((message, before, frame))
        return frame

    def warn(self, text: str) -> None:
        self.tell("warning", text)

    def tell(self, level: str, text: str) -> None:
        """Tells people something that no event of the machine says. level: "info" or "warning"."""
        self._publish(Note(level=level, text=text))

    def _publish(self, record: AnyRecord) -> None:
        now = time.time()
        for observer in self._observers:
            observer(record, now)
