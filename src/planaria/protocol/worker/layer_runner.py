"""What runs a worker's layers: a device with tensors, an emulated one, or a simulation's symbols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, SupportsFloat, TypeVar

from planaria.protocol.messages.from_worker import Score
from planaria.protocol.worker.holdings import LayerModules
from planaria.protocol.worker.progress import Work

GivenBatch = TypeVar("GivenBatch", contravariant=True)
Value = TypeVar("Value")
"""Activations or gradients at a boundary of layers."""


class LayerRunner(LayerModules, Protocol[GivenBatch, Value]):
    """Runs layers for microbatches."""

    def forget(self, keep: Callable[[Work], bool]) -> None:
        """Drops what is kept for microbatches that nobody will finish here."""
        ...

    def forward(
        self,
        step: int,
        work: Work,
        layer: int,
        inputs: Value,
        batch: GivenBatch | None,
        *,
        keep: bool,
        on_host: bool = False,
    ) -> tuple[Value, SupportsFloat | None]:
        """Runs one layer's forward; returns its outputs, detached, and the loss if it is the last layer: a number, or
        what becomes one when it is needed.

        Args:
            keep: a backward will follow.
            on_host: or it may, and hardly will: what it needs is kept in the host's memory until then.
        """
        ...

    def evaluate(
        self, step: int, work: Work, layer: int, inputs: Value, batch: GivenBatch | None
    ) -> tuple[Value, Score | None]:
        """Runs one layer's forward as in use, not in training; returns its outputs, and the score if it is the last.

        Args:
            step: before which the model is evaluated.
        """
        ...

    def backward(self, step: int, work: Work, layer: int, gradients: Value, *, counted: bool) -> Value:
        """Runs one layer's whole backward.

        Args:
            gradients: of the layer's floating-point outputs; empty for the last layer.
            counted: whether its parameters' gradients are accumulated.

        Returns:
            Gradients of its floating-point inputs; empty for the first layer.
        """
        ...

    def backward_input(self, step: int, work: Work, layer: int, gradients: Value) -> Value:
        """Runs the first half of one layer's backward: as `backward`, and nothing is counted yet."""
        ...

    def backward_weight(self, work: Work, layer: int, *, counted: bool) -> None:
        """Runs the second half of the backward: adds parameters' gradients if `counted`, and drops them otherwise."""
        ...
