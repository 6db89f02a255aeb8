"""Makes up an emulated device's numbers: a model of the profile's layers, which compute nothing but check sums.

What flows between layers is one 63-bit number. A forward mixes it with the layer's number and the bytes of its
parameters, a backward mixes the way back, and a parameter's gradient follows from what the layer saw on both ways. So
losses and weights depend on everything that a real model's depend on (seed, step, microbatch, every layer's parameters
and every message), and a job under kills must end in the same bits as the same job in one process. How long things
take is in `planaria.runtime.worker.emulated.time`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import nn

from planaria.job.sections.train import TrainSection
from planaria.job.settings import Job
from planaria.model.model import Batch, GroupSpec, ParameterSpec, Tensors
from planaria.plan.costs.model_profile import ModelProfile
from planaria.protocol.messages.from_worker import Score
from planaria.protocol.worker.progress import Work
from planaria.runtime.worker.compute.device.device import HostDevice
from planaria.runtime.worker.compute.device_clock import DeviceClock
from planaria.runtime.worker.compute.engine import Engine
from planaria.runtime.worker.compute.layers import Count

FLOATS = 4
"""Floats of a group's parameters."""

_BITS = 63
_GRADIENT = 1e-2
_INITIAL = 2e-2
_INPUT = "number"


def read_costs(path: Path, job: Job) -> ModelProfile:
    """Reads the costs that the job runs with from the run folder's profile."""
    profile = msgspec.json.decode(path.read_bytes(), type=ModelProfile).contended(job.cluster.devices_per_node)
    return profile.recomputed() if job.train.activation_checkpointing else profile


def emulated_engine(profile: ModelProfile, job: Job, pace: DeviceClock) -> Engine:
    """Makes what a worker with an emulated device computes with."""
    model = EmulatedModel(profile)
    return Engine(
        model=model,
        batches=EmulatedBatches(job.train.seed),
        device=HostDevice(),
        make_compute=lambda count: EmulatedCompute(EmulatedNumbers(model, job.train), count),
        pace=pace,
    )


class EmulatedModel:
    """The profile's layers and parameter groups, with four floats a group; see `planaria.model.model.Model`."""

    def __init__(self, profile: ModelProfile) -> None:
        self._names = tuple(layer.name for layer in profile.layers)
        self._groups = tuple(
            GroupSpec(layers=group.layers, parameters=(_parameter(number, group.layers),))
            for number, group in enumerate(profile.groups)
        )

    @property
    def layer_names(self) -> tuple[str, ...]:
        return self._names

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        return self._groups

    @property
    def frozen(self) -> tuple[ParameterSpec, ...]:
        return ()

    @property
    def masked_lm(self) -> bool:
        return False

    @property
    def inputs(self) -> tuple[str, ...]:
        return (_INPUT,)

    def build_layer(self, index: int) -> nn.Module:
        """Returns a placeholder: a layer is a number to `EmulatedCompute`."""
        return nn.Identity()

    def initial_state(self, group: int, seed: int) -> Mapping[str, torch.Tensor]:
        (parameter,) = self._groups[group].parameters
        return {parameter.name: _floats(_INITIAL, "initial weights", seed, group)}

    def loss(self, outputs: Tensors, batch: Batch) -> torch.Tensor:
        """Returns the loss of `EmulatedNumbers.loss`."""
        return torch.tensor(_share(int(outputs[0])))


def _parameter(group: int, layers: tuple[int, ...]) -> ParameterSpec:
    name = f"group.{group}"
    return ParameterSpec(name=name, shape=(FLOATS,), decays=False, uses=tuple((layer, name) for layer in layers))


class EmulatedBatches:
    """Makes microbatches of one number each."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def microbatch(self, step: int, index: int) -> Batch:
        return {_INPUT: _tensor(_mix("microbatch", self._seed, step, index))}

    def eval_microbatch(self, index: int) -> Batch:
        return {_INPUT: _tensor(_mix("held out", self._seed, index))}


@dataclass(frozen=True, slots=True)
class EmulatedNumbers:
    """Computes what a layer's forward and backward give, as pure functions."""

    model: EmulatedModel
    train: TrainSection

    @property
    def last(self) -> int:
        return len(self.model.layer_names) - 1

    def forward(self, layer: int, number: int, parameters: bytes) -> int:
        return _mix("forward", layer, number, parameters)

    def loss(self, number: int) -> float:
        """Returns a number between 0 and 1 that means nothing."""
        return _share(number)

    def score(self, number: int) -> Score:
        """Returns what is made of a microbatch of one sample that is evaluated; it means nothing either."""
        return Score(self.loss(number), number % 2, 1)

    def backward(self, layer: int, seen: int, gradient: int, parameters: bytes) -> int:
        """Returns what a backward gives to the layer below.

        Args:
            layer: the layer that runs backwards.
            seen: its forward's input.
            gradient: what the layer above gives; 0 for the last.
            parameters: the layer's, as bytes.
        """
        return _mix("backward", layer, seen, gradient, parameters)

    def weights(self, layer: int, seen: int, gradient: int, names: Iterator[str]) -> dict[str, torch.Tensor]:
        """Returns gradients of these parameters of the layer, for one microbatch."""
        scale = _GRADIENT / self.train.num_microbatches
        return {name: _floats(scale, "weight", layer, name, seen, gradient) for name in names}


class EmulatedCompute:
    """Runs layers at once, whatever they would take; see `planaria.runtime.worker.compute.layers.LayerCompute`."""

    def __init__(self, numbers: EmulatedNumbers, count: Count) -> None:
        self._numbers = numbers
        self._count = count
        self._parameters: dict[int, dict[str, torch.Tensor]] = {}
        self._bytes: dict[int, tuple[int, bytes]] = {}
        self._kept: dict[tuple[Work, int], int] = {}
        self._halves: dict[tuple[Work, int], tuple[int, int]] = {}

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(sorted(self._parameters))

    def add_layer(self, layer: int, module: nn.Module, parameters: Mapping[str, torch.Tensor]) -> None:
        self._parameters[layer] = dict(sorted(parameters.items()))
        self._bytes.pop(layer, None)

    def parameters_of(self, layer: int) -> tuple[torch.Tensor, ...]:
        return tuple(self._parameters[layer].values())

    def drop_layer(self, layer: int) -> None:
        del self._parameters[layer]

    def forget(self, keep: Callable[[Work], bool]) -> None:
        for entry in [entry for entry in self._kept if not keep(entry[0])]:
            del self._kept[entry]
        for entry in [entry for entry in self._halves if not keep(entry[0])]:
            del self._halves[entry]

    def forward(
        self,
        step: int,
        work: Work,
        layer: int,
        inputs: Tensors,
        batch: Batch | None,
        *,
        keep: bool,
        on_host: bool = False,
    ) -> tuple[Tensors, float | None]:
        seen = int(inputs[0])
        if keep:
            self._kept[work, layer] = seen
        output = self._numbers.forward(layer, seen, self._bytes_of(layer, step))
        return (_tensor(output),), self._numbers.loss(output) if layer == self._numbers.last else None

    def evaluate(
        self, step: int, work: Work, layer: int, inputs: Tensors, batch: Batch | None
    ) -> tuple[Tensors, Score | None]:
        output = self._numbers.forward(layer, int(inputs[0]), self._bytes_of(layer, step))
        return (_tensor(output),), self._numbers.score(output) if layer == self._numbers.last else None

    def backward(self, step: int, work: Work, layer: int, gradients: Tensors, *, counted: bool) -> Tensors:
        given = self.backward_input(step, work, layer, gradients)
        self.backward_weight(work, layer, counted=counted)
        return given

    def backward_input(self, step: int, work: Work, layer: int, gradients: Tensors) -> Tensors:
        seen = self._kept.pop((work, layer))
        gradient = int(gradients[0]) if layer < self._numbers.last else 0
        self._halves[work, layer] = seen, gradient
        if layer == 0:
            return ()
        return (_tensor(self._numbers.backward(layer, seen, gradient, self._bytes_of(layer, step))),)

    def backward_weight(self, work: Work, layer: int, *, counted: bool) -> None:
        seen, gradient = self._halves.pop((work, layer))
        if counted:
            self._count(layer, self._numbers.weights(layer, seen, gradient, iter(self._parameters[layer])))

    def _bytes_of(self, layer: int, step: int) -> bytes:
        """Returns the bytes of the layer's parameters, which do not change within a step."""
        known = self._bytes.get(layer)
        if known is None or known[0] != step:
            known = self._bytes[layer] = step, parameter_bytes(self._parameters[layer])
        return known[1]


def parameter_bytes(parameters: Mapping[str, torch.Tensor]) -> bytes:
    """Returns the bytes of a layer's parameters, in name order."""
    return b"".join(parameters[name].numpy().tobytes() for name in sorted(parameters))


def _mix(*parts: int | str | bytes) -> int:
    """Returns a number below 2**63 that depends on every part and their order."""
    return int.from_bytes(_digest(8, parts), "little") >> (64 - _BITS)


def _floats(scale: float, *parts: int | str) -> torch.Tensor:
    """Returns numbers between -scale and scale that depend on every part."""
    digest = _digest(8 * FLOATS, parts)
    shares = (int.from_bytes(digest[at : at + 8], "little") / 2.0**63 - 1.0 for at in range(0, len(digest), 8))
    return torch.tensor([scale * share for share in shares], dtype=torch.float32)


def _digest(size: int, parts: tuple[int | str | bytes, ...]) -> bytes:
    text = b"/".join(part if isinstance(part, bytes) else str(part).encode() for part in parts)
    return hashlib.blake2b(text, digest_size=size).digest()


def _share(number: int) -> float:
    return number / 2.0**_BITS


def _tensor(number: int) -> torch.Tensor:
    return torch.tensor([number], dtype=torch.int64)
