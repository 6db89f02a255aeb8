"""Computes parts of a layer shard by shard, so that the numbers do not depend on which device computes which shards.

A section (an attention, a feed-forward) has matrices that are split by columns, and one behind them that is split by
rows. Each shard runs the section's own forward on its slices of them. What its rows give is summed over the shards by
one fixed binary tree, and so are the gradients of whatever several shards read: the section's inputs, the keys and
values of a head that they share, a norm within heads. The sum of neighbouring shards is a node of that tree: whoever
has computed them can hand it on, and the bits stay the same. So devices may share a run out (`shared_out`): each
computes its own neighbouring shards, and they exchange what these give. Knows nothing of layers, nor of any library of
models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function_unary
from torch.utils._pytree import tree_flatten, tree_unflatten

from planaria.model.initial import derive_seed

_SHARES = ("nf", "split_size")
"""Attributes of sections, and of what is split by columns in them, that count outputs: a shard has its share of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How a section is split, by paths of modules in it.

    Attributes:
        columns: modules whose outputs are split; each with the number of matrices that lie side by side in it.
        rows: the module whose inputs are split. Its outputs are summed.
        whole: modules that every shard uses as they are.
    """

    columns: Mapping[str, int]
    rows: str
    whole: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Sharing:
    """How one run of layers is shared out: each device computes the same number of neighbouring shards.

    Attributes:
        number: of devices that share it, a power of two that divides the shards.
        place: of this device among them, from 0.
        add_up: given which sum it is, what this device has of it, and among how many neighbouring devices it is,
            returns the whole sum by the tree over those, once they have told theirs.
        named: sums that this run has named so far. Every device names the same ones in the same order.
    """

    number: int = 1
    place: int = 0
    add_up: Callable[[int, torch.Tensor, int], torch.Tensor] = field(default=lambda which, part, among: part)
    named: int = 0

    def name(self) -> int:
        """Returns the name of one more sum."""
        self.named += 1
        return self.named


_sharing: ContextVar[Sharing | None] = ContextVar("sharing", default=None)


@contextmanager
def shared_out(sharing: Sharing) -> Iterator[None]:
    """Has sections that run meanwhile compute this device's shards alone, and their backwards too."""
    token = _sharing.set(sharing)
    try:
        yield
    finally:
        _sharing.reset(token)


def split_parameters(module: nn.Module) -> frozenset[str]:
    """Returns the names of a module's parameters of which each shard has a part, so that each device has a part of
    their gradients; of all others every device that shares a run has the same gradients."""
    return frozenset(
        f"{path}.{name}" if path else name
        for path, section in module.named_modules()
        if isinstance(section.forward, _ShardedForward)
        for name in section.forward.split_names()
    )


def tree_sum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the sum of 2^n tensors by a binary tree: of neighbours, then of neighbouring sums."""
    sums = list(parts)
    while len(sums) > 1:
        sums = [one + other for one, other in zip(sums[::2], sums[1::2], strict=True)]
    return sums[0]


def slices(weight: torch.Tensor, dim: int, matrices: int, pieces: int) -> list[torch.Tensor]:
    """Returns pieces of a weight, each with its part of every one of the matrices that lie side by side in it.

    A subclass may give copies (`planaria.runtime.worker.compute.weight_copies`): they are for products alone.
    """
    if has_torch_function_unary(weight):
        found: list[torch.Tensor] = handle_torch_function(slices, (weight,), weight, dim, matrices, pieces)
        return found
    parts = torch.unflatten(weight, dim, (matrices, pieces, -1)).unbind(dim + 1)
    return [part.flatten(dim, dim + 1) for part in parts]


def num_pieces(section: nn.Module, path: str, matrices: int) -> int:
    """Returns into how many pieces each matrix of a module can be split by columns: its heads, or else its columns."""
    module = section.get_submodule(path)
    width: Any = getattr(section, "head_dim", 1)
    columns: int = module.get_parameter("weight").shape[_output_dim(module)] // matrices
    return columns // int(width)


def undivided(section: nn.Module, split: Split, shards: int) -> tuple[str, int] | None:
    """Returns a module that cannot be divided into so many shards, and how many pieces it has; None: all can."""
    for path, matrices in split.columns.items():
        pieces = num_pieces(section, path, matrices)
        is_shared = hasattr(section, "head_dim") and shards % pieces == 0
        if pieces % shards and not is_shared:
            return path, pieces
    rows = section.get_submodule(split.rows)
    inputs: int = rows.get_parameter("weight").shape[1 - _output_dim(rows)]
    return (split.rows, inputs) if inputs % shards else None


def compute_by_shards(section: nn.Module, split: Split, shards: int) -> None:
    """Has a section compute shard by shard from now on. Its parameters, their names and shapes stay as they are.

    Args:
        section: the module. A matrix in it is a Linear's, or the transposed one of a module like GPT-2's Conv1D.
        split: how it is split.
        shards: a power of two, into which nothing is `undivided`.
    """
    pieces = {path: min(shards, num_pieces(section, path, matrices)) for path, matrices in split.columns.items()}
    groups: Any = getattr(section, "num_key_value_groups", None)
    if groups is not None:
        setattr(section, "num_key_value_groups", groups * min(pieces.values()) // shards)  # noqa: B010
    for part in (section, *map(section.get_submodule, split.columns)):
        for name in _SHARES:
            count: Any = getattr(part, name, None)
            if count is not None:
                setattr(part, name, count // shards)
    section.forward = _ShardedForward(section, split, pieces, shards)


class _ShardDone(Exception):
    """A shard has given its part of the sum; what follows in the section runs once, with the last shard."""


class _Shared(torch.autograd.Function):
    """Gives a tensor to several shards, cast once for all; the tree sums their gradients in the tensor's own dtype.

    Where shards of other devices are given it too, it sums theirs as well.
    """

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, shards: int, dtype: torch.dtype, sharing: Sharing, among: int
    ) -> tuple[torch.Tensor, ...]:
        ctx.dtype, ctx.sharing, ctx.among, ctx.which = tensor.dtype, sharing, among, sharing.name()
        given = tensor.to(dtype)
        return tuple(given.view_as(given) for _ in range(shards))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        total = tree_sum([gradient.to(ctx.dtype) for gradient in gradients])
        if ctx.among > 1:
            total = ctx.sharing.add_up(ctx.which, total, ctx.among)
        return total, None, None, None, None


class _MadeElsewhere(torch.autograd.Function):
    """Passes on what another device makes too, and goes on from: here its gradient ends."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(gradient)


class _Summed(torch.autograd.Function):
    """Adds up what devices' shards give. Each shard's gradient is that of the sum."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, sharing: Sharing) -> torch.Tensor:
        return sharing.add_up(sharing.name(), part, sharing.number)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class _ShardedForward:
    """Stands in for a section's forward.

    Args:
        section: whose.
        split: how it is split.
        pieces: into how many pieces each matrix of a module with split columns is split: fewer than shards where
            several share one.
        shards: how many there are.

    Under autocast what the matrices multiply is cast once, not in each shard: products keep it for their backwards.
    """

    def __init__(self, section: nn.Module, split: Split, pieces: Mapping[str, int], shards: int) -> None:
        self._section = section
        self._split = split
        self._pieces = pieces
        self._shards = shards
        first = section.get_submodule(next(iter(split.columns)))
        self._width: int = first.get_parameter("weight").shape[1 - _output_dim(first)]
        self._rows = section.get_submodule(split.rows)
        self._rows.forward = self._add_up
        for path, number in pieces.items():
            if number < shards:
                part = section.get_submodule(path)
                part.forward = partial(self._once_for_several, part, shards // number)
        self._shard = 0
        self._sharing = Sharing()
        self._sums: list[torch.Tensor] = []
        self._slices: Sequence[torch.Tensor] = ()
        self._outputs: dict[nn.Module, Sequence[torch.Tensor]] = {}
        self._seed: Callable[[int], None] = _leave

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        section, own = self._section, type(self._section).forward
        self._sharing = _sharing.get() or Sharing()
        own_shards = self._own_shards()
        leaves, structure = tree_flatten((args, kwargs))
        given = self._given(leaves)
        held = self._held()
        before = [(part, name, part._parameters[name]) for part, name in held]
        self._slices = slices(self._rows.get_parameter("weight"), 1 - _output_dim(self._rows), 1, self._shards)
        self._sums = []
        self._seed = _seeds(leaves) if section.training else _leave
        try:
            for at, shard in enumerate(own_shards):
                self._shard = shard
                for (part, name), pieces in held.items():
                    part._parameters[name] = pieces[at]  # type: ignore[assignment]
                shard_args, shard_kwargs = tree_unflatten(given[at], structure)
                self._seed(shard)
                try:
                    return own(section, *shard_args, **shard_kwargs)
                except _ShardDone:
                    continue
        finally:
            self._outputs.clear()
            for part, name, parameter in before:
                part._parameters[name] = parameter
        raise AssertionError("the last shard goes on")

    def split_names(self) -> list[str]:
        """Returns the names in the section of the parameters of which each shard has a part."""
        columns = [(path, self._section.get_submodule(path)) for path in self._split.columns]
        return [f"{path}.{name}" for path, part in columns for name in part._parameters] + [
            f"{self._split.rows}.weight"
        ]

    def _own_shards(self) -> range:
        """Returns the shards that this device computes."""
        each = self._shards // self._sharing.number
        return range(self._sharing.place * each, (self._sharing.place + 1) * each)

    def _given(self, leaves: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Returns the arguments of each of its shards. The first tensor as wide as matrices is what they multiply."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        inputs = next(leaf for leaf in tensors if leaf.shape[-1:] == (self._width,))
        kind = inputs.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else inputs.dtype
        shared = [self._shared(leaf, self._shards, dtype if leaf is inputs else None) for leaf in leaves]
        return list(zip(*shared, strict=True))

    def _once_for_several(self, part: nn.Module, sharing: int, inputs: torch.Tensor) -> torch.Tensor:
        """Is the forward of a module of which so many shards share a piece: the first one on each device runs it."""
        outputs = self._outputs.get(part, ())
        if self._shard % sharing == 0 or not outputs:
            made = type(part).forward(part, inputs)
            if self._shard % sharing:
                made = _MadeElsewhere.apply(made)  # type: ignore[no-untyped-call]
            outputs = self._outputs[part] = self._shared(made, sharing)
        return outputs[self._shard % len(outputs)]

    def _add_up(self, inputs: torch.Tensor) -> torch.Tensor:
        """Is the forward of the module that is split by rows: the last shard's returns what all of them give."""
        weight = self._slices[self._shard]
        self._sums.append(
            functional.linear(inputs, weight) if _output_dim(self._rows) == 0 else torch.matmul(inputs, weight)
        )
        if len(self._sums) < len(self._own_shards()):
            raise _ShardDone
        total, self._sums = tree_sum(self._sums), []
        if self._sharing.number > 1:
            total = _Summed.apply(total, self._sharing)  # type: ignore[no-untyped-call]
        self._seed(self._shards)
        bias = self._rows._parameters["bias"]
        return total if bias is None else total + bias.to(total.dtype)

    def _held(self) -> dict[tuple[nn.Module, str], Sequence[torch.Tensor]]:
        """Returns what each of its shards has of the section's parameters, but for those of the rows."""
        held: dict[tuple[nn.Module, str], Sequence[torch.Tensor]] = {}
        for path, matrices in self._split.columns.items():
            part = self._section.get_submodule(path)
            dims = {"weight": _output_dim(part), "bias": 0}
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    pieces = slices(parameter, dims[name], matrices, self._pieces[path])
                    held[part, name] = [pieces[at * len(pieces) // self._shards] for at in self._own_shards()]
        for path in self._split.whole:
            part = self._section.get_submodule(path)
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    held[part, name] = self._shared(parameter, self._shards)
        return held

    def _shared(self, leaf: Any, shards: int, dtype: torch.dtype | None = None) -> tuple[Any, ...]:
        """Returns what this device's of so many shards are given of something that all of them read, in this dtype or
        its own."""
        own = min(shards, len(self._own_shards()))
        as_it_is = not isinstance(leaf, torch.Tensor) or (
            dtype in (None, leaf.dtype) and (shards == 1 or not leaf.requires_grad)
        )
        if as_it_is:
            return (leaf,) * own
        copies: tuple[torch.Tensor, ...] = _Shared.apply(  # type: ignore[no-untyped-call]
            leaf, own, dtype or leaf.dtype, self._sharing, shards // own
        )
        return copies


def _output_dim(module: nn.Module) -> int:
    """Returns the dimension of a module's weight along which its outputs are."""
    return 0 if isinstance(module, nn.Linear) else 1


def _leave(number: int) -> None:
    """Leaves random numbers as they are."""


def _seeds(leaves: Sequence[Any]) -> Callable[[int], None]:
    """Returns what seeds each shard's random numbers by its number, and after the last shard those that follow."""
    device = next(leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor))
    generator = torch.cuda.default_generators[device.index] if device.type == "cuda" else torch.default_generator
    before = generator.initial_seed()

    def seed(number: int) -> None:
        generator.manual_seed(derive_seed("virtual shard", before, number))

    return seed
