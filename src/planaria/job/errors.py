"""The root of Planaria's errors, and the user's mistakes."""

from __future__ import annotations


class PlanariaError(Exception):
    """Root of the errors that Planaria raises on purpose."""


class UserError(PlanariaError, ValueError):
    """The user's mistake: one line with what is wrong, the value, and the remedy. The CLI exits with 2."""


class UserCodeError(UserError):
    """The user's own code raised. The CLI shows where, below the line.

    Attributes:
        trace: the traceback, as Python prints it, from the user's first line on.
    """

    def __init__(self, text: str, trace: str) -> None:
        super().__init__(text)
        self.trace = trace


def in_one_line(error: Exception) -> str:
    """Returns what an error says, in one line; its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__
