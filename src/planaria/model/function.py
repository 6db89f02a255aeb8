"""Loads a model from a Python function that returns a list of layers, or a module that is cut into some.

The function is called once in a process, with torch seeded by the job's seed: what it returns gives the
structure and the initial values. `build_layer` gives deep copies.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import takewhile

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from planaria.job.errors import UserCodeError
from planaria.job.sections.model import ModelSection
from planaria.job.sections.train import TrainSection
from planaria.job.users_code import import_function, users_trace
from planaria.model.cutting import Piece, cut_module
from planaria.model.initial import derive_seed, seeded
from planaria.model.loss import token_cross_entropy
from planaria.model.model import Batch, GroupSpec, ModelError, ParameterSpec, Tensors
from planaria.model.recording import CannotCut
from planaria.model.tensors.batch_norms import refusal, statistics
from planaria.model.tensors.grouping import LayerParameter, group_parameters, parameter_specs

_CHECKED_PRODUCTS = 2_000_000_000
"""Parameters times tokens, or rows, up to which a model is tried on a microbatch: that takes about a second at most."""

Loss = Callable[[Tensors, Batch], torch.Tensor]


class ModelRaised(ModelError, UserCodeError):
    """The user's function, module or layer raised; `trace` shows where."""


class FunctionModel:
    """What a function makes, as layers; see `planaria.model.model.Model`.

    Args:
        make: returns the list of layers, or a module; draws its random numbers from torch alone.
        seed: of what is kept.
        loss: of the last layer's outputs and the batch.
        example: a microbatch.
        split_at: patterns of the paths of a module's blocks; none: the members of its lists.
        is_frozen: whether the parameter of a name is not trained; nor is what requires no gradient.

    Raises:
        ModelError: what `make` returns cannot be cut.
    """

    def __init__(
        self,
        make: Callable[[], object],
        seed: int,
        loss: Loss,
        example: Batch,
        split_at: Sequence[str] = (),
        is_frozen: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self._make = make
        self._loss = loss
        self._seed = seed
        self._example = example
        self._split_at = split_at
        self._whole, self._layers = self._make_layers(seed)
        if len(self._layers) < 2:
            raise ModelError(
                f"it returns {len(self._layers)} layer(s), and a model is cut between layers. Return two or more."
            )
        self._inputs = _taken(self._layers[0] if self._whole is None else self._whole, self._example)
        self._parameters = _name_parameters(self._layers)
        specs = parameter_specs(self._parameters)
        _check_norms(specs)
        for spec in specs:
            if is_frozen(spec.name) and not spec.is_statistic:
                self._made(spec).requires_grad_(False)
        self._frozen = tuple(spec for spec in specs if not spec.is_statistic and not self._made(spec).requires_grad)
        self._groups = group_parameters(spec for spec in specs if spec not in self._frozen)

    @property
    def layer_names(self) -> tuple[str, ...]:
        return tuple(_name(index, layer) for index, layer in enumerate(self._layers))

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
        return self._inputs

    def build_layer(self, index: int) -> nn.Module:
        layer = self._layers[index]
        constants = {id(one): one for one in layer.parameters() if not one.requires_grad}
        return copy.deepcopy(layer, constants).train()

    def initial_state(self, group: int, seed: int) -> Mapping[str, torch.Tensor]:
        """Returns copies of the values that the function gave under this seed.

        Raises:
            ModelError: under another seed the function returns other layers.
        """
        layers = self._layers if seed == self._seed else self._make_layers(seed)[1]
        if seed != self._seed and _name_parameters(layers) != self._parameters:
            raise ModelError("the model's function gives other layers under another seed. Fix its structure.")
        specs = self._groups[group].parameters
        first = layers[self._groups[group].layers[0]]
        return {spec.name: _tensor(first, spec).detach().to(torch.float32, copy=True) for spec in specs}

    def _made(self, spec: ParameterSpec) -> torch.Tensor:
        return _tensor(self._layers[spec.uses[0][0]], spec)

    def loss(self, outputs: Tensors, batch: Batch) -> torch.Tensor:
        return self._loss(outputs, batch)

    def try_out(self) -> None:
        """Runs the example through the layers, if that is cheap, to see whether they fit together.

        A module that was cut must give what it gives whole, to the last bit.

        Raises:
            ModelError: they do not.
        """
        size = sum(parameter.numel() for layer in self._layers for parameter in layer.parameters())
        inputs: Tensors = tuple(self._example[name] for name in self._inputs)
        times = max(math.prod(value.shape[: 2 if value.dtype == torch.int64 else 1]) for value in inputs)
        if size * times > _CHECKED_PRODUCTS:
            return
        with torch.no_grad(), seeded(0):
            values = inputs
            for index, name in enumerate(self.layer_names):
                values = _forward(name, self.build_layer(index), values)
        if self._whole is not None:
            with torch.no_grad(), seeded(0):
                outputs = tree_leaves(copy.deepcopy(self._whole).train()(*inputs))
            if not all(map(torch.equal, outputs, values)):
                raise ModelError("cut into layers, it gives other outputs than whole. Give it as a list of layers.")
        _try_loss(self, values, self._example)

    def check_rows(self, vocab_size: int | None) -> None:
        """Refuses a model none of whose embeddings has a row for each token. Raises ModelError."""
        modules = [module for layer in self._layers for module in layer.modules()]
        most = max((module.num_embeddings for module in modules if isinstance(module, nn.Embedding)), default=None)
        if most is not None and vocab_size is not None and most < vocab_size:
            raise ModelError(
                f"its largest embedding has {most} rows, and the tokenizer {vocab_size} tokens. Give it {vocab_size} "
                "rows or more."
            )

    def _make_layers(self, seed: int) -> tuple[nn.Module | None, list[nn.Module]]:
        """Returns the module that was cut, if it was one, and the layers."""
        with seeded(derive_seed("initial weights", seed)):
            made = self._make()
        if not isinstance(made, Sequence | nn.Module) or isinstance(made, str):
            raise ModelError(f"it returns a {type(made).__name__}, not a torch.nn.Module or a list of them.")
        if isinstance(made, Sequence | nn.ModuleList) and self._split_at:
            raise ModelError(f"model.split_at = {list(self._split_at)}: a list of layers is cut already. Leave it out.")
        if isinstance(made, Sequence | nn.ModuleList) or (isinstance(made, nn.Sequential) and not self._split_at):
            return None, [_checked(f"layer {index}", layer) for index, layer in enumerate(made)]
        whole = _checked("it", made)
        inputs = {name: self._example[name] for name in _taken(whole, self._example)}
        try:
            return whole, [*cut_module(whole, inputs, self._split_at)]
        except CannotCut as error:
            raise ModelError(
                f"a {type(whole).__name__} cannot be cut into layers: {error}. Name its blocks in model.split_at, or "
                "return a list of layers."
            ) from error


def load_function_model(
    section: ModelSection,
    train: TrainSection,
    *,
    vocab_size: int | None,
    example: Batch | None = None,
    is_frozen: Callable[[str], bool] = lambda name: False,
) -> FunctionModel:
    """Loads the model of a section whose type is "module:function".

    Args:
        section: the job's [model]; `config` holds the function's keyword arguments.
        train: the job's [train].
        vocab_size: tokens that the tokenizer knows; what the model is tried with.
        example: a microbatch of the job's dataset, to try the model with instead.
        is_frozen: whether the parameter of a name is not trained.

    Raises:
        ModelError: names the field, the value and the remedy; ModelRaised where the user's code raised.
    """
    field = f"model.type = {section.type!r}"
    if section.weights is not None:
        raise ModelError(f"model.weights = {section.weights!r}: a function makes its own weights. Load them there.")
    function = import_function(section.type, "model.type")
    loss = token_cross_entropy if section.loss is None else import_function(section.loss, "model.loss")
    batch = _highest_tokens(train, vocab_size) if example is None else example
    try:
        model = FunctionModel(lambda: function(**section.config), train.seed, loss, batch, section.split_at, is_frozen)
        model.check_rows(vocab_size)
        model.try_out()
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


def _check_norms(specs: Iterable[ParameterSpec]) -> None:
    """Refuses a batch norm that two layers share: its statistics would depend on which of them runs first."""
    for spec in specs:
        layers = sorted({at for at, _ in spec.uses})
        if spec.is_statistic and len(layers) > 1:
            raise ModelError(
                f"layers {layers[0]} and {layers[1]} share a batch norm, with its {spec.name!r}. Give each its own."
            )


def _checked(called: str, layer: object) -> nn.Module:
    if not isinstance(layer, nn.Module):
        raise ModelError(f"{called} is a {type(layer).__name__}, not a torch.nn.Module. Wrap it in one.")
    if (refused := refusal(layer)) is not None:
        raise ModelError(f"{called}: {refused}.")
    for name, parameter in layer.named_parameters():
        if parameter.dtype != torch.float32:
            raise ModelError(f"{called}: parameter {name!r} is {parameter.dtype}. Make it float32.")
    return layer


def _tensor(layer: nn.Module, spec: ParameterSpec) -> torch.Tensor:
    local = spec.uses[0][1]
    return layer.get_buffer(local) if spec.is_statistic else layer.get_parameter(local)


def _name_parameters(layers: Sequence[nn.Module]) -> tuple[tuple[LayerParameter, ...], ...]:
    """Names each parameter after its first use; the same object in a later layer bears the same name.

    What was cut from a module is named as there.
    """
    names: dict[int, str] = {}
    return tuple(
        tuple(
            LayerParameter(
                name=names.setdefault(id(tensor), local if isinstance(layer, Piece) else f"layers.{index}.{local}"),
                local=local,
                shape=tuple(tensor.shape),
                is_statistic=not isinstance(tensor, nn.Parameter),
            )
            for local, tensor in (*layer.named_parameters(), *statistics(layer))
        )
        for index, layer in enumerate(layers)
    )


def _taken(first: nn.Module, names: Collection[str]) -> tuple[str, ...]:
    """Returns which of the batch's tensors a module takes: those that its forward's parameters name, in order.

    Where these are not all there it takes `input_ids`, if that is.
    """
    parameters = inspect.signature(first.forward).parameters.values()
    named = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    there = tuple(one.name for one in takewhile(lambda one: one.name in names, named))
    if there and all(one.default is not one.empty for one in named[len(there) :]):
        return there
    if "input_ids" not in names:
        raise ModelError(
            f"a {type(first).__name__} takes {', '.join(one.name for one in named)}, and the dataset's items have "
            f"{', '.join(names)}. Give its forward's parameters the names of what it is to be given."
        )
    return ("input_ids",)


def _highest_tokens(train: TrainSection, vocab_size: int | None) -> Batch:
    """Returns a microbatch of the highest token."""
    tokens = torch.full((train.microbatch, train.sequence_length), (vocab_size or 1) - 1)
    return {"input_ids": tokens, "labels": tokens.clone()}


def _try_loss(model: FunctionModel, values: Tensors, batch: Batch) -> None:
    try:
        loss = model.loss(values, batch)
    except Exception as error:  # the user's loss may raise anything
        raise ModelRaised(
            f"the loss cannot be computed of the last layer's outputs, of shape {_shapes(values)}, and a batch of "
            f"{', '.join(batch)}: {type(error).__name__}: {error}",
            users_trace(error),
        ) from error
    if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
        raise ModelError("the loss is not a scalar tensor. Return the mean over what is predicted.")


def _name(index: int, layer: nn.Module) -> str:
    return layer.name if isinstance(layer, Piece) else f"{index}.{type(layer).__name__}"


def _forward(name: str, layer: nn.Module, values: Tensors) -> Tensors:
    try:
        output = layer(*values)
    except Exception as error:  # the user's module may raise anything
        raise ModelRaised(
            f"layer {name} cannot take what comes before it, {len(values)} tensor(s) of shape {_shapes(values)}: "
            f"{type(error).__name__}: {error}. A layer takes exactly the tensors that the one before returns.",
            users_trace(error),
        ) from error
    outputs = (output,) if isinstance(output, torch.Tensor) else output
    if not isinstance(outputs, tuple) or not all(isinstance(one, torch.Tensor) for one in outputs):
        raise ModelError(f"layer {name} returns a {type(output).__name__}, not a tensor or a tuple of tensors.")
    return outputs


def _shapes(values: Tensors) -> str:
    return ", ".join(str(tuple(value.shape)) for value in values)
