"""Asks a running job's coordinator, at the address and with the token that its run folder keeps."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from planaria.job.errors import UserError
from planaria.protocol.messages.message import PROTOCOL_VERSION
from planaria.protocol.messages.user import Answer, Request, RequestRefused, Wish, decode_answer
from planaria.runtime.thresholds import REQUEST_TIMEOUT_S
from planaria.runtime.wire.control_frames import SpeaksTls, control_frame, read_control
from planaria.runtime.wire.tls import NotSecured, connect, security_of


class NotReached(UserError):
    """The run is not running, or does not answer."""


class Contact(msgspec.Struct, frozen=True, kw_only=True):
    """How a running job is reached. Only the user who runs it may read the file.

    Attributes:
        tls: folder with the run's certificates; "": the connection is plain.
        page: address of the run's page, for a browser; "": it is not served.
    """

    address: str
    token: str
    tls: str = ""
    page: str = ""

    def write(self, path: Path) -> None:
        write_private(path, msgspec.json.encode(self))

    @classmethod
    def read(cls, path: Path) -> Contact:
        """Reads what `write` wrote. Raises NotReached: the run does not run."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            raise NotReached(f"run {path.parent} does not run now. Name the folder of a run that does.") from None
        except (OSError, ValueError) as error:
            raise NotReached(f"run {path.parent} does not say how it is reached: {error}.") from None


def write_private(path: Path, data: bytes) -> None:
    """Writes a new file that the user alone can read."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def ask(
    contact: Contact,
    wish: Wish,
    *,
    run: str,
    node: int = -1,
    device: int = -1,
    count: int = 1,
    grace_s: float = 0.0,
    policy: str = "",
    folder: str = "",
    discards: bool = False,
    details: bool = False,
    timeout_s: float | None = REQUEST_TIMEOUT_S,
) -> Answer:
    """Asks the job's coordinator. Arguments as `Request`.

    Args:
        contact: how it is reached.
        wish: what is asked for.
        run: what the user calls the run.
        timeout_s: for the answer; None: no end.

    Raises:
        NotReached: it does not run, or does not answer.
        UserError: it speaks another version of the protocol, or it and this side do not trust each other.
    """
    try:
        host, _, port = contact.address.rpartition(":")
        request = Request(
            version=PROTOCOL_VERSION,
            token=contact.token,
            wish=wish,
            node=node,
            device=device,
            count=count,
            grace_s=grace_s,
            policy=policy,
            folder=folder,
            discards=discards,
            details=details,
        )
        with connect((host, int(port)), REQUEST_TIMEOUT_S, security_of(contact.tls)) as connection:
            connection.sendall(control_frame(msgspec.msgpack.encode(request)))
            connection.settimeout(timeout_s)
            answer = decode_answer(read_control(connection))
    except (NotSecured, SpeaksTls) as error:
        raise UserError(f"run {run} cannot be talked to: {error}.") from None
    except UserError:
        raise
    except EOFError:
        raise NotReached(f"run {run} closes the connection: it ends, or this is not its token.") from None
    except (OSError, ValueError) as error:
        raise NotReached(f"run {run} does not answer: {error}. Look whether its process still runs.") from None
    if isinstance(answer, RequestRefused):
        raise UserError(f"run {run} refuses this command: {answer.reason}.")
    return answer
