"""What a heartbeat tells of a worker's main thread."""

from __future__ import annotations

import enum

import msgspec


class Activity(enum.StrEnum):
    """What a worker's main thread does."""

    IDLE = "idle"
    """It has nothing to do: no plan, or a vote cast."""
    COMPUTING = "computing"
    """One instruction of its program, with nobody to wait for."""
    WAITING = "waiting"
    """For a message of a peer."""
    BUSY = "busy"
    """Something that no estimate is made of: building layers, reading or writing a checkpoint."""


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's state at a heartbeat.

    Attributes:
        activity: of the main thread.
        progress: counts up with everything that the main thread finishes.
        waits_for: the peer whose message it waits for; -1: none, or any of several.
    """

    activity: Activity
    progress: int
    waits_for: int = -1
