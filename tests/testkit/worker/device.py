"""A simulated worker's device: how long computing takes, how long it has computed, and that memory runs out."""

from __future__ import annotations

from collections.abc import Collection

from planaria.estimate.memory import worker_memory_bytes
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import WorkerId
from planaria.plan.program.instructions import Instruction, Op
from planaria.protocol.messages.from_worker import OutOfMemory
from planaria.protocol.worker.sums import Piece
from tests.testkit.cluster.clock import Clock
from tests.testkit.schedules.weather import Weather
from tests.testkit.worker.interpreter import Interpreter, Part

NOISE = 0.05
"""Share by which computing differs, to either side, from the profile, where it is as the profile says at all."""


class Device:
    """The device of one worker."""

    def __init__(self, clock: Clock, weather: Weather, profile: ModelProfile) -> None:
        self._clock = clock
        self._weather = weather
        self._profile = profile
        self._worked_s = 0.0
        self._since_s = self._for_s = 0.0

    @property
    def worked_s(self) -> float:
        """Virtual seconds that it has computed in all, what is under way included."""
        return self._worked_s + min(self._for_s, self._clock.now - self._since_s)

    def begin(self, instruction: Instruction, slowness: float) -> float:
        """Begins an instruction; returns how long it will take."""
        self._since_s, self._for_s = self._clock.now, self._takes_s(instruction) * slowness
        return self._for_s

    def finish(self, seconds: float) -> None:
        self._worked_s += seconds
        self._for_s = 0.0

    def _takes_s(self, instruction: Instruction) -> float:
        """Returns the seconds of an instruction on a device that is not slow."""
        layers = range(instruction.first_layer, instruction.end_layer)
        if not (self._weather.is_as_profiled or self._weather.is_exact):
            return self._clock.vary(self._weather.compute_s * len(layers))
        seconds = 0.0
        for layer in layers:
            times = self._profile.layers[layer].times[0]
            if instruction.op in (Op.FORWARD, Op.SHADOW_FORWARD, Op.AUDIT):
                seconds += times.forward_s
            if instruction.op in (Op.BACKWARD, Op.BACKWARD_INPUT, Op.SHADOW_BACKWARD, Op.AUDIT):
                seconds += times.backward_input_s
            counts = instruction.op in (Op.BACKWARD, Op.SHADOW_BACKWARD, Op.AUDIT) and layer in instruction.counted
            if instruction.op is Op.BACKWARD_WEIGHT or counts:
                seconds += times.backward_weight_s
            if instruction.op is Op.BACKWARD_WEIGHT:
                seconds += times.split_s
        return seconds if self._weather.is_exact else seconds * self._clock.random.uniform(1 - NOISE, 1 + NOISE)

    def sum_s(self, piece: Piece[Part]) -> float:
        """Returns the seconds of a piece of a sum: those of adding up its parts."""
        if not self._weather.is_exact:
            return self._clock.vary(self._weather.compute_s / 10)
        size = self._profile.groups[piece.group].size_bytes * piece.sum.slices.share(piece.about)
        return max(0, piece.num_parts - 1) * size * self._profile.step.sum_s_per_byte

    def apply_s(self, groups: Collection[int]) -> float:
        """Returns the seconds of the optimizer's step."""
        if not self._weather.is_exact:
            return self._clock.vary(self._weather.compute_s / 5)
        size = sum(self._profile.groups[group].size_bytes for group in groups)
        return size * self._profile.step.apply_s_per_byte

    def out_of_memory(self, interpreter: Interpreter, worker: WorkerId, *, holds: bool) -> OutOfMemory:
        """Returns a report of bytes: about what the plan puts here, and what a layer may want beyond; or unknown."""
        random, known = self._clock.random, 0
        if interpreter.has_plan and worker in interpreter.plan.layers_of and random.random() < 0.7:
            known = worker_memory_bytes(interpreter.plan, self._profile, worker)
        return OutOfMemory(
            holds=holds,
            where="in the forward of microbatch 1, layer 'layer.0'" if holds else "while a plan is taken over",
            held_bytes=int(known * random.uniform(0.7, 1.2)),
            wanted_bytes=int(known * random.uniform(0.05, 0.4)),
        )
