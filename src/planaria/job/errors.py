"""The root of Planaria's errors, and the user's mistakes."""

from __future__ import annotations


class PlanariaError(Exception):
    """Root of the errors that Planaria raises on purpose."""


class UserError(PlanariaError, ValueError):
    """The user's mistake: one line with what is wrong, the value, and the remedy. The CLI exits with 2."""
