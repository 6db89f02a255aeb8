"""A replica: one group's parameters and optimizer state as a worker holds them, and how they lie in memory."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import xxhash

from planaria.checkpoint.manifest import PARAMETER
from planaria.job.sections.train import TrainSection
from planaria.model.model import GroupSpec
from planaria.model.training.optimizer import Update, optimizer_of
from planaria.model.training.treatment import Treatment, treatment_of
from planaria.runtime.thresholds import HUGE_FROM_BYTES, SMALL_FLOATS
from planaria.runtime.worker.compute.device.device import Device, here
from planaria.runtime.worker.compute.device.queues import Vector

NamedState = Mapping[str, Mapping[str, torch.Tensor]]
"""Parameters and optimizer state, each by parameter name; see `planaria.checkpoint.state.GroupState`."""


class Replica:
    """Parameters and optimizer state of a group, or running statistics, as flat float32 vectors.

    Attributes:
        states: the optimizer's, by their names; each as long as what is trained of the parameters. None, where another
            device of the stage has them.
        is_whole: they are here, if there are any.
        step: the last step that it has been through; one that was not applied counts.
        gradient: flat float32, the step's whole sum; valid between the sync and the apply. Empty, where another device
            of the stage needs it.
        shared_gradient: where `gradient` lies, so that co-owners on the same host may read it; None: it is empty.
        written: digest of the state as this worker itself wrote it last; see `planaria.protocol.step.agreement`.
    """

    def __init__(self, spec: GroupSpec, train: TrainSection, device: Device, *, is_whole: bool = True) -> None:
        self.layout = Layout.of(spec, train)
        self.is_whole = is_whole
        names = optimizer_of(train).states(train) if is_whole and not spec.is_statistics else ()
        self._shared: dict[str, Vector] = {}
        if device.lends:
            self._shared = {name: device.vector(self.layout.size, torch.float32) for name in (PARAMETER, *names)}
            kinds = {name: vector.tensor for name, vector in self._shared.items()}
        else:
            kinds = {name: zeros(self.layout.size, device.place) for name in (PARAMETER, *names)}
        self.parameters = kinds.pop(PARAMETER)
        self.states = kinds
        self.shared_gradient = device.vector(self.layout.size, torch.float32) if is_whole else None
        self.gradient = (
            torch.zeros(0, device=device.place) if self.shared_gradient is None else self.shared_gradient.tensor
        )
        self.step = 0
        self.written: int | None = None
        self.added_up: tuple[int, int, int] | None = None
        self._device = device

    def initialise(self, values: Mapping[str, torch.Tensor], states: NamedState | None = None) -> None:
        """Begins with these parameters, and these of the optimizer's values; the others are 0."""
        self.layout.fill(self.parameters, values)
        for state in self.states.values():
            state.zero_()
        for name, given in (states or {}).items():
            self.layout.fill(self.states[name], given)
        self.step = 0

    @property
    def state(self) -> tuple[torch.Tensor, ...]:
        """Returns what is moved and saved: the parameters, and the optimizer's state in its order."""
        return self.parameters, *self.states.values()

    def leave_optimizer(self) -> None:
        """Drops the optimizer's state and the sum: another device of the stage has them."""
        self.is_whole = False
        self.states = {}
        self._shared = {name: vector for name, vector in self._shared.items() if name == PARAMETER}
        self.gradient, self.shared_gradient, self.added_up = self.gradient[:0].clone(), None, None

    def load(self, state: Sequence[torch.Tensor], step: int) -> None:
        for own, given in zip(self.state, state, strict=True):
            own.copy_(given)
        self.step = step

    def part(self, first: int, end: int, whole: int) -> tuple[torch.Tensor, ...]:
        """Returns the state from `first` to `end` of `whole` equal pieces, as views. Parts that meet omit nothing."""
        return tuple(flat[first * flat.numel() // whole : end * flat.numel() // whole] for flat in self.state)

    def named_state(self) -> NamedState:
        """Returns the state by parameter name, as views."""
        return {kind: self.layout.views(flat) for kind, flat in self._kinds.items()}

    def copy_of_state(self) -> NamedState:
        """Returns the state by parameter name, in memory of its own on the host."""
        if self._device.is_on_host:
            return {kind: self.layout.views(flat.detach().clone()) for kind, flat in self._kinds.items()}
        copies = here(self._device.copied_out(tuple(self._kinds.values())))
        return {kind: self.layout.views(copy) for kind, copy in zip(self._kinds, copies, strict=True)}

    def load_named(self, state: NamedState, step: int) -> None:
        for kind, own in self._kinds.items():
            self.layout.fill(own, state[kind])
        self.step = step

    @property
    def _kinds(self) -> Mapping[str, torch.Tensor]:
        return {PARAMETER: self.parameters, **self.states}


def digest_of(vectors: Iterable[torch.Tensor], *, is_on_host: bool) -> int:
    """Returns a 64-bit digest of flat float32 vectors, bit for bit: xxh3 in the host's memory; on a device, whose words
    would take longer to come here, a sum in which the place of each counts. Workers of one job have one kind of device.
    """
    made = xxhash.xxh3_64()
    for vector in vectors:
        if is_on_host:
            made.update(vector.numpy().data)
        else:
            made.update(weighed_sum(vector.view(torch.int32)).to_bytes(8, "little", signed=True))
    return made.intdigest()


def digest_of_values(tensors: Iterable[torch.Tensor]) -> int:
    """Returns a 64-bit digest of the host's tensors, of any type and shape, bit for bit."""
    made = xxhash.xxh3_64()
    for tensor in tensors:
        made.update(tensor.detach().reshape(-1).view(torch.uint8).numpy().data)
    return made.intdigest()


def weighed_sum(words: torch.Tensor) -> int:
    """Returns the sum, modulo 2**64, of whole numbers, each times an odd number of its place: none can change without
    it, and of two vectors' sum it is the sum."""
    places = torch.arange(min(DIGEST_WORDS, words.numel()), device=words.device).mul_(PLACE_FACTOR).bitwise_or_(1)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for piece in torch.split(words, DIGEST_WORDS):
        total.mul_(PIECE_FACTOR).add_((piece * places[: piece.numel()]).sum())
    return int(total)


def zeros(count: int, device: torch.device) -> torch.Tensor:
    """Returns a float32 vector of zeros; a large one on the host lies in huge pages, where the kernel has them: memory
    that is touched for the first time then comes four times as fast."""
    if device.type != "cpu" or count * torch.float32.itemsize < HUGE_FROM_BYTES:
        return torch.zeros(count, device=device)
    memory = mmap.mmap(-1, count * torch.float32.itemsize)
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32)


@torch.no_grad()
def apply_optimizer(
    replicas: Sequence[Replica], train: TrainSection, step: int, clip_factor: float, learning_rate: float
) -> None:
    """Makes one optimizer step on each replica, with its gradient times `clip_factor`.

    Args:
        replicas: those that the worker owns.
        train: the optimizer and its settings.
        step: the committed step; the first is 1. Bias correction goes by it, whether or not all before were applied,
            and by the steps before the run that the optimizer's state comes from.
        clip_factor: from the commit.
        learning_rate: from the commit.
    """
    alike: dict[Treatment, list[tuple[torch.Tensor, ...]]] = {}
    for replica in replicas:
        flats = (replica.parameters, replica.gradient, *replica.states.values())
        for span in replica.layout.spans:
            part = tuple(flat[span.begin : span.end] for flat in flats)
            alike.setdefault(span.treatment, []).append(part)
    for treatment, parts in alike.items():
        parameters, gradients, *states = (list(column) for column in zip(*parts, strict=True))
        optimizer_of(train).update(
            train,
            Update(
                parameters=parameters,
                gradients=gradients,
                states=states,
                step=train.start_steps + step,
                rate=learning_rate * treatment.rate,
                weight_decay=treatment.weight_decay,
                clip_factor=clip_factor,
            ),
        )
    for replica in replicas:
        replica.step = step


DIGEST_WORDS = 1 << 22
"""Words of a device's vector that are added up at a time."""

PLACE_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)
PIECE_FACTOR = 0x2545F4914F6CDD1D
"""Odd numbers without a pattern, by which words and pieces of a vector are told apart."""

ALIGNMENT = 16
"""Alignment in floats; 64 bytes, so that a parameter sees the same vector code wherever it lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The place of one parameter: offset and count in floats."""

    name: str
    shape: tuple[int, ...]
    offset: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Neighbouring parameters that are treated alike, and where they lie, in floats."""

    begin: int
    end: int
    treatment: Treatment


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The slots in memory order: by the rule that holds for them, what decays first, and of that the large ones first.

    Attributes:
        slots: every parameter of the group.
        size: floats in all, padding included.
        spans: what is treated alike, in memory order; nothing, of running statistics.
    """

    slots: tuple[Slot, ...]
    size: int
    spans: tuple[Span, ...]

    @classmethod
    def of(cls, spec: GroupSpec, train: TrainSection) -> Layout:
        if spec.is_statistics:
            return cls._of_statistics(spec)
        treatments = [treatment_of(parameter, train) for parameter in spec.parameters]

        def rank(index: int) -> tuple[int, bool, bool, int]:
            parameter = spec.parameters[index]
            return treatments[index].rule, not parameter.decays, _count(parameter.shape) < SMALL_FLOATS, index

        slots = []
        spans: list[Span] = []
        offset = 0
        for index in sorted(range(len(spec.parameters)), key=rank):
            parameter, treatment = spec.parameters[index], treatments[index]
            count = _count(parameter.shape)
            slots.append(Slot(name=parameter.name, shape=parameter.shape, offset=offset, count=count))
            end = offset + -(-count // ALIGNMENT) * ALIGNMENT
            begin = spans.pop().begin if spans and spans[-1].treatment == treatment else offset
            spans.append(Span(begin=begin, end=end, treatment=treatment))
            offset = end
        return cls(slots=tuple(slots), size=offset, spans=tuple(spans))

    @classmethod
    def _of_statistics(cls, spec: GroupSpec) -> Layout:
        """Returns a layout with a float for a weight after each slot, all of it a second time for sums; see
        `planaria.runtime.worker.compute.statistics`."""
        slots = []
        offset = 0
        for one in spec.parameters:
            slots.append(Slot(name=one.name, shape=one.shape, offset=offset, count=_count(one.shape)))
            offset += -(-(slots[-1].count + 1) // ALIGNMENT) * ALIGNMENT
        return cls(slots=tuple(slots), size=2 * offset, spans=())

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns every parameter as a view of `flat`, by name."""
        return {s.name: flat[s.offset : s.offset + s.count].view(s.shape) for s in self.slots}

    def fill(self, flat: torch.Tensor, values: Mapping[str, torch.Tensor]) -> None:
        for name, view in self.views(flat).items():
            view.copy_(values[name])


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count
