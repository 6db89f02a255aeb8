"""What a worker holds, as tensors: replicas and accumulators of its groups, and modules bound to their memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import SupportsFloat

import torch

from planaria.checkpoint.manifest import PARAMETER
from planaria.checkpoint.start import Start, start_of
from planaria.job.sections.train import Numerics, TrainSection
from planaria.model.model import Model
from planaria.protocol.messages.to_worker import NOT_APPLIED
from planaria.protocol.step.commit import loss_scale
from planaria.protocol.worker.holdings import HeldState
from planaria.runtime.worker.compute.accumulator import Accumulator, Rounding, digest_of_counts, squared_norm
from planaria.runtime.worker.compute.device.device import Device
from planaria.runtime.worker.compute.layers import Compute, Count, LayerCompute, LayerFailed
from planaria.runtime.worker.compute.replica import Replica, apply_optimizer, digest_of
from planaria.runtime.worker.compute.statistics import GRID_EXPONENT, encoded, update


class Holdings(HeldState[Replica, Accumulator]):
    """The replicas, accumulators and ledger of one worker, as tensors.

    Args:
        model: as a list of layers.
        train: its numbers.
        device: where they are.
        make_compute: what runs the layers, given who counts the gradients; None: that device does.
        compares: digests are made of replicas and sums.
    """

    def __init__(
        self,
        model: Model,
        train: TrainSection,
        device: Device,
        make_compute: Callable[[Count], LayerCompute] | None = None,
        *,
        compares: bool = False,
    ) -> None:
        super().__init__([spec.layers for spec in model.groups], len(model.layer_names), compares=compares)
        self._model = model
        self._train = train
        self.device = device
        self._rounding = Rounding(device)
        self.compute: LayerCompute = (
            Compute(model, train, device, self.count, lambda: loss_scale(self.exponents, train.dtype))
            if make_compute is None
            else make_compute(self.count)
        )
        self._where: dict[tuple[int, str], tuple[int, str]] = {
            use: (group, parameter.name)
            for group, spec in enumerate(model.groups)
            for parameter in spec.parameters
            for use in parameter.uses
        }

    @property
    def is_on_host(self) -> bool:
        """Whether vectors are in the host's memory."""
        return self.device.is_on_host

    @property
    def sum_dtype(self) -> torch.dtype:
        """Type in which gradients are counted and summed."""
        return torch.float64 if self._train.numerics is Numerics.EXACT else torch.float32

    def new_replica(self, group: int, *, is_whole: bool = True) -> Replica:
        return Replica(self._model.groups[group], self._train, self.device, is_whole=is_whole)

    def _digest_of_state(self, replica: Replica) -> int:
        return digest_of(replica.state, is_on_host=self.is_on_host)

    def _digest_of_sum(self, replica: Replica) -> int:
        """Returns a digest of the sum; one that no other owner tells, if what was added up here has changed since."""
        found = digest_of((replica.gradient,), is_on_host=self.is_on_host)
        if replica.added_up is None:
            return found
        begin, end, made = replica.added_up
        return found if digest_of((replica.gradient[begin:end],), is_on_host=True) == made else found ^ 1

    def note_added_up(self, group: int, begin: int, end: int) -> None:
        """Notes what has just been added up here of a sum. Other owners on this host read it where it lies, so that a
        bit that flips before they do is in all of them."""
        if self._compares and self.is_on_host:
            replica = self.replicas[group]
            replica.added_up = begin, end, digest_of((replica.gradient[begin:end],), is_on_host=True)

    def note_taken(self, group: int, begin: int, end: int) -> None:
        """Notes that another owner's part of a sum came: what was added up there before is no more."""
        added_up = self.replicas[group].added_up
        if added_up is not None and begin < added_up[1] and added_up[0] < end:
            self.replicas[group].added_up = None

    def _digest_of_counts(self, accumulator: Accumulator) -> int | None:
        return digest_of_counts(accumulator)

    def initialise(self, replica: Replica, group: int) -> None:
        """Fills a replica with the state with which the job begins.

        Raises:
            UserError (or a ModelError): what it is to begin with is not there.
        """
        if self._start is None:
            replica.initialise(self._model.initial_state(group, self._train.seed))
            return
        shapes = {spec.name: spec.shape for spec in self._model.groups[group].parameters}
        found = dict(self._start.state(shapes, tuple(replica.states) if self._train.start_optimizer else ()))
        replica.initialise(found.pop(PARAMETER), found)

    @cached_property
    def _start(self) -> Start | None:
        start = start_of(self._train)
        if start is not None:
            start.check_frozen(spec.name for spec in self._model.frozen)
        return start

    def _new_accumulator(self, group: int) -> Accumulator:
        contributions = self._train.num_microbatches * len(self._model.groups[group].layers)
        layout = self.replicas[group].layout
        return Accumulator(layout, self._train.numerics, self._rounding, contributions, self.device)

    def _bind(self, layer: int) -> None:
        try:
            module = self._model.build_layer(layer)
        except Exception as error:  # a user's module may raise anything
            raise LayerFailed(self._model.layer_names[layer], error) from error
        self.compute.add_layer(layer, module, self.views(layer))

    def views(self, layer: int) -> Mapping[str, torch.Tensor]:
        views = {}
        for (at, name), (group, parameter) in self._where.items():
            if at == layer:
                replica = self.replicas[group]
                views[name] = replica.layout.views(replica.parameters)[parameter]
        return views

    def begin_step(self, exponents: Sequence[int]) -> None:
        own = {number for number, group in enumerate(self._model.groups) if group.is_statistics}
        super().begin_step([GRID_EXPONENT if at in own else exponent for at, exponent in enumerate(exponents)])

    def count(self, layer: int, gradients: Mapping[str, torch.Tensor]) -> None:
        """Adds one microbatch's gradients of a layer, and what its norms tell, by name within the layer."""
        by_group: dict[int, dict[str, torch.Tensor]] = {}
        for name, gradient in gradients.items():
            group, parameter = self._where[layer, name]
            by_group.setdefault(group, {})[parameter] = gradient
        for group, parts in by_group.items():
            if self._model.groups[group].is_statistics:
                self._in_use(group).add_flat(encoded(self.replicas[group].layout, parts))
            else:
                self._in_use(group).add(parts)

    def squared_norm(self, group: int) -> SupportsFloat:
        """Returns the squared norm of the group's summed gradient; of running statistics 0, or NaN if they are none."""
        gradient, factor = self.replicas[group].gradient, 0.0 if self._model.groups[group].is_statistics else 1.0
        if self.is_on_host:
            return factor * squared_norm(gradient)
        wide = gradient.double()
        return self.device.number(torch.dot(wide, wide) * factor)

    def apply(self, groups: Iterable[int], step: int, clip_factor: float, learning_rate: float) -> None:
        """Makes one optimizer step of these groups, or (`NOT_APPLIED`) none: they count as of `step` all the same."""
        numbers = list(groups)
        if clip_factor != NOT_APPLIED:
            trained = [self.replicas[group] for group in numbers if not self._model.groups[group].is_statistics]
            apply_optimizer(trained, self._train, step, clip_factor, learning_rate)
            for group in numbers:
                replica = self.replicas[group]
                if self._model.groups[group].is_statistics:
                    update(replica.layout, replica.parameters, replica.gradient)
        for group in numbers:
            self.replicas[group].step = step
