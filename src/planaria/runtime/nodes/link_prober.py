"""The probes of one host's links: those of others are answered, those that are ordered are made beside the agent."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading

from planaria.protocol.messages.agent import LinkProbed, ProbeLink
from planaria.runtime.wire.link_probe import ProbeListener, probe
from planaria.runtime.wire.tls import Security

log = logging.getLogger(__name__)


class LinkProber:
    """Measures links on order, in a thread, and answers the probes of others.

    Args:
        host: to listen on.
        token: of the job.
        security: see `planaria.runtime.wire.listener.PeerListener`.

    Attributes:
        port: at which probes are answered; 0: this host cannot listen there.
    """

    def __init__(self, host: str, token: str, security: Security | None = None) -> None:
        self._security = security
        self._token = token
        self._found: queue.SimpleQueue[LinkProbed] = queue.SimpleQueue()
        self._receiver, self._sender = socket.socketpair()
        self._listener = ProbeListener(token, security)
        self.port = 0
        with contextlib.suppress(OSError):
            self.port = self._listener.start(host)

    def fileno(self) -> int:
        """Returns a descriptor that is readable when there is a result."""
        return self._receiver.fileno()

    def begin(self, order: ProbeLink) -> None:
        """Begins to measure; the result follows."""
        threading.Thread(target=self._probe, args=(order,), name="probe", daemon=True).start()

    def result(self) -> LinkProbed:
        """Returns the next result."""
        self._receiver.recv(1)
        return self._found.get()

    def close(self) -> None:
        self._listener.close()
        self._receiver.close()
        self._sender.close()

    def _probe(self, order: ProbeLink) -> None:
        try:
            latency_s, bytes_per_s = probe(order.address, self._token, order.seconds, self._security)
        except (OSError, EOFError, ValueError) as error:
            log.info("the link to %s cannot be measured: %s", order.address, error)
            latency_s = bytes_per_s = 0.0
        self._found.put(LinkProbed(latency_s=latency_s, bytes_per_s=bytes_per_s))
        with contextlib.suppress(OSError):
            self._sender.send(b"r")
