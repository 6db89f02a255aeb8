"""Agents on the coordinator's port: who gets a node's number, who is told to end, and who is refused."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from planaria.data.streams.blocks import Blocks, StreamAbout, stream_folder
from planaria.job.faults import Fault
from planaria.job.parse import parse_job
from planaria.job.sections.budget import BudgetSection
from planaria.plan.plan import NodeId
from planaria.protocol.membership.liveness import Limits
from planaria.protocol.messages.agent import (
    Available,
    BlockPiece,
    Dismissed,
    Enrol,
    Farewell,
    KillNode,
    NodeEnded,
    NodeLog,
    OfferRefused,
    Ping,
    Pong,
    StartNode,
    ToAgent,
    WantBlock,
    Welcome,
    decode_to_agent,
)
from planaria.protocol.messages.from_worker import Activity, Alive, Pulse, Ready
from planaria.protocol.messages.message import PROTOCOL_VERSION, encode
from planaria.protocol.messages.records import DeviceLost, NodeLost, NodeReleased, Note, PlanTaken
from planaria.protocol.messages.to_worker import PlanMessage
from planaria.protocol.messages.user import Request, Wish
from planaria.runtime.coordinator.agents import Agents
from planaria.runtime.coordinator.stream_blocks import StreamBlocks
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.thresholds import HELLO_LIMIT_BYTES
from planaria.runtime.wire import socket_server as switchboard_module
from planaria.runtime.wire.control_frames import control_frame, read_control
from tests.e2e.commands import wait_until
from tests.runtime.coordinator.test_server import DEVICES, NODES, TOKEN, Client, Running, asked

JOB = parse_job(
    '[model]\ntype = "gpt2"\n[train]\nsteps = 3\nglobal_batch = 6\nmicrobatch = 1\nsequence_length = 8\n'
    f'[cluster]\nnodes = {NODES}\ndevices_per_node = {DEVICES}\nlauncher = "agents"\nhost = "0.0.0.0"',
    origin="test",
)
WELCOME = Welcome(job=JOB, run_folder="/runs/x", mark="mark", patience_s=60.0)
ENROL = Enrol(version=PROTOCOL_VERSION, token=TOKEN, identity="", host="10.0.0.1", boot="this kernel")


class Offering(Running):
    """A server whose nodes come from agents."""

    def __init__(
        self,
        folder: Path,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        only_boot: str = "",
        data: str = "",
        welcome: Welcome = WELCOME,
        own_folders_refused: str = "",
        stream: StreamBlocks | None = None,
        **changes: Any,
    ) -> None:
        faults = {NodeId(1): (Fault(node=1, step=2, at="vote"),)}
        self.num_agents = 0
        self.agents = Agents(welcome, TOKEN, faults, only_boot, b"costs", own_folders_refused, stream)
        super().__init__(folder, limits, self.agents, data=data, **changes)

    def agent(self, **changes: Any) -> AgentStandIn:
        self.num_agents += 1
        plain = {"identity": f"agent {self.num_agents}", "mark": "mark"}
        return AgentStandIn(self.client(), msgspec.structs.replace(ENROL, **(plain | changes)))

    def node(self) -> tuple[AgentStandIn, int]:
        """An agent that was told to start a node, and its number."""
        agent = self.agent()
        assert agent.receive() == WELCOME
        agent.client.send(Available())
        started = agent.receive()
        assert isinstance(started, StartNode)
        return agent, started.node


class AgentStandIn:
    def __init__(self, client: Client, enrol: Enrol) -> None:
        self.client = client
        client.send(enrol)

    def receive(self) -> ToAgent:
        return decode_to_agent(read_control(self.client.socket))


def end_node(clients: list[Client], node: int) -> None:
    """Ends all workers of a node."""
    for client in clients[node * DEVICES : (node + 1) * DEVICES]:
        client.socket.close()


@pytest.fixture
def offering(tmp_path: Path) -> Iterator[Offering]:
    server = Offering(tmp_path)
    yield server
    server.close()


def test_a_host_whose_nodes_computed_wrong_twice_gets_no_more(
    offering: Offering, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"10.0.0.1": 1}
    monkeypatch.setattr(offering.agents.desk, "times_wrong", lambda host: times.get(host, 0))
    offering.node()
    times["10.0.0.1"] = 2
    agent = offering.agent()
    assert agent.receive() == WELCOME
    agent.client.send(Available())
    refused = agent.receive()
    assert isinstance(refused, OfferRefused)
    assert refused.reason == "nodes of host 10.0.0.1 computed wrong 2 times: no more are started there"


def test_nodes_are_numbered_as_they_come(offering: Offering) -> None:
    agents = [offering.node() for _ in range(NODES)]
    assert [node for _, node in agents] == [0, 1, 2]
    offering.join_all()
    plan = offering.wait_for(PlanTaken)
    assert {worker for pipeline in plan.pipelines for worker, _, _ in pipeline} <= set(range(NODES * DEVICES))
    agents[0][0].client.send(Ping())
    assert agents[0][0].receive() == Pong()
    assert offering.node()[1] == NODES, "one that comes later has the next number"


def test_one_more_than_the_most_waits_as_a_spare_and_takes_the_place_of_a_lost_node(tmp_path: Path) -> None:
    server = Offering(tmp_path, most_nodes=NODES)
    try:
        for _ in range(NODES):
            server.node()
        clients = server.join_all()
        spare = server.agent()
        assert spare.receive() == WELCOME
        spare.client.send(Available())
        told = server.wait_for(Note)
        assert (
            told.text
            == f"host 10.0.0.1 waits as a spare: the run has {NODES} nodes, the most that cluster.nodes allows"
        )
        end_node(clients, 1)
        assert server.wait_for(NodeLost).node == 1
        assert spare.receive() == StartNode(node=NODES)
    finally:
        server.close()


def test_nodes_that_agents_bring_beyond_the_budget_wait_until_prices_fall(tmp_path: Path) -> None:
    price = tmp_path / "price"
    price.write_text("2.5")
    budget = BudgetSection(per_hour=10.0, price_command=f"cat {price}", price_every_s=0.01)
    server = Offering(tmp_path, budget=budget)
    try:
        assert server.wait_for(Note).text == "a node costs 2.5 dollars an hour from now on"
        for _ in range(NODES + 1):
            server.node()
        spare = server.agent()
        assert spare.receive() == WELCOME
        spare.client.send(Available())
        over = "the nodes would cost 12.50 dollars an hour, over budget.per_hour = 10"
        assert server.wait_for(Note, 2).text == f"host 10.0.0.1 waits as a spare: {over}"
        price.write_text("cheap")
        said = "budget.price_command printed 'cheap', which is no price; the last known price holds."
        assert server.wait_for(Note, 3).text == said
        price.write_text("2")
        assert spare.receive() == StartNode(node=NODES + 1)
        assert [note.text for note in server.of(Note)[3:]] == ["a node costs 2 dollars an hour from now on"]
    finally:
        server.close()


def test_a_node_gets_the_faults_on_order_that_are_its_own(offering: Offering) -> None:
    agents = [offering.agent() for _ in range(2)]
    for agent in agents:
        agent.receive()
        agent.client.send(Available())
    started = [agent.receive() for agent in agents]
    assert all(isinstance(message, StartNode) for message in started)
    assert {message.node: message.faults for message in started if isinstance(message, StartNode)} == {
        0: (),
        1: (Fault(node=1, step=2, at="vote"),),
    }, "whoever of them was heard first"


def test_a_lost_node_is_killed_by_its_agent_and_comes_back_under_another_number(offering: Offering) -> None:
    agents = [offering.node()[0] for _ in range(NODES)]
    clients = offering.join_all()
    end_node(clients, 1)
    assert offering.wait_for(NodeLost).node == 1
    assert agents[1].receive() == KillNode(node=1)
    agents[1].client.send(NodeEnded(node=1, cause="process killed by SIGKILL"))
    agents[1].client.send(Available(after=1))
    assert agents[1].receive() == StartNode(node=NODES)
    assert len(offering.of(NodeLost)) == 1


def test_an_agent_that_was_out_of_reach_learns_that_its_node_is_fenced(offering: Offering) -> None:
    agents = [offering.node()[0] for _ in range(NODES)]
    clients = offering.join_all()
    for agent in agents[:2]:
        agent.client.socket.close()
    end_node(clients, 1)
    offering.wait_for(NodeLost)
    back = [offering.agent(node=node, identity=f"agent {node + 1}") for node in range(NODES)]
    assert [agent.receive() for agent in back] == [WELCOME] * NODES
    assert back[1].receive() == KillNode(node=1)
    for agent in (back[0], back[2]):
        agent.client.send(Ping())
        assert agent.receive() == Pong(), "that its agent was away is no loss of a node"
    assert agents[2].client.is_closed(), "the connection that it had before is given up"
    assert len(offering.of(NodeLost)) == 1


def test_a_number_that_was_given_away_belongs_to_whoever_had_it_first(offering: Offering) -> None:
    """A coordinator that died between handing it out and the workers' hellos does not know of it."""
    first = offering.agent(node=5)
    assert first.receive() == WELCOME
    other = offering.agent(node=5)
    assert [other.receive(), other.receive()] == [WELCOME, KillNode(node=5)]
    assert offering.node()[1] == 6


def test_a_node_that_ends_before_it_joins_is_waited_for_under_its_next_number(offering: Offering) -> None:
    """However often: the job does not begin with fewer nodes than it asks for."""
    agent, node = offering.node()
    for _ in range(NODES):
        agent.client.send(NodeEnded(node=node, cause="process ended with status 1"))
        agent.client.send(Available(after=node))
        started = agent.receive()
        if isinstance(started, KillNode):
            started = agent.receive()
        assert isinstance(started, StartNode)
        node = started.node
    assert "status 1" in offering.wait_for(Note).text
    assert node == NODES
    assert not offering.of(NodeLost)
    clients = offering.join(*range(NODES * DEVICES, 2 * NODES * DEVICES))
    assert isinstance(clients[0].receive(), PlanMessage)


def test_a_node_of_an_earlier_run_is_nothing_to_this_one(offering: Offering) -> None:
    agent = offering.agent(node=2, mark="another run's")
    assert agent.receive() == WELCOME
    agent.client.send(NodeEnded(node=2, cause="process killed by SIGKILL"))
    agent.client.send(Available())
    assert agent.receive() == StartNode(node=0)
    assert not offering.of(NodeLost)
    assert not offering.of(Note)


def test_what_a_worker_said_counts_before_its_agents_word(offering: Offering) -> None:
    """Its own connection ends when all that it said has been heard: a failure of the user's code must be."""
    agents = [offering.node()[0] for _ in range(NODES)]
    clients = offering.join_all()
    agents[0].client.send(NodeEnded(node=0, cause="process ended with status 1"))
    agents[0].client.send(Ping())
    assert agents[0].receive() == Pong()
    assert not offering.of(NodeLost)
    end_node(clients, 0)
    assert offering.wait_for(NodeLost).node == 0


def test_the_agent_of_a_drained_node_is_dismissed(offering: Offering) -> None:
    agent, _ = offering.node()
    offering.server._admission.release(NodeId(0))
    agent.client.send(NodeEnded(node=0, cause="process ended with status 0"))
    agent.client.send(Available(after=0))
    assert agent.receive() == Dismissed(farewell=Farewell.DRAINED)
    assert not offering.of(NodeReleased)


def test_agents_are_dismissed_until_the_run_is_resumed(offering: Offering) -> None:
    agent, _ = offering.node()
    offering.server.request_stop()
    assert agent.receive() == Dismissed(farewell=Farewell.SUSPENDED)
    late = offering.agent()
    assert late.receive() == Dismissed(farewell=Farewell.SUSPENDED)
    agent.client.send(NodeEnded(node=0, cause="process ended with status 0"))
    offering.wait_for_the_end()


def test_agents_are_dismissed_when_the_run_is_ended_at_once(offering: Offering) -> None:
    agent, _ = offering.node()
    offering.server.abort()
    offering.wait_for_the_end()
    offering.agents.dismiss(Farewell.SUSPENDED)
    assert agent.receive() == Dismissed(farewell=Farewell.SUSPENDED)


def test_another_version_token_or_machine_is_told_why(tmp_path: Path) -> None:
    offering = Offering(tmp_path, only_boot="this kernel")
    try:
        other = offering.agent(version=PROTOCOL_VERSION + 1).receive()
        assert isinstance(other, OfferRefused)
        versions = f"protocol version {PROTOCOL_VERSION + 1}, the coordinator {PROTOCOL_VERSION}; install the same"
        assert versions in other.reason
        later = offering.client()
        later.socket.sendall(
            control_frame(msgspec.msgpack.encode({"type": "enrol", "version": PROTOCOL_VERSION + 1, "token": TOKEN}))
        )
        assert decode_to_agent(read_control(later.socket)) == other, "whatever else an enrolment of later days holds"
        assert versions in offering.wait_for(Note).text
        elsewhere = offering.agent(boot="another kernel")
        answer = elsewhere.receive()
        assert isinstance(answer, OfferRefused)
        assert "emulated" in answer.reason
        assert elsewhere.client.is_closed()
        guess = offering.agent(token="guess").receive()
        assert guess == OfferRefused(reason="the token is not the job's")
        assert offering.agent().receive() == WELCOME
    finally:
        offering.close()


NONSENSE = {
    "wrong token": encode(msgspec.structs.replace(ENROL, token="guess")),
    "no token": msgspec.msgpack.encode({"type": "enrol", "version": 1, "host": "x", "boot": ""}),
    "not enrolled": encode(Available()),
    "a ping first": encode(Ping()),
    "node beyond int64": msgspec.msgpack.encode({"type": "node_ended", "node": 2**64 - 1, "cause": "x"}),
}


@pytest.mark.parametrize("body", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_instead_of_an_enrolment(body: bytes, offering: Offering) -> None:
    stranger = offering.client()
    stranger.socket.sendall(control_frame(body))
    assert stranger.is_closed()
    assert offering.node()[1] == 0


@pytest.mark.parametrize(
    "data",
    [
        control_frame(encode(ENROL)),
        control_frame(encode(Ready(generation=1))),
        control_frame(b"\x91" * 3000),
        (HELLO_LIMIT_BYTES + 1).to_bytes(4, "big"),
        b"\xff" * 40,
    ],
    ids=["a second enrolment", "a worker's message", "deep", "too long", "bytes"],
)
def test_an_agent_that_talks_nonsense_is_hung_up_on(data: bytes, offering: Offering) -> None:
    """And its node is not lost: its workers speak for themselves."""
    agents = [offering.node()[0] for _ in range(NODES)]
    offering.join_all()
    agents[0].client.socket.sendall(data)
    assert agents[0].client.is_closed()
    again = offering.agent(node=0, identity="agent 1")
    assert again.receive() == WELCOME
    again.client.send(Ping())
    assert again.receive() == Pong()
    assert not offering.of(NodeLost)


# Strangers, and what was heard before


def test_what_was_recorded_and_is_played_again_is_refused(offering: Offering) -> None:
    """Hellos of workers that are there, or were; votes without a hello; a node that was lost."""
    for _ in range(NODES):
        offering.node()
    clients = offering.join_all()
    hello = {"type": "hello", "version": PROTOCOL_VERSION, "token": TOKEN, "worker": 0, "pid": 1, "data_address": "x:1"}
    for said in (hello, {"type": "ready", "generation": 1}):
        replayed = offering.client()
        replayed.socket.sendall(control_frame(msgspec.msgpack.encode(said)))
        assert replayed.is_closed()
    end_node(clients, 2)
    offering.wait_for(NodeLost)
    replayed = offering.client()
    replayed.socket.sendall(control_frame(msgspec.msgpack.encode(hello | {"worker": 4})))
    assert replayed.is_closed()
    assert [lost.node for lost in offering.of(NodeLost)] == [2]


def test_thousands_of_idle_connections_are_sent_away(offering: Offering) -> None:
    idle = [socket.create_connection(("127.0.0.1", int(offering.address.rsplit(":")[-1])), 10) for _ in range(1000)]
    try:
        for _ in range(NODES):
            offering.node()
        offering.join_all()
        note = offering.wait_for(Note)
        assert "do not show the job's token" in note.text
        assert len(offering.of(Note)) == 1
        assert len(offering.server._socket_server._strangers) <= 256
    finally:
        for sock in idle:
            sock.close()


def test_whoever_is_silent_has_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switchboard_module, "HELLO_WITHIN_S", 0.2)
    offering = Offering(tmp_path)
    try:
        silent, half = offering.client(), offering.client()
        half.socket.sendall(control_frame(encode(ENROL))[:20])
        assert silent.is_closed()
        assert half.is_closed()
        request = Request(version=PROTOCOL_VERSION, token=TOKEN, wish=Wish.STATUS)
        asker = offering.client()
        asker.socket.sendall(control_frame(msgspec.msgpack.encode(request)))
        assert read_control(asker.socket)
        assert not offering.of(NodeLost)
    finally:
        offering.close()


def test_a_coordinator_that_hears_of_nobody_loses_nobody(tmp_path: Path) -> None:
    """Until some are heard of again: then the others have as long to be heard of as the silence lasted."""
    offering = Offering(tmp_path, Limits(silence_s=0.2))
    try:
        for _ in range(NODES):
            offering.node()
        clients = offering.join_all()
        assert wait_until(lambda: (offering.server._judge._isolation._quiet_s or 0.0) > 0.5)
        assert not offering.of(NodeLost)
        alive = Alive(pulse=Pulse(activity=Activity.IDLE, progress=1))

        def others_are_lost() -> bool:
            for client in clients[:DEVICES]:
                client.send(alive)
            return len(offering.of(NodeLost)) == NODES - 1

        assert wait_until(others_are_lost)
        assert [lost.node for lost in offering.of(NodeLost)] == [1, 2]
    finally:
        offering.close()


def test_a_node_with_other_data_is_sent_home_with_the_reason(tmp_path: Path) -> None:
    offering = Offering(tmp_path, data="the run's")
    try:
        agent, node = offering.node()
        offering.client().hello(DEVICES * node, data="another's")
        refused = agent.receive()
        assert isinstance(refused, OfferRefused)
        assert refused.reason.startswith(f"node {node} is refused: its data or weights are not the run's")
        assert offering.wait_for(Note).text.startswith(refused.reason)
        _, other = offering.node()
        offering.client().hello(DEVICES * other)
        assert "cannot read the run's data" in offering.wait_for(Note, 2).text
        _, good = offering.node()
        offering.client().hello(DEVICES * good, data="the run's")
        assert len(offering.of(Note)) == 2
    finally:
        offering.close()


def test_a_host_with_a_run_folder_of_its_own_gets_blocks_of_the_stream(tmp_path: Path) -> None:
    about = StreamAbout(named="data.source", key="", fingerprint="", looked_at=1, parts=(), block_samples=1)
    blocks = Blocks.begin(stream_folder(tmp_path / "data"), about)
    blocks.keep(3, b"samples", None)
    server = Offering(tmp_path, stream=StreamBlocks(blocks, b"what it is"))
    try:
        assert server.agent().receive() == WELCOME
        agent = server.agent(own_folder=True)
        assert agent.receive() == msgspec.structs.replace(WELCOME, profile=b"costs", stream=b"what it is")
        agent.client.send(WantBlock(block=3))
        piece = agent.receive()
        assert isinstance(piece, BlockPiece)
        assert (piece.block, piece.piece, piece.size_bytes) == (3, b"samples", 7)
    finally:
        server.close()
    server = Offering(RunFolder.create(tmp_path, "run").path)
    try:
        agent = server.agent(own_folder=True)
        agent.receive()
        agent.client.send(WantBlock(block=3))
        assert agent.client.is_closed(), "there is no stream"
    finally:
        server.close()


def test_a_host_with_a_run_folder_of_its_own(tmp_path: Path) -> None:
    """It gets the profile, and its logs are kept in the run's folder."""
    offering = Offering(tmp_path, own_folders_refused="the data are a stream")
    try:
        assert offering.agent().receive() == WELCOME
        assert offering.agent(own_folder=True).receive() == OfferRefused(reason="the data are a stream")
    finally:
        offering.close()
    run = RunFolder.create(tmp_path, "run")
    welcome = msgspec.structs.replace(WELCOME, run_folder=str(run.path))
    offering = Offering(run.path, welcome=welcome)
    try:
        assert offering.agent().receive() == welcome
        agent = offering.agent(own_folder=True)
        assert agent.receive() == msgspec.structs.replace(welcome, profile=b"costs")
        agent.client.send(Available())
        assert agent.receive() == StartNode(node=0)
        agent.client.send(NodeLog(node=0, worker=1, tail=b"first\n"))
        agent.client.send(NodeLog(node=0, worker=1, tail=b"second\n"))
        agent.client.send(NodeLog(node=1, worker=2, tail=b"of a node that is not its own"))
        agent.client.send(Ping())
        assert agent.receive() == Pong()
        assert run.worker_log(1).read_text() == "first\nsecond\n"
        assert [path.name for path in run.logs.iterdir()] == ["worker-1.log"]
        agent.client.send(NodeLog(node=0, worker=DEVICES, tail=b"of another node's worker"))
        assert agent.client.is_closed()
        answer = asked(offering, wish=Wish.SAVE, folder=str(tmp_path / "elsewhere"))
        assert not answer.accepted
        assert answer.text == f"nodes do not all see {tmp_path / 'elsewhere'}: name a URL (--to)"
    finally:
        offering.close()


def test_an_agent_ends_what_is_left_of_a_device_that_was_lost_alone(offering: Offering) -> None:
    agents = [offering.node()[0] for _ in range(NODES)]
    clients = offering.join_all()
    clients[3].socket.close()
    offering.wait_for(DeviceLost)
    assert agents[1].receive() == KillNode(node=1, worker=3)
    assert not offering.of(NodeLost)
