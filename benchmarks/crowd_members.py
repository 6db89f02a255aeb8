"""What a crowd (crowd.py) is made of: its script, its connections, agents and workers, and what they saw."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from planaria.plan.ledger import Ledger
from planaria.plan.plan import Plan, WorkerId
from planaria.protocol.messages.message import Message, encode
from planaria.protocol.messages.to_worker import PlanMessage
from planaria.protocol.step.telling_order import whose_work_changes
from planaria.runtime.wire.control_frames import control_frame
from planaria.runtime.wire.tls import SecureSocket, pending


@dataclass(slots=True, kw_only=True)
class Seen:
    """What the crowd saw. Seconds; moments are monotonic.

    Attributes:
        began: when the first agent connected.
        planned: when the last worker had the first plan.
        loss_steps: in which an agent went that went alone.
        closed_at: when each of them went.
        halted: from that to the last halt's arrival.
        acting: from that to the last arrival of the plan at those whose work it changes, and those that were halted.
        decided: likewise, at all.
        num_acting: how many those are whose work it changes, or that were halted.
        placed: from the last vote for the step that was finished to the last one's having the new placement.
        commits: of each step without a loss, from the last vote to the last one's having the commit.
        rolling: of each agent that went in the rolling loss, from its going to the arrival of a plan without it at
            those that have to act on it.
        rolling_s: from the first of them to the first commit of a step without a loss after the last.
        rolling_steps: first and last step of the rolling loss.
        plan_bytes: on the wire, of each plan to one worker.
    """

    began: float = 0.0
    planned: float = 0.0
    loss_steps: list[int] = field(default_factory=list)
    closed_at: list[float] = field(default_factory=list)
    halted: list[float] = field(default_factory=list)
    acting: list[float] = field(default_factory=list)
    decided: list[float] = field(default_factory=list)
    num_acting: list[int] = field(default_factory=list)
    placed: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)
    rolling: list[float] = field(default_factory=list)
    rolling_s: float = 0.0
    rolling_steps: list[int] = field(default_factory=list)
    plan_bytes: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What the crowd does.

    Attributes:
        address: of the coordinator.
        count: agents.
        losses: that come one at a time.
        rolling: agents that go one after the other, after those losses.
        tls: folder of the run's certificates; None: connections are plain.
        probes: whether hosts measure the links between them.
        seed: of all that is drawn.
        step_s: between a commit and the last vote for the next step.
    """

    address: str
    count: int
    losses: int
    rolling: int
    tls: Path | None
    probes: bool
    seed: int
    step_s: float = 1.0


class ControlLink:
    """One connection, as its opener uses it: frames out, frames in."""

    __slots__ = ("_buffer", "_unsent", "greeting", "is_open", "owner", "sock")

    def __init__(self, sock: socket.socket, owner: AgentMember | WorkerMember, greeting: Message) -> None:
        self.sock = sock
        self.owner = owner
        self.greeting = greeting
        self.is_open = False
        """The handshake is done, and the greeting sent."""
        self._buffer = bytearray()
        self._unsent = bytearray()

    @property
    def is_closed(self) -> bool:
        return self.sock.fileno() < 0

    def go_on(self) -> bool:
        """Goes on with the handshake; returns whether it is done."""
        if not self.is_open and (not isinstance(self.sock, SecureSocket) or self.sock.shake_hands()):
            self.is_open = True
            self.say(encode(self.greeting))
        return self.is_open

    def say(self, body: bytes) -> None:
        if self.is_open and not self.is_closed:
            self._unsent += control_frame(body)
            with contextlib.suppress(BlockingIOError, ConnectionError):
                while self._unsent:
                    del self._unsent[: self.sock.send(self._unsent)]

    def frames(self) -> list[bytes]:
        """Returns what has come. Raises EOFError at the end."""
        found = []
        is_more = True
        while is_more:
            try:
                data = self.sock.recv(1 << 18)
            except BlockingIOError:
                break
            except ConnectionError as error:
                raise EOFError from error
            if not data:
                raise EOFError
            self._buffer += data
            is_more = pending(self.sock) > 0
        while len(self._buffer) >= 4:
            end = 4 + int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) < end:
                break
            found.append(bytes(self._buffer[4:end]))
            del self._buffer[:end]
        return found


def say(link: ControlLink | None, body: bytes) -> None:
    """Says something, unless the connection is closed."""
    if link is not None:
        link.say(body)


class AgentMember:
    __slots__ = ("host", "link", "node", "worker")

    def __init__(self, host: str) -> None:
        self.host = host
        self.link: ControlLink | None = None
        self.node = -1
        self.worker: WorkerMember | None = None


class WorkerMember:
    __slots__ = ("agent", "begun", "carried", "due", "link", "message", "name", "shares", "step")

    def __init__(self, agent: AgentMember, name: WorkerId) -> None:
        self.agent = agent
        self.name = name
        self.link: ControlLink | None = None
        self.message: PlanMessage | None = None
        self.shares: Shares | None = None
        """None: it was halted."""
        self.step = 0
        self.begun = -1
        self.due = 0.0
        """When it is done with the step in progress."""
        self.carried: Ledger | None = None
        """What its accumulators hold beside the routes of the plan, after a halt."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What each worker of a plan does in a step."""

    counted: Mapping[WorkerId, dict[int, int]]
    """For each of its layers, the mask of its microbatches."""
    losses: Mapping[WorkerId, list[int]]
    norms: Mapping[WorkerId, list[int]]

    @classmethod
    def of(cls, plan: Plan) -> Shares:
        counted: dict[WorkerId, dict[int, int]] = {}
        losses: dict[WorkerId, list[int]] = {}
        for route in plan.routes:
            mask = sum(1 << microbatch for microbatch in route.microbatches)
            for hop in route.hops:
                own = counted.setdefault(hop.worker, {})
                for layer in set(hop.layers).intersection(route.counted):
                    own[layer] = own.get(layer, 0) | mask
            losses.setdefault(route.hops[-1].worker, []).extend(route.microbatches)
        norms: dict[WorkerId, list[int]] = {}
        for group, owners in enumerate(plan.owners_of):
            norms.setdefault(owners[group % len(owners)], []).append(group)
        return cls(counted, losses, norms)


class PlanTelling:
    """A plan on its way: who is still to get it, of all workers that are there and of those that have to act on it."""

    def __init__(
        self, message: PlanMessage, before: PlanMessage | None, halted: set[WorkerId], there: Collection[WorkerId]
    ) -> None:
        plan = message.plan
        workers = acting = set(plan.workers)
        if before is not None and before.begun == message.begun:
            acting = (whose_work_changes(before.plan, plan) | halted) & workers
        self.workers = frozenset(workers)
        self.num_acting = len(acting)
        self.is_first = True
        self._left = {"acting": acting.intersection(there), "decided": workers.intersection(there)}

    def arrived(self, worker: WorkerId) -> list[str]:
        """Notes that a worker has it; returns of whom it was the last."""
        done = []
        for name, left in list(self._left.items()):
            left.discard(worker)
            if not left:
                del self._left[name]
                done.append(name)
        return done
