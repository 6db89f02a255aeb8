"""Weights that a job begins with, on this machine: a folder as it is, those of a URL or of the hub once fetched."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from planaria.checkpoint.retries import Tries
from planaria.data.opening import CACHE
from planaria.data.reading.remote import fetched_folder
from planaria.job.settings import Job
from planaria.job.values import is_hub_weights, is_url
from planaria.model.weights.hub import is_of, local_weights

log = logging.getLogger(__name__)


def with_weights_here(job: Job, earlier: Job | None = None) -> Job:
    """Returns a job with the folder of its weights on this machine, and with where they were fetched from.

    Args:
        job: what to train; where it says from where its weights were fetched elsewhere, they are fetched from there.
        earlier: as what the run was trained before: weights that were fetched then stay the same.

    Raises:
        UserError: weights of the hub cannot be had.
        DataError: nor can those of a URL.
    """
    weights = job.model.weights_from or job.model.weights
    if weights is None:
        return job
    named = f"model.weights = {weights!r}"
    kept = None if earlier is None else earlier.model.weights
    if is_hub_weights(weights):
        folder = Path(kept) if kept is not None and is_of(kept, weights) else local_weights(weights)
        source = f"{weights.partition('?')[0]}?revision={folder.name}"  # what it was then, whatever it is by now
    elif is_url(weights):
        is_kept = earlier is not None and earlier.model.weights_from == weights and Path(kept or "").is_dir()
        cache = Path(job.run.folder) / CACHE
        folder = Path(kept or "") if is_kept else fetched_folder(weights, cache, named, log.info, Tries(weights))
        source = weights
    else:
        folder, source = Path(weights), ""
    model = msgspec.structs.replace(job.model, weights=str(folder.absolute()), weights_from=source)
    return msgspec.structs.replace(job, model=model)
