"""What a worker holds: replicas and accumulators of its groups, and the layers bound to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from planaria.job.settings import TrainSection
from planaria.model.model import Model
from planaria.plan.ledger import Ledger, mask_of
from planaria.protocol.commit import NOT_APPLIED
from planaria.worker.accumulator import Accumulator, Rounding
from planaria.worker.compute import Compute, Count, LayerCompute, LayerFailed
from planaria.worker.replica import Replica, apply_adamw


class Holdings:
    """Replicas, accumulators and the ledger of one worker.

    A group that the plan takes away stays until the next commit: until then it is as good a source as any.

    Args:
        model: as a list of layers.
        train: its numbers.
        device: where tensors are.
        make_compute: what runs the layers, given who counts the gradients; None: that device does.
    """

    def __init__(
        self,
        model: Model,
        train: TrainSection,
        device: torch.device,
        make_compute: Callable[[Count], LayerCompute] | None = None,
    ) -> None:
        self._model = model
        self._train = train
        self._device = device
        self._rounding = Rounding(device)
        self.replicas: dict[int, Replica] = {}
        self.accumulators: dict[int, Accumulator] = {}
        self._counted = [0] * len(model.layer_names)
        self._shadows: dict[int, Accumulator] = {}
        self._is_shadow = False
        self._exponents: tuple[int, ...] = ()
        self.compute: LayerCompute = (
            Compute(model, train, device, self.count) if make_compute is None else make_compute(self.count)
        )
        self._where: dict[tuple[int, str], tuple[int, str]] = {
            use: (group, parameter.name)
            for group, spec in enumerate(model.groups)
            for parameter in spec.parameters
            for use in parameter.uses
        }

    # State

    def new_replica(self, group: int) -> Replica:
        """An empty replica; it counts as held once it is given to `put`."""
        return Replica(self._model.groups[group], self._device)

    def put(self, group: int, replica: Replica) -> None:
        """Hold this replica. Layers that were bound to an older one are dropped, to be bound anew."""
        for layer in self._model.groups[group].layers:
            if layer in self.compute.layers:
                self.compute.drop_layer(layer)
        self.replicas[group] = replica

    def drop(self, groups: Collection[int]) -> None:
        """Replicas that are of an older step, and that others will replace."""
        for group in groups:
            for layer in self._model.groups[group].layers:
                if layer in self.compute.layers:
                    self.compute.drop_layer(layer)
        self.keep_only([group for group in self.replicas if group not in groups])

    def held_at(self, step: int) -> tuple[int, ...]:
        """Groups whose replica is up to date after `step`."""
        return tuple(g for g in sorted(self.replicas) if self.replicas[g].step == step)

    def own_layers(self, layers: Collection[int]) -> None:
        """Have modules for exactly these layers, bound to the replicas' memory."""
        for layer in self.compute.layers:
            if layer not in layers:
                self.compute.drop_layer(layer)
        for layer in sorted(layers):
            if layer not in self.compute.layers:
                self.compute.add_layer(layer, self._built(layer), self.views(layer))

    def _built(self, layer: int) -> nn.Module:
        try:
            return self._model.build_layer(layer)
        except Exception as error:  # a user's module may raise anything
            raise LayerFailed(self._model.layer_names[layer], error) from error

    def views(self, layer: int) -> Mapping[str, torch.Tensor]:
        views = {}
        for (at, name), (group, parameter) in self._where.items():
            if at == layer:
                replica = self.replicas[group]
                views[name] = replica.layout.views(replica.parameters)[parameter]
        return views

    def keep_only(self, groups: Collection[int]) -> None:
        for group in [group for group in self.replicas if group not in groups]:
            del self.replicas[group]
            self.accumulators.pop(group, None)
            self._shadows.pop(group, None)

    def forget_all(self) -> None:
        """Drop every replica and layer: the job goes back to another state."""
        self.own_layers(())
        self.keep_only(())

    # Gradients

    def begin_step(self, exponents: Sequence[int]) -> None:
        """Nothing is counted yet."""
        self._exponents = tuple(exponents)
        self._counted = [0] * len(self._counted)
        for group, accumulator in self.accumulators.items():
            accumulator.reset(self._exponents[group])
        self.drop_shadows()

    def accumulator(self, group: int) -> Accumulator:
        return self._found(group, self.accumulators)

    def _found(self, group: int, accumulators: dict[int, Accumulator]) -> Accumulator:
        found = accumulators.get(group)
        if found is None:
            spec = self._model.groups[group]
            contributions = self._train.num_microbatches * len(spec.layers)
            layout = self.replicas[group].layout
            found = Accumulator(layout, self._train.numerics, self._rounding, contributions, self._device)
            found.reset(self._exponents[group])
            accumulators[group] = found
        return found

    def count(self, layer: int, gradients: Mapping[str, torch.Tensor]) -> None:
        """Add one microbatch's gradients of a layer, by parameter name within the layer."""
        by_group: dict[int, dict[str, torch.Tensor]] = {}
        for name, gradient in gradients.items():
            group, parameter = self._where[layer, name]
            by_group.setdefault(group, {})[parameter] = gradient
        for group, parts in by_group.items():
            self._found(group, self._shadows if self._is_shadow else self.accumulators).add(parts)

    @contextmanager
    def counting_apart(self) -> Iterator[None]:
        """What is counted meanwhile is a second copy of what another worker counts, and no part of any sum."""
        self._is_shadow = True
        try:
            yield
        finally:
            self._is_shadow = False

    def promote_shadows(self) -> None:
        """The other worker is lost: the copies are what counts now."""
        for group, shadow in self._shadows.items():
            self.accumulator(group).add_all(shadow)
        self.drop_shadows()

    def drop_shadows(self) -> None:
        """The copies are of no use, or a new step begins."""
        for group, shadow in self._shadows.items():
            shadow.reset(self._exponents[group])

    def note_counted(self, layer: int, microbatch: int) -> None:
        assert not self._counted[layer] >> microbatch & 1, (
            f"microbatch {microbatch} is counted for layer {layer} already"
        )
        self._counted[layer] |= 1 << microbatch

    @property
    def ledger(self) -> Ledger:
        return Ledger.from_bits(self._counted)

    def leave_out(self, microbatches: Sequence[int]) -> None:
        """What is counted of these is void: a plan drops them. An accumulator has nothing but them, or none of them."""
        left_out = mask_of(microbatches)
        if not any(mask & left_out for mask in self._counted):
            return
        assert not any(mask & ~left_out for mask in self._counted), "a sum cannot be left out in part"
        self.begin_step(self._exponents)

    def apply(self, groups: Iterable[int], step: int, clip_factor: float, learning_rate: float) -> None:
        """One optimizer step of these groups, or (`NOT_APPLIED`) none: then they are as of `step` all the same."""
        replicas = [self.replicas[group] for group in groups]
        if clip_factor != NOT_APPLIED:
            apply_adamw(replicas, self._train, step, clip_factor, learning_rate)
        for replica in replicas:
            replica.step = step
