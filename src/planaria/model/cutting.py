"""Cuts a recorded forward into layers: each runs some blocks and what the model's own forward does around them.

A layer takes the values of earlier ones that it or a later one needs, so an output may skip layers. What follows from
the batch alone (shifted labels, masks of padding) is made again in each layer from the batch's tensors, which travel.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from planaria.model.model import Batch
from planaria.model.recording import META, Call, CannotCut, Held, Recording, Value, is_whole, record, replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of a cut model.

    Attributes:
        name: path of the module that it is named after.
        calls: what it does, by the calls' numbers in the recording.
        takes: numbers of the values that the layer before hands on; of the first: those of the batch.
        gives: numbers of the values that it hands on.
        modules: paths of the modules that it holds.
        holds: paths of the parameters that it holds beside those.
    """

    name: str
    calls: tuple[int, ...]
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    modules: tuple[str, ...]
    holds: tuple[str, ...]


def find_blocks(model: nn.Module, split_at: Sequence[str]) -> dict[str, nn.Module]:
    """Returns the blocks of a model by path.

    Args:
        model: in which they are.
        split_at: patterns of paths, a star for one name; none: the members of the model's outermost lists.

    Raises:
        CannotCut: there are none.
    """
    modules = dict(model.named_modules())
    found: dict[str, nn.Module] = {}
    if split_at:
        for pattern in split_at:
            fits = re.compile(r"[^.]+".join(map(re.escape, pattern.split("*"))))
            of_pattern = {path: module for path, module in modules.items() if fits.fullmatch(path)}
            if not of_pattern:
                raise CannotCut(f"no module's path fits {pattern!r}")
            found |= of_pattern
    else:
        found = _listed(modules, least=2) or _listed(modules, least=1)
    if not found:
        raise CannotCut("it has no list of blocks")
    return found


def _listed(modules: Mapping[str, nn.Module], least: int) -> dict[str, nn.Module]:
    """Returns the members of the outermost lists that have so many with parameters, at least."""
    found: dict[str, nn.Module] = {}
    for path, module in modules.items():
        if any(path.startswith(f"{block}.") for block in found) or not isinstance(module, nn.ModuleList):
            continue
        members = {f"{path}.{name}": member for name, member in module.named_children() if _has_parameters(member)}
        found |= members if len(members) >= least else {}
    return found


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def cut(recording: Recording) -> tuple[Layer, ...]:
    """Cuts at each block.

    Raises:
        CannotCut: no block is called.
    """
    calls = recording.calls
    needed = _needed(calls, recording.outputs)
    parts = _parts([index for index in needed if not calls[index].of_batch], calls)
    if not any(call.is_block for call in calls):
        raise CannotCut("it calls none of its blocks")
    again = [_made_again(calls, part, needed) for part in parts]
    batch = set(recording.inputs.values())
    made = [{number for index in part for number in _written(calls[index])} for part in parts]
    read = [
        {number for index in (*first, *part) for number in calls[index].reads}
        for first, part in zip(again, parts, strict=True)
    ]
    read[-1] |= set(recording.outputs)
    layers = []
    takes = tuple(recording.inputs.values())
    for at, part in enumerate(parts):
        before = set().union(*made[: at + 1]) | batch
        after = set().union(*read[at + 1 :])
        gives = recording.outputs if at == len(parts) - 1 else tuple(sorted(before & after))
        layers.append(_layer(calls, tuple(sorted((*again[at], *part))), takes, gives, is_first=at == 0))
        takes = gives
    return tuple(layers)


def _layer(
    calls: Sequence[Call], indices: tuple[int, ...], takes: tuple[int, ...], gives: tuple[int, ...], *, is_first: bool
) -> Layer:
    own = [calls[index] for index in indices]
    modules = tuple(dict.fromkeys(call.module for call in own if call.module is not None))
    holds = tuple(dict.fromkeys(path for call in own for path in call.holds))
    blocks = [call.module for call in own if call.is_block and call.module is not None]
    named = blocks or modules or holds
    return Layer(
        name=named[0] if is_first or blocks else named[-1],
        calls=indices,
        takes=takes,
        gives=gives,
        modules=modules,
        holds=holds,
    )


def _written(call: Call) -> tuple[int, ...]:
    return call.gives if call.changes is None else (*call.gives, call.changes)


def _needed(calls: Sequence[Call], outputs: Iterable[int]) -> list[int]:
    """Returns which calls lead to the outputs. What changes a value in place counts for whoever it may alias."""
    wanted = set(outputs)
    needed = []
    for index in reversed(range(len(calls))):
        call = calls[index]
        if (
            wanted.intersection(call.gives)
            or (call.changes is not None and not call.of_batch)
            or call.changes in wanted
        ):
            needed.append(index)
            wanted.update(call.reads)
    return needed[::-1]


def _parts(indices: Sequence[int], calls: Sequence[Call]) -> list[list[int]]:
    """Divides calls into layers: blocks, and what is between them wherever it has parameters."""
    parts: list[list[int]] = []
    between: list[int] = []
    for index in indices:
        if not calls[index].is_block:
            between.append(index)
            continue
        _add(parts, between, calls)
        if parts and parts[-1] and not any(calls[one].has_parameters for one in parts[-1]):
            parts[-1].append(index)  # what comes before the first block has no parameters
        else:
            parts.append([index])
        between = []
    _add(parts, between, calls)
    return parts


def _add(parts: list[list[int]], between: list[int], calls: Sequence[Call]) -> None:
    if not between:
        return
    if not parts or any(calls[index].has_parameters for index in between):
        parts.append(between)
    else:
        parts[-1].extend(between)


def _made_again(calls: Sequence[Call], part: Collection[int], needed: Sequence[int]) -> list[int]:
    """Returns the calls of the batch alone that these calls need."""
    wanted = {number for index in part for number in calls[index].reads}
    found = []
    for index in reversed(needed):
        call = calls[index]
        if call.of_batch and wanted.intersection(_written(call)):
            found.append(index)
            wanted.update(call.reads)
    return found[::-1]


class Piece(nn.Module):
    """One layer as a module: its parameters are named as in the whole model.

    Args:
        layer: which it is.
        calls_in: the recording's calls, in training mode or not.
        modules: what the layer holds, by path.
        parameters: what it holds beside, by path.
    """

    def __init__(
        self,
        layer: Layer,
        calls_in: Callable[[bool], Sequence[Call]],
        modules: Mapping[str, nn.Module],
        parameters: Mapping[str, nn.Parameter],
    ) -> None:
        super().__init__()
        self._layer = layer
        self._calls_in = calls_in
        self._wholes = tuple(modules)
        self._prepared: dict[tuple[bool, torch.device], list[_Step]] = {}
        for path, module in modules.items():
            folder, last = self._folder(path)
            folder.add_module(last, module)
        for path, parameter in parameters.items():
            folder, last = self._folder(path)
            folder.register_parameter(last, parameter)

    @property
    def name(self) -> str:
        """Path of the module that the layer is named after."""
        return self._layer.name

    def _folder(self, path: str) -> tuple[nn.Module, str]:
        *folders, last = path.split(".")
        at: nn.Module = self
        for name in folders:
            if name not in at._modules:
                at.add_module(name, nn.Module())
            at = at.get_submodule(name)
        return at, last

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        values = dict(zip(self._layer.takes, inputs, strict=True))
        for step in self._steps(inputs[0].device):
            step.run(values)
        outputs = tuple(values[number] for number in self._layer.gives)
        return outputs if len(outputs) > 1 else outputs[0]

    def _steps(self, device: torch.device) -> list[_Step]:
        key = (self.training, device)
        steps = self._prepared.get(key)
        if steps is None:
            calls = self._calls_in(self.training)
            steps = self._prepared[key] = [_Step(self, calls[index], device) for index in self._layer.calls]
        return steps

    def __repr__(self) -> str:
        """What it is made of, without paths: equal for layers of one kind."""
        parts = [repr(self.get_submodule(path)) for path in self._wholes]
        return f"Piece({', '.join([*parts, *(self._signature())])})"

    def _signature(self) -> list[str]:
        calls = self._calls_in(self.training)
        return [getattr(calls[index].function, "__name__", "") for index in self._layer.calls]


class _Step:
    """A call, made ready for a layer's own modules, on its device."""

    __slots__ = ("_args", "_gives", "_has_gradient", "_kwargs", "_piece", "_target")

    def __init__(self, piece: Piece, call: Call, device: torch.device) -> None:
        def placed(leaf: Any) -> Any:
            if isinstance(leaf, torch.device):
                return device
            return leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf

        self._piece = piece
        self._target = call.function if call.module is None else piece.get_submodule(call.module)
        self._args, self._kwargs = replaced(call.args, placed), replaced(call.kwargs, placed)
        self._gives = call.gives
        self._has_gradient = call.has_gradient

    def run(self, values: dict[int, torch.Tensor]) -> None:
        piece = self._piece

        def given(leaf: Any) -> Any:
            kind = type(leaf)
            if kind is Value:
                return values[leaf.number]
            return piece.get_parameter(leaf.path) if kind is Held else leaf

        assert self._target is not None
        args, kwargs = replaced(self._args, given), replaced(self._kwargs, given)
        if self._has_gradient:
            result = self._target(*args, **kwargs)
        else:
            with torch.no_grad():
                result = self._target(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            if self._gives:
                values[self._gives[0]] = result
        else:
            values.update(zip(self._gives, _tensors(result), strict=True))


def _tensors(result: Any) -> Iterable[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return (result,)
    if isinstance(result, Mapping):
        return [tensor for one in result.values() for tensor in _tensors(one)]
    if isinstance(result, tuple | list):
        return [tensor for one in result for tensor in _tensors(one)]
    return ()


def cut_module(module: nn.Module, inputs: Batch, split_at: Sequence[str]) -> list[Piece]:
    """Returns the layers of a module. They hold its own submodules, which stay as they are.

    Args:
        module: on the CPU.
        inputs: tensors of a microbatch's shapes, as its forward takes them, in order.
        split_at: patterns of the blocks' paths; none: the members of the module's own lists.

    Raises:
        CannotCut: its forward does what a list of layers cannot.
    """
    training, in_use = (_recorded(module, inputs, split_at, training=training) for training in (True, False))
    if [call.gives for call in in_use.calls] != [call.gives for call in training.calls]:
        raise CannotCut("its forward is another one in eval mode")

    def calls(is_training: bool) -> Sequence[Call]:
        return training.calls if is_training else in_use.calls

    return [
        Piece(
            layer,
            calls,
            {path: module.get_submodule(path) for path in layer.modules},
            {path: module.get_parameter(path) for path in layer.holds},
        )
        for layer in cut(training)
    ]


def _recorded(module: nn.Module, inputs: Batch, split_at: Sequence[str], *, training: bool) -> Recording:
    whole = _emptied(module, split_at).train(training)

    def run(batch: Mapping[str, torch.Tensor]) -> object:
        return whole(*batch.values())

    try:
        return record(whole, find_blocks(whole, split_at), inputs, run)
    except CannotCut:
        raise
    except Exception as error:  # whatever the module's own forward raises
        raise CannotCut(f"its forward fails with {type(error).__name__}: {' '.join(str(error).split())}") from error


def _emptied(module: nn.Module, split_at: Sequence[str]) -> nn.Module:
    """Copies a module without its parameters' values, nor those of buffers in what is called as it is."""
    wholes = [*find_blocks(module, split_at).values(), *(one for one in module.modules() if is_whole(one))]
    empty: dict[int, torch.Tensor] = {id(buffer): buffer.to(META) for one in wholes for buffer in one.buffers()}
    for parameter in module.parameters():
        empty[id(parameter)] = nn.Parameter(parameter.detach().to(META), parameter.requires_grad)
    return copy.deepcopy(module, empty)
