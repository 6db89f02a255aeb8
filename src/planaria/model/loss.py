"""Losses of the models that Planaria knows."""

from __future__ import annotations

import torch
from torch.nn import functional

from planaria.model.model import Batch, Model, Tensors

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


def scored(model: Model, outputs: Tensors, batch: Batch) -> tuple[float, int, int]:
    """Returns a microbatch's loss, how many labels are thought the likeliest, and of how many.

    No labels are counted where the model's outputs are not logits of the batch's labels.

    Args:
        model: whose loss it is.
        outputs: of its last layer.
        batch: the microbatch.
    """
    loss, labels, logits = float(model.loss(outputs, batch)), batch.get("labels"), outputs[0]
    if labels is None or labels.is_floating_point() or logits.shape[:-1] != labels.shape:
        return loss, 0, 0
    is_label = labels != IGNORED_LABEL
    is_right = (logits.argmax(dim=-1) == labels) & is_label
    return loss, int(is_right.sum()), int(is_label.sum())
