"""What of a job its profile depends on, beside the machine and the libraries. Nothing here imports torch."""

from __future__ import annotations

import math

import msgspec

from planaria.job.registry import OptimizerName
from planaria.job.sections.cluster import Device, StageParallelism
from planaria.job.sections.data import DataSection, Packing
from planaria.job.sections.train import TrainSection
from planaria.job.settings import Job
from planaria.job.values import is_dataset
from planaria.model.training.optimizer import optimizer_of
from planaria.runtime.component_settings import devices_at_work
from planaria.runtime.machine.limits import num_cores
from planaria.runtime.thresholds import MOST_AT_ONCE

MEASURES = "split backwards, copies of weights, ends of steps"
"""Names what is measured beside forwards, backwards and bytes: profiles without it are measured again."""


def dependencies(job: Job) -> list[str]:
    """Returns what a profile of the job depends on: equal lists have equal profiles on one machine."""
    train = job.train
    return [
        msgspec.json.encode(job.model, order="deterministic").decode(),
        f"{train.microbatch}/{train.sequence_length}/{train.dtype.value}/{train.boundary_dtype.value}",
        f"{job.data.tokenizer}/{train.numerics.value}",
        *_of_data(job.data),
        *_of_optimizer(train),
        *_of_rules(train),
        *(["compiled"] if train.compile else []),
        *([job.cluster.transport.value] if job.cluster.device is Device.CUDA else []),
        *([f"{at_once(job)} at once"] if at_once(job) else []),
        *(["replicas compared"] if job.compares_replicas else []),
        *([f"shared by {shared_by(job)}, exchanges measured"] if shared_by(job) else []),
        MEASURES,
    ]


def at_once(job: Job) -> int:
    """Returns for how many devices it is measured what they cost each other at work: those that there are, or up to the
    next power of two, so that a few more need no other profile; 0: nothing is to be measured."""
    at_work, cores = devices_at_work(job), math.ceil(num_cores())
    if job.cluster.device is not Device.CPU or at_work < 2:
        return 0
    most = cores if at_work <= cores else max(cores, MOST_AT_ONCE)
    return min(1 << (at_work - 1).bit_length(), most)


def shared_by(job: Job) -> tuple[int, ...]:
    """Returns by how many devices a microbatch may be shared in the job."""
    is_asked = job.cluster.stage_parallelism is not StageParallelism.SHARDED
    most = min(job.model.virtual_shards, job.cluster.devices_per_node) if is_asked else 0
    return tuple(number for number in (2, 4, 8) if number <= most)


def _of_data(data: DataSection) -> list[str]:
    """Returns what a batch's tensors depend on, where they are not those of tokens alone."""
    if is_dataset(data.source):
        return [msgspec.json.encode(data, order="deterministic").decode()]
    return [data.windows.value] if data.windows in (Packing.APART, Packing.TRANSLATE) else []


def _of_optimizer(train: TrainSection) -> list[str]:
    """Returns what of the optimizer is measured and counted, where it is not the default one."""
    is_default = train.optimizer is OptimizerName.ADAMW
    return [] if is_default else [train.optimizer.value, *optimizer_of(train).states(train)]


def _of_rules(train: TrainSection) -> list[str]:
    """Returns the rules that say what is trained, where some of it is not."""
    rules = [f"{rule.match} {rule.trainable}" for rule in train.parameters]
    return [] if all(rule.trainable for rule in train.parameters) else rules
