"""What a worker tells of an error that ends its work."""

from __future__ import annotations

import logging
import traceback

from planaria.model.model import ModelError
from planaria.plan.plan import WorkerId
from planaria.protocol.messages import Failed, OutOfMemory
from planaria.worker.compute import LayerFailed
from planaria.worker.memory import shortage
from planaria.worker.preemption import SourceError

log = logging.getLogger(__name__)


def last_words(worker: WorkerId, error: Exception, doing: str) -> Failed | OutOfMemory:
    """What a worker that fails tells of it. Memory may lack on this node alone; other errors would come again."""
    log.error("an error, %s", doing, exc_info=error)
    lacking = shortage(error, doing)
    if lacking is not None:
        return lacking
    if isinstance(error, LayerFailed | ModelError | SourceError):
        return Failed(where=str(error), text="".join(traceback.format_exception(error.__cause__ or error)))
    return Failed(where=f"worker {worker}", text="".join(traceback.format_exception(error)))
