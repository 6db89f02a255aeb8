"""Output for people: a terminal or a pipe, which may be gone while the process that writes there goes on."""

from __future__ import annotations

import errno
from typing import IO, Any, Final

from planaria.job.errors import PlanariaError

GONE: Final = (errno.EPIPE, errno.EIO)
"""Error numbers of writing to a pipe that nobody reads, and to a terminal that was closed."""


class OutputClosed(PlanariaError):
    """Nobody reads what is written: whatever runs takes this as the wish to end it."""

    def __init__(self) -> None:
        super().__init__("nobody reads the output any more")


class Output:
    """A text stream that takes whatever is written to it, and forgets it once the other end is gone.

    It has the stream's other attributes too.

    Attributes:
        is_closed: the other end is gone.
    """

    def __init__(self, stream: IO[str]) -> None:
        self.is_closed = False
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except OSError as error:
            self._note(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError) -> None:
        if error.errno not in GONE:
            raise error
        self.is_closed = True

    def say(self, line: str) -> None:
        """Writes a line at once. Raises OutputClosed when nobody reads it."""
        self.write(f"{line}\n")
        self.flush()
        self.check()

    def check(self) -> None:
        """Checks that somebody reads. Raises OutputClosed when the other end is gone."""
        if self.is_closed:
            raise OutputClosed
