"""An event simulation of a step, written from the docs and not from the estimator: processes, and one heap of events.

Every worker, link, reader of gradients and adder of sums is a process, a generator that yields seconds to pass or a
signal to wait for. Slow, and as plain as it can be.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator, Iterator
from itertools import count, pairwise

from planaria.estimate.conditions import Conditions
from planaria.plan.costs.model_profile import LayerTimes, LinkCost, ModelProfile
from planaria.plan.plan import Plan, WorkerId
from planaria.plan.program.instructions import Instruction, Op
from planaria.plan.program.programs import program
from planaria.plan.sums.slices import Slices, slices_of

VECTOR = 16 * 27720
"""Floats of a vector that all numbers of owners up to 12 divide into slices."""


class Signal:
    """Fires once, or (a bell) again and again."""

    def __init__(self) -> None:
        self.fired = False
        self.waiters: list[Process] = []


Process = Generator["float | Signal", None, None]


class Kernel:
    """Events in order of time; at one time, processes that were only resumed go before those that are patient."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, bool, int, Process]] = []
        self._number = count()
        self.patient: set[int] = set()

    def spawn(self, process: Process, *, patient: bool = False) -> None:
        if patient:
            self.patient.add(id(process))
        self._push(0.0, process)

    def _push(self, seconds: float, process: Process) -> None:
        heapq.heappush(self._heap, (self.now + seconds, id(process) in self.patient, next(self._number), process))

    def fire(self, signal: Signal) -> None:
        signal.fired = True
        for process in signal.waiters:
            self._push(0.0, process)
        signal.waiters.clear()

    def run(self) -> None:
        while self._heap:
            self.now, _, _, process = heapq.heappop(self._heap)
            wish = next(process, None)
            if isinstance(wish, Signal) and not wish.fired:
                wish.waiters.append(process)
            elif wish is not None:
                self._push(wish if isinstance(wish, float) else 0.0, process)


class Oracle:
    """One step of a plan."""

    def __init__(self, plan: Plan, profile: ModelProfile, conditions: Conditions) -> None:
        self.plan, self.profile, self.conditions = plan, profile, conditions
        self.kernel = Kernel()
        self.arrived: dict[tuple[object, ...], Signal] = {}
        self.queues: dict[tuple[WorkerId, WorkerId], deque[tuple[float, Signal]]] = {}
        self.mail: dict[tuple[WorkerId, WorkerId], Signal] = {}
        self.computed = {worker: Signal() for worker in plan.workers}
        self.owing = [set(owners) for owners in plan.owners_of]
        self.bells = {worker: Signal() for worker in plan.workers}
        self.read = {worker: deque[int]() for worker in plan.workers}
        self.added = {worker: Signal() for worker in plan.workers}
        self.rounds: dict[int, int] = {}
        self.voted: dict[WorkerId, float] = {}
        self.busy = 0.0

    def step_time_s(self) -> float:
        for worker in self.plan.workers:
            self.kernel.spawn(self._worker(worker))
            self.kernel.spawn(self._reader(worker), patient=True)
            self.kernel.spawn(self._adder(worker))
        self.kernel.run()
        assert set(self.voted) == set(self.plan.workers)
        applies = []
        for worker in self.plan.workers:
            owned = [self.plan.groups[group].size_bytes for group in self.plan.groups_of[worker]]
            applies.append(
                sum(owned) / self._devices(worker) * self.profile.step.apply_s_per_byte / self._speed(worker)
            )
        step = max(self.voted.values()) + self.profile.step.vote_s + max(applies)
        if self.conditions.num_cores:
            busy = self.busy + self._messages() + sum(applies)
            step = max(step, busy / self.conditions.num_cores + self.profile.step.vote_s)
        return step

    def _messages(self) -> float:
        """Seconds of all activations and gradients that go from worker to worker."""
        seconds = 0.0
        for route in self.plan.routes:
            for upper, lower in pairwise(route.hops):
                if upper.worker != lower.worker:
                    link = self._link(upper.worker, lower.worker)
                    size = self.profile.layers[upper.end_layer - 1].output_bytes
                    seconds += 2 * len(route.microbatches) * (link.latency_s + size / link.bandwidth_bytes_per_s)
        return seconds

    # What things cost

    def _devices(self, worker: WorkerId) -> int:
        return max(stage.num_devices for stage in self.plan.stages() if stage.worker == worker)

    def _speed(self, worker: WorkerId) -> float:
        return self.conditions.node_speeds.get(self.plan.node_of(worker), 1.0)

    def _link(self, one: WorkerId, other: WorkerId) -> LinkCost:
        links, here, there = self.profile.links, self.plan.node_of(one), self.plan.node_of(other)
        if here == there:
            return links.within_node
        if self.conditions.network is None:
            return links.between_nodes
        zones, hosts, pairs = (getattr(self.conditions.network, name) for name in ("zones", "hosts", "pairs"))
        if hosts and hosts[here] == hosts[there]:
            return links.within_node
        for pair, far in pairs.items():
            if {hosts[here], hosts[there]} == set(pair):
                return far
        across = zones.get(here, "") != zones.get(there, "")
        return links.across_zones if across and links.across_zones else links.between_nodes

    def _compute_s(self, worker: WorkerId, instruction: Instruction) -> float:
        seconds = 0.0
        for number in range(instruction.first_layer, instruction.end_layer):
            layer: LayerTimes = self.profile.layers[number].on(self._devices(worker))
            counts = number in instruction.counted
            seconds += {
                Op.FORWARD: layer.forward_s,
                Op.BACKWARD: layer.backward_input_s + (layer.backward_weight_s if counts else 0.0),
                Op.BACKWARD_INPUT: layer.backward_input_s,
                Op.BACKWARD_WEIGHT: layer.backward_weight_s if counts else 0.0,
            }[instruction.op]
        return seconds / self._speed(worker)

    # Processes

    def _worker(self, worker: WorkerId) -> Process:
        for instruction in program(self.plan, worker):
            match instruction.op:
                case Op.FORWARD | Op.BACKWARD | Op.BACKWARD_INPUT | Op.BACKWARD_WEIGHT:
                    seconds = self._compute_s(worker, instruction)
                    self.busy += seconds
                    yield seconds
                case Op.SEND_ACTIVATION | Op.SEND_GRADIENT:
                    assert instruction.peer is not None
                    arrived = self._message(instruction, instruction.peer)
                    size = self.profile.layers[instruction.first_layer - 1].output_bytes
                    self._post(worker, instruction.peer, size, arrived)
                    if not self.conditions.overlap:
                        yield arrived
                case Op.RECV_ACTIVATION | Op.RECV_GRADIENT:
                    yield self._message(instruction, worker)
                case Op.SYNC:
                    self.rounds[instruction.group] = instruction.round
                    self.owing[instruction.group].remove(worker)
                    if not self.owing[instruction.group]:
                        for owner in self.plan.owners_of[instruction.group]:
                            self.kernel.fire(self.bells[owner])
        self.kernel.fire(self.computed[worker])

    def _message(self, instruction: Instruction, receiver: WorkerId) -> Signal:
        kind = "gradient" if "gradient" in instruction.op.value else "activation"
        key = (kind, instruction.born, instruction.microbatch, instruction.first_layer, receiver)
        return self.arrived.setdefault(key, Signal())

    def _post(self, sender: WorkerId, receiver: WorkerId, size: int, arrived: Signal) -> None:
        way = (sender, receiver)
        if way not in self.queues:
            self.queues[way], self.mail[way] = deque(), Signal()
            self.kernel.spawn(self._carrier(sender, receiver))
        link = self._link(sender, receiver)
        self.queues[way].append((link.latency_s + size / link.bandwidth_bytes_per_s, arrived))
        self.kernel.fire(self.mail[way])

    def _carrier(self, sender: WorkerId, receiver: WorkerId) -> Process:
        queue, mail = self.queues[sender, receiver], self.mail[sender, receiver]
        while True:
            while queue:
                seconds, arrived = queue.popleft()
                yield seconds
                self.kernel.fire(arrived)
            mail.fired = False
            yield mail

    def _reader(self, worker: WorkerId) -> Process:
        if not self.conditions.overlap:
            yield self.computed[worker]
        left = set(self.plan.groups_of[worker])
        bell = self.bells[worker]
        while left:
            whole = [group for group in left if not self.owing[group]]
            if not whole:
                bell.fired = False
                yield bell
                continue
            group = min(whole, key=lambda g: (self.rounds[g], g))
            left.remove(group)
            a_device = 1 / self._devices(worker)
            for owner, size_bytes in self._reads(worker, group):
                yield size_bytes * a_device / self._link(owner, worker).bandwidth_bytes_per_s
            self.kernel.spawn(self._arrival(worker, group))

    def _arrival(self, worker: WorkerId, group: int) -> Process:
        """Passes the latencies of what was read: there and back, within the node and between nodes."""
        slices = self._slices(group)
        near = [owner for owner in slices.on_host_of(worker) if owner != worker]
        far = [*slices.carriers(worker), *slices.carried_by(worker)]
        for owners in (near, far):
            yield 2 * max((self._link(owner, worker).latency_s for owner in owners), default=0.0)
        self.read[worker].append(group)
        self.kernel.fire(self.added[worker])

    def _others(self, worker: WorkerId, group: int) -> list[WorkerId]:
        return [owner for owner in self.plan.owners_of[group] if owner != worker]

    def _reads(self, worker: WorkerId, group: int) -> Iterator[tuple[WorkerId, float]]:
        """Yields (owner, bytes) for each piece of the group's vector that the worker reads of another owner."""
        slices = self._slices(group)
        sent = self.plan.groups[group].size_bytes
        carried = slices.carried_by(worker)
        for owner in self._others(worker, group):
            if owner in slices.on_host_of(worker):
                yield owner, self._counted(group) * sum(self._share(group, part) for part in (worker, *carried))
                yield owner, sent * sum(self._share(group, part) for part in (owner, *slices.carried_by(owner)))
        for carrier in slices.carriers(worker):
            yield carrier, sent * self._share(group, worker)
        for owner in carried:
            yield owner, sent * self._share(group, owner)

    def _counted(self, group: int) -> float:
        """Returns the bytes of what an owner counts of the group: what gradients take beside the sum."""
        layer = self.profile.layers[self.plan.groups[group].layers[0]]
        size = self.plan.groups[group].size_bytes
        if not size:
            return 0.0
        beside = layer.gradient_bytes / layer.parameter_bytes - 1
        return size * (beside or 1)

    def _slices(self, group: int) -> Slices:
        owners = self.plan.owners_of[group]
        if not self.profile.device.is_host:
            return slices_of(owners, owners)
        hosts = self.conditions.network.hosts if self.conditions.network is not None else {}
        nodes = [self.plan.node_of(owner) for owner in owners]
        return slices_of(owners, [hosts.get(node) or node for node in nodes])

    def _share(self, group: int, owner: WorkerId) -> float:
        begin, end = self._slices(group).bounds(owner, VECTOR)
        return (end - begin) / VECTOR

    def _num_added(self, worker: WorkerId, group: int) -> float:
        """Returns how much the worker adds to something else, in vectors of the group."""
        slices = self._slices(group)
        mates = len(slices.on_host_of(worker)) - 1
        own = self._share(group, worker) * (mates + len(slices.hosts) - 1)
        return own + sum(mates * self._share(group, owner) for owner in slices.carried_by(worker))

    def _adder(self, worker: WorkerId) -> Process:
        yield self.computed[worker]
        for _ in self.plan.groups_of[worker]:
            while not self.read[worker]:
                self.added[worker].fired = False
                yield self.added[worker]
            group = self.read[worker].popleft()
            share = self.plan.groups[group].size_bytes / self._devices(worker)
            added = self._num_added(worker, group)
            seconds = added * share * self.profile.step.sum_s_per_byte / self._speed(worker)
            self.busy += seconds
            yield seconds
        self.voted[worker] = self.kernel.now
