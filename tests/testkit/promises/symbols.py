"""Symbols in place of tensors: numbers that tell from what they were made, and by which any mistake is found out.

What a forward or a backward gives is a hash of all that it depends on: parameters, inputs, step, microbatch, layer.
Sums of contributions are sums of integers, so order and grouping do not matter, as with exact numerics. A replica is
the hash of its whole history. `Reference` computes all of it as one process would that trains alone; whatever a
cluster has must be equal to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from planaria.job.sections.train import TrainSection
from planaria.plan.plan import Group
from planaria.protocol.messages.from_worker import Score
from planaria.protocol.messages.to_worker import NOT_APPLIED
from planaria.protocol.step.commit import (
    FIRST_EXPONENT,
    clip_factor,
    effective_share,
    gradient_norm,
    is_finite,
    mean_loss,
    next_exponents,
)

Symbol = int

BATCH, FORWARD, BACKWARD, CONTRIBUTION, INITIAL, APPLIED, HELD_OUT = range(101, 108)
"""Tags, so that symbols of different kinds never meet."""


class Algebra:
    """The algebra of one model: what its layers compute, in symbols.

    Args:
        groups: of the model.
        num_layers: of it.
        seed: of its first weights.
        bad: microbatches, as (step, microbatch), whose loss is not a number.
    """

    def __init__(
        self, groups: Sequence[Group], num_layers: int, seed: int, bad: Collection[tuple[int, int]] = ()
    ) -> None:
        self.num_layers = num_layers
        self.num_groups = len(groups)
        self.groups_of = tuple(
            tuple(number for number, group in enumerate(groups) if layer in group.layers) for layer in range(num_layers)
        )
        self._seed = seed
        self._bad = frozenset(bad)

    def initial(self, group: int) -> Symbol:
        return hash((INITIAL, self._seed, group))

    def batch(self, step: int, microbatch: int) -> Symbol:
        return hash((BATCH, self._seed, step, microbatch))

    def held_out(self, microbatch: int) -> Symbol:
        return hash((HELD_OUT, self._seed, microbatch))

    def score(self, last: Symbol) -> Score:
        """Returns what is made of a microbatch that is evaluated, given what comes out of the last layer."""
        return Score(1.0 + (last % 4096) / 4096.0, last % 17, 16 + last % 3)

    def parameters(self, layer: int, replica: Callable[[int], Symbol]) -> Symbol:
        """Returns the parameters of a layer, given what each group's replica holds."""
        return hash(tuple(replica(group) for group in self.groups_of[layer]))

    def forward(self, parameters: Symbol, given: Symbol, step: int, microbatch: int, layer: int) -> Symbol:
        return hash((FORWARD, parameters, given, step, microbatch, layer))

    def loss(self, step: int, microbatch: int, last: Symbol) -> float:
        return math.nan if (step, microbatch) in self._bad else 1.0 + (last % 4096) / 4096.0

    def backward(self, given: Symbol, kept: Symbol) -> Symbol:
        """Returns the gradient of a layer's input, from that of its output and what its forward kept."""
        return hash((BACKWARD, given, kept))

    def contribution(self, given: Symbol, kept: Symbol, group: int, exponent: int) -> Symbol:
        """Returns the contribution of one microbatch and layer to a group's gradient, on the step's grid."""
        return hash((CONTRIBUTION, given, kept, group, exponent))

    def norm(self, total: Symbol) -> float:
        """Returns the squared norm of a sum."""
        return 0.25 + (total % 4096) / 1024.0

    def applied(self, replica: Symbol, total: Symbol, step: int, factor: float, scale: float) -> Symbol:
        """Returns the replica after a step."""
        return replica if factor == NOT_APPLIED else hash((APPLIED, replica, total, step, factor, scale))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedStep:
    """One step of the reference.

    Attributes:
        totals: group -> sum of all contributions.
        replicas: group -> its replica after the step.
        clip_factor: as committed.
        scale: of the learning rate.
        loss: mean over the microbatches that count.
        exponents: of the next step.
        is_finite: whether the step may be applied.
    """

    totals: tuple[Symbol, ...]
    replicas: tuple[Symbol, ...]
    clip_factor: float
    scale: float
    loss: float
    exponents: tuple[int, ...]
    is_finite: bool


class Reference:
    """The reference: one process that trains alone, without the microbatches that it is told of. Steps are computed
    when they are asked for."""

    def __init__(self, algebra: Algebra, train: TrainSection) -> None:
        self._algebra = algebra
        self._train = train
        first = TrainedStep(
            totals=(),
            replicas=tuple(algebra.initial(group) for group in range(algebra.num_groups)),
            clip_factor=1.0,
            scale=1.0,
            loss=0.0,
            exponents=(FIRST_EXPONENT,) * algebra.num_groups,
            is_finite=True,
        )
        self._steps = [first]
        self._dropped: dict[int, tuple[int, ...]] = {}

    def leave_out(self, step: int, dropped: tuple[int, ...]) -> None:
        """Leaves these microbatches out of the step."""
        if self.dropped(step) != dropped:
            self._dropped[step] = dropped
            del self._steps[step:]

    def dropped(self, step: int) -> tuple[int, ...]:
        """Returns the microbatches that are left out of the step."""
        return self._dropped.get(step, ())

    def after(self, step: int) -> TrainedStep:
        """Returns the state after a step; 0 is the beginning."""
        while len(self._steps) <= step:
            self._steps.append(self._train_one(len(self._steps), self._steps[-1]))
        return self._steps[step]

    def scores(self, step: int, num_microbatches: int) -> dict[int, Score]:
        """Returns what is made of the microbatches that are held out, by the model after a step."""
        algebra, after = self._algebra, self.after(step)
        scores = {}
        for microbatch in range(num_microbatches):
            value = algebra.held_out(microbatch)
            for layer in range(algebra.num_layers):
                parameters = algebra.parameters(layer, after.replicas.__getitem__)
                value = algebra.forward(parameters, value, 0, microbatch, layer)
            scores[microbatch] = algebra.score(value)
        return scores

    def _train_one(self, step: int, before: TrainedStep) -> TrainedStep:
        algebra = self._algebra
        totals = [0] * algebra.num_groups
        losses: dict[int, float] = {}
        parameters = [algebra.parameters(layer, before.replicas.__getitem__) for layer in range(algebra.num_layers)]
        for microbatch in range(self._train.num_microbatches):
            if microbatch in self.dropped(step):
                continue
            kept = [algebra.batch(step, microbatch)]
            for layer in range(algebra.num_layers):
                kept.append(algebra.forward(parameters[layer], kept[-1], step, microbatch, layer))
            losses[microbatch] = algebra.loss(step, microbatch, kept[-1])
            gradient = 0
            for layer in reversed(range(algebra.num_layers)):
                made = kept[layer + 1]
                for group in algebra.groups_of[layer]:
                    totals[group] += algebra.contribution(gradient, made, group, before.exponents[group])
                gradient = algebra.backward(gradient, made)
        norms = {group: algebra.norm(total) for group, total in enumerate(totals)}
        scale = effective_share(len(losses), self._train.num_microbatches)
        norm, loss = gradient_norm(norms) / scale, mean_loss(losses)
        finite = is_finite(loss, norm)
        factor = clip_factor(norm, self._train.clip_norm) / scale if finite else NOT_APPLIED
        return TrainedStep(
            totals=tuple(totals),
            replicas=tuple(
                algebra.applied(replica, totals[group], step, factor, scale)
                for group, replica in enumerate(before.replicas)
            ),
            clip_factor=factor,
            scale=scale,
            loss=loss,
            exponents=next_exponents(before.exponents, norms) if finite else before.exponents,
            is_finite=finite,
        )
