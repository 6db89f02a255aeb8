"""The reference: the same job in one process, without plan, worker, transport or protocol.

It shares with the real thing what defines the numbers (the model's layers, the sampler, the grid, the optimizer) and
nothing else: forwards and backwards are plain autograd through the whole model (or, for an emulated device, its numbers
layer after layer).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from planaria.checkpoint.manifest import read_manifest, step_folder, weights_sha256, write_manifest
from planaria.checkpoint.state import write_group
from planaria.data.opening import prepare
from planaria.job.history import DataIdentity, History, JobInterval, order_of, schedule_ends
from planaria.job.parse import job_fingerprint
from planaria.job.sections.train import TrainSection, WhenNotFinite
from planaria.job.settings import Job
from planaria.job.users_code import look_in
from planaria.model.loss import scored
from planaria.model.model import Batch, Tensors
from planaria.model.training.schedule_function import rate_factors
from planaria.protocol.messages.from_worker import Score
from planaria.protocol.messages.records import AnyRecord, CheckpointSaved, RunEnded, RunStatus, StepCommitted
from planaria.protocol.messages.to_worker import Commit
from planaria.protocol.run.announcements import not_finite, step_committed
from planaria.protocol.step.commit import first_exponents, loss_scale, outcome
from planaria.protocol.step.evaluation import Evaluations, evaluated
from planaria.protocol.step.schedule import learning_rate
from planaria.runtime.component_settings import is_emulated, named_profile
from planaria.runtime.coordinator.executor import Observer
from planaria.runtime.launch.training.ending import finish_run
from planaria.runtime.launch.training.result import TrainResult
from planaria.runtime.run_folder.claim import say
from planaria.runtime.run_folder.recorder import Recorder
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.worker.compute.accumulator import add_up
from planaria.runtime.worker.compute.compilation import as_over_a_wire, compiled
from planaria.runtime.worker.compute.device_clock import OwnPace
from planaria.runtime.worker.compute.engine import Engine, real_engine
from planaria.runtime.worker.compute.holdings import Holdings
from planaria.runtime.worker.compute.layers import autocast, bind, rounded, unscaled, widened
from planaria.runtime.worker.compute.seeds import seed_layer
from planaria.runtime.worker.compute.statistics import RunningStatistics
from planaria.runtime.worker.emulated.numbers import EmulatedModel, EmulatedNumbers, emulated_engine, parameter_bytes

Drops = Mapping[int, Collection[int]]
"""Microbatches that are left out of each step, by step."""


def train_reference(
    job: Job,
    folder: RunFolder,
    *,
    observers: Sequence[Observer] = (),
    import_path: Path | None = None,
    drops: Drops | None = None,
    history: History = (),
) -> TrainResult:
    """Trains to the end in this process, on one thread.

    Args:
        job: what to train.
        folder: the run's folder.
        observers: called with each record.
        import_path: where a model given as "module:function" is looked for.
        drops: the microbatches that a run left out; they are left out here too.
        history: of a run that is trained again: the order of its samples, and where its rates' schedules ended.
    """
    look_in(import_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        say(folder.claim, "training: in one process alone")
        with Recorder(folder, job) as recorder, ExitStack() as opened:
            return _Reference(job, folder, recorder, (recorder, *observers), drops or {}, history, opened).train()
    finally:
        torch.set_num_threads(threads)


class _Reference:
    def __init__(
        self,
        job: Job,
        folder: RunFolder,
        recorder: Recorder,
        observers: tuple[Observer, ...],
        drops: Drops,
        history: History,
        opened: ExitStack,
    ) -> None:
        self._job = job
        self._drops = drops
        self._ends = schedule_ends(history) or ((0, job.train.steps),)
        self._train = job.train
        self._factors = rate_factors(job.train)
        self._evaluations = Evaluations(job.eval, job.train.steps)
        self._folder = folder
        self._recorder = recorder
        self._observers = observers
        self._alone = _emulated_alone(job) if is_emulated(job) else _torch_alone(job, folder, order_of(history), opened)
        self._model = self._alone.engine.model
        self._holdings = Holdings(self._model, job.train, self._alone.engine.device)
        for group in range(len(self._model.groups)):
            replica = self._holdings.new_replica(group)
            self._holdings.initialise(replica, group)
            self._holdings.put(group, replica)
        self._alone.bind(self._holdings)

    def _record(self, record: AnyRecord) -> None:
        for observer in self._observers:
            observer(record, time.time())

    def train(self) -> TrainResult:
        exponents = first_exponents(len(self._model.groups), self._train.dtype)
        last: StepCommitted | None = None
        status, message = RunStatus.COMPLETED, ""
        steps = skipped = num_dropped = 0
        for step in range(1, self._train.steps + 1):
            began = time.perf_counter()
            self._holdings.begin_step(exponents)
            dropped = tuple(sorted(self._drops.get(step, ())))
            losses = {m: self._microbatch(step, m) for m in range(self._train.num_microbatches) if m not in dropped}
            found = outcome(self._sum(), losses, exponents, self._train.clip_norm, self._train.num_microbatches)
            exponents = found.exponents
            may_skip = found.overflowed or self._train.when_not_finite is WhenNotFinite.SKIP
            if not found.is_applied and not may_skip:
                status, message = RunStatus.FAILED, not_finite(step, found.loss, found.norm)
                break
            skipped += not found.is_applied
            num_dropped += len(dropped)
            rate = learning_rate(self._train, step, self._ends, self._factors) * found.scale
            self._holdings.apply(range(len(self._model.groups)), step, found.clip_factor, rate)
            commit = Commit(
                generation=0,
                step=step,
                clip_factor=found.clip_factor,
                exponents=exponents,
                hold=False,
                scale=found.scale,
                learning_rate=rate,
                dropped=dropped,
                num_dropped=num_dropped,
            )
            duration = time.perf_counter() - began
            record = step_committed(
                self._train, commit, loss=found.loss, norm=found.norm, live_nodes=1, duration_s=duration
            )
            self._record(record)
            steps = step
            last = record if isinstance(record, StepCommitted) else last
            if self._evaluations.is_due(step):
                self._evaluate(step)
            if (reached := self._evaluations.reached(step)) is not None:
                message = reached
                break
        digest = self._save(steps, exponents)
        ended = RunEnded(
            status=status,
            steps=steps,
            message=message,
            skipped_microbatches=0,
            duplicated_microbatches=0,
            skipped_steps=skipped,
            dropped_microbatches=num_dropped,
        )
        return finish_run(self._recorder, self._observers, self._folder, ended, last, digest)

    def _microbatch(self, step: int, microbatch: int) -> float:
        batch = self._alone.engine.batches.microbatch(step, microbatch)
        scale = loss_scale(self._holdings.exponents, self._train.dtype)
        loss, gradients = self._alone.run(step, microbatch, batch, scale)
        for layer, of_layer in enumerate(gradients):
            self._holdings.count(layer, of_layer)
        return loss

    def _evaluate(self, step: int) -> None:
        began = time.perf_counter()
        batches = self._alone.engine.batches
        numbers = range(self._evaluations.num_microbatches)
        scores = {m: self._alone.evaluate(m, batches.eval_microbatch(m)) for m in numbers}
        duration_s = time.perf_counter() - began
        record = evaluated(self._evaluations, scores, step=step, generation=0, duration_s=duration_s)
        self._evaluations.note(record)
        self._record(record)

    def _sum(self) -> dict[int, float]:
        norms = {}
        for group, replica in self._holdings.replicas.items():
            counted = self._holdings.accumulator(group)
            parts = [] if counted.is_empty else [counted.total]
            add_up(parts, replica.gradient)
            norms[group] = float(self._holdings.squared_norm(group))
        return norms

    def _save(self, step: int, exponents: tuple[int, ...]) -> str:
        began = time.perf_counter()
        folder = step_folder(self._folder.checkpoints, step)
        saved = tuple(
            write_group(folder, group, "0", replica.named_state()) for group, replica in self._holdings.replicas.items()
        )
        write_manifest(
            folder,
            step=step,
            job_fingerprint=job_fingerprint(self._job),
            exponents=exponents,
            saved=saved,
            layers=tuple(spec.layers for spec in self._model.groups),
            history=tuple(JobInterval(since=since, steps=steps, data=self._alone.data) for since, steps in self._ends),
        )
        seconds = time.perf_counter() - began
        self._record(CheckpointSaved(step=step, folder=str(folder), seconds=seconds))
        return weights_sha256(folder, read_manifest(folder, verify=False))


LayerGradients = Iterable[Mapping[str, torch.Tensor]]
"""Gradients layer by layer from the first, by parameter name in the layer."""


class _Alone(Protocol):
    """Computes the whole model alone, forwards and backwards. `data`: what determines its samples, if it has any."""

    engine: Engine
    data: DataIdentity | None

    def bind(self, holdings: Holdings) -> None:
        """Uses the parameters that these replicas hold."""
        ...

    def run(self, step: int, microbatch: int, batch: Batch, loss_scale: float) -> tuple[float, LayerGradients]:
        """Returns one microbatch's loss, and the gradients of its share of the step's loss, scaled on the way; with
        what norms tell."""
        ...

    def evaluate(self, microbatch: int, batch: Batch) -> Score:
        """Returns what the model makes of a microbatch that is not trained on."""
        ...


def _torch_alone(job: Job, folder: RunFolder, order: str, opened: ExitStack) -> _Alone:
    data = opened.enter_context(closing(prepare(job, folder.data, order=order)))
    return _TorchAlone(real_engine(job, data, 0), job.train, data.identity)


def _emulated_alone(job: Job) -> _Alone:
    return _EmulatedAlone(emulated_engine(named_profile(job), job, OwnPace()), job.train)


class _TorchAlone:
    def __init__(self, engine: Engine, train: TrainSection, data: DataIdentity) -> None:
        self.engine = engine
        self.data: DataIdentity | None = data
        self._train = train
        self._modules: list[nn.Module] = []
        self._called: list[Callable[..., Any]] = []
        trained = [group for group in engine.model.groups if not group.is_statistics]
        self._first_trained = min((layer for group in trained for layer in group.layers), default=0)
        self._parameters: list[dict[str, nn.Parameter]] = []
        self._statistics: list[RunningStatistics] = []

    def bind(self, holdings: Holdings) -> None:
        for layer in range(len(self.engine.model.layer_names)):
            module = self.engine.model.build_layer(layer).to(self.engine.device.place)
            views = holdings.views(layer)
            self._parameters.append(bind(module, views))
            self._statistics.append(RunningStatistics(module, views, self._train.num_microbatches))
            self._modules.append(module)
            self._called.append(compiled(module) if self._train.compile else module)

    def run(self, step: int, microbatch: int, batch: Batch, loss_scale: float) -> tuple[float, LayerGradients]:
        device, model = self.engine.device.place, self.engine.model
        batch = {k: v.to(device) for k, v in batch.items()}
        tensors: Tensors = tuple(batch[name] for name in model.inputs)
        for layer, called in enumerate(self._called):
            seed_layer(self._train.seed, step, microbatch, layer, device)
            with autocast(self._train, device):
                outputs = called(*(self._for_compiled(layer, tensors) if self._train.compile else tensors))
                # One autograd node a tensor at every boundary between layers, so that what several later layers
                # send back is added up boundary by boundary, as it is when the model is cut there.
                tensors = tuple(t.view_as(t) for t in (outputs if isinstance(outputs, tuple) else (outputs,)))
                if layer == len(self._modules) - 1:
                    loss = model.loss(tensors, batch)
            tensors = widened(rounded(tensors, self._train), self._train)
        (loss * (1.0 / self._train.num_microbatches * loss_scale)).backward()  # type: ignore[no-untyped-call]
        told = [statistics.take(microbatch) for statistics in self._statistics]
        gradients = [unscaled(self._taken(parameters), loss_scale) for parameters in self._parameters]
        return float(loss.detach()), [{**of_layer, **norms} for of_layer, norms in zip(gradients, told, strict=True)]

    def _for_compiled(self, layer: int, tensors: Tensors) -> Tensors:
        """Has all inputs take gradients, as they do where a plan cuts: else other code is compiled."""
        if layer <= self._first_trained:
            return as_over_a_wire(tensors)
        return as_over_a_wire(
            tuple(t if t.requires_grad or not t.is_floating_point() else t.requires_grad_() for t in tensors)
        )

    def evaluate(self, microbatch: int, batch: Batch) -> Score:
        device, model = self.engine.device.place, self.engine.model
        batch = {k: v.to(device) for k, v in batch.items()}
        tensors: Tensors = tuple(batch[name] for name in model.inputs)
        with torch.no_grad():
            for layer, module in enumerate(self._modules):
                seed_layer(self._train.seed, 0, microbatch, layer, device)
                given = widened(rounded(tensors, self._train), self._train) if layer > 0 else tensors
                module.eval()
                with autocast(self._train, device), self._statistics[layer].in_use():
                    outputs = module(*given)
                module.train()
                tensors = outputs if isinstance(outputs, tuple) else (outputs,)
            with autocast(self._train, device):
                return Score(*scored(model, tensors, batch))

    @staticmethod
    def _taken(parameters: Mapping[str, nn.Parameter]) -> dict[str, torch.Tensor]:
        found = {name: p.grad for name, p in parameters.items() if p.grad is not None}
        for parameter in parameters.values():
            parameter.grad = None
        return found


class _EmulatedAlone:
    def __init__(self, engine: Engine, train: TrainSection) -> None:
        self.engine = engine
        self.data: DataIdentity | None = None
        assert isinstance(engine.model, EmulatedModel)
        self._numbers = EmulatedNumbers(engine.model, train)
        self._parameters: list[Mapping[str, torch.Tensor]] = []

    def bind(self, holdings: Holdings) -> None:
        self._parameters = [holdings.views(layer) for layer in range(len(self.engine.model.layer_names))]

    def run(self, step: int, microbatch: int, batch: Batch, loss_scale: float) -> tuple[float, LayerGradients]:
        numbers = self._numbers
        contents = [parameter_bytes(parameters) for parameters in self._parameters]
        seen = [int(batch[name]) for name in self.engine.model.inputs]
        for layer, content in enumerate(contents):
            seen.append(numbers.forward(layer, seen[layer], content))
        loss = numbers.loss(seen.pop())
        gradients: list[Mapping[str, torch.Tensor]] = []
        gradient = 0
        for layer in reversed(range(len(contents))):
            names = iter(sorted(self._parameters[layer]))
            gradients.insert(0, numbers.weights(layer, seen[layer], gradient, names))
            gradient = numbers.backward(layer, seen[layer], gradient, contents[layer])
        return loss, gradients

    def evaluate(self, microbatch: int, batch: Batch) -> Score:
        (number,) = (int(batch[name]) for name in self.engine.model.inputs)
        for layer, parameters in enumerate(self._parameters):
            number = self._numbers.forward(layer, number, parameter_bytes(parameters))
        return self._numbers.score(number)
