"""A real etcd under TLS: a run goes on where its coordinator's host is killed, and who is not trusted is told why."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from planaria.job.errors import UserError
from planaria.job.settings import Job
from planaria.runtime.journal.etcd import Distrusted, Etcd, OutOfReach
from planaria.runtime.journal.lead import Lead
from planaria.runtime.journal.plans import recorded_plans
from planaria.runtime.wire.certificates import make_certificates
from tests.e2e.agents import NUM_NODES, end_all
from tests.e2e.commands import DEADLINE_S, wait_until
from tests.e2e.conftest import reference
from tests.e2e.incubator import Incubator
from tests.e2e.jobs import Outcome
from tests.engines.authority import Authority
from tests.engines.etcd_cluster import EtcdCluster, etcd_cluster
from tests.engines.led import Led, strike

__all__ = ["reference"]

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (Debian's etcd-server)"),
]


@pytest.fixture(scope="module")
def of_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificates of a run, which etcd has as well."""
    folder = tmp_path_factory.mktemp("run") / "tls"
    make_certificates(folder, 1)
    return folder


@pytest.fixture(scope="module")
def etcd(of_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd"), certificates=of_run) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def administered(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """An etcd with a CA of its own."""
    folder = tmp_path_factory.mktemp("administered")
    certificates, client = authority.write(folder / "server"), authority.write(folder / "client", "etcd-")
    with etcd_cluster(folder, 1, certificates, client) as cluster:
        yield cluster


def folder_with(of_run: Path, folder: Path) -> Path:
    """A folder with the run's certificates, to which those for etcd are added."""
    shutil.copytree(of_run, folder)
    return folder


def test_etcd_may_have_a_ca_of_its_own(
    administered: EtcdCluster, authority: Authority, of_run: Path, tmp_path: Path
) -> None:
    tls = authority.write(folder_with(of_run, tmp_path / "tls"), "etcd-")
    with closing(Lead(administered.url, "run", str(tls))) as lead:
        assert lead.take()
    with pytest.raises(Distrusted, match=r"not signed by this side's ca.pem"):
        Etcd(administered.url, str(of_run)).find("key")


def foreign(tls: Path, authority: Authority) -> None:
    Authority("another").write(tls, "etcd-")


def expired(tls: Path, authority: Authority) -> None:
    authority.write(tls, "etcd-", days=-1)


def of_another_ca(tls: Path, authority: Authority) -> None:
    authority.write(tls, "etcd-")
    ca = (tls / "etcd-ca.pem").read_bytes()
    Authority("another").write(tls, "etcd-")
    (tls / "etcd-ca.pem").write_bytes(ca)


def none(tls: Path, authority: Authority) -> None:
    authority.write(tls, "etcd-")
    (tls / "etcd-cert.pem").unlink()
    (tls / "etcd-key.pem").unlink()


@pytest.mark.parametrize(
    ("shown", "says"),
    [
        (foreign, "its certificate is not signed by this side's ca.pem"),
        (expired, "it refuses this side's certificate"),
        (of_another_ca, "it refuses this side's certificate"),
        (none, "it asks for a certificate, and this side has shown none|it refuses this side's certificate"),
    ],
)
def test_who_is_not_trusted_is_told_why(
    shown: Callable[[Path, Authority], None],
    says: str,
    administered: EtcdCluster,
    authority: Authority,
    of_run: Path,
    tmp_path: Path,
) -> None:
    tls = folder_with(of_run, tmp_path / "tls")
    shown(tls, authority)
    with pytest.raises(Distrusted, match=says):
        Etcd(administered.url, str(tls)).find("key")


@pytest.mark.parametrize(
    ("days", "address", "says"),
    [(-1, "127.0.0.1", "its certificate has expired"), (1, "10.0.0.1", "its certificate is for another address")],
)
def test_an_etcd_that_is_not_trusted_is_not_asked(
    days: int, address: str, says: str, authority: Authority, of_run: Path, tmp_path: Path
) -> None:
    server = authority.write(tmp_path / "server", days=days, address=address)
    tls = authority.write(folder_with(of_run, tmp_path / "tls"), "etcd-")
    cluster = EtcdCluster(tmp_path, 1, server)
    refusals: list[Distrusted] = []

    def is_refused() -> bool:
        try:
            Etcd(cluster.url, str(tls)).find("key")
        except Distrusted as error:
            refusals.append(error)
        except OutOfReach:  # it does not listen yet
            pass
        return bool(refusals)

    cluster.start(0)
    with closing(cluster):
        assert wait_until(is_refused)
    assert says in str(refusals[0])


def test_a_certificate_that_is_renewed_is_shown_at_once(
    administered: EtcdCluster, authority: Authority, of_run: Path, tmp_path: Path
) -> None:
    tls = folder_with(of_run, tmp_path / "tls")
    expired(tls, authority)
    asked = Etcd(administered.url, str(tls))
    with pytest.raises(Distrusted):
        asked.find("key")
    authority.write(tls, "etcd-")
    assert asked.find("key") is None


def test_plain_and_secure_do_not_go_together(etcd: EtcdCluster, of_run: Path, tmp_path: Path) -> None:
    with pytest.raises(OutOfReach):
        Etcd(etcd.url.replace("etcds", "etcd")).find("key")
    with etcd_cluster(tmp_path, 1) as plain, pytest.raises(OutOfReach, match=r"is it etcd://"):
        Etcd(plain.url.replace("etcd", "etcds"), str(of_run)).find("key")


def test_files_that_cannot_be_used_are_named(etcd: EtcdCluster, of_run: Path, tmp_path: Path) -> None:
    tls = folder_with(of_run, tmp_path / "tls")
    (tls / "etcd-ca.pem").write_text("nothing")
    with pytest.raises(UserError, match=r"etcd-ca.pem is no certificate"):
        Etcd(etcd.url, str(tls))
    (tls / "etcd-cert.pem").write_text("nothing")
    with pytest.raises(UserError, match=r"etcd-key.pem cannot be read"):
        Etcd(etcd.url, str(tls))


# Runs


@pytest.fixture
def led(tmp_path: Path, incubator: Incubator, etcd: EtcdCluster, of_run: Path) -> Iterator[Led]:
    folder_with(of_run, tmp_path / "tls")
    yield Led(tmp_path, incubator, etcd, tls="tls")
    end_all(tmp_path)


def test_the_host_of_the_coordinator_is_killed_whole_under_tls(led: Led, reference: Callable[[Job], Outcome]) -> None:
    leader = led.begin()
    standby, log = led.stand_by()
    strike(leader.pid, signal.SIGKILL)
    led.wait_for("coordinator_restarted")
    led.wait_for_step(led.last_step + 5)
    assert recorded_plans(led.run.journal, led.url, led.run.path.name, str(led.folder / "tls"))
    led.stop()
    assert standby.wait(DEADLINE_S) == 0, log.read_text()
    assert [agent.wait() for agent in led.agents] == [75] * NUM_NODES
    led.assert_same_bits(reference)


def test_who_has_no_certificate_that_etcd_trusts_is_refused_in_one_line(led: Led) -> None:
    foreign(led.folder / "tls", Authority())
    shutil.copytree(led.folder / "tls", led.folder / "other")
    says = "its certificate is not signed by this side's ca.pem"
    token = ("--token-file", "token")
    led.assert_refused(("train", "job.toml", *token), says)
    led.assert_refused(("agent", "--coordinator", led.address, *token, "--tls", "other"), says)
    led.assert_refused(("status", led.address, *token, "--tls", "other"), says)
    led.assert_refused(("status", led.address, *token), "is under TLS. Give the folder with the certificates by --tls")
    led.assert_refused(("train", "job.toml", "--set", "cluster.tls="), "is under TLS, and cluster.tls is missing")
