"""An etcd of three members on loopback, each a process of its own that may be killed and started again."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from planaria.runtime.journal.etcd import Etcd, OutOfReach

DEADLINE_S = 30.0


class EtcdCluster:
    """Members by number, from 0.

    Args:
        folder: where their data lie.
        members: how many there are.
        certificates: folder with ca.pem, cert.pem and key.pem, which clients have to fit; None: they come plain.
        hosts: address of each member, and what begins a command there; (): all are on loopback.

    Attributes:
        url: of all members, as run.journal takes it.
    """

    def __init__(
        self,
        folder: Path,
        members: int,
        certificates: Path | None = None,
        hosts: Sequence[tuple[str, Sequence[str]]] = (),
    ) -> None:
        self._folder = folder
        self._certificates = certificates
        self._hosts = hosts or [("127.0.0.1", ())] * members
        ports = _free_ports(2 * members)
        addresses = [f"{address}:{port}" for (address, _), port in zip([*self._hosts] * 2, ports, strict=True)]
        self._clients, self._peers = addresses[:members], addresses[members:]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.url = ("etcds://" if certificates else "etcd://") + ",".join(self._clients)

    def start(self, member: int) -> None:
        """Starts a member; one that was killed goes on with its data."""
        names = [f"m{number}=http://{address}" for number, address in enumerate(self._peers)]
        client, peer = (f"http://{addresses[member]}" for addresses in (self._clients, self._peers))
        if self._certificates is not None:
            client = client.replace("http", "https")
        command = [
            *self._hosts[member][1],
            "etcd",
            "--name",
            f"m{member}",
            "--data-dir",
            str(self._folder / f"m{member}"),
        ]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", ",".join(names), "--log-level", "error"]
        if self._certificates is not None:
            files = (("--cert-file", "cert"), ("--key-file", "key"), ("--trusted-ca-file", "ca"))
            command += [word for option, name in files for word in (option, str(self._certificates / f"{name}.pem"))]
            command += ["--client-cert-auth"]
        with (self._folder / f"m{member}.log").open("ab") as log:
            self._processes[member] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)

    def kill(self, member: int) -> None:
        process = self._processes.pop(member)
        process.kill()
        process.wait()

    def wait(self, tls: Path | None = None) -> None:
        """Waits until the cluster answers, to whoever has the certificates of `tls`."""
        etcd, deadline = Etcd(self.url, str(tls or self._certificates or "")), time.monotonic() + DEADLINE_S
        while True:
            try:
                etcd.find("nothing")
                return
            except OutOfReach:
                assert time.monotonic() < deadline, "etcd does not answer"
                time.sleep(0.05)

    def close(self) -> None:
        for member in list(self._processes):
            self.kill(member)


@contextmanager
def etcd_cluster(
    folder: Path, members: int = 3, certificates: Path | None = None, tls: Path | None = None
) -> Iterator[EtcdCluster]:
    """Runs a cluster; `tls`: certificates of a client, where they are others. Skips where etcd is not installed."""
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed (Debian's etcd-server)")
    folder.mkdir(parents=True, exist_ok=True)
    cluster = EtcdCluster(folder, members, certificates)
    try:
        for member in range(members):
            cluster.start(member)
        cluster.wait(tls)
        yield cluster
    finally:
        cluster.close()


def _free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    try:
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
