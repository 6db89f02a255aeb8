"""The phases of a run at its coordinator, and the purposes for which plans are taken.

Names alone: what leads from one phase to another is the table in `planaria.protocol.transitions`.
"""

from __future__ import annotations

import enum


class Phase(enum.StrEnum):
    RETURNING = "returning"
    """Begun on the journal of a coordinator that died; waiting for the workers to come back."""
    GATHERING = "gathering"
    """Waiting for the workers to join."""
    TRAINING = "training"
    """A step is in progress; votes are coming in."""
    SALVAGING = "salvaging"
    """A loss inside a step; waiting for the ledgers of what it halted."""
    SAVING = "saving"
    """At a step boundary; parts of a checkpoint are being written."""
    WAITING = "waiting"
    """Too few nodes; what is left keeps its state until others join."""
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
"""Those of a new placement."""


class ProtocolError(AssertionError):
    """An event that the table does not allow, or counts that do not add up: our own mistake, never the user's."""
