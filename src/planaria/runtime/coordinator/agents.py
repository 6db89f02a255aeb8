"""Nodes on other hosts: the agents that offer them, and what the coordinator asks of an agent.

It hands out node numbers and passes on orders. It never judges whether a node lives: its workers' own connections say
that, and an agent that is out of reach may come back.
"""

from __future__ import annotations

import hmac
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from planaria.job.faults import Fault
from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.membership.link_probes import LinkProbes
from planaria.protocol.messages.agent import (
    Available,
    Dismissed,
    Enrol,
    Farewell,
    KillNode,
    LinkProbed,
    NodeEnded,
    NodeLog,
    OfferRefused,
    Ping,
    Pong,
    ProbeLink,
    StartNode,
    WantBlock,
    Welcome,
    decode_from_agent,
)
from planaria.protocol.messages.message import Message, decode_first, encode, other_version
from planaria.protocol.messages.records import AnyRecord, NodeJoined
from planaria.protocol.messages.run_measurements import HostLink
from planaria.protocol.thresholds import MOST_WRONG
from planaria.runtime.coordinator.stream_blocks import StreamBlocks
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.thresholds import LIGHT_PROBE_S, PROBE_S
from planaria.runtime.wire.connection import Connection
from planaria.runtime.wire.control_frames import FrameError

log = logging.getLogger(__name__)


class Desk(Protocol):
    """The server as the agents' side uses it: what it knows of nodes, and how to reach a connection."""

    def new_node(self) -> NodeId:
        """Returns a number that no node had before. Its workers are expected to join soon."""
        ...

    @property
    def is_gathering(self) -> bool:
        """Whether nothing trains yet."""
        ...

    def links_measured(self, node: NodeId, host: str, links: tuple[HostLink, ...]) -> None:
        """Takes what a node's host measured of its links, before the node starts."""
        ...

    def no_room(self, coming: Counter[str], zone: str) -> str | None:
        """Returns why a node in this zone is not started now, beside so many in each zone that were and have not
        joined yet; None if it may be."""
        ...

    def is_coming(self, node: NodeId) -> bool:
        """Returns whether a node that an agent runs has neither joined nor gone."""
        ...

    def times_wrong(self, host: str) -> int:
        """Returns how many nodes of a host computed wrong so far."""
        ...

    def tell(self, text: str) -> None:
        """Tells people something."""
        ...

    def may_run(self, node: NodeId) -> bool:
        """Returns whether a node that an agent says it runs is not fenced. No other agent gets its number."""
        ...

    def was_released(self, node: NodeId) -> bool:
        """Whether the node handed over its work and is not wanted back."""
        ...

    def lost(self, node: NodeId, cause: str) -> None: ...

    def say(self, connection: Connection, body: bytes) -> None:
        """Sends a message without waiting."""
        ...

    def hang_up(self, connection: Connection) -> None: ...


@dataclass(slots=True)
class _Agent:
    connection: Connection
    identity: str
    host: str
    probe_port: int
    zone: str
    node: NodeId | None
    """The node that the agent runs, as far as is known."""


class Agents:
    """The agents of one job, as the coordinator sees them.

    Args:
        welcome: what an agent is told first.
        token: the job's token.
        faults: the faults that the user asked for.
        only_boot: the one kernel on which nodes may run; "": on any.
        profile: what hosts with run folders of their own are told of it.
        own_folders_refused: why such hosts are refused; "": they are not.
        stream: that such hosts get blocks of; None: the data are no stream.

    Attributes:
        has_own_folders: whether a host came that has a run folder of its own.
    """

    def __init__(
        self,
        welcome: Welcome,
        token: str,
        faults: Mapping[NodeId, tuple[Fault, ...]],
        only_boot: str,
        profile: bytes = b"",
        own_folders_refused: str = "",
        stream: StreamBlocks | None = None,
    ) -> None:
        self.has_own_folders = False
        self._welcome = welcome
        self._profile = profile
        self._own_folders_refused = own_folders_refused
        self._stream = stream
        self._token = token
        self._faults = faults
        self._only_boot = only_boot
        self._agents: dict[Connection, _Agent] = {}
        self._by_identity: dict[str, _Agent] = {}
        self._by_node: dict[NodeId, _Agent] = {}
        self._coming: dict[NodeId, str] = {}
        """Nodes that agents run and that have not joined yet, each with its zone."""
        self._coming_in: Counter[str] = Counter()
        """How many of them are in each zone."""
        self._probes: LinkProbes[Connection] = LinkProbes()
        self._spares: dict[Connection, tuple[HostLink, ...] | None] = {}
        """Agents whose node may start, with its links, and for which there is no room for now."""
        self._spares_told = ""
        self._desk: Desk | None = None
        self._over: Farewell | None = None

    def open(self, desk: Desk) -> None:
        self._desk = desk

    @property
    def desk(self) -> Desk:
        assert self._desk is not None
        return self._desk

    # What arrives

    def take(self, connection: Connection, frame: bytes) -> bool:
        """Takes a frame if it is an agent's.

        Raises:
            FrameError: it is none of an agent's, or an agent without the job's token.
        """
        agent = self._agents.get(connection)
        if agent is None and connection.worker is not None:
            return False
        if agent is None:
            self._look_at_version(connection, frame)
        try:
            message = decode_from_agent(frame)
        except (ValueError, RecursionError) as error:
            if agent is None:
                return False
            raise FrameError(str(error)) from error
        match message:
            case Enrol() if agent is None:
                self._enrol(connection, message)
            case Ping() if agent is not None:
                self._tell(agent, Pong())
            case WantBlock() if agent is not None and self._stream is not None:
                self._tell(agent, self._stream.answer(message))
            case Available() if agent is not None:
                self._available(agent, message)
            case LinkProbed() if agent is not None:
                self._probes.answer(connection, message.latency_s, message.bytes_per_s)
                self._go_on()
            case NodeEnded() if agent is not None and agent.node == message.node:
                self._set_node(agent, None)
                self.desk.lost(NodeId(message.node), message.cause)
            case NodeLog() if agent is not None and agent.node == message.node:
                self._keep_log(message)
            case NodeEnded() | NodeLog() if agent is not None:
                pass  # it was told so, and ended what it was told to end
            case _:
                raise FrameError("an agent must enrol once, and first")
        return True

    def _look_at_version(self, connection: Connection, frame: bytes) -> None:
        """Refuses an agent of another version, whatever else its message holds."""
        first = decode_first(frame)
        if (
            first is None
            or first.kind != "enrol"
            or not hmac.compare_digest(first.token.encode(), self._token.encode())
        ):
            return
        if (other := other_version("agent", first.version)) is not None:
            self.desk.say(connection, encode(OfferRefused(reason=other)))
            raise FrameError(other)

    def _enrol(self, connection: Connection, enrol: Enrol) -> None:
        refusal = self._refusal(enrol)
        if refusal is not None:
            self.desk.say(connection, encode(OfferRefused(reason=refusal)))
            raise FrameError(refusal)
        # What belongs to an earlier run ends when the agent hears of this one.
        node = NodeId(enrol.node) if enrol.node >= 0 and enrol.mark == self._welcome.mark else None
        if (other := self._by_identity.get(enrol.identity)) is not None:
            self.dropped(other.connection)
            self.desk.hang_up(other.connection)
        taken = node in self._by_node
        agent = _Agent(connection, enrol.identity, enrol.host, enrol.probe_port, enrol.zone, None)
        self._agents[connection] = self._by_identity[enrol.identity] = agent
        self._set_node(agent, None if taken else node)
        if enrol.probe_port and not self._only_boot:
            self._probes.add(connection, enrol.host, enrol.zone)
        if self._over is not None:
            self._tell(agent, Dismissed(farewell=self._over))
            return
        self.has_own_folders |= enrol.own_folder
        welcome = self._welcome
        if enrol.own_folder:
            stream = b"" if self._stream is None else self._stream.about
            welcome = msgspec.structs.replace(welcome, profile=self._profile, stream=stream)
        self._tell(agent, welcome)
        if node is not None and (taken or not self.desk.may_run(node)):
            self._tell(agent, KillNode(node=node))

    def _refusal(self, enrol: Enrol) -> str | None:
        if not hmac.compare_digest(enrol.token.encode(), self._token.encode()):
            return "the token is not the job's"
        if self._only_boot not in ("", enrol.boot):
            return "nodes with an emulated device share one clock, so all agents must run on the coordinator's machine"
        return (self._own_folders_refused or None) if enrol.own_folder else None

    def _keep_log(self, message: NodeLog) -> None:
        """Writes what a worker on a host with a run folder of its own has logged into the run's own."""
        if message.worker // self._welcome.job.cluster.devices_per_node != message.node:
            raise FrameError(f"worker {message.worker} is not of node {message.node}")
        try:
            with RunFolder(Path(self._welcome.run_folder)).worker_log(message.worker).open("ab") as file:
                file.write(message.tail)
        except OSError as error:
            log.warning("the log of worker %d cannot be kept: %s", message.worker, error)

    def _available(self, agent: _Agent, message: Available) -> None:
        if message.after >= 0 and self.desk.was_released(NodeId(message.after)):
            self._tell(agent, Dismissed(farewell=Farewell.DRAINED))
            return
        if self._over is not None:
            self._tell(agent, Dismissed(farewell=self._over))
            return
        if agent.probe_port and not self._only_boot:
            self._probes.offer(agent.connection)
            self._go_on()
        else:
            self._start(agent, None)

    def _go_on(self) -> None:
        """Has links measured where the hosts are free for it, and starts the nodes whose links are known."""
        if self._over is not None:
            return
        for connection, links in self._probes.done():
            self._start(self._agents[connection], links)
        seconds = PROBE_S if self.desk.is_gathering else LIGHT_PROBE_S
        for connection, other in self._probes.begin():
            host, port = self._agents[other].host, self._agents[other].probe_port
            self._tell(self._agents[connection], ProbeLink(address=f"{host}:{port}", seconds=seconds))

    def let_spares_in(self) -> None:
        """Starts nodes that waited as spares, as soon as there is room for them."""
        if self._over is not None:
            return
        full: set[str] = set()
        for connection, links in list(self._spares.items()):
            agent = self._agents[connection]
            if agent.zone not in full and not self._start(agent, links):
                full.add(agent.zone)

    def _start(self, agent: _Agent, links: tuple[HostLink, ...] | None) -> bool:
        """Starts a node if there is room for it; returns whether there is. Hosts that computed wrong are refused."""
        if (times := self.desk.times_wrong(agent.host)) >= MOST_WRONG:
            self._spares.pop(agent.connection, None)
            reason = f"nodes of host {agent.host} computed wrong {times} times: no more are started there"
            self.desk.tell(reason)
            self._tell(agent, OfferRefused(reason=reason))
            return True
        if (no_room := self.desk.no_room(self._coming_in, agent.zone)) is not None:
            self._spares[agent.connection] = links
            if no_room != self._spares_told:
                self._spares_told = no_room
                self.desk.tell(f"host {agent.host} waits as a spare: {no_room}")
            return False
        self._spares.pop(agent.connection, None)
        node = self.desk.new_node()
        self._set_node(agent, node)
        log.info("node %d runs on %s", node, agent.host)
        if links is not None:
            self.desk.links_measured(node, agent.host, links)
        self._tell(agent, StartNode(node=node, faults=self._faults.get(node, ())))
        return True

    def _set_node(self, agent: _Agent, node: NodeId | None) -> None:
        """Records which node the agent runs; None: none."""
        if agent.node is not None:
            del self._by_node[agent.node]
            self._comes_no_more(agent.node)
        agent.node = node
        if node is not None:
            self._by_node[node] = agent
            if self.desk.is_coming(node):
                self._coming[node] = agent.zone
                self._coming_in[agent.zone] += 1

    def hear(self, record: AnyRecord, time_s: float) -> None:
        """Hears of each record of the run: nodes that have joined do not come any more."""
        if isinstance(record, NodeJoined):
            self._comes_no_more(NodeId(record.node))

    def _comes_no_more(self, node: NodeId) -> None:
        if (zone := self._coming.pop(node, None)) is not None:
            self._coming_in[zone] -= 1

    def dropped(self, connection: Connection) -> None:
        """Forgets a closed connection. If it was an agent's, its node's workers may live on."""
        agent = self._agents.pop(connection, None)
        if agent is None:
            return
        self._set_node(agent, None)
        del self._by_identity[agent.identity]
        self._spares.pop(connection, None)
        self._probes.remove(connection)
        self._go_on()

    def dismiss(self, farewell: Farewell) -> None:
        """Tells all agents that the run has ended and that they may end too."""
        self._over = farewell
        for agent in list(self._agents.values()):
            self._tell(agent, Dismissed(farewell=farewell))

    def _tell(self, agent: _Agent, message: Message) -> None:
        self.desk.say(agent.connection, encode(message))

    # What becomes of nodes

    def kill(self, node: NodeId, worker: WorkerId | None = None) -> None:
        """Has a node's agent kill its workers, or one of them; an agent that is out of reach is told of a node when it
        comes back, and of a worker never: that is told to end when it says hello."""
        if worker is None:
            self._comes_no_more(node)
        if (agent := self._by_node.get(node)) is not None:
            self._tell(agent, KillNode(node=node, worker=worker))

    def start_worker(self, node: NodeId, worker: WorkerId) -> bool:
        """Has a node's agent start one of its workers again; returns whether it is within reach."""
        if (agent := self._by_node.get(node)) is None:
            return False
        self._tell(agent, StartNode(node=node, worker=worker))
        return True

    def refuse(self, node: NodeId, reason: str) -> None:
        """Dismisses the agent of a node for good."""
        if (agent := self._by_node.get(node)) is not None:
            self._tell(agent, OfferRefused(reason=reason))

    def all_ended(self) -> bool:
        """Whether all nodes whose agents are within reach have ended."""
        return not self._by_node
