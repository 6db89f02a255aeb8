"""Thousands of agents and their workers, as sockets of one process: what `agents.py` connects to a coordinator.

Each agent enrols, offers its node and pings, as `planaria agent` does. Each worker says hello, beats every 0.2 s, takes
plans, votes about a second after each commit, and answers a halt with its ledger. They compute nothing.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import random
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from crowd_members import AgentMember, ControlLink, PlanTelling, Script, Seen, Shares, WorkerMember, say

from planaria.plan.ledger import Ledger, combine
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.agent import (
    Available,
    Dismissed,
    Enrol,
    KillNode,
    LinkProbed,
    Ping,
    Pong,
    ProbeLink,
    StartNode,
    Welcome,
    decode_to_agent,
)
from planaria.protocol.messages.from_worker import (
    BEAT_S,
    Activity,
    Alive,
    Hello,
    Pulse,
    Ready,
    Report,
    Saved,
    SavedGroup,
    Vote,
    beat_every_s,
)
from planaria.protocol.messages.message import PROTOCOL_VERSION, Message, encode
from planaria.protocol.messages.plan_delta import UpdateError, decode_order
from planaria.protocol.messages.to_worker import Commit, Halt, PlanMessage, Save, StateSource
from planaria.runtime.thresholds import PING_EVERY_S
from planaria.runtime.wire.tls import SecureSocket, Security

TOKEN = "a token of 16 letters"
WARM_UP_STEPS = 3
STEPS_A_LOSS = 4
"""The step that is lost in, the one after it, and two between losses."""
ROLLING_STEPS = 10
"""For as long as so many steps take agents go, one after the other, in a rolling loss."""
REST = 0.1
"""Of a step, which whoever goes on with it under another plan has to do at least."""
PLANS_KEPT, BODIES_KEPT = 8, 12
"""Plans that some worker may still have, and messages that others may still get."""
SLOTS = 20
"""Beats and pings of so many parts of the crowd, in turns."""


def single_steps(losses: int) -> int:
    """Returns how many steps so many losses take that come one at a time, with the calm ones between."""
    return STEPS_A_LOSS * (losses + 1)


def rolling_steps() -> int:
    """Returns for how many steps a rolling loss is given time, with the calm ones after it."""
    return 2 * ROLLING_STEPS


def fork(script: Script) -> tuple[int, int]:
    """Start the crowd; returns the process, and a pipe that brings what it saw."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        os.close(reading)
        seen = Crowd(script).run()
        with os.fdopen(writing, "wb") as file:
            file.write(json.dumps(asdict(seen)).encode())
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(0)


class Crowd:
    """All of them, on one selector."""

    def __init__(self, script: Script) -> None:
        host, port = script.address.rsplit(":", 1)
        self._target = host, int(port)
        self._script = script
        self._draw = random.Random(script.seed)
        self._security = None if script.tls is None else Security(script.tls)
        self._seen = Seen()
        self._epoll = select.epoll()
        self._links: dict[int, ControlLink] = {}
        self._agents: list[AgentMember] = []
        self._workers: dict[WorkerId, WorkerMember] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._plans_heard: list[PlanMessage | None] = [None]
        self._heard: list[tuple[bytes, Any]] = []
        self._tellings: dict[int, PlanTelling] = {}
        self._shares: dict[int, Shares] = {}
        self._halted: set[WorkerId] = set()
        self._turn = 0
        self._next_turn = 0.0
        self._step = 1
        self._last_vote = 0.0
        self._commits = 0
        self._closed = self._last_halt = 0.0
        self._awaits: dict[str, list[float]] = {}
        """Lists of what is seen of the loss that came last, until it has been seen."""
        self._is_placing = False
        self._untold: dict[WorkerId, float] = {}
        """Workers that went in the rolling loss, and when; of no plan without them all have heard that act on it."""
        self._rolling: deque[WorkerMember] = deque()
        self._rolling_began = 0.0
        self._is_over = False

    def run(self) -> Seen:
        self._seen.began = self._next_turn = time.monotonic()
        for number in range(self._script.count):
            agent = AgentMember(f"10.{number >> 8}.{number & 255}.1")
            enrol = Enrol(
                version=PROTOCOL_VERSION,
                token=TOKEN,
                identity=f"agent {number}",
                host=agent.host,
                boot="any",
                probe_port=1 if self._script.probes else 0,
            )
            self._agents.append(agent)
            agent.link = self._open(agent, enrol)
        while not self._is_over:
            wake = self._do_what_is_due()
            for descriptor, _ in self._epoll.poll(max(0.0, wake - time.monotonic()), 256):
                self._happened(self._links[descriptor])
        return self._seen

    # Connections

    def _open(self, owner: AgentMember | WorkerMember, greeting: Message) -> ControlLink:
        sock = socket.socket()
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            sock.connect(self._target)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = ControlLink(sock, owner, greeting)
        self._links[sock.fileno()] = link
        self._epoll.register(sock, select.EPOLLOUT)
        return link

    def _happened(self, link: ControlLink) -> None:
        if link.is_closed:
            return
        if not link.is_open:
            if not isinstance(link.sock, SecureSocket):
                self._epoll.modify(link.sock, select.EPOLLIN)
                if self._security is not None:
                    link.sock = self._security.connecting(link.sock)
            if not link.go_on():
                return
        try:
            frames = link.frames()
        except EOFError:
            self._is_over = True  # the coordinator hangs up when the run is over
            return
        for frame in frames:
            if isinstance(link.owner, AgentMember):
                self._take_of_agent(link.owner, decode_to_agent(frame))
            else:
                self._take(link.owner, self._decoded(frame), len(frame))

    def _do_what_is_due(self) -> float:
        """Votes, beats and pings; returns when the next is due."""
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
        if now >= self._next_turn:
            self._beat()
            self._next_turn += BEAT_S / SLOTS
        return min(self._next_turn, self._due[0][0]) if self._due else self._next_turn

    def _beat(self) -> None:
        self._turn += 1
        beat = encode(Alive(pulse=Pulse(activity=Activity.COMPUTING, progress=self._turn)))
        slots = round(SLOTS * beat_every_s(len(self._workers)) / BEAT_S)
        for agent in self._agents[self._turn % slots :: slots]:
            if agent.worker is not None:
                say(agent.worker.link, beat)
        every = round(SLOTS * PING_EVERY_S / BEAT_S)
        ping = encode(Ping())
        for agent in self._agents[self._turn % every :: every]:
            say(agent.link, ping)

    def _at(self, moment: float, do: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._due, (moment, self._number, do))

    # Agents

    def _take_of_agent(self, agent: AgentMember, message: Any) -> None:
        assert agent.link is not None
        match message:
            case Welcome():
                agent.link.say(encode(Available()))
            case ProbeLink():
                answer = encode(LinkProbed(latency_s=5e-5, bytes_per_s=1.25e9))
                self._at(time.monotonic() + message.seconds, lambda: say(agent.link, answer))
            case StartNode():
                agent.node = message.node
                worker = agent.worker = WorkerMember(agent, WorkerId(message.node))
                self._workers[worker.name] = worker
                hello = Hello(
                    version=PROTOCOL_VERSION,
                    token=TOKEN,
                    worker=worker.name,
                    pid=1,
                    data_address=f"{agent.host}:29500",
                    mark="mark",
                )
                worker.link = self._open(worker, hello)
            case Pong() | KillNode():
                pass
            case Dismissed():
                self._is_over = True
            case _:
                raise AssertionError(f"an agent was told {message!r:.200}")

    # Workers

    def _decoded(self, body: bytes) -> Any:
        """What a message says to every worker that gets it. An update has been made for those with one plan."""
        for known, message in reversed(self._heard):
            if known == body:
                return message
        for last in reversed(self._plans_heard):
            with contextlib.suppress(UpdateError):
                message = decode_order(body, last)
                if isinstance(message, PlanMessage):
                    message = self._plan_heard(message)
                self._heard = [*self._heard[1 - BODIES_KEPT :], (body, message)]
                return message
        raise AssertionError("an update of a plan that was never sent")

    def _plan_heard(self, message: PlanMessage) -> PlanMessage:
        """Notes a plan; returns the one that stands for it: workers that had other plans get it as other updates."""
        generation = message.plan.generation
        known = next((one for one in self._plans_heard if one and one.plan.generation == generation), None)
        if known is not None:
            return known
        telling = PlanTelling(message, self._plans_heard[-1], self._halted, self._workers.keys())
        self._tellings[generation] = telling
        if "acting" in self._awaits:
            self._seen.num_acting.append(telling.num_acting)
        self._plans_heard = [*self._plans_heard[1 - PLANS_KEPT :], message]
        self._shares[generation] = Shares.of(message.plan)
        self._shares.pop(generation - PLANS_KEPT, None)
        self._halted = set()
        return message

    def _take(self, worker: WorkerMember, message: Any, size: int) -> None:
        now = time.monotonic()
        assert worker.link is not None
        match message:
            case PlanMessage():
                self._adopt(worker, message, size, now)
            case Commit():
                self._committed(worker, message, now)
            case Halt():
                self._last_halt = now
                self._halted.add(worker.name)
                self._halt(worker)
            case Save():  # with which the run ends
                groups = tuple(SavedGroup(group=g, file="none", size_bytes=1, sha256="0" * 64) for g in message.groups)
                worker.link.say(encode(Saved(step=message.step, serial=message.serial, groups=groups)))
            case _:
                self._is_over = True

    def _adopt(self, worker: WorkerMember, message: PlanMessage, size: int, now: float) -> None:
        assert worker.link is not None
        plan = message.plan
        goes_on = (message.begun, message.step, message.afresh) == (worker.begun, worker.step, False)
        worker.message, worker.step = message, message.step
        worker.shares = self._shares[plan.generation]
        if message.afresh or message.begun != worker.begun:
            worker.carried = None
        worker.begun = message.begun
        if plan.transfers or message.source is not StateSource.LIVE:
            worker.link.say(encode(Ready(generation=plan.generation)))
        self._vote_later(worker, now, goes_on=goes_on)
        telling = self._tellings.get(plan.generation)
        if telling is not None:
            if telling.is_first:
                telling.is_first = False
                self._seen.plan_bytes.append(size)
            self._told(telling, worker.name, plan.generation, now)

    def _told(self, telling: PlanTelling, worker: WorkerId, generation: int, now: float) -> None:
        done = telling.arrived(worker)
        for name in done:
            if name in self._awaits:
                self._awaits.pop(name).append(now - self._closed)
            if name == "acting":
                for gone in [gone for gone in self._untold if gone not in telling.workers]:
                    self._seen.rolling.append(now - self._untold.pop(gone))
        if "decided" not in done:
            return
        del self._tellings[generation]
        self._seen.planned = self._seen.planned or now
        if "halted" in self._awaits:
            self._awaits.pop("halted").append(self._last_halt - self._closed)
        elif self._is_placing:
            self._is_placing = False
            self._seen.placed.append(now - self._last_vote)

    def _vote_later(self, worker: WorkerMember, now: float, *, goes_on: bool = False) -> None:
        """Has a worker vote once its step is done: under a plan with which it goes on, soon after it would have."""
        message, step_s = worker.message, self._script.step_s
        assert message is not None
        anew = now + self._draw.uniform(0.9, 0.95) * step_s
        worker.due = max(worker.due, now + REST * step_s) if goes_on else anew
        what = message.plan.generation, worker.step
        self._at(worker.due, lambda: self._vote(worker, what))

    def _vote(self, worker: WorkerMember, what: tuple[int, int]) -> None:
        message, shares = worker.message, worker.shares
        assert message is not None
        if worker.link is None or shares is None or (message.plan.generation, worker.step) != what:
            return
        vote = Vote(
            generation=message.plan.generation,
            step=worker.step,
            norms={group: 1.0 / (group + 3) for group in shares.norms.get(worker.name, ())},
            losses=dict.fromkeys(shares.losses.get(worker.name, ()), 5.0),
            ledger=self._ledger(worker, shares.counted.get(worker.name, {})),
        )
        worker.link.say(encode(vote))
        self._last_vote = time.monotonic()

    @staticmethod
    def _ledger(worker: WorkerMember, own: Mapping[int, int]) -> Ledger:
        assert worker.message is not None
        num_layers = worker.message.plan.num_layers
        ledger = Ledger.from_bits(own.get(layer, 0) for layer in range(num_layers))
        return ledger if worker.carried is None else combine((ledger, worker.carried), num_layers)[0]

    def _halt(self, worker: WorkerMember) -> None:
        """Half of its microbatches are done."""
        message, shares = worker.message, worker.shares
        assert message is not None
        assert worker.link is not None
        own = {} if shares is None else shares.counted.get(worker.name, {})
        worker.carried = self._ledger(worker, {layer: _lower_half(mask) for layer, mask in own.items()})
        worker.shares = None
        report = Report(
            generation=message.plan.generation,
            step=worker.step,
            ledger=worker.carried,
            held=message.plan.groups_of[worker.name],
        )
        worker.link.say(encode(report))

    def _committed(self, worker: WorkerMember, commit: Commit, now: float) -> None:
        message = worker.message
        assert message is not None
        worker.step = commit.step + 1
        worker.carried = None
        if commit.step == self._step:
            self._step += 1
            self._commits = 0
            self._is_placing = commit.hold and not self._rolling_began
            self._plan_losses()
        self._commits += 1
        is_calm = self._seen.loss_steps[-1:] != [commit.step] and not commit.hold and not self._rolling
        if is_calm and self._commits == len(message.plan.workers):
            self._seen.commits.append(now - self._last_vote)
            if self._rolling_began and not self._seen.rolling_s:
                self._seen.rolling_s = now - self._rolling_began
                self._seen.rolling_steps.append(commit.step)
        if not commit.hold:
            self._vote_later(worker, now)

    # Losses

    def _plan_losses(self) -> None:
        since = self._step - WARM_UP_STEPS - 1
        if since < 0 or since % STEPS_A_LOSS != STEPS_A_LOSS - 1:
            return
        if len(self._seen.loss_steps) < self._script.losses:
            self._at(time.monotonic() + self._draw.uniform(0.2, 0.8) * self._script.step_s, self._lose_one)
        elif self._script.rolling and not self._rolling_began:
            self._rolling_began = time.monotonic()
            self._seen.rolling_steps.append(self._step)
            self._rolling.extend(self._draw.sample(self._placed(), self._script.rolling))
            self._at(self._rolling_began, self._lose_next)

    def _placed(self) -> list[WorkerMember]:
        newest = self._plans_heard[-1]
        assert newest is not None
        return [self._workers[name] for name in newest.plan.workers if name in self._workers]

    def _lose_one(self) -> None:
        victim = self._draw.choice(self._placed())
        seen = self._seen
        seen.loss_steps.append(self._step)
        self._awaits = {name: getattr(seen, name) for name in ("halted", "acting", "decided")}
        self._closed = self._close(victim)
        seen.closed_at.append(self._closed)

    def _lose_next(self) -> None:
        victim = self._rolling.popleft()
        self._untold[victim.name] = self._close(victim)
        if self._rolling:
            pause_s = ROLLING_STEPS * self._script.step_s / self._script.rolling
            self._at(time.monotonic() + pause_s, self._lose_next)

    def _close(self, victim: WorkerMember) -> float:
        """Has a host go, with its worker and its agent; returns when."""
        links = [victim.link, victim.agent.link]
        del self._workers[victim.name]
        victim.link = victim.agent.link = victim.agent.worker = None
        closed = time.monotonic()
        for link in links:
            assert link is not None
            self._epoll.unregister(link.sock)
            del self._links[link.sock.fileno()]
            link.sock.close()
        for generation, telling in list(self._tellings.items()):
            self._told(telling, victim.name, generation, closed)
        return closed


def _lower_half(mask: int) -> int:
    bits = [at for at in range(mask.bit_length()) if mask >> at & 1]
    return sum(1 << at for at in bits[: len(bits) // 2])
