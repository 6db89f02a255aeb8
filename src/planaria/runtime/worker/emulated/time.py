"""Emulates a device's time: waits for the profile's durations, and has links take the profile's time.

The device is one that works through what it is given while its host goes on, as a GPU does: `free_at` is when it will
have done all of that, and what is launched next begins there or when its input has come, not when Python gets round to
it. So the host's work between two instructions is hidden, as it is behind a GPU, up to AHEAD_S: a host that lags
further behind holds its device up. Before an instruction counts as done, the worker waits until the device would have
done it. Nothing else is emulated: processes, messages, votes, commits, detection and recovery are the real ones and
take the time that they take.

A link carries one message after another. A message is sent at once, a few bytes long, and bears the moment at which
its last byte would arrive; the receiver's mailbox hides it until then. The parts of a sum are read by their receiver
one after another, whoever has sent them, as the estimator has it. Moments are of the system's monotonic clock, so all
workers of an emulated job must run on one machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import torch

from planaria.job.sections.cluster import LOOPBACK
from planaria.plan.costs.byte_counts import held_bytes, message_bytes, part_bytes
from planaria.plan.costs.model_profile import LayerTimes, LinkCost, ModelProfile
from planaria.plan.costs.network import Network
from planaria.plan.plan import NodeId, Plan, Stage, WorkerId
from planaria.plan.program.instructions import Instruction, Op
from planaria.plan.sums.slices import slices_in
from planaria.protocol.worker.sums import Piece, read_share
from planaria.runtime.thresholds import AHEAD_S
from planaria.runtime.wire.tls import Security
from planaria.runtime.worker.transport.frames import Loan
from planaria.runtime.worker.transport.mailbox import Interrupted, Key, Kind, Mailbox
from planaria.runtime.worker.transport.transport import Transport


class EmulatedPace:
    """One worker's device and the links that leave it; see `planaria.runtime.worker.compute.device_clock.DeviceClock`.

    Args:
        worker: the worker whose device this is.
        profile: the costs.
        wait_until: returns at a moment of the clock; raises Interrupted on an order.
        clock: monotonic seconds.
        zone_of: returns the zone of a node.
        storage_bytes_per_s: that a node reads a checkpoint with.

    Attributes:
        free_at: when the device will have done what it was given.
        slowness: how many times longer than the profile says it takes for everything.
    """

    def __init__(
        self,
        worker: WorkerId,
        profile: ModelProfile,
        wait_until: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
        storage_bytes_per_s: float = math.inf,
        zone_of: Callable[[int], str] = lambda node: "",
    ) -> None:
        self.free_at = clock()
        self._storage_bytes_per_s = storage_bytes_per_s
        self._zone_of = zone_of
        self._read_at = 0.0
        self.slowness = 1.0
        self._computed_s = 0.0
        self._work: tuple[float, float | None] = (0.0, None)
        self._worker = worker
        self._profile = profile
        self._wait_until = wait_until
        self._clock = clock
        self._plan: Plan | None = None
        self._devices: dict[int, int] = {}
        self._launched: dict[Instruction, float] = {}
        self._link_free_at: dict[WorkerId, float] = {}
        self._reader_free_at = 0.0

    # The device

    def stopwatch(self) -> float:
        """Returns what the forwards and backwards took on the device, without any time of its host."""
        return self._computed_s

    def worked(self) -> float:
        """Returns for how long the device has computed, up to now; for other threads."""
        worked_s, since = self._work
        return worked_s + (0.0 if since is None else self._clock() - since)

    def slow_down(self, took_s: float) -> None:
        """Does nothing: the instruction was launched with its slowed duration."""

    def adopt(self, plan: Plan) -> None:
        self._plan = plan
        self._devices = {}
        for stage in (*plan.stages(), *plan.shadows):
            self._note_devices(stage)
        for route in plan.routes:
            for hop in route.hops:
                self._note_devices(hop)
        self.not_before(self._clock())

    def _note_devices(self, stage: Stage) -> None:
        if stage.worker == self._worker:
            self._devices.update(dict.fromkeys(stage.layers, stage.num_devices))

    def read(self, size_bytes: int) -> None:
        self._read_at = self._clock() + size_bytes / self._storage_bytes_per_s

    def finish_reading(self) -> None:
        self._wait_until(self._read_at)
        self.not_before(self._read_at)

    def begin_step(self) -> None:
        self._launched.clear()
        self.not_before(self._clock())

    def not_before(self, moment_s: float) -> None:
        """Delays what is launched from now on until this moment, as it had to wait for something."""
        self.free_at = max(self.free_at, moment_s)

    def compute(
        self,
        instruction: Instruction,
        *,
        forwards: Collection[int] = (),
        inputs: Collection[int] = (),
        weights: Collection[int] = (),
    ) -> None:
        end = self._launched.get(instruction)
        if end is None:
            times = self._times if instruction.op is not Op.AUDIT else self._times_alone
            seconds = sum(times(layer).forward_s for layer in forwards)
            seconds += sum(times(layer).backward_input_s for layer in inputs)
            seconds += sum(times(layer).backward_weight_s for layer in weights)
            if instruction.op is Op.BACKWARD_WEIGHT:
                seconds += sum(times(layer).split_s for layer in weights)
            self._computed_s += seconds * self.slowness
            end = self._launched[instruction] = self._launch(seconds)
        worked_s, _ = self._work
        self._work = worked_s, (since := self._clock())
        try:
            self._wait_until(end)
        finally:
            self._work = worked_s + self._clock() - since, None
        del self._launched[instruction]

    def _times(self, layer: int) -> LayerTimes:
        sharing = 1 if self._plan is None else self._plan.num_sharing
        return self._profile.layers[layer].shared_by(sharing) if sharing > 1 else self._times_alone(layer)

    def _times_alone(self, layer: int) -> LayerTimes:
        """Returns the layer's times where this worker does all of it."""
        return self._profile.layers[layer].on(self._devices[layer])

    def _launch(self, duration_s: float) -> float:
        self.free_at = max(self.free_at, self._clock() - AHEAD_S) + duration_s * self.slowness
        return self.free_at

    def add_up(self, piece: Piece[Any]) -> None:
        if piece.num_parts > 1:
            size = self._own_bytes(piece.group) * piece.sum.slices.share(piece.about)
            self._launch((piece.num_parts - 1) * size * self._profile.step.sum_s_per_byte)

    def drain(self) -> None:
        self._wait_until(self.free_at)

    def apply(self, groups: Collection[int]) -> None:
        self.not_before(self._clock())
        self._launch(sum(self._own_bytes(group) for group in groups) * self._profile.step.apply_s_per_byte)

    def _own_bytes(self, group: int) -> float:
        """Returns the bytes of the group's parameters on one device of this worker's stage."""
        return self._profile.groups[group].size_bytes / self._devices_of(group)

    def _devices_of(self, group: int) -> int:
        return max(self._devices.get(layer, 1) for layer in self._profile.groups[group].layers)

    # The links

    def sent(self, peer: WorkerId, key: Key) -> float:
        """Notes that a message is sent now; returns the moment that it bears.

        That is when its last byte arrives, one message to a peer after another, and of a sum's part when it can be
        read.
        """
        if key.kind in Kind.SUMS:
            return self.free_at + self._link(peer).latency_s
        # A replica's state is sent by the host; everything else when the device has computed it.
        ready = self._clock() if key.kind == Kind.STATE else self.free_at
        begin = max(ready, self._link_free_at.get(peer, 0.0))
        end = self._link_free_at[peer] = begin + self._link(peer).time_s(self._size_bytes(peer, key))
        return end

    def _size_bytes(self, peer: WorkerId, key: Key) -> int:
        if key.kind == Kind.STATE:
            assert self._plan is not None
            moves = (m for m in self._plan.transfers if (m.group, m.source, m.target) == (key.item, self._worker, peer))
            return sum(move.moved_bytes(self._profile.groups[key.item]) for move in moves)
        if key.kind == Kind.PARAMETERS:
            return self._profile.groups[key.item].size_bytes
        if key.kind == Kind.GRADIENT and self._plan is not None and self._plan.evaluation is not None:
            return 0  # it says only that a microbatch was taken
        return message_bytes(self._profile, key.layer)

    def _read_bytes(self, key: Key) -> float:
        """Returns the bytes of the vector that a sum's message is about, on one device of this worker's stage."""
        group = self._profile.groups[key.item]
        in_place = key.kind == Kind.SHARED_SUM
        size_bytes = held_bytes(self._profile, group).counted if in_place else part_bytes(group)
        return size_bytes / self._devices_of(key.item)

    def node_of(self, worker: WorkerId) -> NodeId:
        assert self._plan is not None
        return self._plan.node_of(worker)

    def host_of(self, worker: WorkerId) -> Hashable:
        """Returns in whose memory a worker's vectors can be read: its node's, or those of its device alone."""
        return self.node_of(worker) if self._profile.device.is_read_in_place else worker

    def _link(self, peer: int) -> LinkCost:
        assert self._plan is not None
        here, there = self.node_of(self._worker), self.node_of(WorkerId(peer))
        zones = {node: self._zone_of(node) for node in (here, there)}
        return Network(zones=zones).link(self._profile.links, here, there)

    def arrived(self, key: Key, moment_s: float, *, is_empty: bool) -> float:
        """Returns when a message that bears this moment is all here. Sums' parts are read one after another.

        To be asked once for each message, at or after its moment.
        """
        if key.kind not in Kind.SUMS:
            return moment_s
        begin = max(moment_s, self._reader_free_at)
        assert self._plan is not None
        share = read_share(key, self._worker, slices_in(self._plan, key.item, self.host_of))
        size = 0.0 if is_empty else self._read_bytes(key) * share
        self._reader_free_at = begin + size / self._link(key.sender).bandwidth_bytes_per_s
        return self._reader_free_at


class EmulatedMailbox(Mailbox):
    """Hides a message until its moment of arrival, which its last tensor bears.

    Attributes:
        pace: knows what the moment means, and is told of every message that is taken. To be set before the first.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.pace: EmulatedPace | None = None
        self._clock = clock
        self._arrivals_s: dict[Key, float] = {}
        self._hidden: list[Key] = []
        self._soonest_s = math.inf

    def poll(self, key: Key) -> tuple[torch.Tensor, ...] | None:
        assert self.pace is not None
        with self.condition:
            found = self._mail.look(key)
        if found is None:
            return None
        assert isinstance(found, tuple), "emulated devices lend nothing"
        now = self._clock()
        moment = arrival = float(found[-1])
        if moment <= now:
            if key not in self._arrivals_s:
                self._arrivals_s[key] = self.pace.arrived(key, moment, is_empty=len(found) == 1)
            arrival = self._arrivals_s[key]
        if arrival > now:
            self._soonest_s = min(self._soonest_s, arrival)
            if key.kind in Kind.SUMS:
                self._hidden.append(key)
            return None
        with self.condition:
            self._mail.take(key)
        if key.kind == Kind.STATE:
            self.came_s = arrival
        del self._arrivals_s[key]
        self.pace.not_before(arrival)
        return found[:-1]

    def news_of_sums(self) -> Sequence[Key]:
        """Returns messages as in `Mailbox`, and those that were hidden when they were looked for."""
        hidden, self._hidden = self._hidden, []
        return [*hidden, *super().news_of_sums()]

    def forget_before(self, step: int, generation: int) -> None:
        super().forget_before(step, generation)
        self._forget_arrivals()

    def forget_older_plans(self, generation: int) -> None:
        super().forget_older_plans(generation)
        self._forget_arrivals()

    def _forget_arrivals(self) -> None:
        self._arrivals_s = {key: arrival_s for key, arrival_s in self._arrivals_s.items() if key in self._mail}

    def wait_until(self, condition: Callable[[], bool], idle: Callable[[], bool]) -> None:
        self._soonest_s = math.inf
        super().wait_until(condition, idle)

    def _wait_for_arrivals(self, seen: int) -> None:
        """Waits for arrivals, or until the first message that was looked for becomes visible."""
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
        host: str = LOOPBACK,
        cut_off: Callable[[WorkerId, str], None] = lambda peer, address: None,
        security: Security | None = None,
    ) -> None:
        super().__init__(worker, token, mailbox, host, cut_off, security)
        self._pace = pace

    def host_of(self, worker: WorkerId) -> Hashable:
        """Returns what `EmulatedPace.host_of` says: emulated nodes have no memory in common."""
        return self._pace.host_of(worker)

    def memory_of(self, worker: WorkerId) -> Hashable:
        return self._pace.host_of(worker)

    def send(self, peer: WorkerId, key: Key, tensors: tuple[torch.Tensor, ...], loan: Loan | None = None) -> None:
        moment = self._pace.sent(peer, key)
        super().send(peer, key, (*tensors, torch.tensor([moment], dtype=torch.float64)), loan)
