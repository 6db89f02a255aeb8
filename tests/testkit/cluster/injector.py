"""Injector: strikes a simulated cluster with the faults of its schedule, each when its moment has come.

It counts what happens and decides nothing: which moment, whom and how, the schedule says.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from planaria.job.registry import PolicyName
from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.messages.events import NodeNotice, PolicyRequested, SaveRequested, StopRequested
from planaria.protocol.messages.from_worker import Notice
from planaria.protocol.messages.journal import AnyEntry, JournalStop, decode_entry, is_lasting
from planaria.protocol.messages.message import PROTOCOL_VERSION
from tests.testkit.cluster.clock import Action
from tests.testkit.cluster.network import PEERS, Island
from tests.testkit.schedules.faults import CLEAR, DISCARD, FOR_GOOD, Fault, FaultKind

if TYPE_CHECKING:
    from tests.testkit.cluster.cluster import Cluster
    from tests.testkit.server.server import Server
    from tests.testkit.worker.worker import Worker

OUTSIDER = -2
"""Place of a process that is neither node nor coordinator."""

ASK_AGAIN_S = 0.01
"""Seconds after which a user's order that found no coordinator is given again."""

FOUND_S = 0.5
"""Seconds within which a supervisor finds out that it leads no more, and ends its coordinator."""


class Injector:
    """The injector of one run's faults.

    Attributes:
        disturbed: nodes that may be taken for lost though they live, for what befell them or a peer of theirs.
        leaving: nodes that gave notice, or that the user wants to go.
        counts_events: some fault waits for any event at all.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.disturbed: set[NodeId] = set()
        self.leaving: set[NodeId] = set()
        self.counts_events = False
        self._is_calm = False
        self._cluster = cluster
        self._clock = cluster.clock
        self._triggers: dict[str, dict[int, list[Fault]]] = {}
        self._counts: dict[str, int] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether some fault waits for an event."""
        return bool(self._triggers)

    def expect(self, fault: Fault) -> None:
        if fault.at == "start":
            self._clock.after(fault.delay_s, partial(self.strike, fault))
        else:
            self._triggers.setdefault(fault.at, {}).setdefault(fault.nth, []).append(fault)
            self.counts_events |= fault.at == "event"

    def happened(self, name: str, node: int = -1) -> None:
        """Injects the faults that wait for this event."""
        if not self._triggers:
            return
        for full in (name, f"{name}@{node}") if node >= 0 else (name,):
            waiting = self._triggers.get(full)
            if waiting is None:
                continue
            count = self._counts[full] = self._counts.get(full, 0) + 1
            due = waiting.pop(count, ())
            if not waiting:
                del self._triggers[full]  # nobody waits for this any more
                self.counts_events &= full != "event"
            for fault in due:
                if fault.delay_s:
                    self._clock.after(fault.delay_s, partial(self.strike, fault))
                else:
                    self.strike(fault)

    def _victims(self, fault: Fault) -> Sequence[NodeId]:
        if fault.group < 0:
            return [NodeId(node) for node in fault.nodes]
        machine = self._cluster.server.machine
        if not machine.state.generation:
            return []
        plan = machine.plan
        owners = plan.owners_of[fault.group % len(plan.groups)]
        return sorted({plan.node_of(worker) for worker in owners[fault.spare :]})

    def calm(self, broken: Sequence[Fault]) -> None:
        """Ends the storm: nothing befalls anybody any more, and what passes by itself is over; `broken` stays."""
        self._triggers.clear()
        self.counts_events = False
        self._cluster.note("* the storm is over")
        self._cluster.late.clear()
        self._make_room()
        for island in self._cluster.network.islands:
            self._heal(island)
        workers = list(self._cluster.workers.values())
        self._speed_up(workers)
        for worker in workers:
            worker.transport.damages.clear()
            worker.transport.twice.clear()
            worker.resume()
        for fault in broken:
            self.strike(fault)
        self._is_calm = True

    def strike(self, fault: Fault) -> None:
        if self._is_calm:
            return
        victims = self._victims(fault)
        self._cluster.note(f"* {fault.kind.value} {list(victims)} {fault.what}")
        self._cluster.recorder.befell(fault, victims)
        if fault.kind not in CLEAR:
            is_of_all = fault.kind in (FaultKind.STUCK, FaultKind.DAMAGE) or fault.what == PEERS
            self.disturbed.update({w.node for w in self._cluster.workers.values()} if is_of_all else victims)
        match fault.kind:
            case FaultKind.JOIN:
                self._clock.after(0.0, self._cluster.join)
            case FaultKind.RELEASE:
                self._clock.after(0.0, partial(self._come_with_another_release, fault.times))
            case FaultKind.FULL:
                self._cluster.disk.is_full = True
                self._clock.after(fault.for_s, self._make_room)
            case FaultKind.STOP:
                self._cluster.is_stopped = True
                self._clock.after(0.0, partial(self._request_stop, discards=fault.what == DISCARD))
            case FaultKind.SWITCH:
                self._clock.after(0.0, partial(self._switch, PolicyName(fault.what)))
            case FaultKind.SAVE:
                self._clock.after(0.0, partial(self._save, fault.what))
            case FaultKind.CRASH:
                self._crash(fault)
            case FaultKind.DEPOSE:
                self._depose(fault)
            case FaultKind.LATE:
                self._cluster.late.append(fault)
            case FaultKind.PARTITION:
                island = self._cluster.network.part(victims, fault.what)
                self._later(fault, partial(self._heal, island))
            case FaultKind.DECAY:
                self._cluster.disk.damage_last(fault.times)
                self._cluster.may_fail.add("is corrupt")
            case FaultKind.JUMP if not victims:
                self._cluster.server.jump(fault.for_s)
            case _:
                for node in victims:
                    self._befall(fault, node)

    def _later(self, fault: Fault, action: Action) -> None:
        """Ends what a fault has begun, unless it lasts for good."""
        if fault.for_s != FOR_GOOD:
            self._clock.after(fault.for_s, action)

    def _befall(self, fault: Fault, node: NodeId) -> None:
        workers = [worker for worker in self._cluster.workers_of(node) if not worker.is_over]
        match fault.kind:
            case FaultKind.KILL if fault.device >= 0:
                self._cluster.kill_device(node, fault.device)
            case FaultKind.BACK:
                self._clock.after(0.0, partial(self._start_device, node, fault.device))
            case FaultKind.KILL | FaultKind.DARK:
                self._cluster.kill(node, silently=fault.kind is FaultKind.DARK)
            case FaultKind.HANG:
                per_node = self._cluster.settings.devices_per_node
                struck = [worker for worker in workers if fault.device in (-1, worker.number % per_node)]
                for worker in struck:
                    worker.stop()
                self._later(fault, partial(self._resume, struck))
            case FaultKind.SLOW:
                for worker in workers:
                    worker.slowness = fault.factor
                    worker.slowest = max(worker.slowest, fault.factor)
                self._clock.after(fault.for_s, partial(self._speed_up, workers))
            case FaultKind.JUMP:
                self._cluster.clock_of(node).jump(fault.for_s)
            case FaultKind.NOTICE:
                self.leaving.add(node)
                for worker in workers[:1]:
                    worker.control.notice = Notice(grace_s=fault.for_s, cause="preemption")
                self._clock.after(fault.for_s, partial(self._cluster.kill, node))
            case FaultKind.DRAIN:
                self.leaving.add(node)
                self._clock.after(0.0, partial(self._drain, NodeNotice(node, fault.for_s, "drain")))
            case FaultKind.REPLAY:
                self._replay(workers)
            case FaultKind.EARLIER:
                self._come_from_an_earlier_run(node)
            case _:
                for worker in workers[:1]:
                    self._misbehave(fault, worker)

    def _misbehave(self, fault: Fault, worker: Worker) -> None:
        match fault.kind:
            case FaultKind.FREEZE:
                worker.freezes = True
            case FaultKind.RAISE:
                worker.fails = fault.what or "ends"
                self._cluster.may_fail.add("layer of worker")
            case FaultKind.DAMAGE:
                worker.transport.damages[fault.what] += fault.times
            case FaultKind.CORRUPT:
                self._cluster.invariants.struck.add(worker.node)
                worker.interpreter.corrupts[fault.what] += fault.times
                worker.interpreter.corrupt_at_rest()
            case FaultKind.TWICE:
                worker.transport.twice.extend([fault.for_s] * fault.times)
            case FaultKind.STUCK:
                worker.transport.block()
            case FaultKind.SHORT:
                worker.runs_out = True
                self._cluster.may_fail |= {"ran out of memory", "out of memory"}

    def stop(self) -> None:
        """Has the user end the run."""
        self._cluster.is_stopped = True
        self._clock.after(0.0, partial(self._request_stop, discards=False))

    def _request_stop(self, *, discards: bool) -> None:
        server = self._cluster.server
        if not server.takes_orders:
            self._clock.after(ASK_AGAIN_S, partial(self._request_stop, discards=discards))
        else:
            server.handle(StopRequested(discards=discards))
            if self._cluster.may_be_deposed:
                self._insist(server, discards=discards)

    def _insist(self, server: Server, *, discards: bool) -> None:
        """Gives the order to end again, if it was lost with the coordinator that had it."""
        is_kept = any(isinstance(decode_entry(entry), JournalStop) for entry in self._cluster.journal)
        if is_kept or self._cluster.server.finished is not None:
            return
        if server is not self._cluster.server or server.is_dead:
            self._request_stop(discards=discards)
        else:
            self._clock.after(ASK_AGAIN_S, partial(self._insist, server, discards=discards))

    def _switch(self, name: PolicyName) -> None:
        server = self._cluster.server
        if not server.takes_orders or server.machine.awaited:
            self._clock.after(ASK_AGAIN_S, partial(self._switch, name))
        elif server.finished is None and (refusal := server.machine.refusal(name)) is not None:
            self._cluster.note(f"* no switch: {refusal}")
        else:
            server.handle(PolicyRequested(name))

    def _save(self, folder: str) -> None:
        server = self._cluster.server
        if not server.takes_orders or server.machine.awaited:
            self._clock.after(ASK_AGAIN_S, partial(self._save, folder))
        else:
            server.handle(SaveRequested(folder))

    def _start_device(self, node: NodeId, device: int) -> None:
        server = self._cluster.server
        if not server.takes_orders or server.machine.awaited:
            self._clock.after(ASK_AGAIN_S, partial(self._start_device, node, device))
        elif server.finished is None and (refusal := server.machine.device_refusal(node, device)) is not None:
            self._cluster.note(f"* no device: {refusal}")
        elif server.finished is None:
            self._cluster.start_device(node, device)

    def _drain(self, notice: NodeNotice) -> None:
        if not self._cluster.server.takes_orders:
            self._clock.after(ASK_AGAIN_S, partial(self._drain, notice))
        else:
            self._cluster.server.handle(notice)

    def _crash(self, fault: Fault) -> None:
        """Kills the coordinator; its supervisor starts it again, if it leads still."""
        if self._cluster.server.is_dead or self._cluster.server.finished is not None:
            return
        self._cluster.server.die()
        lost: list[AnyEntry] | None = None
        if fault.cut:
            journal = self._cluster.journal
            lasting = [at for at, entry in enumerate(journal, 1) if is_lasting(decode_entry(entry))]
            kept = max(len(journal) - fault.cut, max(lasting, default=0))
            lost = [decode_entry(entry) for entry in journal[kept:]]
            self._cluster.note(f"* the journal loses {[type(entry).__name__ for entry in lost]}")
            del journal[kept:]
            self._cluster.recorder.lost_entries(kept)
        self._clock.after(fault.for_s, partial(self._cluster.begin_again, lost, self._cluster.server.lead))

    def _depose(self, fault: Fault) -> None:
        """Lets another coordinator lead. The one before is ended when its supervisor finds out."""
        server = self._cluster.server
        if server.finished is not None:
            return
        if fault.pause_s:
            server.pause()
            self._clock.after(fault.pause_s, server.resume)
        self._clock.after(fault.for_s, self._cluster.pass_the_lead)
        found_s = max(fault.for_s, fault.pause_s) + self._clock.random.uniform(0.0, FOUND_S)
        self._clock.after(found_s, server.end_if_deposed)

    def _make_room(self) -> None:
        self._cluster.note("* room on the disk")
        self._cluster.disk.is_full = False

    def _heal(self, island: Island) -> None:
        """Heals the network; each node fenced meanwhile comes as a new one."""
        if island not in self._cluster.network.islands:
            return
        self._cluster.note(f"* {sorted(island.places)} are back")
        self._cluster.network.heal(island)
        for node in sorted(island.places):
            if self._cluster.server.admission.is_fenced(NodeId(node)) and node not in self._cluster.dark:
                self._cluster.join()

    def _resume(self, workers: Sequence[Worker]) -> None:
        if self._is_calm:
            return
        self._cluster.note(f"* {[worker.number for worker in workers]} go on")
        for worker in workers:
            worker.resume()

    def _speed_up(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            worker.slowness = 1.0

    def _replay(self, workers: Sequence[Worker]) -> None:
        """Replays the workers' messages, as an eavesdropper would, on connections of its own."""
        for worker in workers:
            connection = self._cluster.new_connection(None, OUTSIDER)
            for message in list(self._cluster.sent.get(worker.number, ())):
                connection.tell(self._cluster, message)
            connection.close_from_worker()

    def _come_from_an_earlier_run(self, node: NodeId) -> None:
        """Lets workers of an earlier run come; they stay for as long as they may."""
        per_node = self._cluster.settings.devices_per_node
        for device in range(per_node):
            hello = self._cluster.hello(WorkerId(node * per_node + device), node, mark="an earlier run")
            self._cluster.new_connection(None, OUTSIDER).tell(self._cluster, hello)

    def _come_with_another_release(self, later_by: int) -> None:
        """Lets a node come whose release speaks the same version of the protocol, or workers of another version."""
        if not later_by:
            self._cluster.join(has_another_release=True)
            return
        per_node, version = self._cluster.settings.devices_per_node, PROTOCOL_VERSION + later_by
        node = NodeId(max(worker.node for worker in self._cluster.workers.values()) + 1)
        for device in range(per_node):
            hello = self._cluster.hello(WorkerId(node * per_node + device), node, version=version)
            self._cluster.new_connection(None, OUTSIDER).tell(self._cluster, hello)
