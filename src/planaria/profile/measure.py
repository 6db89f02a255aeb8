"""Measures a model's profile on this machine: each layer's forward and backward, bytes, and the link.

Layers of one shape are measured once. What is measured is what runs: the worker's own compute, one thread.
"""

from __future__ import annotations

import hashlib
import platform
import socket
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch

from planaria.data.sampler import Sampler
from planaria.data.tokens import open_tokens
from planaria.job.settings import Device, Job, Numerics
from planaria.model.load import load_model
from planaria.model.model import Batch, Model, Tensors
from planaria.plan.plan import Group
from planaria.plan.profile import DeviceKind, LayerCost, LayerTimes, LinkCost, Links, ModelProfile
from planaria.profile import ERROR_SUFFIX
from planaria.worker.compute import Compute, LayerFailed
from planaria.worker.device import open_device

REPEATS = 5


def fingerprint(job: Job) -> str:
    """What a profile depends on: machine, library, model and shapes."""
    train = job.train
    parts = [
        platform.node(),
        platform.machine(),
        _device_name(job),
        torch.__version__,
        msgspec.json.encode(job.model, order="deterministic").decode(),
        f"{train.microbatch}/{train.sequence_length}/{train.dtype.value}",
        f"{job.data.tokenizer}/{train.numerics.value}",
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def measure_into(job: Job, data_folder: Path, output: Path, import_path: str | None) -> int:
    """Write the job's profile to `output`; returns an exit status.

    A mistake of the user (a model that cannot be built or cut, a layer that raises) is written to `output` with
    ERROR_SUFFIX instead, as text.
    """
    if import_path is not None and import_path not in sys.path:
        sys.path.insert(0, import_path)
    try:
        if output.exists():
            cached = msgspec.json.decode(output.read_bytes(), type=ModelProfile)
            if cached.fingerprint == fingerprint(job):
                load_model(job.model, job.train, vocab_size=open_tokens(data_folder).vocab_size)
                return 0
        profile = measure(job, data_folder)
    except LayerFailed as error:
        trace = "".join(traceback.format_exception(error.__cause__ or error))
        output.with_name(output.name + ERROR_SUFFIX).write_text(f"{error}\n{trace}")
        return 1
    except ValueError as error:
        output.with_name(output.name + ERROR_SUFFIX).write_text(str(error))
        return 2
    output.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=1))
    return 0


def measure(job: Job, data_folder: Path) -> ModelProfile:
    """Measure now. Raises ValueError for a model that cannot be built, LayerFailed for one that does not run."""
    tokens = open_tokens(data_folder)
    model = load_model(job.model, job.train, vocab_size=tokens.vocab_size)
    batch = Sampler(tokens, job.train, job.data.mask_probability, model.masked_lm).microbatch(1, 0)
    device = open_device(job, 0)
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    plain = msgspec.structs.replace(job, train=msgspec.structs.replace(job.train, activation_checkpointing=False))
    layers = _Layers(plain, model, device).costs(batch)
    groups = tuple(
        Group(layers=spec.layers, size_bytes=4 * sum(_count(p.shape) for p in spec.parameters)) for spec in model.groups
    )
    link = measure_link()
    return ModelProfile(
        name=job.model.type,
        microbatch_size=job.train.microbatch,
        layers=layers,
        groups=groups,
        links=Links(within_node=link, between_nodes=link),
        device=DeviceKind(name=_device_name(job)),
        provenance="measured by planaria",
        fingerprint=fingerprint(job),
    )


def _device_name(job: Job) -> str:
    if job.cluster.device is Device.CUDA:
        return str(torch.cuda.get_device_name())
    return platform.processor() or platform.machine()


class _Layers:
    """Measures layer after layer, each on what the one before gave."""

    def __init__(self, job: Job, model: Model, device: torch.device) -> None:
        self._job = job
        self._model = model
        self._device = device
        self._seen: dict[object, tuple[float, float, int]] = {}

    def costs(self, batch: Batch) -> tuple[LayerCost, ...]:
        tensors = tuple(batch[name] for name in self._model.inputs)
        costs = []
        for layer, name in enumerate(self._model.layer_names):
            cost, tensors = self._cost(layer, name, tensors, batch)
            costs.append(cost)
        return tuple(costs)

    def _cost(self, layer: int, name: str, inputs: Tensors, batch: Batch) -> tuple[LayerCost, Tensors]:
        def count(at: int, gradients: Mapping[str, torch.Tensor]) -> None:
            return

        compute = Compute(self._model, self._job.train, self._device, count)
        module = self._model.build_layer(layer)
        values = self._values(layer)
        compute.add_layer(layer, module, values)
        outputs, _ = compute.forward(1, (0, 0), layer, inputs, batch, keep=False)
        kind = (
            type(module).__qualname__,
            tuple((key, tuple(value.shape)) for key, value in sorted(values.items())),
            tuple(tuple(tensor.shape) for tensor in inputs),
            layer == len(self._model.layer_names) - 1,
        )
        if kind not in self._seen:
            self._seen[kind] = self._measure(compute, layer, inputs, batch, outputs)
        forward_s, backward_s, activation_bytes = self._seen[kind]
        parameter_bytes = sum(value.nbytes for value in values.values())
        accumulator = 2 if self._job.train.numerics is Numerics.EXACT else 1
        cost = LayerCost(
            name=name,
            times=(LayerTimes(forward_s=forward_s, backward_input_s=backward_s / 2, backward_weight_s=backward_s / 2),),
            parameter_bytes=parameter_bytes,
            # the accumulator (float64 in exact mode) and the sum
            gradient_bytes=(accumulator + 1) * parameter_bytes,
            optimizer_bytes=2 * parameter_bytes,
            activation_bytes=activation_bytes,
            recompute_activation_bytes=sum(tensor.nbytes for tensor in inputs),
            output_bytes=sum(tensor.nbytes for tensor in outputs),
        )
        return cost, outputs

    def _values(self, layer: int) -> dict[str, torch.Tensor]:
        """The layer's initial parameters by their name in it."""
        values = {}
        for group, spec in enumerate(self._model.groups):
            uses = [(p.name, local) for p in spec.parameters for at, local in p.uses if at == layer]
            if uses:
                state = self._model.initial_state(group, self._job.train.seed)
                values.update({local: state[name].to(self._device) for name, local in uses})
        return values

    def _measure(
        self, compute: Compute, layer: int, inputs: Tensors, batch: Batch, outputs: Tensors
    ) -> tuple[float, float, int]:
        is_last = layer == len(self._model.layer_names) - 1
        gradients = () if is_last else tuple(torch.ones_like(t) for t in outputs if t.is_floating_point())
        forwards, backwards = [], []
        kept: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        for attempt in range(REPEATS + 1):
            kept.clear()
            began = self._now()
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                compute.forward(1, (0, 0), layer, inputs, batch, keep=True)
            middle = self._now()
            compute.backward(1, (0, 0), layer, gradients, counted=True)
            if attempt:
                forwards.append(middle - began)
                backwards.append(self._now() - middle)
        parameters = {value.untyped_storage().data_ptr() for value in compute.parameters_of(layer)}
        activations = sum(size for at, size in kept.items() if at not in parameters)
        activations += sum(tensor.nbytes for tensor in inputs if tensor.untyped_storage().data_ptr() not in kept)
        return statistics.median(forwards), statistics.median(backwards), activations

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def measure_link() -> LinkCost:
    """Loopback TCP between two threads: latency of 64 bytes, bandwidth of 4 MB."""
    listener = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(listener.getsockname())
    far, _ = listener.accept()
    listener.close()
    large = 4 << 20
    sizes = [64] * 20 + [large] * 4

    def echo() -> None:
        for size in sizes:
            _receive(far, size)
            far.sendall(b"x")

    thread = threading.Thread(target=echo, daemon=True)
    thread.start()
    times: dict[int, list[float]] = {}
    for size in sizes:
        began = time.perf_counter()
        near.sendall(bytes(size))
        _receive(near, 1)
        times.setdefault(size, []).append(time.perf_counter() - began)
    thread.join()
    near.close()
    far.close()
    latency = statistics.median(times[64]) / 2
    bandwidth = large / max(statistics.median(times[large]) - latency, 1e-6)
    return LinkCost(latency_s=latency, bandwidth_bytes_per_s=bandwidth)


def _receive(sock: socket.socket, size: int) -> None:
    view = memoryview(bytearray(size))
    while view:
        view = view[sock.recv_into(view) :]
