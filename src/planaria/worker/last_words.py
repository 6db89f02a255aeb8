"""What a worker tells of an error that ends its work."""

from __future__ import annotations

import traceback

from planaria.model.model import ModelError
from planaria.plan.plan import WorkerId
from planaria.protocol.messages import Failed, OutOfMemory
from planaria.worker.compute import LayerFailed
from planaria.worker.memory import shortage
from planaria.worker.preemption import SourceError


def last_words(worker: WorkerId, error: Exception, doing: str) -> Failed | OutOfMemory:
    """What a worker that fails tells of it. Memory may lack on this node alone; other errors would come again."""
    lacking = shortage(error, doing)
    if lacking is not None:
        traceback.print_exception(error)  # into this worker's log: the job goes on without it
        return lacking
    if isinstance(error, LayerFailed | ModelError | SourceError):
        return Failed(where=str(error), text="".join(traceback.format_exception(error.__cause__ or error)))
    return Failed(where=f"worker {worker}", text="".join(traceback.format_exception(error)))
