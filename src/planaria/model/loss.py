"""Losses of the models that Planaria knows."""

from __future__ import annotations

import torch
from torch.nn import functional

from planaria.model.model import Batch, Tensors

IGNORED_LABEL = -100
"""Label of a position that is not predicted."""


def token_cross_entropy(outputs: Tensors, batch: Batch) -> torch.Tensor:
    """Returns the mean cross entropy, in float32, of the labelled positions.

    Args:
        outputs: logits first, of shape (microbatch, sequence_length, vocabulary).
        batch: `labels` of shape (microbatch, sequence_length). The data has shifted them already: the label
            of position t is what position t must predict.
    """
    logits = outputs[0]
    return functional.cross_entropy(
        logits.float().flatten(0, -2), batch["labels"].flatten(), ignore_index=IGNORED_LABEL
    )
