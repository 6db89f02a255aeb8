"""Measures a job's profile on this machine: layers, links, steps and memory.

What is measured is what runs: the worker's own compute, one thread.
"""

from __future__ import annotations

import hashlib
import math
import platform
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import torch

from planaria.checkpoint.start import check_start
from planaria.data.job_data import JobData
from planaria.data.opening import open_data
from planaria.job.errors import UserCodeError, UserError
from planaria.job.sections.cluster import Device
from planaria.job.sections.train import TrainSection
from planaria.job.settings import Job
from planaria.job.users_code import look_in
from planaria.job.version import __version__
from planaria.model.load import compare_with_whole, load_model
from planaria.model.model import Model
from planaria.model.training.optimizer import value_bytes
from planaria.plan.costs.model_profile import DeviceKind, LayerCost, Links, ModelProfile
from planaria.plan.costs.profile_check import check_profile, decode_profile
from planaria.plan.plan import Group, PlanError
from planaria.runtime.component_settings import named_profile
from planaria.runtime.machine.limits import memory_bytes, num_cores
from planaria.runtime.measure import ERROR_SUFFIX
from planaria.runtime.measure.contention import measure_contention
from planaria.runtime.measure.dependencies import at_once, dependencies, shared_by
from planaria.runtime.measure.layers import CountedMates, measure_layers
from planaria.runtime.measure.machine import Update, measure_link, measure_step
from planaria.runtime.measure.memory import device_bytes, process_bytes
from planaria.runtime.thresholds import ENOUGH_S
from planaria.runtime.worker.compute.compilation import check_compiler
from planaria.runtime.worker.compute.device.opening import memory_of, open_device
from planaria.runtime.worker.compute.layers import LayerFailed


def fingerprint(job: Job) -> str:
    """Returns what a profile depends on: machine, library, model and shapes."""
    parts = [platform.node(), platform.machine(), _device_name(job), torch.__version__, *dependencies(job)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def measure_into(job: Job, data_folder: Path, output: Path, import_path: str | None) -> int:
    """Writes the job's profile to `output`; returns an exit status.

    A mistake of the user (a model that cannot be built or cut, a start that does not fit it, a layer that raises, a
    device that is not there) is written to `output` with ERROR_SUFFIX instead: a line, and below it the traceback where
    the user's code raised.
    """
    look_in(import_path)
    try:
        check_compiler(job)
        data = open_data(job, data_folder)
        model = load_model(job.model, job.train, vocab_size=data.vocab_size, example=data.example)
        check_start(job.train, model)
        if job.cluster.profile is None and _fingerprint_in(output) == fingerprint(job):
            return 0
        compare_with_whole(job.model, job.train, vocab_size=data.vocab_size, example=data.example)
        profile = measure(job, model, data) if job.cluster.profile is None else given(job, model)
    except LayerFailed as error:
        trace = "".join(traceback.format_exception(error.__cause__ or error))
        output.with_name(output.name + ERROR_SUFFIX).write_text(f"{error}\n{trace}")
        return 1
    except ValueError as error:
        trace = error.trace if isinstance(error, UserCodeError) else ""
        line = " ".join(str(error).split())
        output.with_name(output.name + ERROR_SUFFIX).write_text(f"{line}\n{trace}")
        return 2
    output.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=1))
    return 0


def _fingerprint_in(output: Path) -> str:
    """Returns the fingerprint of the existing profile; empty when there is none that this version reads."""
    try:
        return decode_profile(output.read_bytes()).fingerprint
    except (FileNotFoundError, PlanError):
        return ""


def given(job: Job, model: Model) -> ModelProfile:
    """Returns the profile that the user gives for the job's model. Raises UserError: it is of another model."""
    profile = named_profile(job)
    groups = [(group.layers, group.moved_bytes) for group in profile.groups]
    wanted = [(group.layers, group.moved_bytes) for group in _groups(model, job.train)]
    if len(profile.layers) != len(model.layer_names) or groups != wanted:
        raise UserError(
            f"cluster.profile = {job.cluster.profile!r} has other layers, parameter groups or optimizer state than "
            f"model.type = {job.model.type!r} with train.optimizer = {job.train.optimizer.value!r}. "
            "Measure one by planaria profile JOB -o FILE, or leave cluster.profile out."
        )
    return profile


def _groups(model: Model, train: TrainSection) -> tuple[Group, ...]:
    values = value_bytes(train)
    sizes = [sum(math.prod(parameter.shape) for parameter in spec.parameters) for spec in model.groups]
    return tuple(
        Group(
            layers=spec.layers,
            size_bytes=values.parameter * size,
            optimizer_bytes=0 if spec.is_statistics else values.optimizer * size,
        )
        for spec, size in zip(model.groups, sizes, strict=True)
    )


def measure(job: Job, model: Model, data: JobData) -> ModelProfile:
    """Measures the profile now, on a microbatch of the data. Raises LayerFailed if the model does not run."""
    batch = data.sampler(masked_lm=model.masked_lm, has_encoder="labels" in model.inputs).microbatch(1, 0)
    device = open_device(job, 0).place
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    link = measure_link()
    mates = [CountedMates(number, link) for number in shared_by(job)]
    measured = measure_layers(model, job.train, device, batch, mates)
    groups = _groups(model, job.train)
    size = sum(group.size_bytes for group in groups) // value_bytes(job.train).parameter
    make_update = partial(Update, job.train, device, size, compares=job.compares_replicas)
    update = make_update()
    step = measure_step(update, link)
    stage = [measured.costs[layer] for layer in measured.stage]
    stage_s = sum(layer.on(1).forward_s + layer.on(1).backward_s for layer in stage)
    alone_s = stage_s, update.size_bytes * (step.apply_s_per_byte + step.sum_s_per_byte)
    contention = measure_contention(measured.make_stage, make_update, alone_s, _with_room(at_once(job), stage, stage_s))
    layers, overhead = measured.costs, measured.allocator_overhead
    del measured, update  # they hold memory
    own_bytes = process_bytes(device)
    profile = ModelProfile(
        name=job.model.type,
        microbatch_size=job.train.microbatch,
        layers=layers,
        groups=groups,
        # All nodes are on this machine.
        links=Links(within_node=link, between_nodes=link),
        device=DeviceKind(
            name=_device_name(job),
            memory_bytes=device_bytes(device),
            process_bytes=own_bytes,
            allocator_overhead=overhead,
            is_host=device.type == "cpu",
            shares=device.type != "cpu" and bool(memory_of(job)),
        ),
        step=step,
        contention=contention,
        provenance=f"measured by planaria {__version__} on {platform.node()}, one thread a worker",
        fingerprint=fingerprint(job),
    )
    return check_profile(profile)


def _with_room(number: int, stage: Sequence[LayerCost], stage_s: float) -> int:
    """Returns that number of devices, or fewer: there is memory for as many stages, and where they are more than cores,
    they take turns soon enough."""
    cores = math.ceil(num_cores())
    held_bytes = sum(layer.state_bytes + layer.activation_bytes + layer.workspace_bytes for layer in stage)
    soon = max(cores, int(cores * ENOUGH_S / max(stage_s, 1e-9)))
    return min(number, soon, memory_bytes() // (2 * max(held_bytes, 1)))


def _device_name(job: Job) -> str:
    if job.cluster.device is Device.CUDA:
        return str(torch.cuda.get_device_name(open_device(job, 0).place))
    return platform.processor() or platform.machine()
