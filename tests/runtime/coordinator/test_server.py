"""The server around the coordinator's machine, on real sockets: whoever does not belong to the job cannot disturb
it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from planaria.job.errors import UserError
from planaria.job.sections.train import TrainSection
from planaria.plan.plan import NodeId, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.membership.liveness import Limits
from planaria.protocol.messages.events import Finish
from planaria.protocol.messages.from_worker import CutOff, Failed, Hello, Proof, Ready
from planaria.protocol.messages.message import MAX_FRAME_BYTES, PROTOCOL_VERSION, Message, encode
from planaria.protocol.messages.plan_delta import decode_order
from planaria.protocol.messages.records import (
    AnyRecord,
    DeviceLost,
    NodeJoined,
    NodeLost,
    Note,
    PlanTaken,
    RunEnded,
    RunStatus,
)
from planaria.protocol.messages.to_worker import Challenge, PlanMessage, Stop, ToWorker
from planaria.protocol.messages.user import Answer, Request, RequestRefused, Wish, decode_answer
from planaria.protocol.reception import Unwanted
from planaria.protocol.run.replay import JournalState
from planaria.protocol.run.settings import RunSettings
from planaria.runtime.coordinator import client as client_module
from planaria.runtime.coordinator.agents import Agents
from planaria.runtime.coordinator.client import Contact, ask
from planaria.runtime.coordinator.kernel_kills import KernelKills
from planaria.runtime.coordinator.server import Server
from planaria.runtime.journal.sqlite_journal import SqliteJournal
from planaria.runtime.thresholds import HELLO_LIMIT_BYTES
from planaria.runtime.wire.connection import Connection
from planaria.runtime.wire.control_frames import FrameError, control_frame, read_control
from planaria.runtime.wire.socket_server import SocketServer, listen
from planaria.runtime.wire.tls import Security
from tests.plan.profiles import uniform_profile

TOKEN = "the token"
DEADLINE_S = 10.0
NODES, DEVICES = 3, 2


class StandInNodes:
    """The launcher's side: processes are what a test says."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._lost: list[tuple[WorkerId, str]] = []
        self.started: list[NodeId] = []
        self.killed: list[NodeId] = []
        self.killed_workers: list[WorkerId] = []
        self.actions: list[Callable[[], None]] = []

    def fileno(self) -> int:
        return self._near.fileno()

    def lost(self) -> list[tuple[WorkerId, str]]:
        with contextlib.suppress(BlockingIOError):
            self._near.recv(64)
        while self.actions:
            self.actions.pop()()
        found, self._lost = self._lost, []
        return found

    def start(self, node: NodeId) -> None:
        self.started.append(node)

    def tell(self, *nodes: int) -> None:
        workers = (WorkerId(node * DEVICES + device) for node in nodes for device in range(DEVICES))
        self._lost += [(worker, "process killed by SIGKILL") for worker in workers]
        self._far.send(b"x")

    def is_runnable(self, node: NodeId) -> bool:
        return True

    def start_worker(self, node: NodeId, worker: WorkerId) -> None:
        raise AssertionError("no stage has more than one device")

    def kill(self, node: NodeId, worker: WorkerId | None = None) -> None:
        if worker is None:
            self.killed.append(node)
        else:
            self.killed_workers.append(worker)

    def all_ended(self) -> bool:
        return True

    def close(self) -> None:
        self._near.close()
        self._far.close()


class Client:
    """One connection to the server."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=DEADLINE_S)

    def send(self, message: Message) -> None:
        self.socket.sendall(control_frame(encode(message)))

    def hello(self, worker: int, **changes: Any) -> None:
        fields = {"version": PROTOCOL_VERSION, "token": TOKEN, "pid": 1, "data_address": f"nowhere:{worker}"}
        self.send(Hello(worker=WorkerId(worker), **(fields | changes)))

    def receive(self) -> ToWorker | Challenge:
        return decode_order(read_control(self.socket), None)

    def is_closed(self) -> bool:
        """Waits for the server to close the connection; what it says before does not count."""
        with contextlib.suppress(ConnectionError):
            while self.socket.recv(1 << 16):
                pass
        return True


class Running:
    """A server in a thread of its own."""

    def __init__(
        self,
        folder: Path,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        agents: Agents | None = None,
        past: JournalState | None = None,
        data: str = "",
        security: Security | None = None,
        **changes: Any,
    ) -> None:
        planner = PlannerSettings(num_microbatches=6, fault_tolerance=1, num_nodes=NODES, devices_per_node=DEVICES)
        profile = uniform_profile(2)
        settings = RunSettings(
            train=TrainSection(steps=3, global_batch=6, microbatch=1, sequence_length=8),
            policy_name="templates",
            fault_tolerance=1,
            num_nodes=NODES,
            devices_per_node=DEVICES,
            num_groups=len(profile.groups),
            checkpoint_root=str(folder),
            checkpoint_every=0,
            resume=None,
            **changes,
        )
        self.nodes = StandInNodes()
        self.machine = Coordinator(settings, TemplatesPolicy.of(Planner(profile, planner)), past)
        self.records: list[AnyRecord] = []
        self._told = threading.Condition()
        self.journal = SqliteJournal(folder / "journal.sqlite")
        self.journal.start()
        self.server = Server(
            self.machine,
            TOKEN,
            self.journal,
            self.nodes,
            [self._observe],
            lambda command: None,
            limits,
            agents=agents,
            past=past,
            patience_s=60.0,
            most_nodes=6,
            data=data,
            security=security,
        )
        self.listener = listen("127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.server.start(self.listener)
        self.finish: Finish | None = None
        self.error: BaseException | None = None
        self._clients: list[Client] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self.finish = self.server.run()
        except BaseException as error:
            self.error = error
        finally:
            with self._told:
                self._told.notify_all()

    def _observe(self, record: AnyRecord, time_s: float) -> None:
        with self._told:
            self.records.append(record)
            self._told.notify_all()

    def of(self, kind: type) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]

    def wait_for(self, kind: type, number: int = 1) -> Any:
        """The number-th record of a kind."""
        with self._told:
            assert self._told.wait_for(lambda: self.error or len(self.of(kind)) >= number, DEADLINE_S), self.records
        assert self.error is None
        return self.of(kind)[number - 1]

    def wait_for_the_end(self) -> None:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def client(self) -> Client:
        self._clients.append(Client(self.address))
        return self._clients[-1]

    def join(self, *workers: int) -> list[Client]:
        clients = []
        for worker in workers:
            clients.append(self.client())
            clients[-1].hello(worker)
        return clients

    def join_all(self) -> list[Client]:
        clients = self.join(*range(NODES * DEVICES))
        for client in clients:
            assert isinstance(client.receive(), PlanMessage)
        return clients

    def close(self) -> None:
        """End it from outside, and see that nothing went wrong in it."""
        self.server.abort()
        self.wait_for_the_end()
        self.server.close()
        self.journal.close()
        self.nodes.close()
        for client in self._clients:
            client.socket.close()
        if self.error is not None:
            raise self.error


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    server = Running(tmp_path)
    yield server
    server.close()


def raw(fields: dict[str, Any]) -> bytes:
    return control_frame(msgspec.msgpack.encode({"type": "hello", **fields}))


GOOD = {"version": PROTOCOL_VERSION, "token": TOKEN, "worker": 0, "pid": 1, "data_address": "nowhere:0"}
NONSENSE = {
    "not a frame": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "bytes": control_frame(b"\x00\xff\x00\xff"),
    "nothing": control_frame(b""),
    "json": control_frame(b'{"type":"hello"}'),
    "a number": control_frame(msgspec.msgpack.encode(7)),
    "fields missing": raw({"token": TOKEN}),
    "wrong token": raw(GOOD | {"token": "another"}),
    "empty token": raw(GOOD | {"token": ""}),
    "token that is not ASCII": raw(GOOD | {"token": "gehe\u00efm \U0001f9a0"}),
    "token that is bytes": raw(GOOD | {"token": b"the token"}),
    "worker beyond int64": raw(GOOD | {"worker": 2**64 - 1}),
    "negative worker": raw(GOOD | {"worker": -1}),
    "no such worker": raw(GOOD | {"worker": DEVICES << 21}),
    "deep": control_frame(b"\x82\xa4type\xa5hello\xa1x" + b"\x91" * 3900 + b"\x01"),
    "another message first": control_frame(encode(Ready(generation=1))),
    "too long for a first frame": (HELLO_LIMIT_BYTES + 1).to_bytes(4, "big"),
    "longest": b"\xff\xff\xff\xff",
    "other version": raw(GOOD | {"version": PROTOCOL_VERSION + 1}),
}


@pytest.mark.parametrize("data", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_refused_before_a_job_and_while_it_runs(data: bytes, running: Running) -> None:
    early = running.client()
    early.socket.sendall(data)
    assert early.is_closed()
    clients = running.join_all()
    late = running.client()
    late.socket.sendall(data)
    assert late.is_closed()
    clients[0].send(Ready(generation=1))
    assert running.error is None
    assert not running.of(NodeLost)
    assert not running.nodes.killed


def test_strangers_that_say_nothing_or_half_a_word_hold_nobody_up(running: Running) -> None:
    _, half, gone = running.client(), running.client(), running.client()
    half.socket.sendall(raw(GOOD)[:20])
    gone.socket.close()
    running.join_all()
    half.socket.sendall(raw(GOOD)[20:])
    assert half.is_closed(), "worker 0 is there already"
    assert not running.of(NodeLost)


def test_a_hello_in_pieces_is_heard(running: Running) -> None:
    first = running.client()
    for byte in raw(GOOD):
        first.socket.sendall(bytes([byte]))
    running.join(*range(1, NODES * DEVICES))
    assert isinstance(first.receive(), PlanMessage)


def test_another_version_is_told_why(running: Running) -> None:
    stranger = running.client()
    stranger.hello(0, version=PROTOCOL_VERSION + 1)
    answer = stranger.receive()
    assert isinstance(answer, Stop)
    assert str(PROTOCOL_VERSION) in answer.reason


@pytest.mark.parametrize(
    "data",
    [
        control_frame(b"\xc1"),
        control_frame(b"\x91" * 100_000),
        (MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
        raw(GOOD),
        control_frame(msgspec.msgpack.encode({"type": "stop", "reason": "a worker says this to nobody"})),
        control_frame(msgspec.msgpack.encode({"type": "notice", "grace_s": float("nan"), "cause": "x"})),
        control_frame(
            msgspec.msgpack.encode(
                {"type": "report", "generation": 1, "step": 1, "ledger": {"masks": ["zz"]}, "held": [0]}
            )
        ),
    ],
    ids=["bytes", "deep", "too long", "a second hello", "not a worker's message", "no time", "no ledger"],
)
def test_a_worker_that_talks_nonsense_is_lost(data: bytes, running: Running) -> None:
    clients = running.join_all()
    clients[2].socket.sendall(data)
    lost = running.wait_for(DeviceLost)
    assert (lost.node, lost.device) == (1, 0)
    assert running.nodes.killed_workers == [2]
    assert not running.of(NodeLost)


def test_a_device_that_was_lost_alone_is_fenced_until_it_is_started_again(running: Running) -> None:
    clients = running.join_all()
    assert asked(running, wish=Wish.ADD, node=1, device=1).text == "device 1 of node 1 is there"
    clients[3].socket.close()
    lost = running.wait_for(DeviceLost)
    assert (lost.node, lost.device, lost.live_devices) == (1, 1, 1)
    assert asked(running, wish=Wish.STATUS).state.lost_devices == (3,)
    ghost = running.client()
    ghost.hello(3)
    answer = ghost.receive()
    assert isinstance(answer, Stop)
    assert answer.reason == "device 1 of node 1 was lost and is fenced"
    refused = asked(running, wish=Wish.ADD, node=1, device=1)
    assert not refused.accepted
    assert "is in the plan of step 1 still" in refused.text


def test_the_end_of_all_workers_of_a_node_is_its_loss_alone(running: Running) -> None:
    clients = running.join_all()
    for client in clients[2:4]:
        client.socket.close()
    assert running.wait_for(NodeLost).node == 1
    assert not running.of(DeviceLost)


def test_a_worker_that_is_cut_off_from_a_live_peer_is_lost(running: Running) -> None:
    clients = running.join_all()
    running.nodes.tell(2)
    running.wait_for(NodeLost)
    clients[0].send(CutOff(peer=WorkerId(4), address="nowhere:4"))
    clients[0].send(CutOff(peer=WorkerId(3), address="where it was before it came back:3"))
    clients[0].send(CutOff(peer=WorkerId(3), address="nowhere:3"))
    lost = running.wait_for(NodeLost, 2)
    assert (lost.node, lost.cause) == (0, "cut off from worker 3"), "the others were no news"


def test_a_node_that_never_joins_is_lost_and_the_others_begin(tmp_path: Path) -> None:
    running = Running(tmp_path, Limits(join_s=0.3))
    try:
        clients = running.join(*range(4))
        lost = running.wait_for(NodeLost)
        assert lost.node == 2
        assert lost.cause.startswith("did not join within")
        assert isinstance(clients[0].receive(), PlanMessage)
    finally:
        running.close()


def test_what_is_silent_or_hangs_was_not_killed_by_the_kernel(tmp_path: Path) -> None:
    """Though it killed something a moment ago: what that was has ended."""
    running = Running(tmp_path, Limits(join_s=0.3))
    count = tmp_path / "vmstat"
    count.write_text("oom_kill 3\n")
    running.server._kernel_kills = KernelKills([count])
    count.write_text("oom_kill 4\n")
    try:
        running.join(*range(4))
        assert running.wait_for(NodeLost).cause.startswith("did not join within")
        running.nodes.tell(0)
        assert running.wait_for(NodeLost, 2).cause.startswith("killed by the kernel for lack of memory")
    finally:
        running.close()


def test_both_devices_of_a_node_die_at_once(running: Running) -> None:
    """Their sockets close in one batch, and the launcher tells of them in the same: one loss."""
    clients = running.join_all()

    def die() -> None:
        for client in clients[2:4]:
            client.socket.close()

    running.nodes.actions.append(die)
    running.nodes.tell(1, 1)
    running.wait_for(NodeLost)
    running.nodes.tell(1)
    for client in clients[:2]:
        client.socket.close()
    running.wait_for(NodeLost, 2)
    assert [record.node for record in running.of(NodeLost)] == [1, 0]
    assert running.nodes.killed == [1, 0]


def test_a_lost_node_is_fenced(running: Running) -> None:
    running.join_all()
    running.nodes.tell(2)
    running.wait_for(NodeLost)
    ghost = running.client()
    ghost.hello(5)
    answer = ghost.receive()
    assert isinstance(answer, Stop)
    assert "fenced" in answer.reason
    assert ghost.is_closed()


def test_a_node_lost_before_all_have_joined_is_left_out(running: Running) -> None:
    clients = running.join(0, 1, 2, 4, 5)
    running.wait_for(NodeJoined, 2)
    running.nodes.tell(1)
    plan = running.wait_for(PlanTaken)
    assert {worker for pipeline in plan.pipelines for worker, _, _ in pipeline} == {0, 1, 4, 5}
    assert clients[2].is_closed()


def test_a_failure_right_after_the_hello_is_told_in_full(running: Running) -> None:
    """In one segment with the hello, and longer than a stranger's first frame may be."""
    client = running.client()
    text = "Traceback\n" + "  line\n" * HELLO_LIMIT_BYTES
    client.socket.sendall(raw(GOOD) + control_frame(encode(Failed(where="layer 'x'", text=text))))
    assert isinstance(client.receive(), Stop)
    running.wait_for_the_end()
    assert running.finish is not None
    assert running.finish.status is RunStatus.FAILED
    assert text in running.finish.message


def test_a_stop_comes_from_any_thread(running: Running) -> None:
    clients = running.join(0, 1)
    running.wait_for(NodeJoined)
    running.server.request_stop()
    assert isinstance(clients[0].receive(), Stop)
    running.wait_for_the_end()
    assert running.finish is not None
    assert running.finish.status is RunStatus.STOPPED


def test_a_mistake_of_our_own_is_not_taken_for_nonsense(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ValueError from the machine must end the run loudly, not evict whoever sent the message."""
    clients = running.join_all()

    def broken(*arguments: object) -> tuple[()]:
        raise ValueError("a bug")

    monkeypatch.setattr(running.machine, "handle", broken)
    clients[0].send(Ready(generation=1))
    running.wait_for_the_end()
    assert isinstance(running.error, ValueError)
    running.error = None
    assert not running.nodes.killed


def test_a_port_in_use_is_named(running: Running) -> None:
    port = int(running.address.rsplit(":", 1)[1])
    with pytest.raises(UserError, match=f"cluster.port = {port}"):
        listen("127.0.0.1", port)


def test_a_slow_reader_gets_everything_and_holds_nobody_up(running: Running) -> None:
    """More than the socket takes: the rest is sent when there is room."""
    clients = running.join_all()
    reason = "x" * (8 << 20)
    running.nodes.actions.append(lambda: running.server._executor.send(WorkerId(0), Stop(reason=reason)))
    running.nodes.tell(2)
    running.wait_for(NodeLost)
    answer = clients[0].receive()
    while not isinstance(answer, Stop):
        answer = clients[0].receive()
    assert answer.reason == reason


def test_what_comes_after_a_connection_was_closed_is_not_heard() -> None:
    """Whoever is fenced for his first word has no second one, though both came at once."""
    near, far = socket.socketpair()
    with near, far:
        connection = Connection(near)
        far.sendall(control_frame(b"first") + control_frame(b"second"))
        heard = []
        for frame in connection.receive():
            heard.append(frame)
            connection.close()
    assert heard == [b"first"]


@pytest.mark.parametrize(("error", "told"), [(FrameError("noise"), 1), (Unwanted("node 3 is fenced"), 0)])
def test_nobody_is_told_of_a_fenced_node_that_comes_back(error: FrameError, told: int) -> None:
    def take(connection: Connection, frame: bytes) -> None:
        raise error

    lines: list[str] = []
    ended: list[str] = []
    socket_server = SocketServer(take, lambda connection, cause: ended.append(cause), lines.append)
    listener = listen("127.0.0.1", 0)
    socket_server.open(listener)
    with socket.create_connection(listener.getsockname()) as client:
        client.sendall(control_frame(b"hello"))
        while not ended:
            socket_server.serve(DEADLINE_S)
        socket_server.send_strangers_away(time.monotonic())
    socket_server.close()
    assert len(lines) == told


@pytest.mark.parametrize("joined", [frozenset({NodeId(0)}), frozenset[NodeId]()], ids=["known", "of a deposed one"])
def test_nobody_speaks_for_a_worker_that_is_yet_to_come_back(joined: frozenset[NodeId], tmp_path: Path) -> None:
    """What it said to a coordinator before this one is played again: that costs it nothing. If that one was deposed,
    the journal does not know the worker."""
    running = Running(tmp_path, past=JournalState(joined=joined))
    try:
        played = running.client()
        played.hello(0)
        assert isinstance(played.receive(), Challenge)
        played.send(Failed(where="layer 1", text="an error that was mended since"))
        played.send(Proof(nonce="what the coordinator before had asked for"))
        assert played.is_closed()
        assert asked(running, wish=Wish.STATUS).state.nodes == ()
        for worker in range(DEVICES):
            client = running.client()
            client.hello(worker)
            challenge = client.receive()
            assert isinstance(challenge, Challenge)
            client.send(Proof(nonce=challenge.nonce))
        assert waited_for(lambda: asked(running, wish=Wish.STATUS).state.nodes == (0,))
        assert not running.of(RunEnded)
    finally:
        running.close()


def waited_for(condition: Callable[[], bool]) -> bool:
    ends = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > ends:
            return False
    return True


def asked(running: Running, **fields: Any) -> Answer:
    client = running.client()
    request = Request(version=PROTOCOL_VERSION, token=TOKEN, **fields)
    client.socket.sendall(control_frame(msgspec.msgpack.encode(request)))
    answer = decode_answer(read_control(client.socket))
    assert isinstance(answer, Answer)
    return answer


def test_a_command_of_another_version_is_told_so_on_both_sides(running: Running) -> None:
    """Whatever else its request holds, and it is not asked again."""
    contact = Contact(address=running.address, token=TOKEN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_module, "PROTOCOL_VERSION", PROTOCOL_VERSION + 1)
        with pytest.raises(UserError, match="the command speaks protocol version") as refused:
            ask(contact, Wish.STATUS, run="runs/x")
    versions = f"{PROTOCOL_VERSION + 1}, the coordinator {PROTOCOL_VERSION}; install the same Planaria on both"
    assert versions in str(refused.value)
    later = running.client()
    fields = {"type": "request", "version": PROTOCOL_VERSION + 2, "token": TOKEN, "wish": "of later days"}
    later.socket.sendall(control_frame(msgspec.msgpack.encode(fields)))
    assert isinstance(decode_answer(read_control(later.socket)), RequestRefused)
    assert "install the same Planaria on both" in running.wait_for(Note).text


def test_nodes_are_added_under_numbers_that_nobody_had(running: Running) -> None:
    running.join_all()
    assert asked(running, wish=Wish.ADD, count=2).text == "nodes 3, 4 started"
    assert asked(running, wish=Wish.ADD).text == "node 5 started"
    assert running.nodes.started == [3, 4, 5]
    refused = asked(running, wish=Wish.ADD, count=0)
    assert not refused.accepted
    assert "from 1 to" in refused.text


def test_no_more_nodes_are_added_than_the_machine_is_for(running: Running) -> None:
    """Those that are on their way count."""
    running.join_all()
    assert asked(running, wish=Wish.ADD, count=2).accepted
    refused = asked(running, wish=Wish.ADD, count=2)
    assert not refused.accepted
    assert refused.text.startswith("there are 5 nodes, and this machine is for 6 at most")
    assert asked(running, wish=Wish.ADD).accepted
    assert running.nodes.started == [3, 4, 5]


def test_nodes_that_came_or_never_did_and_are_gone_make_room_for_others(running: Running) -> None:
    """As in a rehearsal, where many come and go, one after the other."""
    running.join_all()
    for node in range(NODES, NODES + 8):
        answer = asked(running, wish=Wish.ADD)
        assert answer.accepted, answer.text
        if node % 2:
            running.join(*range(node * DEVICES, (node + 1) * DEVICES))
            assert waited_for(lambda: asked(running, wish=Wish.STATUS).state.nodes[NODES:] != ())
        running.nodes.tell(node)
        running.wait_for(NodeLost, node + 1 - NODES)
