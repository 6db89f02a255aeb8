"""An agent's connection to its coordinator: made again and again, and watched for silence.

It knows nothing of nodes: frames are handed on as they come.
"""

from __future__ import annotations

import random
import selectors
import time
from collections.abc import Callable

from planaria.job.errors import UserError
from planaria.protocol.messages.agent import Ping
from planaria.protocol.messages.message import MAX_FRAME_BYTES, Message, encode
from planaria.runtime.journal.coordinator_place import CoordinatorPlace
from planaria.runtime.thresholds import (
    AGENT_CONNECT_S,
    AGENT_HANDSHAKE_S,
    AGENT_SILENCE_S,
    FIRST_OFFER_PAUSE_S,
    LONGEST_RETRY_S,
    PING_EVERY_S,
)
from planaria.runtime.wire.connection import Connection
from planaria.runtime.wire.control_frames import FrameError, SpeaksTls
from planaria.runtime.wire.sockets import watch_over
from planaria.runtime.wire.tls import NotSecured, Security, connect


class CoordinatorLink:
    """The connection of an agent.

    Args:
        coordinator: see `CoordinatorPlace`.
        security: of the connection; None: it is plain.
        selector: that the connection is registered with.
        say: takes lines for people.
        take: takes a frame; raises FrameError.

    Attributes:
        place: where the coordinator is.
        address: where it was looked for last.
        own_address: this host's, as the coordinator sees it.
        heard: when something was last heard, on this connection or one before.
        num_unanswered: pings on this connection.
        is_needed: whether a connection that breaks off is made again.
    """

    def __init__(
        self,
        coordinator: str,
        security: Security | None,
        selector: selectors.BaseSelector,
        say: Callable[[str], None],
        take: Callable[[bytes], None],
    ) -> None:
        self.place = CoordinatorPlace(coordinator, tls="" if security is None else str(security.folder))
        self.address = coordinator
        self.own_address = ""
        self.heard = time.monotonic()
        self.num_unanswered = 0
        self.is_needed = True
        self._security = security
        self._selector = selector
        self._say = say
        self._take = take
        self._connection: Connection | None = None
        self._heard_on_connection = self.heard
        self._pinged = 0.0
        self._retry_at = 0.0
        self._retry_pause_s = FIRST_OFFER_PAUSE_S
        self._handshake_s = AGENT_CONNECT_S
        self._told_out_of_reach = False
        self._was_accepted = False

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    def open(self) -> bool:
        """Connects, unless that was tried a moment ago; returns whether there is a connection now.

        Raises:
            UserError: what answers there is no coordinator; or etcd, which says where one is, is not trusted.
        """
        if time.monotonic() < self._retry_at:
            return False
        try:
            self.address = self.place.address()
        except OSError as error:
            if isinstance(error, NotSecured) and not self._was_accepted:
                raise UserError(f"nobody says where the coordinator is: {error}.") from None
            self._retry_later(str(error))
            return False
        try:
            host, _, port = self.address.rpartition(":")
            sock = connect((host, int(port)), AGENT_CONNECT_S, self._security, self._handshake_s)
        except NotSecured as error:
            self._not_understood(error)
            return False
        except OSError as error:
            self._handshake_s = min(AGENT_HANDSHAKE_S, 2 * self._handshake_s)
            self._retry_later(str(error))
            return False
        sock.setblocking(False)
        watch_over(sock)
        self.own_address = sock.getsockname()[0]
        self._connection = Connection(sock, MAX_FRAME_BYTES)
        self._selector.register(sock, selectors.EVENT_READ, self._readable)
        self._heard_on_connection = time.monotonic()
        return True

    def tell(self, message: Message) -> None:
        """Sends a message; that a connection is gone is learnt from the reading side."""
        if self._connection is not None:
            self._connection.send(encode(message))
            self._connection.flush()

    def ping(self) -> None:
        """Asks whether the coordinator is there."""
        self._pinged = time.monotonic()
        self.num_unanswered += self.is_open
        self.tell(Ping())

    def answered(self) -> None:
        """Records the answer to a ping."""
        self.num_unanswered = max(0, self.num_unanswered - 1)

    def accepted(self) -> bool:
        """Records that the coordinator has taken this host in; returns whether it had been out of reach."""
        was_out_of_reach, self._told_out_of_reach = self._told_out_of_reach, False
        self._retry_pause_s, self._handshake_s = FIRST_OFFER_PAUSE_S, AGENT_CONNECT_S
        self._was_accepted = True
        return was_out_of_reach

    def was_away(self, now: float) -> None:
        """Records that this process was away until now: what came meanwhile is not heard yet."""
        self.heard = self._heard_on_connection = now

    def look_at_the_clock(self, now: float) -> None:
        """Hangs up on a coordinator that does not answer, or asks whether it is there."""
        if now - self._heard_on_connection > AGENT_SILENCE_S:
            self._hang_up("it does not answer")
        elif now - self._pinged > PING_EVERY_S:
            self.ping()

    def close(self) -> None:
        """Closes the connection, if there is one."""
        if self._connection is not None:
            self._selector.unregister(self._connection.socket)
            self._connection.close()
            self._connection = None

    def _readable(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            for frame in connection.receive():
                self.heard = self._heard_on_connection = time.monotonic()
                self._take(frame)
        except EOFError as error:
            self._hang_up(str(error))
        except (FrameError, NotSecured) as error:
            self._not_understood(error)

    def _hang_up(self, reason: str) -> None:
        self.close()
        self.num_unanswered = 0
        if self.is_needed:
            self._retry_later(reason)

    def _retry_later(self, reason: str) -> None:
        if not self._told_out_of_reach:
            self._say(f"the coordinator at {self.address} is out of reach ({reason}); trying again")
            self._told_out_of_reach = True
        self._retry_at = time.monotonic() + self._retry_pause_s * random.uniform(0.5, 1.0)  # others try, too
        self._retry_pause_s = min(LONGEST_RETRY_S, 2 * self._retry_pause_s)

    def _not_understood(self, error: FrameError | NotSecured) -> None:
        if self.place.may_move:  # it says where the coordinator was, until that is there again
            self._hang_up(str(error))
            return
        if isinstance(error, NotSecured | SpeaksTls):
            raise UserError(f"no connection to the coordinator at {self.address}: {error}.") from None
        raise UserError(f"what answers at {self.address} is no coordinator: {error}. Correct --coordinator.") from None
