"""What a worker tells of an error that ends its work."""

from __future__ import annotations

import errno
import logging
import resource
import traceback

from planaria.model.model import ModelError
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.worker import Failed, OutOfMemory
from planaria.runtime.worker.compute.layers import LayerFailed
from planaria.runtime.worker.compute.memory_errors import shortage
from planaria.runtime.worker.preemption import SourceError

log = logging.getLogger(__name__)


def last_words(worker: WorkerId, error: Exception, doing: str) -> Failed | OutOfMemory:
    """What a worker that fails tells of it. Memory may lack on this node alone; other errors would come again."""
    log.error("an error, %s", doing, exc_info=error)
    lacking = shortage(error, doing)
    if lacking is not None:
        return lacking
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        where = f"worker {worker} may open no more than {soft} files (ulimit -n). Raise the limit and --resume"
        return Failed(where=where, text="".join(traceback.format_exception(error)))
    if isinstance(error, LayerFailed | ModelError | SourceError):
        return Failed(where=str(error), text="".join(traceback.format_exception(error.__cause__ or error)))
    return Failed(where=f"worker {worker}", text="".join(traceback.format_exception(error)))
