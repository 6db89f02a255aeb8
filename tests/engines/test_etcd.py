"""A run whose journal is in etcd loses its coordinator's host, members of etcd and its lead: the bits are kept."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from planaria.job.parse import load_job
from planaria.job.sections.run import RunSection
from planaria.job.settings import Job
from planaria.plan.plan import NodeId
from planaria.protocol.messages.journal import Fate, JournalNode, JournalStop
from planaria.protocol.run.replay import JournalState
from planaria.runtime.journal.etcd import NEVER, Etcd, OutOfReach
from planaria.runtime.journal.etcd_journal import EtcdJournal, NotLeader
from planaria.runtime.journal.lead import Lead, LeadTaken, leader_of
from planaria.runtime.journal.leadership import Leadership, leadership
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.thresholds import LEASE_S
from planaria.ui.dashboard.runs import RunReader
from tests.e2e.agents import NUM_NODES, end_all
from tests.e2e.commands import DEADLINE_S, wait_until
from tests.e2e.conftest import reference
from tests.e2e.incubator import Incubator
from tests.e2e.jobs import Outcome
from tests.engines.etcd_cluster import EtcdCluster, etcd_cluster
from tests.engines.led import Led, strike
from tests.s3_server import serving

__all__ = ["reference"]

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (Debian's etcd-server)"),
]

LAYERS = """
import torch
from torch import nn

def layers(): return [nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)]
"""
POINTS = """
def points():
    for number in range(500): yield torch.full((4,), number % 7 / 7), number % 2
"""
STREAMED_JOB = """
[model]
type = "streamed:layers"
[data]
source = "streamed:points"
shuffle_buffer = 50
repeat = true
[train]
steps = 100000
global_batch = 12
microbatch = 2
lr_schedule = "constant"
[cluster]
nodes = {nodes}
launcher = "agents"
port = 0
[resilience]
heartbeat_timeout_s = 2.0
[run]
name = "{name}"
journal = "{journal}"
checkpoint_folder = "s3://bucket"
checkpoint_every = 10
"""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


# The journal


def lost(node: int) -> JournalNode:
    return JournalNode(node=NodeId(node), fate=Fate.LOST, cause="gone")


def test_whoever_has_lost_the_lead_writes_nothing_more(etcd: EtcdCluster) -> None:
    with closing(Lead(etcd.url, "fenced")) as first:
        assert first.take()
        journal = EtcdJournal(etcd.url, "fenced", "mark", first.revision, 10.0)
        journal.start()
        journal.write(lost(1))
        with closing(Lead(etcd.url, "fenced")) as second:
            assert not second.take()
            etcd_itself = Etcd(etcd.url)
            etcd_itself.revoke(first._lease)
            assert second.take()
            with pytest.raises(NotLeader, match="another process leads run fenced now"):
                journal.write(lost(2))
            with pytest.raises(LeadTaken):
                first.tell("127.0.0.1:1")
            again = EtcdJournal(etcd.url, "fenced", "mark", second.revision, 10.0)
            again.start()
            assert again.read() == [lost(1)]
            again.write(lost(3))
            assert again.read() == [lost(1), lost(3)]
            other = EtcdJournal(etcd.url, "fenced", "of another run", second.revision, 10.0)
            other.start()
            assert other.read() == [] == again.read()


def test_whoever_has_lost_the_lead_takes_it_again_unless_another_led_meanwhile(etcd: EtcdCluster) -> None:
    itself = Etcd(etcd.url)
    with closing(Lead(etcd.url, "again")) as first, closing(Lead(etcd.url, "again")) as second:
        assert first.take()
        assert first.is_sure()
        itself.revoke(first._lease)
        first._sure_until = 0.0  # as of a process that was stopped
        assert not first.is_sure()
        assert first.take()
        assert first.is_sure()
        itself.revoke(first._lease)
        assert second.take()
        second.close()
        first.revision = NEVER
        with pytest.raises(LeadTaken, match="another process has led run again meanwhile"):
            first.take()


def test_a_standby_leads_when_a_leader_is_silent_though_etcd_holds_its_lease(etcd: EtcdCluster) -> None:
    """As after an election among the members, with which all leases begin anew."""
    itself = Etcd(etcd.url)
    with closing(Lead(etcd.url, "silent")) as first, closing(Lead(etcd.url, "silent")) as second:
        assert first.take()
        first._over.set()
        second.listens_at("127.0.0.1:1")

        def leads() -> bool:
            assert itself.keep_alive(first._lease)
            return second.take()

        assert wait_until(leads)
        assert not first.is_sure()
        assert itself.keep_alive(first._lease)
        leader = leader_of(itself, "silent")
        assert leader is not None
        assert leader.address == "127.0.0.1:1"
        with pytest.raises(LeadTaken):
            first.tell("127.0.0.1:2")


def test_a_lead_whose_answer_is_lost_is_taken_at_another_try(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Lead(etcd.url, "lost")) as lead:
        assert lead.take()
        Etcd(etcd.url).revoke(lead._lease)
        lead.revision, transact = NEVER, Etcd.transact

        def unanswered(etcd: Etcd, *arguments: object) -> object:
            monkeypatch.setattr(Etcd, "transact", transact)
            transact(etcd, *arguments)  # type: ignore[arg-type]
            raise OutOfReach("lost")

        monkeypatch.setattr(Etcd, "transact", unanswered)
        with pytest.raises(OutOfReach):
            lead.take()
        assert not lead.take()
        assert lead.take()
        assert lead.is_sure()


def test_who_leads_and_who_stands_by_can_be_asked(etcd: EtcdCluster) -> None:
    with closing(Lead(etcd.url, "asked")) as first, closing(Lead(etcd.url, "asked")) as second:
        assert first.take()
        assert leadership(etcd.url, "asked") is None, "it is not begun"
        first.begin(b"settings")
        second.wait()
        host = socket.gethostname()
        found = leadership(etcd.url, "asked")
        assert found == Leadership(leader=host, lease_left_s=found.lease_left_s if found else 0, standbys=(host,))
        assert 0 < found.lease_left_s <= LEASE_S
        first.close()
        assert leadership(etcd.url, "asked") == Leadership(standbys=(host,))
        assert second.take()
        second.finish()
    assert leadership(etcd.url, "asked") is None


def test_a_run_that_is_over_leaves_no_key_behind(etcd: EtcdCluster) -> None:
    with closing(Lead(etcd.url, "tidy")) as lead:
        assert lead.take()
        lead.begin(b"settings")
        journal = EtcdJournal(etcd.url, "tidy", "mark", lead.revision, 10.0)
        journal.start()
        journal.write(lost(1))
        lead.finish()
        with closing(Lead(etcd.url, "tidy")) as other:
            assert not lead.others_wait()
            other.wait()
            assert lead.others_wait()
    assert Etcd(etcd.url).find_all("planaria/tidy/") == []


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", b"HTTP/1.1 200 OK\r\n\r\nno JSON"]
)
def test_another_member_is_asked_where_an_answer_breaks_off_or_is_none(etcd: EtcdCluster, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        member = threading.Thread(target=serve)
        member.start()
        broken = f"127.0.0.1:{listener.getsockname()[1]}"
        asked = Etcd(f"etcd://{broken},{etcd.url.removeprefix('etcd://')}")
        assert asked.find("nothing") is None
        member.join(DEADLINE_S)


def test_an_entry_whose_answer_is_lost_is_written_once(etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Lead(etcd.url, "unanswered")) as lead:
        assert lead.take()
        journal = EtcdJournal(etcd.url, "unanswered", "mark", lead.revision, 10.0)
        journal.start()
        answers, transact = iter([OutOfReach("lost"), None]), Etcd.transact

        def unanswered(etcd: Etcd, *arguments: object) -> object:
            found = transact(etcd, *arguments)  # type: ignore[arg-type]
            if (error := next(answers, None)) is not None:
                raise error
            return found

        monkeypatch.setattr(Etcd, "transact", unanswered)
        for node in range(3):
            journal.write(lost(node))
        assert journal.read() == [lost(0), lost(1), lost(2)]


def test_one_entry_takes_the_place_of_the_old_ones(etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planaria.runtime.journal.etcd_journal.THINNED_EVERY", 8)
    monkeypatch.setattr("planaria.runtime.journal.etcd_journal.ENTRIES_KEPT", 3)
    with closing(Lead(etcd.url, "thin")) as lead:
        assert lead.take()
        journal = EtcdJournal(etcd.url, "thin", "mark", lead.revision, 10.0)
        journal.start()
        for node in range(9):
            journal.write(lost(node))
        journal.write(JournalStop())
        past, *newest = journal.read()
        assert newest == [*map(lost, range(5, 9)), JournalStop()]
        assert JournalState.of([past]) == JournalState.of(map(lost, range(5)))
        again = EtcdJournal(etcd.url, "thin", "mark", lead.revision, 10.0)
        again.start()
        again.write(lost(9))
        assert again.read() == [past, *newest, lost(9)]


# Runs


@pytest.fixture
def led(tmp_path: Path, incubator: Incubator, etcd: EtcdCluster) -> Iterator[Led]:
    yield Led(tmp_path, incubator, etcd)
    end_all(tmp_path)


def test_the_host_of_the_coordinator_is_killed_whole(led: Led, reference: Callable[[Job], Outcome]) -> None:
    """With it goes a node."""
    leader = led.begin()
    standby, log = led.stand_by()
    assert f"led from {socket.gethostname()}; standing by: {socket.gethostname()}" in led.status()
    before = led.last_step
    strike(led.agents[0].process.pid, signal.SIGKILL)
    strike(leader.pid, signal.SIGKILL)
    led.wait_for("coordinator_restarted")
    led.wait_for("recovered")
    led.wait_for_step(led.last_step + 5)
    assert led.last_step > before
    assert not led.events("restored")
    shown = RunReader(led.run).schedules.of_step(None)
    assert shown.generation is not None
    assert shown.planned is not None
    led.stop()
    assert standby.wait(DEADLINE_S) == 0, log.read_text()
    assert [agent.wait() for agent in led.agents[1:]] == [75] * (NUM_NODES - 1)
    led.assert_same_bits(reference)


def test_hosts_that_do_not_see_the_run_folder_find_who_leads_next(
    led: Led, tmp_path_factory: pytest.TempPathFactory, reference: Callable[[Job], Outcome]
) -> None:
    job = led.folder / "job.toml"
    job.write_text(job.read_text().replace("[run]\n", '[run]\ncheckpoint_folder = "s3://bucket"\n'))
    with serving() as s3:
        led.environment = s3.environment
        leader = led.train()
        for _ in range(NUM_NODES):
            folder = tmp_path_factory.mktemp("host")
            shutil.copy(led.folder / "token", folder)
            led.start_agent("--folder", "own", folder=folder)
        led.wait_for_step(3)
        standby, log = led.stand_by()
        strike(leader.pid, signal.SIGKILL)
        led.wait_for("coordinator_restarted")
        led.wait_for_step(led.last_step + 3)
        assert not led.events("node_lost")
        led.stop()
        assert standby.wait(DEADLINE_S) == 0, log.read_text()
        assert [agent.wait() for agent in led.agents] == [75] * NUM_NODES
        led.assert_same_bits(reference)
    logs = [led.run.worker_log(worker).read_text() for worker in range(NUM_NODES)]
    assert all("ends: stopped" in text for text in logs), logs


@pytest.mark.parametrize("beside_a_node", [False, True])
def test_a_standby_that_does_not_see_the_run_folder_leads_from_one_of_its_own(
    beside_a_node: bool, led: Led, tmp_path_factory: pytest.TempPathFactory, reference: Callable[[Job], Outcome]
) -> None:
    job = led.folder / "job.toml"
    job.write_text(job.read_text().replace("[run]\n", '[run]\ncheckpoint_folder = "s3://bucket"\n'))
    folders = [tmp_path_factory.mktemp("host") for _ in range(NUM_NODES + 1)]
    with serving() as s3:
        led.environment = s3.environment
        leader = led.train()
        for number, folder in enumerate(folders):
            shutil.copy(led.folder / "token", folder)
            if number < NUM_NODES:
                may_lead = ("--may-lead",) if number == 0 and beside_a_node else ()
                led.start_agent("--folder", "own", *may_lead, folder=folder)
        led.wait_for("checkpoint_saved")
        if beside_a_node:
            led.agents[0].wait_until_it_says("stands by for run")
            standby, own = None, folders[0] / "own" / "led" / led.run.path.name
        else:
            log = led.folder / "standby.log"
            given = ("standby", led.address, "--token-file", "token", "--folder", "own")
            standby = led.incubator.start(folders[-1], *given, log=log, environment=s3.environment, hidden=led.folder)
            led.wait_until_ready(standby, log)
            own = folders[-1] / "own" / led.run.path.name
        strike(leader.pid, signal.SIGKILL)
        led.run = RunFolder(own)
        led.wait_for("coordinator_restarted")
        led.wait_for_step(led.last_step + 3)
        assert not led.events("node_lost")
        assert [*own.glob("checkpoints/step-*/url")], "checkpoints of before are known"
        led.stop()
        assert standby is None or standby.wait(DEADLINE_S) == 0
        assert [agent.wait() for agent in led.agents] == [75] * NUM_NODES
        led.assert_same_bits(reference)


def test_a_standby_that_does_not_see_the_run_folder_reads_the_stream_from_then_on(
    led: Led,
    tmp_path_factory: pytest.TempPathFactory,
    reference: Callable[[Job], Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(led.folder))
    name = led.run.path.name
    (led.folder / "job.toml").write_text(STREAMED_JOB.format(nodes=NUM_NODES, name=name, journal=led.url))
    folders = [tmp_path_factory.mktemp("host") for _ in range(NUM_NODES + 1)]
    for folder in (led.folder, *folders):
        (folder / "streamed.py").write_text(LAYERS + (POINTS if folder in (led.folder, folders[-1]) else ""))
    with serving() as s3:
        led.environment = s3.environment
        leader = led.train()
        for folder in folders:
            shutil.copy(led.folder / "token", folder)
        for folder in folders[:-1]:
            led.start_agent("--folder", "own", folder=folder)
        led.wait_for("checkpoint_saved")
        given, log = ("standby", led.address, "--token-file", "token", "--folder"), led.folder / "standby.log"
        refused = led.incubator.start(folders[0], *given, "led", environment=s3.environment, hidden=led.folder)
        _, said = refused.communicate(DEADLINE_S)
        assert (refused.returncode, len(said.strip().splitlines())) == (2, 1), said
        assert f"run {name} cannot be led from here: it trains on a stream. data.source = 'streamed:points'" in said
        standby = led.incubator.start(
            folders[-1], *given, "own", log=log, environment=s3.environment, hidden=led.folder
        )
        led.wait_until_ready(standby, log)
        strike(leader.pid, signal.SIGKILL)
        led.run = RunFolder(folders[-1] / "own" / name)
        led.wait_for("coordinator_restarted")
        led.wait_for_step(led.last_step + 20)
        assert not led.events("node_lost")
        led.stop()
        assert standby.wait(DEADLINE_S) == 0, log.read_text()
        assert [agent.wait() for agent in led.agents] == [75] * NUM_NODES
    summary = json.loads(led.run.summary.read_text())
    job = load_job(led.folder / "job.toml", [f"train.steps={summary['steps']}"])
    alone = reference(msgspec.structs.replace(job, run=RunSection()))
    assert summary["weights_sha256"] == alone.summary["weights_sha256"]
    sys.modules.pop("streamed", None)


def test_a_leader_that_is_stopped_is_followed_and_cannot_go_on(led: Led, reference: Callable[[Job], Outcome]) -> None:
    """As a host is whose virtual machine pauses, or that is cut off. Who follows it runs beside a node."""
    leader = led.begin("--may-lead")
    led.agents[0].wait_until_it_says("stands by for run")
    strike(leader.pid, signal.SIGSTOP)
    led.wait_for("coordinator_restarted")
    led.wait_for_step(led.last_step + 3)
    strike(leader.pid, signal.SIGCONT)
    assert leader.wait(DEADLINE_S) == 1
    assert "leads run" in led.said.splitlines()[-1]
    standby, log = led.stand_by()
    os.kill(led.agents[0].process.pid, signal.SIGTERM)  # its node hands over its work, and then the lead
    assert led.agents[0].wait() == 4
    led.wait_for("coordinator_restarted", 2)
    led.wait_for_step(led.last_step + 3)
    assert not led.events("node_lost")
    led.stop()
    assert standby.wait(DEADLINE_S) == 0, log.read_text()
    led.assert_same_bits(reference)


def test_a_supervisor_that_is_stopped_alone_tells_nothing_twice(led: Led, reference: Callable[[Job], Outcome]) -> None:
    """Its coordinator goes on for as long as the lease lasts. Of two standbys, the first to lead is killed at once."""
    leader = led.begin()
    standbys = [led.start_standby(number) for number in range(2)]
    for standby in standbys:
        led.wait_until_ready(*standby)
    os.kill(leader.pid, signal.SIGSTOP)
    led.wait_for("coordinator_restarted")
    first, second = sorted(standbys, key=lambda standby: "leads the run now" not in standby[1].read_text())
    strike(first[0].pid, signal.SIGKILL)
    led.wait_for("coordinator_restarted", 2)
    os.kill(leader.pid, signal.SIGCONT)
    assert leader.wait(DEADLINE_S) == 1
    assert re.search("leads run|has led run", led.said.splitlines()[-1])
    led.wait_for_step(led.last_step + 3)
    assert not led.events("node_lost")
    led.stop()
    assert second[0].wait(DEADLINE_S) == 0, second[1].read_text()
    led.assert_same_bits(reference)


def test_a_run_that_ends_while_its_supervisor_is_stopped_is_told_of_once(
    led: Led, reference: Callable[[Job], Outcome]
) -> None:
    """A standby takes the lead of a run that is over."""
    leader = led.begin()
    standby, log = led.stand_by()
    os.kill(leader.pid, signal.SIGSTOP)
    led.stop()
    assert standby.wait(DEADLINE_S) == 0, log.read_text()
    os.kill(leader.pid, signal.SIGCONT)
    assert leader.wait(DEADLINE_S) == 1
    assert len(led.events("run_ended")) == 1
    led.assert_same_bits(reference)
    assert not list((led.folder / "runs").glob("*/contact*"))


def test_a_standby_leads_a_run_that_was_resumed_beside_it(led: Led, reference: Callable[[Job], Outcome]) -> None:
    leader = led.begin()
    standby, log = led.stand_by()
    os.kill(standby.pid, signal.SIGSTOP)
    led.wait_for("checkpoint_saved")
    strike(leader.pid, signal.SIGKILL)
    assert wait_until(lambda: leader_of(Etcd(led.url), led.run.path.name) is None)
    last = led.last_step
    resumed = led.train("--resume")
    led.wait_for_step(last + 3)
    os.kill(standby.pid, signal.SIGCONT)
    assert wait_until(lambda: log.read_text().count("stands by for run") == 2), log.read_text()
    strike(resumed.pid, signal.SIGKILL)
    led.wait_for("coordinator_restarted")
    led.wait_for_step(led.last_step + 3)
    led.stop()
    assert standby.wait(DEADLINE_S) == 0, log.read_text()
    led.assert_same_bits(reference, is_redone=True)


def test_a_run_goes_on_without_one_member_and_waits_while_two_are_gone(
    led: Led, etcd: EtcdCluster, reference: Callable[[Job], Outcome]
) -> None:
    leader = led.begin()
    etcd.kill(0)
    led.wait_for_step(led.last_step + 3)
    etcd.kill(1)
    assert wait_until(lambda: "the lead is lost" in led.said), led.said
    last = led.last_step
    for member in (0, 1):
        etcd.start(member)
    led.wait_for_step(last + 3)
    assert leader.poll() is None
    assert not led.events("node_lost")
    led.stop()
    assert leader.wait(DEADLINE_S) == 0
    led.assert_same_bits(reference)


def test_what_cannot_be_led_is_refused_in_one_line(led: Led, etcd: EtcdCluster) -> None:
    leader = led.begin()
    name = led.run.path.name
    led.assert_refused(
        ("train", "job.toml", "--set", "run.folder=elsewhere"), f"leads a run {name} now. Choose another"
    )
    elsewhere = led.folder / "elsewhere" / name
    shutil.copytree(led.run.path, elsewhere)
    led.assert_refused(("standby", str(elsewhere)), f"run.journal has a run {name} in {led.run.path}")
    own = ("standby", led.address, "--token-file", "token", "--folder", "own")
    led.assert_refused(own, f"run {name} cannot be led from here: with a run folder of its own (--folder) it needs")
    led.stop()
    assert leader.wait(DEADLINE_S) == 0
    for arguments, part in (
        (("stop", led.address, "--token-file", "token"), f"does not run now: nobody leads run {name} now."),
        (("standby", str(led.run.path)), "is over, or has not begun. Start it by planaria train."),
        (
            ("train", "job.toml", "--name", "a", "--set", "run.journal=etcd://127.0.0.1:1"),
            "127.0.0.1:1 is out of",
        ),
        (("train", "job.toml", "--name", "b", "--set", "run.journal=etcd://host"), "is not etcd://HOST:PORT,HOST:PORT"),
        (("train", "job.toml", "--name", "c", "--set", "cluster.launcher=local"), "is for nodes on other hosts"),
    ):
        led.assert_refused(arguments, part)
