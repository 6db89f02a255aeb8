"""The phases of a run at its coordinator, and the purposes for which plans are taken.

Names alone: what leads from one phase to another is the table in `planaria.protocol.transitions`.
"""

from __future__ import annotations

import enum


class Phase(enum.StrEnum):
    RETURNING = "returning"
    """Started on the journal of a coordinator that died; waiting for the workers to come back."""
    GATHERING = "gathering"
    """Waiting for the workers to join."""
    TRAINING = "training"
    """A step is in progress; votes are coming in."""
    SALVAGING = "salvaging"
    """Handling a loss inside a step; waiting for the ledgers of the halted workers."""
    SAVING = "saving"
    """At a step boundary; parts of a checkpoint are being written."""
    WAITING = "waiting"
    """Waiting for nodes: too few are left, and these keep their state until others join."""
    ENDED = "ended"


ALIVE = tuple(phase for phase in Phase if phase is not Phase.ENDED)
AT_WORK = (Phase.TRAINING, Phase.SALVAGING, Phase.SAVING)


class Purpose(enum.StrEnum):
    """Why a plan is taken."""

    START = "start"
    FINISH_STEP = "finish step"
    WARM_UP = "warm up"
    RECONFIGURE = "reconfigure"
    RESTORE = "restore"
    GO_ON = "go on"


PLACING = (Purpose.START, Purpose.RECONFIGURE, Purpose.RESTORE)
"""Purposes for which a new placement is made."""


class ProtocolError(AssertionError):
    """An event that the table of transitions does not allow, or counts that do not add up: always a bug here."""
