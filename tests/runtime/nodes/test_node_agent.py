"""A node's agent, against a coordinator that does what a test says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from planaria.data.streams.blocks import StreamAbout, digest_of, open_stream
from planaria.job.errors import UserError
from planaria.plan.plan import NodeId
from planaria.protocol.messages.agent import (
    MOST_LOG_BYTES,
    Available,
    BlockPiece,
    Dismissed,
    Enrol,
    Farewell,
    FromAgent,
    KillNode,
    NodeEnded,
    NodeLog,
    OfferRefused,
    Ping,
    Pong,
    StartNode,
    WantBlock,
    Welcome,
    decode_from_agent,
)
from planaria.protocol.messages.message import Message, encode
from planaria.runtime.nodes import coordinator_link
from planaria.runtime.nodes import node_agent as agent_module
from planaria.runtime.nodes.agent_settings import AgentSettings
from planaria.runtime.nodes.node_agent import CoordinatorLost, NodeAgent
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.wire.control_frames import control_frame, read_control
from planaria.runtime.worker.settings import WorkerSettings
from tests.runtime.coordinator.test_remote_nodes import make_job

DEADLINE_S = 20.0
TOKEN = "0123456789abcdef"


class Processes:
    """In place of LocalNodes: nothing runs, and it ends when it is told to."""

    made: list[Processes]

    def __init__(self, log: Path, model_type: str) -> None:
        self.model_type = model_type
        self.spawned: list[WorkerSettings] = []
        self.killed: list[NodeId] = []
        self._live: list[NodeId] = []
        self._ended: list[tuple[NodeId, str]] = []
        self._near, self._far = socket.socketpair()
        Processes.made.append(self)

    def start(self) -> None:
        pass

    def fileno(self) -> int:
        return self._near.fileno()

    def spawn(self, settings: WorkerSettings) -> int:
        self.spawned.append(settings)
        self._live.append(NodeId(settings.node))
        return 0

    def kill(self, node: NodeId) -> None:
        self.killed.append(node)
        self.end("process killed by SIGKILL")

    def end(self, cause: str) -> None:
        self._ended += [(node, cause) for node in self._live]
        self._live = []
        self._far.send(b"x")

    def lost(self) -> list[tuple[NodeId, str]]:
        if self._ended:
            self._near.recv(64)
        found, self._ended = self._ended, []
        return found

    def all_ended(self) -> bool:
        return not self._live

    def pids(self) -> list[int]:
        return []

    def release(self) -> None:
        pass

    def close(self) -> None:
        self._near.close()
        self._far.close()


class CoordinatorStandIn:
    """Accepts one agent after another; answers pings unless told not to."""

    def __init__(self, folder: Path) -> None:
        self.folder = RunFolder.create(folder, "run")
        self.folder.identity.write_text("mark")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(DEADLINE_S)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.socket: socket.socket | None = None

    def accept(self) -> Enrol:
        self.socket, _ = self._listener.accept()
        self.socket.settimeout(DEADLINE_S)
        first = self.receive()
        assert isinstance(first, Enrol)
        return first

    def welcome(self, **changes: Any) -> None:
        plain = Welcome(job=make_job(), run_folder=str(self.folder.path), mark="mark", patience_s=60.0)
        self.send(msgspec.structs.replace(plain, **changes))

    def send(self, message: Message) -> None:
        assert self.socket is not None
        self.socket.sendall(control_frame(encode(message)))

    def receive(self) -> FromAgent:
        """The next message; pings are answered and not told of."""
        assert self.socket is not None
        while isinstance(message := decode_from_agent(read_control(self.socket)), Ping):
            self.send(Pong())
        return message

    def start_node(self, node: int) -> None:
        assert isinstance(self.receive(), Available)
        self.send(StartNode(node=node))

    def hang_up(self) -> None:
        assert self.socket is not None
        self.socket.close()

    def close(self) -> None:
        self._listener.close()
        if self.socket is not None:
            self.socket.close()


class Running:
    """An agent in a thread of its own."""

    def __init__(self, coordinator: str, **settings: Any) -> None:
        self.said: list[str] = []
        self.error: BaseException | None = None
        self._agent = NodeAgent(AgentSettings(coordinator=coordinator, token=TOKEN, **settings), self.said.append)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._agent.run()
        except BaseException as error:
            self.error = error

    def wait(self) -> BaseException | None:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        return self.error


@pytest.fixture
def coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CoordinatorStandIn]:
    Processes.made = []
    monkeypatch.setattr(agent_module, "LocalNodes", Processes)
    made = CoordinatorStandIn(tmp_path)
    yield made
    made.close()


def test_a_node_is_served_from_enrolment_to_the_end_of_the_run(coordinator: CoordinatorStandIn, tmp_path: Path) -> None:
    agent = Running(coordinator.address, import_path=tmp_path, zone="rack 7")
    enrol = coordinator.accept()
    assert (enrol.token, enrol.host, enrol.node) == (TOKEN, "127.0.0.1", -1)
    job = make_job("cluster.devices_per_node=2")
    coordinator.welcome(job=job)
    coordinator.start_node(4)
    coordinator.send(Dismissed(farewell=Farewell.OVER))
    (processes,) = wait_for(lambda: Processes.made)
    wait_for(lambda: len(processes.spawned) == 2)
    processes.end("process ended with status 0")
    assert coordinator.receive() == NodeEnded(node=4, cause="process ended with status 0")
    assert agent.wait() is None
    assert [settings.worker for settings in processes.spawned] == [8, 9]
    assert [settings.zone for settings in processes.spawned] == ["rack 7", "rack 7"]
    first = processes.spawned[0]
    assert (first.coordinator, first.token, first.host) == (coordinator.address, TOKEN, "127.0.0.1")
    assert first.import_path == str(tmp_path)
    assert first.data_folder == str(coordinator.folder.data)


def test_a_fenced_node_is_offered_again(coordinator: CoordinatorStandIn) -> None:
    agent = Running(coordinator.address)
    coordinator.accept()
    coordinator.welcome()
    coordinator.start_node(1)
    coordinator.send(KillNode(node=0))
    coordinator.send(KillNode(node=1))
    assert coordinator.receive() == NodeEnded(node=1, cause="process killed by SIGKILL")
    assert coordinator.receive() == Available(after=1)
    coordinator.send(Dismissed(farewell=Farewell.DRAINED))
    assert agent.wait() is None
    assert Processes.made[0].killed == [1]


def test_the_node_lives_on_while_the_coordinator_is_away(coordinator: CoordinatorStandIn) -> None:
    agent = Running(coordinator.address)
    coordinator.accept()
    coordinator.welcome()
    coordinator.start_node(1)
    wait_for(lambda: Processes.made and Processes.made[0].spawned)
    coordinator.hang_up()
    assert coordinator.accept().node == 1, "it says who runs there"
    coordinator.welcome()
    coordinator.send(Dismissed(farewell=Farewell.SUSPENDED))
    wait_for(lambda: any("not needed" in line for line in agent.said))
    assert not Processes.made[0].killed
    Processes.made[0].end("process ended with status 0")
    assert agent.wait() is None
    assert sum("out of reach" in line for line in agent.said) == 1


def test_the_coordinator_of_a_run_that_is_over_is_not_looked_for(
    coordinator: CoordinatorStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "GOODBYE_S", 0.3)
    agent = Running(coordinator.address)
    coordinator.accept()
    coordinator.welcome()
    coordinator.start_node(1)
    coordinator.send(Dismissed(farewell=Farewell.OVER))
    wait_for(lambda: any("not needed" in line for line in agent.said))
    coordinator.close()
    assert agent.wait() is None
    assert Processes.made[0].killed == [1], "it did not end by itself"
    assert not [line for line in agent.said if "out of reach" in line]


def test_the_coordinators_address_is_read_again_at_each_try(coordinator: CoordinatorStandIn, tmp_path: Path) -> None:
    """Where it was, something else listens meanwhile; before that, nobody has said where it is. Workers read it too."""
    address = tmp_path / "address"
    agent = Running(f"file:{address}")
    wait_for(lambda: agent.said)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.settimeout(DEADLINE_S)
        address.write_text(f"127.0.0.1:{stranger.getsockname()[1]}\n")
        other, _ = stranger.accept()
        with other:
            other.sendall(b"HTTP/1.1 400 Bad Request")
        address.write_text(coordinator.address)
    coordinator.accept()
    coordinator.welcome()
    coordinator.start_node(0)
    wait_for(lambda: Processes.made and Processes.made[0].spawned)
    assert Processes.made[0].spawned[0].coordinator == f"file:{address}"
    coordinator.send(Dismissed(farewell=Farewell.OVER))
    Processes.made[0].end("process ended with status 0")
    assert agent.wait() is None


def test_what_belongs_to_an_earlier_run_ends(coordinator: CoordinatorStandIn) -> None:
    """Another coordinator at the same address, with the same token."""
    agent = Running(coordinator.address)
    assert coordinator.accept().mark == ""
    coordinator.welcome()
    coordinator.start_node(1)
    wait_for(lambda: Processes.made and Processes.made[0].spawned)
    coordinator.hang_up()
    assert coordinator.accept().mark == "mark"
    coordinator.folder.identity.write_text("the next run's")
    coordinator.welcome(mark="the next run's")
    assert coordinator.receive() == NodeEnded(node=1, cause="process killed by SIGKILL")
    coordinator.start_node(0)
    coordinator.send(Dismissed(farewell=Farewell.SUSPENDED))
    wait_for(lambda: len(Processes.made[0].spawned) == 2)
    Processes.made[0].end("process ended with status 0")
    assert agent.wait() is None


def test_workers_do_not_outlive_patience_and_the_agent_gives_up_in_the_end(
    coordinator: CoordinatorStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packets vanish: the connection stands, and nothing is answered on it any more."""
    monkeypatch.setattr(coordinator_link, "AGENT_SILENCE_S", 0.2)
    agent = Running(coordinator.address, give_up_s=1.2)
    coordinator.accept()
    coordinator.welcome(patience_s=0.6)
    coordinator.start_node(1)
    error = agent.wait()
    assert Processes.made[0].killed[0] == 1
    assert isinstance(error, CoordinatorLost)
    assert "--give-up" in str(error)


def test_an_agent_may_be_there_before_the_coordinator(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    agent = Running(address, give_up_s=0.5)
    error = agent.wait()
    assert isinstance(error, CoordinatorLost)
    assert any("trying again" in line for line in agent.said)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mark": "another"}, "does not see the coordinator's run folder"),
        ({"run_folder": "/nowhere/at/all"}, "Set run.folder to a folder that every node mounts"),
    ],
)
def test_a_node_with_another_file_system_cannot_take_part(
    changes: dict[str, str], said: str, coordinator: CoordinatorStandIn
) -> None:
    agent = Running(coordinator.address)
    coordinator.accept()
    coordinator.welcome(**changes)
    error = agent.wait()
    assert isinstance(error, UserError)
    assert said in str(error)


def test_a_host_that_does_not_see_the_run_folder_has_one_of_its_own(
    coordinator: CoordinatorStandIn, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    agent = Running(coordinator.address, folder=own)
    assert coordinator.accept().own_folder
    overrides = ('cluster.device="emulated"', 'cluster.profile="x"', 'run.checkpoint_folder="memory://runs"')
    coordinator.welcome(job=make_job(*overrides), run_folder="/nowhere/job", profile=b"costs")
    folder = RunFolder(own / "job")
    left = folder.worker_log(1)
    coordinator.receive()
    left.write_text("of an earlier run\n")
    coordinator.send(StartNode(node=1))
    wait_for(lambda: Processes.made and Processes.made[0].spawned)
    told = Processes.made[0].spawned[0]
    assert (told.log, told.data_folder, told.profile) == (str(left), str(folder.data), str(folder.profile))
    assert folder.profile.read_bytes() == b"costs"
    assert not left.exists()
    left.write_bytes(b"x" * MOST_LOG_BYTES + b"its last words\n")

    second = Running(coordinator.address, folder=own)
    first = coordinator.socket
    coordinator.accept()
    coordinator.welcome(job=make_job(*overrides), run_folder="/elsewhere/job")
    assert "Give each agent of a host a folder of its own" in str(second.wait())
    coordinator.socket = first

    coordinator.send(Dismissed(farewell=Farewell.OVER))
    Processes.made[0].end("process ended with status 0")
    log = coordinator.receive()
    assert isinstance(log, NodeLog)
    assert len(log.tail) == MOST_LOG_BYTES
    assert log.tail.startswith(b"(what came before is on ")
    assert log.tail.endswith(b"xits last words\n")
    assert coordinator.receive() == NodeEnded(node=1, cause="process ended with status 0")
    assert agent._thread.is_alive(), "nobody has confirmed that the log has come"
    coordinator.hang_up()
    assert agent.wait() is None


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("run.checkpoint_folder='nowhere://runs'",), "Give a URL that fsspec knows"),
        (("run.checkpoint_folder='memory://runs'",), "data.source = 'missing.txt'"),
        (("run.checkpoint_folder='memory://runs'", "model.weights='of-mine'"), "model.weights = 'of-mine' is not on"),
    ],
)
def test_what_such_a_host_lacks_is_told_in_a_line(
    overrides: tuple[str, ...], said: str, coordinator: CoordinatorStandIn, tmp_path: Path
) -> None:
    agent = Running(coordinator.address, folder=tmp_path / "own")
    coordinator.accept()
    coordinator.welcome(job=make_job("data.source='missing.txt'", *overrides))
    error = agent.wait()
    assert isinstance(error, ValueError)
    assert said in str(error)
    assert len(str(error).splitlines()) == 1


def test_an_address_of_another_host_is_refused(coordinator: CoordinatorStandIn) -> None:
    agent = Running(coordinator.address, host="192.0.2.1")
    assert coordinator.accept().host == "192.0.2.1"
    coordinator.welcome()
    error = agent.wait()
    assert isinstance(error, UserError)
    assert "--host" in str(error)


def test_a_refusal_is_final(coordinator: CoordinatorStandIn) -> None:
    agent = Running(coordinator.address)
    coordinator.accept()
    coordinator.send(OfferRefused(reason="the agent speaks protocol version 0"))
    error = agent.wait()
    assert isinstance(error, UserError)
    assert "version 0" in str(error)


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request\r\n", control_frame(b"\xc1"), control_frame(b"{}")])
def test_something_else_answers_there(data: bytes, coordinator: CoordinatorStandIn) -> None:
    agent = Running(coordinator.address)
    coordinator.accept()
    assert coordinator.socket is not None
    coordinator.socket.sendall(data)
    error = agent.wait()
    assert isinstance(error, UserError)
    assert "no coordinator" in str(error)


def test_blocks_of_a_stream_that_workers_want_come_from_the_coordinator(
    coordinator: CoordinatorStandIn, tmp_path: Path
) -> None:
    about = StreamAbout(named="data.source", key="", fingerprint="", looked_at=1, parts=(), block_samples=1)
    agent = Running(coordinator.address, folder=tmp_path / "own")
    coordinator.accept()
    given = {"job": make_job('run.checkpoint_folder="memory://runs"'), "stream": msgspec.json.encode(about)}
    coordinator.welcome(run_folder="/nowhere/job", **given)
    coordinator.start_node(0)
    wait_for(lambda: Processes.made and Processes.made[0].spawned)
    blocks = open_stream(RunFolder(tmp_path / "own" / "job").data)
    assert blocks is not None
    assert blocks.about == about
    blocks.want_block(3)
    assert coordinator.receive() == WantBlock(block=3)
    coordinator.hang_up()
    coordinator.accept()
    coordinator.welcome(run_folder="/nowhere/job", **given)
    assert coordinator.receive() == WantBlock(block=3), "once more, of the next coordinator"
    piece = BlockPiece(block=3, offset=0, piece=b"samples", size_bytes=7, digest=digest_of(b"samples"))
    coordinator.send(piece)
    wait_for(lambda: blocks.path(3).exists() and blocks.path(3).read_bytes() == b"samples")
    coordinator.send(OfferRefused(reason="enough"))
    agent.wait()


def test_a_host_without_the_run_folder_that_may_lead_asks_etcd(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--coordinator 'host:1' is not etcd://HOST:PORT,.../RUN"):
        AgentSettings(coordinator="host:1", token=TOKEN, may_lead=True, folder=tmp_path)


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:x", "host:0", "host:65536"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT"):
        AgentSettings(coordinator=address, token=TOKEN)


@pytest.mark.parametrize("zone", [" ", "a\nb", "z" * 129])
def test_what_is_no_zone_is_refused(zone: str) -> None:
    with pytest.raises(UserError, match="--zone"):
        AgentSettings(coordinator="host:1", token=TOKEN, zone=zone)


@pytest.mark.parametrize("label", [" ", "a\nb", "z" * 129])
def test_what_is_no_label_is_refused(label: str) -> None:
    with pytest.raises(UserError, match="--label"):
        AgentSettings(coordinator="host:1", token=TOKEN, label=label)


def wait_for(condition: Callable[[], Any]) -> Any:
    waited = threading.Event()
    for _ in range(int(DEADLINE_S / 0.01)):
        if found := condition():
            return found
        waited.wait(0.01)
    raise AssertionError("it did not come about in time")
