"""Connections under TLS: what comes is what was sent, whoever is not of the run is refused, and both sides say why."""

from __future__ import annotations

import hashlib
import socket
import ssl
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from planaria.job.errors import UserError
from planaria.protocol.messages.records import Note
from planaria.protocol.messages.user import Wish
from planaria.runtime.coordinator.client import Contact, ask
from planaria.runtime.nodes.agent_settings import AgentSettings
from planaria.runtime.nodes.node_agent import NodeAgent
from planaria.runtime.wire.certificates import make_certificates
from planaria.runtime.wire.control_frames import HANDSHAKE_BYTE, read_exactly
from planaria.runtime.wire.link_probe import ProbeListener, probe
from planaria.runtime.wire.tls import NotSecured, SecureSocket, Security, pending
from tests.e2e.commands import wait_until
from tests.runtime.coordinator.test_server import TOKEN, Running

DEADLINE_S = 10.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificates of the run."""
    made = tmp_path_factory.mktemp("tls") / "run"
    make_certificates(made, 1)
    return made


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """Those of another run."""
    make_certificates(tmp_path / "foreign", 1)
    return tmp_path / "foreign"


def pair(folder: Path) -> tuple[SecureSocket, SecureSocket]:
    """Both ends of a connection, which wait."""
    security = Security(folder)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        accepted = security.accepted(listener.accept()[0])
    shaking = threading.Thread(target=accepted.shake_hands_within, args=(DEADLINE_S,))
    shaking.start()
    connected = security.connected(near, DEADLINE_S)
    shaking.join()
    for sock in (accepted, connected):
        sock.settimeout(DEADLINE_S)
    return connected, accepted


def test_keys_are_for_the_user_alone_and_nothing_is_written_over(folder: Path, tmp_path: Path) -> None:
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert Security(folder).warnings == ()
    with pytest.raises(UserError, match=r"ca.pem is there already. Name another folder"):
        make_certificates(folder, 1)
    make_certificates(tmp_path / "open", 1)
    (tmp_path / "open" / "key.pem").chmod(0o644)
    (warning,) = Security(tmp_path / "open").warnings
    assert warning.endswith(f"can be read by others (mode 644). Run chmod 600 {tmp_path / 'open' / 'key.pem'}.")


def test_what_is_no_certificate_is_refused_in_a_line(folder: Path, foreign: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere/ca.pem cannot be read: No such file or directory. Give a folder"):
        Security(tmp_path / "nowhere")
    (foreign / "key.pem").write_bytes((folder / "key.pem").read_bytes())
    with pytest.raises(UserError, match=r"are no certificate and its key \(KEY_VALUES_MISMATCH\)"):
        Security(foreign)


def test_who_has_given_up_is_not_shaken_hands_with(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first words are there, and so is its end."""
    security, begun = Security(folder), list[str]()
    monkeypatch.setattr(ssl.SSLSocket, "do_handshake", lambda sock: begun.append("server" if sock.server_side else ""))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        with security.accepted(listener.accept()[0]) as accepted:
            accepted.setblocking(False)
            near.sendall(bytes([HANDSHAKE_BYTE]))
            assert wait_until(accepted.shake_hands)
            near.close()
            assert begun == ["server"]
        near = socket.create_connection(listener.getsockname())
        with security.accepted(listener.accept()[0]) as accepted:
            accepted.setblocking(False)
            near.sendall(bytes([HANDSHAKE_BYTE]))
            near.close()
            with pytest.raises(ConnectionError, match="it closed before it had greeted"):
                wait_until(accepted.shake_hands)
            assert begun == ["server"]


def test_two_threads_send_and_receive_on_both_ends_at_once(folder: Path) -> None:
    """As a worker's do: all arrives, in order, in messages of every size."""
    sizes = [1, 100, 16383, 16384, 16385, 70_000, 1 << 20] * 6
    sent = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    whole, total = hashlib.sha256(b"".join(sent)).hexdigest(), sum(sizes)
    ends = pair(folder)
    found: dict[int, str] = {}

    def send(sock: SecureSocket) -> None:
        for data in sent:
            sock.sendall(data)

    def receive(number: int, sock: SecureSocket) -> None:
        found[number] = hashlib.sha256(read_exactly(sock, total)).hexdigest()

    threads = [threading.Thread(target=send, args=(sock,)) for sock in ends]
    threads += [threading.Thread(target=receive, args=each) for each in enumerate(ends)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert found == {0: whole, 1: whole}
    for sock in ends:
        sock.close()


def test_pieces_that_the_kernel_does_not_take_go_later_and_as_they_are(folder: Path) -> None:
    """Small pieces are joined to records; what is encrypted and not sent has to be offered again as it was."""
    one, other = pair(folder)
    one.setblocking(False)
    pieces = [memoryview(bytes([number % 251]) * size) for number, size in enumerate([40, 9000, 40, 300_000] * 40)]
    whole = b"".join(pieces)
    received = bytearray()
    while len(received) < len(whole):
        try:
            size = one.sendmsg(pieces[:64], [], socket.MSG_DONTWAIT) if pieces else 0
        except BlockingIOError:
            size = 0
        while pieces and size >= len(pieces[0]):
            size -= len(pieces.pop(0))
        if size:
            pieces[0] = pieces[0][size:]
        received += other.recv(1 << 16)
    assert received == whole
    assert pending(other) == 0
    with pytest.raises(BlockingIOError):
        one.recv(10)
    one.close()
    assert other.recv(10) == b""
    other.close()


def test_a_reader_that_waits_is_woken_by_a_shutdown_and_takes_nothing_for_plain(folder: Path) -> None:
    one, other = pair(folder)
    woken: list[bytes] = []
    reader = threading.Thread(target=lambda: woken.append(one.recv(10)))
    reader.start()
    one.shutdown(socket.SHUT_RDWR)
    reader.join(DEADLINE_S)
    assert woken == [b""]
    one.close()
    other.close()


def test_links_are_probed_under_tls_by_who_belongs_to_the_run(folder: Path, foreign: Path) -> None:
    listener = ProbeListener(TOKEN, Security(folder))
    address = f"127.0.0.1:{listener.start('127.0.0.1')}"
    try:
        latency_s, bytes_per_s = probe(address, TOKEN, 0.05, Security(folder))
        assert latency_s > 0
        assert bytes_per_s > 0
        with pytest.raises(NotSecured):
            probe(address, TOKEN, 0.05, Security(foreign))
    finally:
        listener.close()


# A coordinator, and who comes to it


@pytest.fixture
def running(folder: Path, tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path, security=Security(folder))
    yield made
    made.close()


def refused(running: Running, tls: str) -> tuple[str, str]:
    """What an agent says when it ends, and what the coordinator's side says then."""
    before = len(running.of(Note))
    settings = AgentSettings(coordinator=running.address, token=TOKEN, tls=tls)
    with pytest.raises(UserError) as error:
        NodeAgent(settings, lambda line: None).run()
    return str(error.value), str(running.wait_for(Note, before + 1).text)


def test_a_command_with_the_runs_certificate_is_answered(running: Running, folder: Path) -> None:
    assert ask(Contact(address=running.address, token=TOKEN, tls=str(folder)), Wish.STATUS, run="x").accepted


@pytest.mark.parametrize("tls", ["", "foreign"])
def test_a_command_without_it_is_told_why(tls: str, running: Running, foreign: Path) -> None:
    contact = Contact(address=running.address, token=TOKEN, tls=tls and str(foreign))
    with pytest.raises(UserError, match=r"run x cannot be talked to: it.*(--tls FOLDER|not signed by)"):
        ask(contact, Wish.STATUS, run="x")


def test_an_agent_with_a_foreign_certificate_is_refused_on_both_sides(running: Running, foreign: Path) -> None:
    said, told = refused(running, str(foreign))
    assert "its certificate is not signed by this side's ca.pem" in said
    assert "Make new ones by planaria certificates FOLDER" in said
    assert "a connection was refused" in told
    assert "it refuses this side's certificate" in told


def test_an_agent_whose_own_certificate_is_foreign_hears_it_after_its_handshake(
    running: Running, folder: Path, foreign: Path
) -> None:
    """It trusts the run, and the run does not trust it."""
    (foreign / "ca.pem").write_bytes((folder / "ca.pem").read_bytes())
    said, told = refused(running, str(foreign))
    assert "it refuses this side's certificate" in said
    assert "its certificate is not signed by this side's ca.pem" in told


def test_an_expired_certificate_is_refused_on_both_sides(tmp_path: Path) -> None:
    make_certificates(tmp_path / "old", -1)
    running = Running(tmp_path, security=Security(tmp_path / "old"))
    try:
        said, told = refused(running, str(tmp_path / "old"))
        assert "its certificate has expired. Make new ones" in said
        assert "it refuses this side's certificate, which has expired" in told
    finally:
        running.close()


def test_a_plain_agent_at_a_port_under_tls_and_the_other_way_round(
    running: Running, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    said, told = refused(running, "")
    assert "it speaks TLS: give --tls FOLDER" in said
    assert "it does not speak TLS, and this run does (cluster.tls)" in told
    plain = Running(tmp_path_factory.mktemp("plain"))
    try:
        said, told = refused(plain, str(folder))
        assert "it does not speak TLS. Set cluster.tls in the job file, or leave out --tls" in said
        assert "it speaks TLS, and this run does not" in told
    finally:
        plain.close()


def test_strangers_that_do_not_finish_their_handshake_hold_nobody_up(running: Running, folder: Path) -> None:
    host, _, port = running.address.rpartition(":")
    half = [socket.create_connection((host, int(port))) for _ in range(300)]
    for sock in half:
        sock.sendall(b"\x16\x03\x01")
    assert ask(Contact(address=running.address, token=TOKEN, tls=str(folder)), Wish.STATUS, run="x").accepted
    assert "do not show the job's token" in running.wait_for(Note).text
    for sock in half:
        sock.close()
