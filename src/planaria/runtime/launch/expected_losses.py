"""Losses of nodes that a job expects: as its owner says, and as a trace of similar nodes shows.

A trace counts as if the job had seen it, for as long as its nodes together were there: what the job then sees counts
beside it.
"""

from __future__ import annotations

from pathlib import Path

from planaria.job.errors import UserError
from planaria.job.settings import Job
from planaria.protocol.planning.failure_rate import Failures, Watched
from planaria.runtime.thresholds import LOSSES_COUNTED
from planaria.simulate.traces.formats import read_trace
from planaria.simulate.traces.trace import summarise


def expected_losses(job: Job) -> Failures:
    """Returns the losses expected by a job that has seen none. Errors as `losses_of_trace`."""
    return Failures(job.resilience.mean_time_between_failures_s, losses_of_trace(job))


def losses_of_trace(job: Job) -> Watched:
    """Returns the losses in the job's trace; nothing where it has none.

    Raises:
        UserError: the trace cannot be read, or says what cannot be.
    """
    source = job.resilience.failure_trace
    if not source:
        return Watched()
    field = f"resilience.failure_trace = {source!r}"
    try:
        text = Path(source).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{field} cannot be read: {error.strerror}. Give a trace's path, from the folder in which you start."
        ) from None
    except UnicodeDecodeError:
        raise UserError(f"{field} is no text. Give a file that `planaria trace describe` reads.") from None
    told = summarise(read_trace(text, Path(source).name).trace)
    if not told.mean_nodes:
        raise UserError(f"{field} has no node at any time. Give a trace of nodes that came and went.")
    share = min(1.0, LOSSES_COUNTED / max(1, told.num_removals))
    return Watched(
        seconds=share * told.mean_nodes * told.horizon_s / job.cluster.least_nodes,
        losses=round(share * told.num_removals),
        nodes=round(share * told.num_removed),
    )
