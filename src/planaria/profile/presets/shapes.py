"""Counts of what a model's layers do: products, values moved and kept, parameters. No device, no seconds, no bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A kernel of a layer's forward, for one microbatch. Counts are of values, whatever their size.

    Attributes:
        multiply_adds: of dense products.
        moved: activations read and written.
        kept: activations kept for the backward.
        weights: parameters that it uses.
        weight_reads: how often they are read; a recurrence reads them anew for each position.
        launches: kernels.
    """

    multiply_adds: float = 0.0
    moved: float = 0.0
    kept: float = 0.0
    weights: int = 0
    weight_reads: int = 1
    launches: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """A layer as a user would cut it, for one microbatch.

    Attributes:
        name: unique in the model.
        operations: of its forward.
        input_values: what it takes from the layer before.
        output_values: what it passes on, with what later layers need of earlier ones.
        tied_parameters: of its parameters, those that it shares with the first (or last) layer.
        exchanged_values: summed between devices in a forward where its products are cut between devices of a node
            (tensor parallelism; Shoeybi et al., 2019, section 3); 0: they are not.
    """

    name: str
    operations: tuple[Operation, ...]
    input_values: float
    output_values: float
    tied_parameters: int = 0
    exchanged_values: float = 0.0

    @property
    def num_parameters(self) -> int:
        return sum(operation.weights for operation in self.operations)


Layers = Callable[[int, int], tuple[LayerShape, ...]]
"""Layers of a model as a function of (microbatch size, sequence length)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A published model.

    Attributes:
        title: for people.
        layers: from microbatch size and sequence length.
        microbatch_size: default.
        sequence_length: default; 0: the model has none.
        longest_sequence: that its positions allow; 0: any.
        published_parameters: as its authors count them.
        source: where it is published.
        remarks: what was assumed where the source leaves a choice.
    """

    title: str
    layers: Layers
    microbatch_size: int
    sequence_length: int
    longest_sequence: int = 0
    published_parameters: int
    source: str
    remarks: str = ""


def num_parameters(layers: tuple[LayerShape, ...]) -> int:
    """Returns the number of a model's parameters; what is tied counts once."""
    return sum(layer.num_parameters for layer in layers) - layers[-1].tied_parameters


def product(rows: float, inputs: int, outputs: int, *, bias: bool = True, keep: bool = True) -> Operation:
    """Returns a linear layer: (rows, inputs) times (inputs, outputs)."""
    return Operation(
        multiply_adds=rows * inputs * outputs,
        moved=rows * (inputs + outputs),
        kept=rows * inputs if keep else 0.0,
        weights=inputs * outputs + (outputs if bias else 0),
    )


def elementwise(
    values: float, *, operands: int = 2, kept: float = 0.0, weights: int = 0, launches: int = 1
) -> Operation:
    """Returns an operation on each of `values`, with so many of them read and written in all."""
    return Operation(moved=operands * values, kept=kept, weights=weights, launches=launches)


def cross_entropy(rows: float, classes: int) -> Operation:
    """Returns softmax and loss, in float32 (a value counts as two); the probabilities are kept."""
    return Operation(moved=6 * rows * classes, kept=2 * rows * classes, launches=3)
