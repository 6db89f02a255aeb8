"""TLS to etcd: which certificates are shown and asked for, and what is said where the two ends do not trust each other.

They are those of the run's folder (`cluster.tls`, `--tls`), unless it has some for etcd alone, which may have a CA of
its own.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from planaria.runtime.thresholds import ETCD_TIMEOUT_S
from planaria.runtime.wire.tls import CA, CERTIFICATE, KEY, check_usable, reason_of

if TYPE_CHECKING:
    from requests import Session

ETCD_CA, ETCD_CERTIFICATE, ETCD_KEY = f"etcd-{CA}", f"etcd-{CERTIFICATE}", f"etcd-{KEY}"
REMEDY: Final = "Let etcd and the folder of cluster.tls (--tls) have certificates that trust each other"

_CLOSED: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")


def session_of(folder: Path) -> Session:
    """Returns a session for requests to etcd, which trusts nothing but what the folder says.

    With etcd-ca.pem, that signs etcd's certificates, which must be for the address at which etcd is asked; what is
    shown is etcd-cert.pem, if there is one. Without it, these are ca.pem and cert.pem: then etcd is of the run, at
    whatever address.

    Raises:
        UserError: a file cannot be used.
    """
    from requests import Session
    from requests.adapters import HTTPAdapter

    class AnyAddress(HTTPAdapter):
        def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
            super().init_poolmanager(*arguments, **options, assert_hostname=False)

    session = Session()
    session.trust_env = False  # a variable could put other CAs, or a proxy, in place of these
    has_own_ca = (folder / ETCD_CA).exists()
    names = (ETCD_CA, ETCD_CERTIFICATE, ETCD_KEY) if has_own_ca else (CA, CERTIFICATE, KEY)
    ca, certificate, key = (folder / name for name in names)
    is_shown = not has_own_ca or certificate.exists() or key.exists()
    check_usable(ca, *((certificate, key) if is_shown else ()))
    session.verify = str(ca)
    if is_shown:
        session.cert = (str(certificate), str(key))
    if not has_own_ca:
        session.mount("https://", AnyAddress())
    return session


def explained(error: BaseException, session: Session, address: tuple[str, int]) -> tuple[str, bool]:
    """Returns why TLS failed, in words ("": it did not), and whether the two ends do not trust each other.

    Args:
        error: of a question.
        session: that it was asked in.
        address: of the member, which is asked why where it only closed the connection.
    """
    errors = list(_causes(error))
    failed = next((one for one in errors if isinstance(one, ssl.SSLError)), None)
    if isinstance(failed, _CLOSED) or any(isinstance(one, ConnectionError) for one in errors):
        failed = _last_word(session, address)
    if failed is None:
        return "", False
    if isinstance(failed, _CLOSED) or failed.reason in _NO_TLS:
        return "it closes the connection when TLS begins: is it etcd://?", False
    return reason_of(failed), True


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and all that led to it: requests and urllib3 wrap what they caught in several ways."""
    left, seen = [error], set[int]()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        inner = (one.__cause__, one.__context__, getattr(one, "reason", None), *one.args)
        left += [each for each in inner if isinstance(each, BaseException)]


def _last_word(session: Session, address: tuple[str, int]) -> ssl.SSLError | None:
    """Returns why a member refuses this side, or shakes no hands; None: it does neither.

    In TLS 1.3 the refusal comes after the handshake; whoever asks something meanwhile may not hear it.
    """
    context = ssl.create_default_context(cafile=str(session.verify))
    context.check_hostname = False  # not what is asked here
    try:
        if session.cert is not None:
            context.load_cert_chain(*session.cert)
        with (
            socket.create_connection(address, ETCD_TIMEOUT_S) as plain,
            context.wrap_socket(plain) as secure,
            contextlib.suppress(*_CLOSED),
        ):
            secure.recv(1)
    except ssl.SSLError as error:
        return error
    except (ConnectionResetError, BrokenPipeError) as error:
        return ssl.SSLEOFError(str(error))
    except OSError:
        return None
    return None
