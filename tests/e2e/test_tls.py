"""A run under TLS, as users start it: a kill costs nothing, and a key that others can read is told of."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from planaria.job.parse import load_job
from planaria.runtime.wire.certificates import make_certificates
from tests.e2e.agents import NUM_NODES, Hosts, end_all, family
from tests.e2e.commands import Command, wait_until
from tests.e2e.conftest import Reference
from tests.e2e.incubator import Incubator

TLS = 'tls = "tls"'


@pytest.fixture
def hosts(tmp_path: Path, incubator: Incubator) -> Iterator[Callable[[str], Hosts]]:
    def made(cluster: str) -> Hosts:
        make_certificates(tmp_path / "tls", 1)
        return Hosts(tmp_path, incubator, cluster=cluster)

    yield made
    end_all(tmp_path)


@pytest.mark.parametrize(
    "cluster",
    [TLS, pytest.param(f"{TLS}\ndata_encryption = false", marks=pytest.mark.proof)],
    ids=["everything", "all but tensors"],
)
def test_a_node_is_killed_under_tls(
    cluster: str, hosts: Callable[[str], Hosts], reference: Reference, incubator: Incubator
) -> None:
    job = hosts(cluster)
    (job.folder / "tls" / "key.pem").chmod(0o640)
    train = job.train()
    assert wait_until(lambda: "run on each:" in job.said), job.said
    assert f"--tls {job.folder / 'tls'}" in job.said
    assert "key.pem can be read by others (mode 640). Run chmod 600" in job.said
    agents = [job.start_agent("--tls", "tls") for _ in range(NUM_NODES)]
    job.wait_for_step(3)
    assert "key.pem can be read by others" in agents[0].said
    plain = job.start_agent()
    assert plain.wait() == 2
    assert plain.said.splitlines()[-1] == (
        f"planaria: error: no connection to the coordinator at {job.address}: it speaks TLS: "
        "give --tls FOLDER with the run's certificates."
    )
    for pid in family(agents[1].process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    job.wait_for("recovered")
    job.wait_for_step(job.last_step + 3)
    command = Command(job.folder, incubator).start("status", "runs/job")
    said, _ = command.communicate(timeout=180)
    assert "training, step" in said
    train.send_signal(signal.SIGINT)
    assert train.wait(60) == 130, job.said
    summary = json.loads((job.run.path / "summary.json").read_text())
    given = load_job(job.folder / "job.toml", [f"train.steps={summary['steps']}"])
    file = str(job.folder / "profile.json")
    alone = reference(msgspec.structs.replace(given, cluster=msgspec.structs.replace(given.cluster, profile=file)))
    lines = (job.run.path / "metrics.jsonl").read_text().splitlines()
    assert {entry["step"]: entry["loss"] for entry in map(json.loads, lines)} == alone.losses
    assert summary["weights_sha256"] == alone.summary["weights_sha256"]
