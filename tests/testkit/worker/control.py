"""A simulated worker's route to the coordinator: a connection, made anew when it is lost, and the heartbeat on it.

What may be said on which connection, `planaria.protocol.worker.session` says, as to a real worker.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from planaria.protocol.messages.from_worker import BEAT_S, Alive, FromWorker, Notice, Proof, Pulse, Returned
from planaria.protocol.messages.to_worker import Challenge
from planaria.protocol.thresholds import FIRST_PAUSE_S, LONGEST_PAUSE_S
from planaria.protocol.worker.machine import CoordinatorBack, CoordinatorGone
from planaria.protocol.worker.session import WorkerSession

if TYPE_CHECKING:
    from tests.testkit.cluster.cluster import Cluster
    from tests.testkit.server.server import Connection, Server
    from tests.testkit.worker.worker import Worker

COORDINATOR_TIMEOUT_S = 20.0
"""Seconds for which a worker looks for a coordinator after the last one was gone."""


class Control:
    """The control connection of one worker.

    Attributes:
        notice: that the node will go away; told with the next beat.
        is_closed: the worker was told to end, or is refused: no coordinator is looked for any more.
    """

    def __init__(self, worker: Worker, cluster: Cluster) -> None:
        self.notice: Notice | None = None
        self.is_closed = False
        self._worker = worker
        self._cluster = cluster
        self._clock = cluster.clock
        self._connection: Connection | None = None
        self._session = WorkerSession()
        self._pause_s = 0.0
        self._challenge: Challenge | None = None
        self._alone_since_s: float | None = None

    def start(self) -> None:
        self._clock.after(BEAT_S * self._clock.random.random(), self._beat)

    def connect(self) -> None:
        """Says hello to the coordinator; tries again later when there is none."""
        worker = self._worker
        if worker.is_over:
            return
        connection = None if worker.is_stopped else self._cluster.connect(worker)
        if connection is not None:
            self._connection = connection
            self._alone_since_s = None
            number, lasting = self._session.connected()
            for message in lasting:
                connection.tell(self._cluster, message)
            worker.order(CoordinatorBack(number))
        elif self._alone_since_s is not None and self._clock.now - self._alone_since_s > COORDINATOR_TIMEOUT_S:
            worker.order(CoordinatorGone())
        else:
            if self._alone_since_s is None:
                self._alone_since_s = self._clock.now
            self._pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
            self._pause()

    def _pause(self) -> None:
        self._clock.after(self._pause_s * self._clock.random.uniform(0.5, 1.0), self.connect)

    def lose(self, connection: Connection) -> None:
        """Looks for another coordinator, with growing pauses, after the last one closed its end."""
        if self._worker.is_over or connection is not self._connection:
            return
        self._connection = self._challenge = None
        if self.is_closed:
            return
        self._alone_since_s, self._pause_s = self._clock.now, FIRST_PAUSE_S
        self._pause()

    def leave(self, server: Server) -> None:
        """Leaves a coordinator that leads no more; a stopped process does so when it goes on."""
        connection = self._connection
        if connection is None or connection.server is not server:
            return
        if self._worker.is_stopped:
            self._clock.after(BEAT_S, partial(self.leave, server))
            return
        connection.is_left = True
        connection.close_from_worker()
        self.lose(connection)

    def send(self, message: FromWorker) -> None:
        """Sends a message; one that cannot be sent now is lost, unless every coordinator has to hear of it."""
        if self._session.may_say(message):
            self._transmit(message)

    def send_returned(self, returned: Returned, connection: int) -> None:
        """Sends on the connection of this number, and on no other."""
        if self._session.may_return(connection):
            self._transmit(returned)

    def _transmit(self, message: FromWorker) -> None:
        if self._connection is not None:
            self._connection.tell(self._cluster, message)

    def challenged(self, challenge: Challenge) -> None:
        """Answers a challenge at once; a stopped process does so when it goes on."""
        self._challenge = challenge
        if not self._worker.is_stopped:
            self.resume()

    def resume(self) -> None:
        """Resumes a process that was stopped."""
        if self._challenge is not None:
            self.send(Proof(nonce=self._challenge.nonce))
            self._challenge = None

    def cut(self, *, silently: bool) -> None:
        """Cuts a killed process's connection: what is under way may not arrive. `silently`: nor a closing packet."""
        if self._connection is not None:
            self._connection.up.cut()
            if not silently:
                self._connection.close_from_worker()

    def close(self) -> None:
        """Closes the connection of a process that ends."""
        if self._connection is not None:
            self._connection.close_from_worker()

    def _beat(self) -> None:
        worker = self._worker
        if worker.is_over:
            return
        if not worker.is_stopped:
            if self.notice is not None:
                self.send(self.notice)
                self.notice = None
            activity, progress, waits_for = worker.doing
            pulse = Pulse(activity=activity, progress=progress, waits_for=waits_for)
            self.send(Alive(pulse=pulse, worked_s=worker.device.worked_s))
        self._clock.after(BEAT_S, self._beat)
