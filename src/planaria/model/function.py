"""Loads a model from a Python function returning a list of layers.

The function is called once in a process, with torch seeded by the job's seed: that one list gives the
structure and the initial values. `build_layer` gives deep copies.
"""

from __future__ import annotations

import copy
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.resources import files
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from planaria.job.errors import UserCodeError
from planaria.job.settings import ModelSection, TrainSection
from planaria.model.grouping import LayerParameter, group_parameters, parameter_specs
from planaria.model.initial import derive_seed, seeded
from planaria.model.loss import token_cross_entropy
from planaria.model.model import Batch, GroupSpec, ModelError, ParameterSpec, Tensors

_CHECKED_PRODUCTS = 500_000_000
"""Parameters times tokens up to which a model is tried on one sequence: that takes well under a second."""

Loss = Callable[[Tensors, Batch], torch.Tensor]

_NOT_THE_USERS = (
    "<frozen ",
    str(files("planaria")) + os.sep,
    *(os.path.dirname(file) + os.sep for file in (importlib.__file__, torch.__file__)),
)
"""Beginnings of the files whose lines come before the user's own."""


class ModelRaised(ModelError, UserCodeError):
    """The user's function, module or layer raised; `trace` shows where."""


def users_trace(error: BaseException) -> str:
    """Returns the traceback of what the user's code raised, without our lines and torch's before its first."""
    found = traceback.TracebackException.from_exception(error)
    own = (at for at, frame in enumerate(found.stack) if not frame.filename.startswith(_NOT_THE_USERS))
    del found.stack[: next(own, len(found.stack))]
    return "".join(found.format())


class FunctionModel:
    """A list of modules made by a function; see `planaria.model.model.Model`.

    Args:
        make: returns the list of layers; draws its random numbers from torch alone.
        seed: of the list that is kept.
        loss: of the last layer's outputs and the batch.
        is_frozen: whether the parameter of a name is not trained; nor is what requires no gradient.

    Raises:
        ModelError: what `make` returns cannot be cut.
    """

    def __init__(
        self, make: Callable[[], object], seed: int, loss: Loss, is_frozen: Callable[[str], bool] = lambda name: False
    ) -> None:
        self._make = make
        self._loss = loss
        self._seed = seed
        self._layers = self._make_layers(seed)
        self._parameters = _name_parameters(self._layers)
        specs = parameter_specs(self._parameters)
        for spec in specs:
            if is_frozen(spec.name):
                self._made(spec).requires_grad_(False)
        self._frozen = tuple(spec for spec in specs if not self._made(spec).requires_grad)
        self._groups = group_parameters(spec for spec in specs if self._made(spec).requires_grad)

    @property
    def layer_names(self) -> tuple[str, ...]:
        return tuple(f"{index}.{type(layer).__name__}" for index, layer in enumerate(self._layers))

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        return self._groups

    @property
    def frozen(self) -> tuple[ParameterSpec, ...]:
        return self._frozen

    @property
    def masked_lm(self) -> bool:
        return False

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("input_ids",)

    def build_layer(self, index: int) -> nn.Module:
        layer = self._layers[index]
        constants = {id(one): one for one in layer.parameters() if not one.requires_grad}
        return copy.deepcopy(layer, constants).train()

    def initial_state(self, group: int, seed: int) -> Mapping[str, torch.Tensor]:
        """Returns copies of the values that the function gave under this seed.

        Raises:
            ModelError: under another seed the function returns other layers.
        """
        layers = self._layers if seed == self._seed else self._make_layers(seed)
        if seed != self._seed and _name_parameters(layers) != self._parameters:
            raise ModelError("the model's function gives other layers under another seed. Fix its structure.")
        specs = self._groups[group].parameters
        first = layers[self._groups[group].layers[0]]
        return {spec.name: first.get_parameter(spec.uses[0][1]).detach().to(torch.float32, copy=True) for spec in specs}

    def _made(self, spec: ParameterSpec) -> nn.Parameter:
        layer, local = spec.uses[0]
        return self._layers[layer].get_parameter(local)

    def loss(self, outputs: Tensors, batch: Batch) -> torch.Tensor:
        return self._loss(outputs, batch)

    def _make_layers(self, seed: int) -> list[nn.Module]:
        with seeded(derive_seed("initial weights", seed)):
            layers = self._make()
        if not isinstance(layers, Sequence | nn.ModuleList | nn.Sequential):
            raise ModelError(f"it returns a {type(layers).__name__}, not a list of torch.nn.Module.")
        return [_checked(index, layer) for index, layer in enumerate(layers)]


def load_function_model(
    section: ModelSection,
    train: TrainSection,
    *,
    vocab_size: int | None,
    is_frozen: Callable[[str], bool] = lambda name: False,
) -> FunctionModel:
    """Loads the model of a section whose type is "module:function".

    Args:
        section: the job's [model]; `config` holds the function's keyword arguments.
        train: the job's [train].
        vocab_size: tokens that the tokenizer knows; what the model is tried with.
        is_frozen: whether the parameter of a name is not trained.

    Raises:
        ModelError: names the field, the value and the remedy; ModelRaised where the user's code raised.
    """
    field = f"model.type = {section.type!r}"
    if section.weights is not None:
        raise ModelError(f"model.weights = {section.weights!r}: a function makes its own weights. Load them there.")
    if section.split_at:
        raise ModelError(f"model.split_at = {list(section.split_at)}: a list of layers is cut already. Leave it out.")
    function = import_function(section.type, "model.type")
    loss = token_cross_entropy if section.loss is None else import_function(section.loss, "model.loss")
    try:
        model = FunctionModel(lambda: function(**section.config), train.seed, loss, is_frozen)
        if len(model.layer_names) < 2:
            raise ModelError(
                f"it returns {len(model.layer_names)} layer(s), and a model is cut between layers. Return two or more."
            )
        _try(model, train, vocab_size)
    except ModelRaised as error:
        raise ModelRaised(f"{field}: {error}", error.trace) from error
    except ModelError as error:
        raise ModelError(f"{field}: {error}") from error
    except Exception as error:  # the user's function may raise anything
        raise ModelRaised(
            f"{field} fails with {type(error).__name__}: {error}. "
            f"Check [model.config] (it was called with {section.config}).",
            users_trace(error),
        ) from error
    return model


def import_function(reference: str, field: str) -> Callable[..., Any]:
    """Imports the function that "module:function" names; modules of the working directory are found too.

    Raises:
        ModelError: it cannot be imported or called.
    """
    module_name, _, name = reference.partition(":")
    said = f"{field} = {reference!r}"
    if not module_name or not name:
        raise ModelError(f'{said} is not of the form "module:function".')
    working_directory = os.getcwd()
    if working_directory not in sys.path and "" not in sys.path:
        sys.path.append(working_directory)
    try:
        module = import_module(module_name)
    except Exception as error:  # importing runs the user's code
        if isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]:
            raise ModelError(
                f"{said}: cannot import {module_name!r} ({error}). Searched in {working_directory} and the "
                "Python path: start where it lies, or add its folder to PYTHONPATH."
            ) from error
        raise ModelRaised(
            f"{said}: importing {module_name!r} fails with {type(error).__name__}: {error}. Mend it there.",
            users_trace(error),
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ModelError(f"{said}: module {module_name!r} has no function {name!r}. Correct the name.")
    return function  # type: ignore[no-any-return]


def _checked(index: int, layer: object) -> nn.Module:
    if not isinstance(layer, nn.Module):
        raise ModelError(f"layer {index} is a {type(layer).__name__}, not a torch.nn.Module. Wrap it in one.")
    for module in layer.modules():
        if isinstance(module, _NormBase) and module.track_running_stats:
            raise ModelError(
                f"layer {index} has a {type(module).__name__}, whose running statistics depend on the order "
                "of microbatches. Use LayerNorm or GroupNorm, or track_running_stats=False."
            )
    for name, parameter in layer.named_parameters():
        if parameter.dtype != torch.float32:
            raise ModelError(f"layer {index}: parameter {name!r} is {parameter.dtype}. Make it float32.")
    return layer


def _name_parameters(layers: Sequence[nn.Module]) -> tuple[tuple[LayerParameter, ...], ...]:
    """Names each parameter after its first use; the same object in a later layer bears the same name."""
    names: dict[int, str] = {}
    return tuple(
        tuple(
            LayerParameter(
                name=names.setdefault(id(parameter), f"layers.{index}.{local}"),
                local=local,
                shape=tuple(parameter.shape),
            )
            for local, parameter in layer.named_parameters()
        )
        for index, layer in enumerate(layers)
    )


def _try(model: FunctionModel, train: TrainSection, vocab_size: int | None) -> None:
    """Runs one sequence of the highest token through the layers, if that is cheap, to see whether they fit together."""
    size = sum(parameter.numel() for layer in model._layers for parameter in layer.parameters())
    if size * train.sequence_length > _CHECKED_PRODUCTS:
        return
    tokens = torch.full((1, train.sequence_length), (vocab_size or 1) - 1)
    batch = {"input_ids": tokens, "labels": tokens}
    values: Tensors = tuple(batch[name] for name in model.inputs)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for index, name in enumerate(model.layer_names):
            values = _forward(name, model.build_layer(index), values)
        loss = model.loss(values, batch)
    if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
        raise ModelError("the loss is not a scalar tensor. Return the mean over what is predicted.")


def _forward(name: str, layer: nn.Module, values: Tensors) -> Tensors:
    shapes = ", ".join(str(tuple(value.shape)) for value in values)
    try:
        output = layer(*values)
    except Exception as error:  # the user's module may raise anything
        raise ModelRaised(
            f"layer {name} cannot take what comes before it, {len(values)} tensor(s) of shape {shapes}: "
            f"{type(error).__name__}: {error}. A layer takes exactly the tensors that the one before returns.",
            users_trace(error),
        ) from error
    outputs = (output,) if isinstance(output, torch.Tensor) else output
    if not isinstance(outputs, tuple) or not all(isinstance(one, torch.Tensor) for one in outputs):
        raise ModelError(f"layer {name} returns a {type(output).__name__}, not a tensor or a tuple of tensors.")
    return outputs
