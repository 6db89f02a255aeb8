"""Records what a model's own forward does between its blocks, without computing it.

The forward runs once on shapes alone: what depends on parameters is a stand-in without values (its shape comes from the
meta device), what depends on neither parameters nor batch (masks, rotary tables, positions) is computed and becomes a
constant. What is left is a list of calls: of blocks, of other modules with parameters, and of torch functions.
Knows nothing of layers, nor of any library of models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

META = torch.device("meta")
_CPU = torch.device("cpu")

_FACTS = frozenset(
    {
        "size", "dim", "ndimension", "numel", "nelement", "is_floating_point", "is_complex", "is_contiguous", "stride",
        "element_size", "get_device", "__len__", "storage_offset", "__hash__", "is_conj", "is_neg", "is_inference",
        "is_signed", "type", "requires_grad_", "has_names",
    }
)  # fmt: skip
"""Functions that tell of a tensor what its values do not change."""

_TENSOR_PROPERTIES = frozenset({"T", "mT", "H", "mH", "data", "real", "imag"})
_ASKING = frozenset({"__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy"})
"""Functions that tell of a tensor its values."""
_ITEM_ASSIGNMENT = "__setitem__"
_IN_PLACE = frozenset(
    f"__i{name}__"
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
)


class CannotCut(Exception):
    """The model cannot be cut; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Value:
    """What the batch, a parameter or an earlier call gives, by number."""

    number: int


@dataclass(frozen=True, slots=True)
class Held:
    """A parameter, by its path in the model."""

    path: str


@dataclass(slots=True, kw_only=True)
class Call:
    """One call of the forward.

    Attributes:
        module: path of the module that is called; None: a torch function.
        function: the torch function.
        args: with a `Value` or `Held` in place of each tensor that is no constant.
        kwargs: likewise.
        reads: numbers of the values that it is given.
        holds: paths of the parameters that it is given.
        changes: number of the value that it changes in place.
        gives: numbers of the tensors that it returns, in order.
        is_block: whether the module is one of the blocks.
        of_batch: whether it can be made again from the batch alone.
        has_gradient: whether autograd follows it.
    """

    module: str | None = None
    function: Callable[..., Any] | None = None
    args: Any = ()
    kwargs: Any = field(default_factory=dict)
    reads: tuple[int, ...] = ()
    holds: tuple[str, ...] = ()
    changes: int | None = None
    gives: tuple[int, ...] = ()
    is_block: bool = False
    of_batch: bool = False
    has_gradient: bool = True

    @property
    def has_parameters(self) -> bool:
        return self.module is not None or bool(self.holds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a forward did.

    Attributes:
        inputs: number of each of the batch's tensors, by name.
        calls: in order.
        outputs: numbers of what it returned.
    """

    inputs: Mapping[str, int]
    calls: tuple[Call, ...]
    outputs: tuple[int, ...]


def record(
    model: nn.Module,
    blocks: Mapping[str, nn.Module],
    batch: Mapping[str, torch.Tensor],
    run: Callable[[Mapping[str, torch.Tensor]], object],
) -> Recording:
    """Records one forward.

    Args:
        model: its parameters, and its blocks' buffers, on the meta device; other buffers on the CPU.
        blocks: the modules that are called whole, by path.
        batch: tensors of the batch's shapes, on the CPU.
        run: runs the model on the batch; returns its outputs.

    Raises:
        CannotCut: the forward does what a list of layers cannot.
    """
    recorder = _Recorder(model, blocks)
    inputs = {name: recorder.take(tensor) for name, tensor in batch.items()}
    with recorder.standing_in(), torch.enable_grad(), torch.random.fork_rng(devices=[]), recorder:
        outputs = run(batch)
    return Recording(inputs=inputs, calls=tuple(recorder.calls), outputs=recorder.numbers_of(outputs))


def stand_in(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Returns zeros of any shape that take no memory."""
    return torch.zeros((), dtype=dtype).expand(shape)


def replaced(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Returns nested tuples, lists and dicts with each leaf changed."""
    kind = type(tree)
    if kind is tuple or kind is list:
        return kind([replaced(one, change) for one in tree])
    if kind is dict:
        return {key: replaced(one, change) for key, one in tree.items()}
    return change(tree)


class _Recorder(TorchFunctionMode):
    def __init__(self, model: nn.Module, blocks: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self._blocks = blocks
        self._modules = {path: module for path, module in model.named_modules() if path}
        self._parameters = {id(parameter): path for path, parameter in model.named_parameters()}
        self._numbers: dict[int, int] = {}
        self._meta: dict[int, torch.Tensor] = {}
        self._alive: list[torch.Tensor] = []
        self._hidden: set[int] = set()
        self._called: set[str] = set()
        self.calls: list[Call] = []

    def take(self, tensor: torch.Tensor) -> int:
        """Numbers a tensor. (It is kept, so that no other is ever at its address.)"""
        number = self._numbers.get(id(tensor))
        if number is None:
            number = self._numbers[id(tensor)] = len(self._alive)
            self._alive.append(tensor)
        return number

    def numbers_of(self, outputs: object) -> tuple[int, ...]:
        tensors = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
        found = tuple(self._numbers[id(tensor)] for tensor in tensors if id(tensor) in self._numbers)
        if len(found) != len(tensors) or not found:
            raise CannotCut("its outputs do not depend on its inputs")
        return found

    @contextmanager
    def standing_in(self) -> Iterator[None]:
        """Has modules with parameters of their own, and blocks, called as wholes inside."""
        within = {id(part) for block in self._blocks.values() for part in block.modules()}
        wholes = {path: one for path, one in self._modules.items() if is_whole(one) and id(one) not in within}
        wholes |= self._blocks
        for path, module in wholes.items():
            module.forward = self._stand_in(path, module)
        try:
            yield
        finally:
            for module in wholes.values():
                del module.forward

    def _stand_in(self, path: str, module: nn.Module) -> Callable[..., Any]:
        is_block = path in self._blocks
        own = type(module).forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            with torch._C.DisableTorchFunction():
                if is_block and path in self._called:
                    raise CannotCut(f"block {path} is called twice in a forward")
                self._called.add(path)
                call = self._noted(args, kwargs)
                call.module, call.is_block = path, is_block
                result = self._shaped(lambda *a, **k: own(module, *a, **k), args, kwargs, or_alike=is_block)
                self._give(call, result)
                return result

        return forward

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        live = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and self._is_live(leaf)]
        if not live or _tells_facts(func):
            return func(*args, **kwargs)
        if func.__name__ in _ASKING:
            raise CannotCut(f"its forward decides by the values of tensors ({func.__name__}) outside of its blocks")
        is_hidden = any(self._is_hidden(leaf) for leaf in live)
        changed = args[0] if _changes(func) and isinstance(args[0], torch.Tensor) else None
        if changed is not None:
            self._become_live(changed, is_hidden)
        call = self._noted(args, kwargs)
        call.function = func
        call.of_batch = not is_hidden
        if changed is not None:
            call.changes = self._numbers[id(changed)]
            if not is_hidden:
                func(*args, **kwargs)
            self.calls.append(call)
            return None if func.__name__ == _ITEM_ASSIGNMENT else changed
        result = self._shaped(func, args, kwargs) if is_hidden else func(*args, **kwargs)
        if not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(result)):
            raise CannotCut(f"its forward decides by the values of tensors ({func.__name__}) outside of its blocks")
        self._give(call, result)
        return result

    def _is_live(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._numbers or id(tensor) in self._parameters

    def _is_hidden(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._parameters or self._numbers.get(id(tensor)) in self._hidden

    def _become_live(self, changed: torch.Tensor, is_hidden: bool) -> None:
        """Numbers a constant that is changed in place: it is copied before, each time."""
        if not self._is_live(changed):
            before = changed.clone()
            number = self.take(changed)
            self.calls.append(Call(function=torch.clone, args=(before,), gives=(number,), of_batch=not is_hidden))
        if is_hidden:
            self._hidden.add(self._numbers[id(changed)])

    def _noted(self, args: Any, kwargs: Any) -> Call:
        call = Call(has_gradient=torch.is_grad_enabled())
        reads: dict[int, None] = {}
        holds: dict[str, None] = {}

        def named(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            if (path := self._parameters.get(id(leaf))) is not None:
                holds[path] = None
                return Held(path)
            if (number := self._numbers.get(id(leaf))) is not None:
                reads[number] = None
                return Value(number)
            return leaf

        call.args, call.kwargs = replaced(args, named), replaced(kwargs, named)
        call.reads, call.holds = tuple(reads), tuple(holds)
        return call

    def _give(self, call: Call, result: Any) -> None:
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        call.gives = tuple(self.take(tensor) for tensor in tensors)
        if not call.of_batch:
            self._hidden.update(call.gives)
        self.calls.append(call)

    def _shaped(self, func: Callable[..., Any], args: Any, kwargs: Any, *, or_alike: bool = False) -> Any:
        """Runs on the meta device; returns stand-ins for what comes out.

        Args:
            func: what is run.
            args: its arguments.
            kwargs: likewise.
            or_alike: where that fails (experts ask for values), its output is taken to be like its first argument.
        """
        try:
            result = func(*replaced(args, self._on_meta), **replaced(kwargs, self._on_meta))
        except Exception:
            first = next((leaf for leaf in tree_leaves((args, kwargs)) if self._is_stand_in(leaf)), None)
            if not or_alike or first is None:
                raise
            return stand_in(first.shape, first.dtype)
        return tree_map_only(torch.Tensor, self._from_meta, result)

    def _is_stand_in(self, leaf: object) -> bool:
        return isinstance(leaf, torch.Tensor) and self._is_hidden(leaf)

    def _on_meta(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.device) or leaf == "cpu":
            return META
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf if leaf.is_meta else self._meta.get(id(leaf), leaf.detach().to(META))

    def _from_meta(self, tensor: torch.Tensor) -> torch.Tensor:
        made = stand_in(tensor.shape, tensor.dtype) if tensor.is_meta else tensor
        self.take(made)
        self._meta[id(made)] = tensor
        return made


def is_whole(module: nn.Module) -> bool:
    """Whether a module outside of the blocks is called as it is, and not looked into."""
    own = any(True for _ in module.parameters(recurse=False)) or isinstance(module, _NormBase)
    return own and not any(True for child in module.children() for _ in child.parameters())


def _tells_facts(func: Any) -> bool:
    name: str = func.__name__
    if name == "__get__":
        return func.__self__.__name__ not in _TENSOR_PROPERTIES
    return name in _FACTS


def _changes(func: Any) -> bool:
    name: str = func.__name__
    if name.startswith("__"):
        return name == _ITEM_ASSIGNMENT or name in _IN_PLACE
    return name.endswith("_")
