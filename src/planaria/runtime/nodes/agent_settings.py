"""What an agent is told: whose node it offers, where the coordinator is, and how long it waits for it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from planaria.job.checks import check_zone
from planaria.job.errors import UserError
from planaria.protocol.messages.agent import Farewell

FILE: Final = "file:"
"""Prefix of a coordinator whose address is in a file."""

EXIT_CODES: Final = {Farewell.OVER: 0, Farewell.DRAINED: 4, Farewell.SUSPENDED: os.EX_TEMPFAIL}
"""Of `planaria agent`, by why it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The settings of an agent.

    Attributes:
        coordinator: "host:port", or "file:PATH" of a file that says it, which is read at each try.
        token: the job's token.
        host: address at which other nodes reach this one; "": the one from which it reaches the coordinator.
        zone: where this node is: whatever fails as one; "": not known.
        import_path: where a model given as "module:function" is looked for.
        give_up_s: without a word from the coordinator, after which the agent ends.
        tls: folder with the run's certificates; "": connections are plain.
    """

    coordinator: str
    token: str
    host: str = ""
    zone: str = ""
    import_path: Path | None = None
    give_up_s: float = 600.0
    tls: str = ""

    def __post_init__(self) -> None:
        if self.address_file is None and not is_address(self.coordinator):
            raise UserError(
                f"--coordinator {self.coordinator!r} is not HOST:PORT. `planaria train` prints it; "
                "file:PATH names a file with it."
            )
        if self.zone:
            check_zone("--zone", self.zone)

    @property
    def address_file(self) -> Path | None:
        """The file that says where the coordinator is; None: it is given."""
        path = self.coordinator.removeprefix(FILE)
        return Path(path) if path and path != self.coordinator else None

    def address(self) -> str:
        """Returns "host:port" of the coordinator, as the file says it now. Raises OSError where it says none."""
        if self.address_file is None:
            return self.coordinator
        text = self.address_file.read_text(errors="replace").strip() if self.address_file.exists() else ""
        if not is_address(text):
            raise OSError("the file does not say yet where it is")
        return text


def is_address(text: str) -> bool:
    """Returns whether a text is HOST:PORT."""
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdecimal() and 0 < int(port) < 65536
