"""Cuts any Hugging Face model that is a stack of blocks: the model's own forward says what a layer does.

The whole model is on the meta device: there it is recorded, and copied layer by layer. Parameters bear the names of the
Hugging Face state dict; a parameter under two names is shared by the layers that hold it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from planaria.job.errors import in_one_line
from planaria.job.sections.data import DOCUMENT_POSITIONS, SOURCE_MASK
from planaria.job.sections.model import LoraSection
from planaria.model.config import TOKEN_MASK, predicts_next
from planaria.model.cutting import Layer, Piece, cut, find_blocks
from planaria.model.initial import SkipRandomFill, derive_seed, seeded
from planaria.model.loss import token_cross_entropy
from planaria.model.model import Batch, GroupSpec, ModelError, ParameterSpec, Tensors
from planaria.model.recording import Call, CannotCut, Recording, is_whole, record
from planaria.model.tensors.batch_norms import first_values, refusal, statistics
from planaria.model.tensors.grouping import LayerParameter, group_parameters, parameter_specs
from planaria.model.tensors.lora import add_adapters, base_name, initial_values, is_adapters, merged
from planaria.model.tensors.split_plans import find_splits
from planaria.model.tensors.virtual_shards import compute_by_shards
from planaria.model.weights.folder import WeightsFolder


class HuggingFaceModel:
    """A Hugging Face model cut into layers; see `planaria.model.model.Model`.

    Args:
        model_class: the whole model with its head.
        config: its config.
        example: tensors of a microbatch's shapes, by the names under which the model takes them.
        masked_lm: whether hidden tokens are predicted, rather than next ones.
        split_at: patterns of the blocks' paths; none: the model's own lists of blocks.
        weights: where initial weights come from; random ones when None.
        lora: adapters that are put into it; None: there are none.
        is_frozen: whether the parameter of a name is not trained; nor is what the family itself freezes.
        seed: of what is frozen and random.
        virtual_shards: in how many shards what can be split is computed, a power of two; 0: nothing is split.

    Raises:
        ModelError: the config contradicts itself, or the model cannot be cut; says why.
    """

    def __init__(
        self,
        model_class: type[PreTrainedModel],
        config: Any,
        example: Batch,
        *,
        masked_lm: bool = False,
        split_at: Sequence[str] = (),
        weights: WeightsFolder | None = None,
        lora: LoraSection | None = None,
        is_frozen: Callable[[str], bool] = lambda name: False,
        seed: int = 0,
        virtual_shards: int = 0,
    ) -> None:
        self.config = config
        self.model_class = model_class
        self.example = example
        self._masked_lm = masked_lm
        self._weights = weights
        self._seed = seed
        self._lora = lora
        self._plain: HuggingFaceModel | None = None
        if lora is not None:
            self._plain = HuggingFaceModel(
                model_class, config, example, masked_lm=masked_lm, split_at=split_at, weights=weights
            )
        self._whole = _on_meta(model_class, config, lora)
        self._paths = {id(module): path for path, module in self._whole.named_modules()}
        self._names = {id(parameter): name for name, parameter in self._whole.named_parameters()}
        self._aliases: dict[str, list[str]] = {}
        for alias, parameter in self._whole.named_parameters(remove_duplicate=False):
            self._aliases.setdefault(self._names[id(parameter)], []).append(alias)
        try:
            self._blocks = find_blocks(self._whole, split_at)
            wholes = [module for module in self._whole.modules() if is_whole(module)]
            self._make_buffers(self._whole, inside=[*self._blocks.values(), *wholes])
            self._recording = self._record()
            self._layers = cut(self._recording)
        except CannotCut as error:
            raise ModelError(f"a {config.model_type} model cannot be cut into layers: {error}.") from error
        self._virtual_shards = virtual_shards
        self._splits = find_splits(self._whole, virtual_shards) if virtual_shards else {}
        self._in_evaluation: tuple[Call, ...] | None = None
        specs = self._specs = parameter_specs([self._parameters_of(layer) for layer in self._layers])
        frozen = {name for name, one in self._whole.named_parameters() if not one.requires_grad or is_frozen(name)}
        self._frozen = tuple(spec for spec in specs if spec.name in frozen)
        self._groups = group_parameters(spec for spec in specs if spec.name not in frozen)

    @property
    def layer_names(self) -> tuple[str, ...]:
        return tuple(layer.name for layer in self._layers)

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        return self._groups

    @property
    def frozen(self) -> tuple[ParameterSpec, ...]:
        return self._frozen

    @property
    def masked_lm(self) -> bool:
        return self._masked_lm

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.example)

    @property
    def refused_statistics(self) -> str | None:
        """Returns what is wrong with the model's running statistics; None: nothing."""
        return refusal(self._whole)

    @property
    def embedding(self) -> str | None:
        """Returns the name of the tensor with one row for each token; None where there are no tokens."""
        if not hasattr(self.config, "vocab_size"):
            return None
        embedding: Any = self._whole.get_input_embeddings()
        name: str = self._names[id(embedding.weight)]
        return name

    def build_layer(self, index: int) -> nn.Module:
        layer = self._layers[index]
        modules = {path: self._built(path) for path in layer.modules}
        parameters = {
            path: nn.Parameter(torch.empty_like(self._whole.get_parameter(path), device="cpu")) for path in layer.holds
        }
        piece = Piece(layer, self._calls, modules, parameters)
        frozen = [spec for spec in self._frozen if any(at == index for at, _ in spec.uses)]
        values = self._values(frozen, self._seed)
        for spec in frozen:
            constant = nn.Parameter(values[spec.name], requires_grad=False)
            for local in (local for at, local in spec.uses if at == index):
                _set(piece, local, constant)
        return piece.train()

    def _built(self, path: str) -> nn.Module:
        """Copies a module of the whole model to the CPU, its buffers made."""
        original = self._whole.get_submodule(path)
        shared = (getattr(module, "config", None) for module in original.modules())
        module: nn.Module = copy.deepcopy(original, {id(config): config for config in shared})
        self._make_buffers(module, path)
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    part._parameters[name] = nn.Parameter(torch.empty_like(parameter, device="cpu"))
        for section, split in self._splits.items():
            if f"{section}.".startswith(f"{path}."):
                compute_by_shards(module.get_submodule(section[len(path) + 1 :]), split, self._virtual_shards)
        return module

    def whole(self, tensors: Mapping[str, torch.Tensor]) -> PreTrainedModel:
        """Returns the whole model on the CPU. What has no tensor (untied BERT has a bias that is never read) is 0."""
        model = _on_meta(self.model_class, self.config, self._lora)
        self._make_buffers(model)
        for name, parameter in list(model.named_parameters()):
            filled = nn.Parameter(torch.zeros_like(parameter, device="cpu") if name not in tensors else tensors[name])
            for alias in self._aliases[name]:
                _set(model, alias, filled)
        for name, buffer in statistics(model):
            if name in tensors:
                path, _, last = name.rpartition(".")
                model.get_submodule(path)._buffers[last] = tensors[name].to(buffer.dtype)
        return model.eval()

    def to_export(self, trained: Mapping[str, torch.Tensor]) -> PreTrainedModel:
        """Returns the whole model with what was trained and what is frozen, adapters merged into the weights."""
        whole = self.whole({**trained, **self.frozen_state()})
        return whole if self._plain is None else self._plain.whole(merged(whole))

    def _make_buffers(self, module: nn.Module, path: str = "", inside: Iterable[nn.Module] = ()) -> None:
        """Makes the buffers of a module of the whole model, or of a copy of one, as the family does.

        Args:
            module: whose.
            path: its own in the whole model.
            inside: modules that are left alone, with all that is in them.
        """
        left = {id(part) for one in inside for part in one.modules()}
        with torch.no_grad(), SkipRandomFill():
            for below, part in module.named_modules():
                buffers = {name: buffer for name, buffer in part._buffers.items() if buffer is not None}
                if not buffers or id(part) in left:
                    continue
                for name, buffer in buffers.items():
                    part._buffers[name] = torch.zeros_like(buffer, device="cpu")
                at = ".".join(filter(None, (path, below)))
                self._owner(at)._init_weights(part)
                for name in buffers if self._weights is not None else ():
                    if name not in part._non_persistent_buffers_set:
                        self._load_buffer(part, name, f"{at}.{name}")

    def _load_buffer(self, part: nn.Module, local: str, name: str) -> None:
        assert self._weights is not None
        buffer = part._buffers[local]
        assert buffer is not None
        whole = self._whole if self._plain is None else self._plain._whole
        if self._weights.has(whole, base_name(name)):
            found = self._weights.tensor(whole, (base_name(name),), tuple(buffer.shape))
            part._buffers[local] = found.to(buffer.dtype)

    def _owner(self, path: str) -> Any:
        """Returns the nearest enclosing model, whose rules initialise the module at `path`."""
        found: nn.Module = self._whole
        at: nn.Module = self._whole
        for name in path.split(".") if path else ():
            at = at.get_submodule(name)
            found = at if isinstance(at, PreTrainedModel) else found
        return found

    def initial_state(self, group: int, seed: int) -> Mapping[str, torch.Tensor]:
        """Returns the initial values of a group, in float32 on the CPU.

        A tied group takes those of its first use. Torch's CPU random numbers are used and put back, so no
        other thread should draw from them meanwhile.

        Raises:
            ModelError: the weights folder lacks a tensor, or has one of another shape.
        """
        return self._values(self._groups[group].parameters, seed)

    def frozen_state(self) -> Mapping[str, torch.Tensor]:
        """Returns the values of all that is frozen, in float32 on the CPU. Raises as `initial_state` does."""
        return self._values(self._frozen, self._seed)

    def _values(self, specs: Iterable[ParameterSpec], seed: int) -> dict[str, torch.Tensor]:
        if self._plain is not None:
            values = {spec.name: initial_values(spec, seed) for spec in specs if is_adapters(spec.name)}
            names = {base_name(spec.name): spec.name for spec in specs if spec.name not in values}
            own = self._plain._values([spec for spec in self._plain._specs if spec.name in names], seed)
            return values | {names[name]: value for name, value in own.items()}
        if self._weights is not None:
            return {spec.name: self._loaded(spec) for spec in specs}
        values = {spec.name: first_values(spec.name, spec.shape) for spec in specs if spec.is_statistic}
        drawn_with: dict[int, list[ParameterSpec]] = {}
        for spec in specs:
            if not spec.is_statistic:
                drawn_with.setdefault(spec.uses[0][0], []).append(spec)
        for at, own_specs in drawn_with.items():
            layer = self._layers[at]
            with self._real_parameters(layer) as parameters:
                with torch.no_grad(), seeded(derive_seed("initial weights", seed, at)):
                    self._initialise(layer)
                values |= {spec.name: parameters[spec.name].detach() for spec in own_specs}
        return values

    def _loaded(self, spec: ParameterSpec) -> torch.Tensor:
        assert self._weights is not None
        if spec.is_statistic and not self._weights.has(self._whole, spec.name):
            return first_values(spec.name, spec.shape)
        return self._weights.tensor(self._whole, tuple(self._aliases.get(spec.name, (spec.name,))), spec.shape)

    def _initialise(self, layer: Layer) -> None:
        """Initialises a layer's modules in the order of the whole model, then those around them, innermost first."""
        wholes = {id(self._whole.get_submodule(path)) for path in layer.modules}
        for module in self._whole.modules():
            if id(module) in wholes:
                module.apply(self._owner(self._paths[id(module)])._init_weights)
        for path in _around((*layer.modules, *layer.holds)):
            self._owner(path)._init_weights(self._whole.get_submodule(path))

    @contextmanager
    def _real_parameters(self, layer: Layer) -> Iterator[dict[str, nn.Parameter]]:
        """Puts parameters on the CPU in the place of a layer's meta parameters inside; yields them by name.

        What is tied is there under its first name alone: families initialise before they tie.
        """
        names = {self._names[id(parameter)] for parameter in self._parameters_in(layer)}
        before = {name: self._whole.get_parameter(name) for name in names}
        real = {name: nn.Parameter(torch.zeros_like(before[name], device="cpu")) for name in names}
        try:
            self._put(real)
            yield real
        finally:
            self._put(before)

    def _put(self, parameters: Mapping[str, nn.Parameter]) -> None:
        for name, parameter in parameters.items():
            _set(self._whole, name, parameter)

    def _parameters_in(self, layer: Layer) -> Iterator[nn.Parameter]:
        for path in layer.modules:
            yield from self._whole.get_submodule(path).parameters()
        for path in layer.holds:
            yield self._whole.get_parameter(path)

    def _parameters_of(self, layer: Layer) -> list[LayerParameter]:
        named = [
            (f"{path}.{name}", parameter)
            for path in layer.modules
            for name, parameter in self._whole.get_submodule(path).named_parameters(remove_duplicate=False)
        ]
        named += [(path, self._whole.get_parameter(path)) for path in layer.holds]
        kept = [
            (f"{path}.{name}", tuple(buffer.shape))
            for path in layer.modules
            for name, buffer in statistics(self._whole.get_submodule(path))
        ]
        return [
            *(LayerParameter(name=self._names[id(one)], local=local, shape=tuple(one.shape)) for local, one in named),
            *(LayerParameter(name=name, local=name, shape=shape, is_statistic=True) for name, shape in kept),
        ]

    def loss(self, outputs: Tensors, batch: Batch) -> torch.Tensor:
        return token_cross_entropy(outputs, batch)

    def _record(self) -> Recording:
        try:
            return record(self._whole, self._blocks, self.example, lambda batch: logits(self._whole, batch))
        except CannotCut:
            raise
        except Exception as error:  # whatever the model's own forward raises
            remedy = f". Leave {TOKEN_MASK!r} out of the dataset's items" if TOKEN_MASK in self.example else ""
            raise CannotCut(f"its forward fails with {in_one_line(error).rstrip('.')}{remedy}") from error

    def _calls(self, training: bool) -> Sequence[Call]:
        if training:
            return self._recording.calls
        if self._in_evaluation is None:
            self._whole.eval()
            try:
                self._in_evaluation = self._record().calls
            finally:
                self._whole.train()
            assert [call.gives for call in self._in_evaluation] == [call.gives for call in self._recording.calls]
        return self._in_evaluation


def _set(model: nn.Module, name: str, parameter: nn.Parameter) -> None:
    path, _, last = name.rpartition(".")
    model.get_submodule(path)._parameters[last] = parameter


def _around(paths: Iterable[str]) -> list[str]:
    """Returns the paths of all modules around these, the innermost first."""
    names = [path.split(".") for path in paths]
    around = {tuple(name[:depth]) for name in names for depth in range(len(name))}
    return [".".join(name) for name in sorted(around, key=lambda name: (-len(name), name))]


def logits(model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Runs a whole model on a batch of the tensors that it takes."""
    given: dict[str, Any] = dict(batch)
    if model.config.is_encoder_decoder and hasattr(model, "prepare_decoder_input_ids_from_labels"):
        given["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=given.pop("labels"))
    if "use_cache" in inspect.signature(model.forward).parameters:
        given["use_cache"] = False
    adds = model.config._attn_implementation == "eager"
    if DOCUMENT_POSITIONS in given:
        given["position_ids"] = given.pop(DOCUMENT_POSITIONS)
        given[TOKEN_MASK] = _mask(_apart(given["position_ids"]), adds=adds)
    if SOURCE_MASK in given:
        given[TOKEN_MASK] = given.pop(SOURCE_MASK)
    mask = given.get(TOKEN_MASK)
    if mask is not None and mask.dim() == 2:
        given[TOKEN_MASK] = _mask(_seen(mask, is_causal=predicts_next(model.config, type(model))), adds=adds)
    found: torch.Tensor = model(**given).logits
    return found


def _apart(positions: torch.Tensor) -> torch.Tensor:
    """Returns which positions see which: those before them in their own document, and themselves.

    Args:
        positions: in documents, each of which begins at 0; of shape (microbatch, sequence_length).
    """
    length = positions.shape[-1]
    documents = (positions == 0).cumsum(-1)
    is_same = documents[:, None, :, None] == documents[:, None, None, :]
    return is_same & torch.ones(length, length, dtype=torch.bool).tril()


def _seen(mask: torch.Tensor, *, is_causal: bool) -> torch.Tensor:
    """Returns which positions see which: all tokens, or those before them and themselves.

    Args:
        mask: 1 for each token, 0 for what fills up; of shape (microbatch, sequence_length).
        is_causal: whether nothing is seen of what comes later. Then what fills up sees itself, lest it see nothing.
    """
    is_token = mask[:, None, None, :] == 1
    if not is_causal:
        return is_token
    length = mask.shape[-1]
    return (is_token & torch.ones(length, length, dtype=torch.bool).tril()) | torch.eye(length, dtype=torch.bool)


def _mask(is_seen: torch.Tensor, *, adds: bool) -> torch.Tensor:
    """Returns a mask as attention takes it: true where a position is seen, or what is added to the scores."""
    if not adds:
        return is_seen
    return torch.zeros(()).masked_fill(~is_seen, torch.finfo(torch.float32).min)


def _on_meta(model_class: type[PreTrainedModel], config: Any, lora: LoraSection | None) -> PreTrainedModel:
    try:
        with torch.device("meta"), SkipRandomFill():
            whole = model_class(config)
    except Exception as error:  # whatever the family's own checks raise
        raise ModelError(
            f"[model.config]: a {config.model_type} model cannot be built: {in_one_line(error)}"
        ) from error
    if lora is not None:
        add_adapters(whole, lora)
    for module in whole.modules():
        if isinstance(module, PreTrainedModel):
            # It asks for values only to warn.
            module.warn_if_padding_and_no_attention_mask = _warn_of_nothing
    return whole.train()


def _warn_of_nothing(*args: object, **kwargs: object) -> None:
    pass
