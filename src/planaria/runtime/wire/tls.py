"""Sockets under TLS 1.3, both ends with a certificate that the run's own CA has signed.

One object of OpenSSL must not be used by two threads at once, and this Python does not prevent it. So every call into
it is made under the socket's lock and never waits there: whoever waits does so for the kernel's socket, without it.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from planaria.job.errors import UserError
from planaria.runtime.wire.control_frames import ALERT, HANDSHAKE_BYTE

CA, CERTIFICATE, KEY = "ca.pem", "cert.pem", "key.pem"
RECORD_BYTES: Final = 1 << 14
"""Most bytes of one record: so many come at once, or none of them."""

_EXPIRED, _NOT_YET_VALID = 10, 9
_OTHER_ADDRESS: Final = (62, 64)
_NEW_ONES: Final = "Make new ones by planaria certificates FOLDER, and give every host that folder"
_SAID: Final = {
    "TLSV1_ALERT_UNKNOWN_CA": "it refuses this side's certificate, which its ca.pem has not signed",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it refuses this side's certificate, which has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it refuses this side's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it refuses this side's certificate",
    "TLSV1_ALERT_DECRYPT_ERROR": "it refuses this side's certificate, which its ca.pem has not signed",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it asks for a certificate, and this side has shown none",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has shown no certificate",
}
"""What is said for reasons of OpenSSL: most are alerts, which the other end sent."""


class NotSecured(ConnectionError):
    """The two ends of a connection do not trust each other, or what came was changed on the way."""


class SecureSocket(ssl.SSLSocket):
    """A socket under TLS, as the rest of the runtime uses sockets.

    Any thread may send while another one receives. What a selector says is of the kernel's socket: after a read,
    `pending` says whether there is more.
    """

    _lock: threading.Lock
    _patience_s: float | None
    _has_begun: bool

    def __new__(cls, *args: Any, **fields: Any) -> SecureSocket:
        made = super().__new__(cls, *args, **fields)
        made._lock = threading.Lock()
        made._patience_s = None
        made._has_begun = False
        return made

    # Waiting: the kernel's socket never does

    def settimeout(self, value: float | None) -> None:
        self._patience_s = value
        super().settimeout(0.0)

    def gettimeout(self) -> float | None:
        return self._patience_s

    def setblocking(self, flag: bool) -> None:
        self.settimeout(None if flag else 0.0)

    def _wait(self, event: int) -> None:
        """Waits for the kernel's socket. Raises TimeoutError, or BlockingIOError where nobody is to wait."""
        if self._patience_s == 0.0:
            raise BlockingIOError
        waiting = select.poll()
        waiting.register(self.fileno(), event)
        if not waiting.poll(None if self._patience_s is None else self._patience_s * 1e3):
            raise TimeoutError("timed out")

    # The handshake

    def shake_hands(self) -> bool:
        """Goes on with the handshake, without waiting; returns whether it is done.

        What it sends fits into an empty socket's buffer, so that only what comes is waited for.

        Raises:
            NotSecured: the other end is not trusted, or does not speak TLS.
            OSError: it is gone.
        """
        self._has_begun = self._has_begun or not self.server_side or self._speaks_tls()
        if not self._has_begun:
            return False
        with self._lock:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            except ssl.SSLError as error:
                raise _explained(error) from error
        return True

    def _speaks_tls(self) -> bool:
        """Returns whether the other end has begun a handshake; False: it has said nothing. Raises NotSecured.

        An end that has given up meanwhile is not shaken hands with, which would cost as much as with one that is there:
        where thousands connect at once, some are.
        """
        try:
            first = socket.socket.recv(self, 1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        waiting = select.poll()
        waiting.register(self.fileno(), select.POLLRDHUP)
        if not first or waiting.poll(0):
            raise ConnectionError("it closed before it had greeted")
        if first[0] != HANDSHAKE_BYTE:
            with contextlib.suppress(OSError):
                socket.socket.send(self, ALERT)
            raise NotSecured(
                "it does not speak TLS, and this run does (cluster.tls): give agents and commands --tls FOLDER"
            )
        return True

    def shake_hands_within(self, seconds: float) -> None:
        """Waits for the handshake. Raises as `shake_hands`, and TimeoutError."""
        ends = time.monotonic() + seconds
        while not self.shake_hands():
            waiting = select.poll()
            waiting.register(self.fileno(), select.POLLIN)
            if not waiting.poll(max(0.0, ends - time.monotonic()) * 1e3):
                raise TimeoutError("the TLS handshake timed out")

    # Receiving

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Returns a record at most: to ask for more than `pending` says costs as much as to read it."""
        while True:
            with self._lock:
                self._check()
                try:
                    return super().recv(min(buflen, RECORD_BYTES))
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLError as error:
                    raise _explained(error) from error
            self._wait(select.POLLIN)

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        view = memoryview(buffer)
        return self._fill([view if nbytes is None else view[:nbytes]], waits=True)

    def recvmsg_into(  # type: ignore[override]
        self, buffers: Iterable[memoryview], ancbufsize: int = 0, flags: int = 0
    ) -> tuple[int, list[Any], int, Any]:
        count = self._fill(list(buffers), waits=not flags & socket.MSG_DONTWAIT)
        return count, [], 0, None

    def _fill(self, views: list[memoryview], *, waits: bool) -> int:
        """Reads what there is, as far as there is room; waits for the first byte only. Returns 0 at the end."""
        got = 0
        for view in views:
            while view:
                try:
                    count = self._read(view, waits=waits and not got)
                except OSError:
                    if got:
                        return got
                    raise
                if not count:
                    return got
                got, view = got + count, view[count:]
        return got

    def _read(self, view: memoryview, *, waits: bool) -> int:
        while True:
            with self._lock:
                self._check()
                try:
                    return super().recv_into(view)
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLError as error:
                    raise _explained(error) from error
            if not waits:
                raise BlockingIOError
            self._wait(select.POLLIN)

    # Sending

    def send(self, data: Any, flags: int = 0) -> int:
        return self._send_all([memoryview(data)], waits=self._patience_s != 0.0)

    def sendall(self, data: Any, flags: int = 0) -> None:
        view = memoryview(data)
        while view:
            view = view[self._send_all([view], waits=True) :]

    def sendmsg(  # type: ignore[override]
        self, buffers: Iterable[memoryview], ancdata: Any = (), flags: int = 0, address: Any = None
    ) -> int:
        waits = self._patience_s != 0.0 and not flags & socket.MSG_DONTWAIT
        return self._send_all(list(buffers), waits=waits)

    def _send_all(self, views: list[memoryview], *, waits: bool) -> int:
        """Sends what the kernel takes; waits for the first byte only.

        What OpenSSL has encrypted and not sent must be given to it again, be it with more behind it. So small pieces
        are joined in a way that is the same each time.
        """
        total = 0
        for record in _records(views):
            while record:
                sent = self._write(record, waits=waits and not total)
                if sent is None:
                    if total:
                        return total
                    raise BlockingIOError
                total, record = total + sent, record[sent:]
        return total

    def _write(self, view: memoryview, *, waits: bool) -> int | None:
        while True:
            with self._lock:
                self._check()
                try:
                    return super().send(view)
                except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                    pass
                except ssl.SSLError as error:
                    raise _explained(error) from error
            if not waits:
                return None
            self._wait(select.POLLOUT)

    # The end

    def shutdown(self, how: int) -> None:
        """Shuts the kernel's socket down. It stays under TLS: what comes still is not taken for plain bytes."""
        socket.socket.shutdown(self, how)

    def _check(self) -> None:
        if self.version() is None:
            raise ConnectionError("the connection is gone")


def _records(views: list[memoryview]) -> Iterator[memoryview]:
    """Yields the bytes of views in pieces of a record at most, without copies where a view has a whole one."""
    at = 0
    while at < len(views):
        view = views[at]
        if len(view) >= RECORD_BYTES or at + 1 == len(views):
            yield view[:RECORD_BYTES]
            views[at] = view[RECORD_BYTES:]
            at += not views[at]
            continue
        joined = bytearray()
        while at < len(views) and len(joined) < RECORD_BYTES:
            room = RECORD_BYTES - len(joined)
            joined += views[at][:room]
            views[at] = views[at][room:]
            at += not views[at]
        yield memoryview(joined)


def _explained(error: ssl.SSLError) -> OSError:
    """Returns an error that says in words why OpenSSL gave a connection up."""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError):
        return ConnectionError("it closed")
    return NotSecured(_reason(error))


def _reason(error: ssl.SSLError) -> str:
    """Returns why OpenSSL gave a connection up, and what to do."""
    if error.reason == "TLSV1_ALERT_PROTOCOL_VERSION":
        return "it does not speak TLS. Set cluster.tls in the job file, or leave out --tls"
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code == _NOT_YET_VALID:
        return f"{reason_of(error)}. Look at the clocks of both hosts"
    if isinstance(error, ssl.SSLCertVerificationError) or error.reason in _SAID:
        return f"{reason_of(error)}. {_NEW_ONES}"
    return f"{reason_of(error)}. Look whether anybody else is on the way between the hosts"


def reason_of(error: ssl.SSLError) -> str:
    """Returns why OpenSSL gave a connection up."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return _SAID.get(error.reason or "", f"TLS failed ({error.reason or error})")
    if error.verify_code == _EXPIRED:
        return "its certificate has expired"
    if error.verify_code == _NOT_YET_VALID:
        return "its certificate is not valid yet"
    if error.verify_code in _OTHER_ADDRESS:
        return f"its certificate is for another address ({error.verify_message})"
    return f"its certificate is not signed by this side's {CA} ({error.verify_message})"


class Security:
    """What a process shows of itself, and whom it trusts.

    Args:
        folder: with ca.pem, cert.pem and key.pem.

    Attributes:
        folder: likewise.
        warnings: a line for each that people should know of.

    Raises:
        UserError: one of them cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._client = _context(ssl.PROTOCOL_TLS_CLIENT, folder)
        self._server = _context(ssl.PROTOCOL_TLS_SERVER, folder)
        modes = {key: stat.S_IMODE(key.stat().st_mode) for key in sorted(folder.glob(f"*{KEY}"))}
        self.warnings = tuple(
            f"{key} can be read by others (mode {mode:o}). Run chmod 600 {key}."
            for key, mode in modes.items()
            if mode & (stat.S_IRWXG | stat.S_IRWXO)
        )
        self._server.num_tickets = 0  # who only sends never reads them

    def accepted(self, sock: socket.socket) -> SecureSocket:
        """Returns the socket of a connection that was accepted; its handshake is to be gone through."""
        return self._wrapped(self._server, sock, server_side=True)

    def connecting(self, sock: socket.socket) -> SecureSocket:
        """Returns the socket of a connection that was made here; its handshake is to be gone through."""
        return self._wrapped(self._client, sock, server_side=False)

    def connected(self, sock: socket.socket, seconds: float) -> SecureSocket:
        """Returns the socket of a connection that was made here, after the handshake.

        Whether the other end takes this side's certificate is heard with its first word.

        Raises:
            NotSecured: the other end is not trusted, or does not speak TLS.
            OSError: it is gone, or silent.
        """
        secure = self.connecting(sock)
        try:
            secure.shake_hands_within(seconds)
        except BaseException:
            secure.close()
            raise
        return secure

    @staticmethod
    def _wrapped(context: ssl.SSLContext, sock: socket.socket, *, server_side: bool) -> SecureSocket:
        wrapped = context.wrap_socket(sock, server_side=server_side, do_handshake_on_connect=False)
        assert isinstance(wrapped, SecureSocket)
        return wrapped


def security_of(folder: str) -> Security | None:
    """Returns the security that a folder's files give; None: there is no folder, and connections are plain."""
    return Security(Path(folder)) if folder else None


def connect(
    address: tuple[str, int], seconds: float, security: Security | None, handshake_s: float | None = None
) -> socket.socket:
    """Connects, and shakes hands where there is security. Raises NotSecured, or another OSError.

    Args:
        address: host and port.
        seconds: that it may take to connect.
        security: of the connection; None: it is plain.
        handshake_s: that the handshake may take then; None: as long.
    """
    sock = socket.create_connection(address, timeout=seconds)
    return sock if security is None else security.connected(sock, handshake_s or seconds)


def pending(sock: socket.socket) -> int:
    """Returns how many bytes have come that a selector does not know of."""
    return sock.pending() if isinstance(sock, SecureSocket) else 0


def _context(protocol: int, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # who has a certificate of the run's CA is of the run, at whatever address
    context.verify_mode = ssl.CERT_REQUIRED
    context.sslsocket_class = SecureSocket
    _load(context, folder / CA, folder / CERTIFICATE, folder / KEY)
    return context


def check_usable(ca: Path, *shown: Path) -> None:
    """Checks a CA's file, and those of a certificate and its key. Raises UserError: one cannot be used."""
    _load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ca, *shown)


def _load(context: ssl.SSLContext, ca: Path, *shown: Path) -> None:
    for path in (ca, *shown):
        _check_readable(path)
    if shown:
        certificate, key = shown

        def no_password() -> str:
            raise UserError(f"{key} is encrypted. Give a key without a password: nobody is there to type it.")

        try:
            context.load_cert_chain(certificate, key, no_password)
        except ssl.SSLError as error:
            raise UserError(
                f"{certificate} and {key} are no certificate and its key ({error.reason or error}). {_NEW_ONES}."
            ) from None
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise UserError(f"{ca} is no certificate ({error.reason or error}). {_NEW_ONES}.") from None


def _check_readable(path: Path) -> None:
    try:
        with open(path, "rb") as file:
            os.fstat(file.fileno())
    except OSError as error:
        raise UserError(
            f"TLS: {path} cannot be read: {error.strerror}. Give a folder with {CA}, {CERTIFICATE} and {KEY}; "
            "planaria certificates FOLDER makes one."
        ) from None
