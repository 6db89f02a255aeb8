"""What a worker computes with: a model, its data, and a device, real or emulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from planaria.data.job_data import JobData
from planaria.job.settings import Job
from planaria.model.load import load_model
from planaria.model.model import Batch, Model
from planaria.runtime.worker.compute.compilation import check_compiler
from planaria.runtime.worker.compute.device.device import Device
from planaria.runtime.worker.compute.device.opening import open_device
from planaria.runtime.worker.compute.device_clock import DeviceClock, OwnPace
from planaria.runtime.worker.compute.layers import Count, LayerCompute
from planaria.runtime.worker.compute.stopwatch import stopwatch


class Batches(Protocol):
    """Gives microbatches as a pure function of (step, microbatch), and those to evaluate on, of their number alone."""

    def microbatch(self, step: int, index: int) -> Batch: ...

    def eval_microbatch(self, index: int) -> Batch: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What one worker computes with.

    Attributes:
        model: as a list of layers.
        batches: what it is trained on.
        device: where it computes.
        pace: how long things take.
        make_compute: what runs the layers, given who counts the gradients; None: the device does.
    """

    model: Model
    batches: Batches
    device: Device
    pace: DeviceClock
    make_compute: Callable[[Count], LayerCompute] | None = None


def real_engine(job: Job, data: JobData, worker: int) -> Engine:
    """Makes the engine of a real device, with the job's data.

    Raises:
        ModelError: the model cannot be built.
        DataError: there are too few data.
        NoDevice: this machine lacks the device.
        UserError: layers are to be compiled, and there is no compiler.
    """
    check_compiler(job)
    device = open_device(job, worker)
    model = load_model(job.model, job.train, vocab_size=data.vocab_size, example=data.example)
    return Engine(
        model=model,
        batches=data.sampler(masked_lm=model.masked_lm, has_encoder="labels" in model.inputs),
        device=device,
        pace=OwnPace(stopwatch(device.place, job.cluster.least_nodes * job.cluster.devices_per_node)),
    )
