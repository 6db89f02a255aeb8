"""Where a coordinator is: at an address, or where a file or etcd says, since it may come back elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from planaria.job.errors import UserError
from planaria.job.values import ETCD_TLS_URL, etcd_members, is_host_port
from planaria.runtime.journal.etcd import NEVER, Distrusted, Etcd, OutOfReach
from planaria.runtime.journal.lead import sighted
from planaria.runtime.wire.tls import NotSecured

FILE: Final = "file:"
"""Prefix of a coordinator whose address is in a file."""


class CoordinatorPlace:
    """Where a coordinator is.

    Args:
        text: "host:port"; "file:PATH" of a file that says it; or "etcd://HOST:PORT,.../RUN", for the leader of a run,
            "etcds://..." under TLS.
        named: what users call it, for messages.
        tls: folder with the run's certificates; "": none is given.

    Attributes:
        text: likewise.
        may_move: whether the coordinator may come back elsewhere.
        is_quiet: whether etcd has heard nothing of the leader between the last two looks, or knows of none.

    Raises:
        UserError: it is none of these, or etcd3gw is not installed.
    """

    def __init__(self, text: str, named: str = "--coordinator", tls: str = "") -> None:
        self.text = text
        self.may_move = not is_host_port(text)
        self._file: Path | None = None
        self._etcd: Etcd | None = None
        self._beat = NEVER
        self.is_quiet = False
        members, _, self._run = text.rpartition("/")
        if text.startswith(FILE) and text != FILE:
            self._file = Path(text.removeprefix(FILE))
        elif etcd_members(members) and self._run:
            if text.startswith(ETCD_TLS_URL) and not tls:
                raise UserError(
                    f"{named} {text!r} is under TLS. Give the folder with the certificates by --tls FOLDER."
                )
            self._etcd = Etcd(members, tls)
        elif self.may_move:
            raise UserError(
                f"{named} {text!r} is not HOST:PORT. `planaria train` prints it; file:PATH names a file with it, "
                "and etcd://HOST:PORT,.../RUN a run that is led from wherever etcd says."
            )

    def address(self) -> str:
        """Returns "host:port", as it is now.

        Raises:
            NotSecured: etcd and this process do not trust each other.
            OSError: nobody says where it is.
        """
        if self._etcd is not None:
            return self._led_from(self._etcd)
        if self._file is None:
            return self.text
        text = self._file.read_text(errors="replace").strip() if self._file.exists() else ""
        if not is_host_port(text):
            raise OSError("the file does not say yet where it is")
        return text

    def _led_from(self, etcd: Etcd) -> str:
        beat, self._beat, self.is_quiet = self._beat, NEVER, True
        try:
            seen = sighted(etcd, self._run)
        except Distrusted as error:
            raise NotSecured(f"{error}. {error.remedy}") from None
        except OutOfReach as error:
            raise OSError(str(error)) from None
        if seen is None or not seen.leader.address:
            raise OSError(f"nobody leads run {self._run} now")
        self._beat, self.is_quiet = seen.beat, seen.beat == beat
        return seen.leader.address
