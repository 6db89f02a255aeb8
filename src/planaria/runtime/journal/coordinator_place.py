"""Where a coordinator is: at an address, or where a file or etcd says, since it may come back elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from planaria.job.errors import UserError
from planaria.job.values import ETCD_URL, is_host_port
from planaria.runtime.journal.etcd import Etcd, OutOfReach
from planaria.runtime.journal.lead import leader_of

FILE: Final = "file:"
"""Prefix of a coordinator whose address is in a file."""


class CoordinatorPlace:
    """Where a coordinator is.

    Args:
        text: "host:port"; "file:PATH" of a file that says it; or "etcd://HOST:PORT,.../RUN", for the leader of a run.
        named: what users call it, for messages.

    Attributes:
        text: likewise.
        may_move: whether the coordinator may come back elsewhere.

    Raises:
        UserError: it is none of these, or etcd3gw is not installed.
    """

    def __init__(self, text: str, named: str = "--coordinator") -> None:
        self.text = text
        self.may_move = not is_host_port(text)
        self._file: Path | None = None
        self._etcd: Etcd | None = None
        members, _, self._run = text.removeprefix(ETCD_URL).partition("/")
        if text.startswith(FILE) and text != FILE:
            self._file = Path(text.removeprefix(FILE))
        elif text.startswith(ETCD_URL) and self._run and all(map(is_host_port, members.split(","))):
            self._etcd = Etcd(ETCD_URL + members)
        elif self.may_move:
            raise UserError(
                f"{named} {text!r} is not HOST:PORT. `planaria train` prints it; file:PATH names a file with it, "
                "and etcd://HOST:PORT,.../RUN a run that is led from wherever etcd says."
            )

    def address(self) -> str:
        """Returns "host:port", as it is now. Raises OSError: nobody says where it is."""
        if self._etcd is not None:
            return self._led_from(self._etcd)
        if self._file is None:
            return self.text
        text = self._file.read_text(errors="replace").strip() if self._file.exists() else ""
        if not is_host_port(text):
            raise OSError("the file does not say yet where it is")
        return text

    def _led_from(self, etcd: Etcd) -> str:
        try:
            leader = leader_of(etcd, self._run)
        except OutOfReach as error:
            raise OSError(str(error)) from None
        if leader is None or not leader.address:
            raise OSError(f"nobody leads run {self._run} now")
        return leader.address
