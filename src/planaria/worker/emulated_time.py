"""An emulated device's time: waits of the profile's durations, and links over which things take the profile's time.

The device is one that works through what it is given while its host goes on, as a GPU does: `free_at` is when it will
have done all of that, and what is launched next begins there or when its input has come, not when Python gets round to
it. So the host's work between two instructions is hidden, as it is behind a GPU, up to AHEAD_S: a host that lags
further behind holds its device up. Before an instruction counts as done, the worker waits until the device would have
done it. Nothing else is emulated: processes, messages, votes, commits, detection and recovery are the real ones and
take the time that they take.

A link carries one message after another. A message is sent at once, a few bytes long, and bears the moment at which
its last byte would arrive; the receiver's mailbox hides it until then. Moments are of the system's monotonic clock, so
all workers of an emulated job must run on one machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from typing import Protocol

import torch

from planaria.plan.plan import Plan, Stage, WorkerId
from planaria.plan.profile import ModelProfile
from planaria.plan.program import Instruction, Op
from planaria.worker.mailbox import Interrupted, Key, Kind, Mailbox
from planaria.worker.transport import Transport

AHEAD_S = 0.010
"""How far a host may lag behind its device before the device has nothing to do: what a host enqueues in advance."""


class Waits(Protocol):
    """Where a worker waits for a moment."""

    def wait_until_moment(self, moment_s: float) -> None:
        """Raises Interrupted on an order."""
        ...


class EmulatedPace:
    """One worker's device and the links that leave it; see `planaria.worker.pace.Pace`.

    Attributes:
        free_at: when the device will have done what it was given, in seconds of the clock.
    """

    def __init__(
        self, worker: WorkerId, profile: ModelProfile, waits: Waits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.free_at = clock()
        self._worker = worker
        self._profile = profile
        self._waits = waits
        self._clock = clock
        self._plan: Plan | None = None
        self._devices: dict[int, int] = {}
        self._launched: dict[Instruction, float] = {}
        self._link_free_at: dict[WorkerId, float] = {}

    # The device

    def adopt(self, plan: Plan) -> None:
        self._plan = plan
        self._devices = {}
        for stage in plan.stages():
            self._note_devices(stage)
        for route in plan.routes:
            for hop in route.hops:
                self._note_devices(hop)
        self.not_before(self._clock())

    def _note_devices(self, stage: Stage) -> None:
        if stage.worker == self._worker:
            self._devices.update(dict.fromkeys(stage.layers, stage.num_devices))

    def begin_step(self) -> None:
        self._launched.clear()
        self.not_before(self._clock())

    def not_before(self, moment_s: float) -> None:
        """What is launched from now on had to wait for something until this moment."""
        self.free_at = max(self.free_at, moment_s)

    def compute(self, instruction: Instruction, layers: Collection[int]) -> None:
        end = self._launched.get(instruction)
        if end is None:
            end = self._launched[instruction] = self._launch(sum(self._layer_s(instruction.op, n) for n in layers))
        self._waits.wait_until_moment(end)
        del self._launched[instruction]

    def _launch(self, duration_s: float) -> float:
        self.free_at = max(self.free_at, self._clock() - AHEAD_S) + duration_s
        return self.free_at

    def _layer_s(self, op: Op, layer: int) -> float:
        times = self._profile.layers[layer].on(self._devices[layer])
        match op:
            case Op.FORWARD:
                return times.forward_s
            case Op.BACKWARD_INPUT:
                return times.backward_input_s
            case Op.BACKWARD_WEIGHT:
                return times.backward_weight_s
            case _:
                return times.backward_s

    def add_up(self, group: int, num_parts: int) -> None:
        if num_parts > 1:
            self._launch((num_parts - 1) * self._own_bytes(group) * self._profile.step.sum_s_per_byte)

    def drain(self) -> None:
        self._waits.wait_until_moment(self.free_at)

    def apply(self, groups: Collection[int]) -> None:
        self.not_before(self._clock())
        self._launch(sum(self._own_bytes(group) for group in groups) * self._profile.step.apply_s_per_byte)

    def _own_bytes(self, group: int) -> float:
        """Bytes of the group's parameters on one device of this worker's stage."""
        layers = self._profile.groups[group].layers
        return self._profile.groups[group].size_bytes / max(self._devices.get(layer, 1) for layer in layers)

    # The links

    def arrival_s(self, peer: WorkerId, key: Key, *, is_empty: bool) -> float:
        """When a message that is sent now arrives. The next one to the same peer follows it."""
        assert self._plan is not None
        link = self._profile.links.of(same_node=self._plan.node_of(peer) == self._plan.node_of(self._worker))
        # A replica's state is sent by the host; everything else when the device has computed it.
        ready = self._clock() if key.kind == Kind.STATE else self.free_at
        begin = max(ready, self._link_free_at.get(peer, 0.0))
        end = self._link_free_at[peer] = begin + link.time_s(0 if is_empty else self._size_bytes(key))
        return end

    def _size_bytes(self, key: Key) -> int:
        match key.kind:
            case Kind.ACTIVATION | Kind.GRADIENT:
                return self._profile.layers[key.layer - 1].output_bytes
            case Kind.STATE:
                return self._profile.groups[key.item].moved_bytes
            case _:
                return self._profile.groups[key.item].size_bytes


class EmulatedMailbox(Mailbox):
    """Hides a message until the moment that it bears as its last tensor.

    Attributes:
        arrived: told the moment of every message that is taken.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.arrived: Callable[[float], None] = lambda moment_s: None
        self._clock = clock
        self._soonest_s = math.inf

    def poll(self, key: Key) -> tuple[torch.Tensor, ...] | None:
        with self.condition:
            found = self._data.get(key)
            if found is None:
                return None
            moment = float(found[-1])
            if moment > self._clock():
                self._soonest_s = min(self._soonest_s, moment)
                return None
            del self._data[key]
        self.arrived(moment)
        return found[:-1]

    def wait_until(self, condition: Callable[[], bool], idle: Callable[[], bool]) -> None:
        self._soonest_s = math.inf
        super().wait_until(condition, idle)

    def _wait_for_arrivals(self, seen: int) -> None:
        """Also returns when the first of the messages that were looked for becomes visible."""
        with self.condition:
            while self._arrivals == seen and not self.has_orders:
                left = self._soonest_s - self._clock()
                if left <= 0:
                    break
                self.condition.wait(None if left == math.inf else left)
        self._soonest_s = math.inf

    def wait_until_moment(self, moment_s: float) -> None:
        with self.condition:
            while not self.has_orders:
                left = moment_s - self._clock()
                if left <= 0:
                    return
                self.condition.wait(left)
        raise Interrupted


class EmulatedTransport(Transport):
    """Sends messages that bear the moment of their arrival; see the module.

    Args:
        pace: knows when that is.
    """

    def __init__(
        self,
        worker: WorkerId,
        token: str,
        mailbox: Mailbox,
        pace: EmulatedPace,
        cut_off: Callable[[WorkerId], None] = lambda peer: None,
    ) -> None:
        super().__init__(worker, token, mailbox, cut_off=cut_off)
        self._pace = pace

    def is_on_this_host(self, peer: WorkerId) -> bool:
        """Emulated nodes have no memory in common."""
        return False

    def send(self, peer: WorkerId, key: Key, tensors: tuple[torch.Tensor, ...]) -> None:
        moment = self._pace.arrival_s(peer, key, is_empty=not tensors)
        super().send(peer, key, (*tensors, torch.tensor([moment], dtype=torch.float64)))
