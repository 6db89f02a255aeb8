"""What a worker may tell a coordinator, on which of its connections.

A coordinator may die at any moment, and another takes its place at the same address. What was sent and never read
need not be sent again, as the worker tells each coordinator where it is; but what nobody else can know is: that the
node will go away, that it ran out of memory, and that the user's code failed.
"""

from __future__ import annotations

from planaria.protocol.messages.from_worker import (
    AwaitsSamples,
    Failed,
    FaultInjected,
    FromWorker,
    Notice,
    NotSaved,
    OutOfMemory,
    Ready,
    Report,
    Saved,
    Vote,
)

_LASTING = (Notice, Failed, OutOfMemory)
"""Messages that every coordinator has to hear of."""

_OF_A_STEP = (Vote, Ready, AwaitsSamples, Report, Saved, NotSaved, FaultInjected)
"""Messages of no use to a coordinator that does not know yet where this worker is; `Returned` says the same."""


class WorkerSession:
    """What one worker has told each coordinator, by connection."""

    def __init__(self) -> None:
        self._connection = 0
        self._told = 0
        self._lasting: dict[type[FromWorker], FromWorker] = {}

    def connected(self) -> tuple[int, tuple[FromWorker, ...]]:
        """Records a new connection; returns its number, and what to say on it right after the hello."""
        self._connection += 1
        return self._connection, tuple(self._lasting.values())

    def may_say(self, message: FromWorker) -> bool:
        """Returns whether the coordinator that is there now can use the message. What cannot be sent now is lost,
        unless every coordinator has to hear of it: that is kept, the last of each kind."""
        if isinstance(message, _LASTING):
            self._lasting.pop(type(message), None)
            self._lasting[type(message)] = message
        return not isinstance(message, _OF_A_STEP) or self._told == self._connection

    def may_return(self, connection: int) -> bool:
        """Returns whether the worker may tell where it is now, in answer to what came on that connection.

        Who hears it takes it for what the worker is after all orders of the coordinators before.
        """
        if connection != self._connection:
            return False
        self._told = connection
        return True
