"""[observe]: a run with everything on, whose webhook stalls, has the bits of the reference, also when it goes on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from planaria.job.errors import UserError
from planaria.job.parse import job_from_json
from planaria.job.sections.observe import ObserveSection
from planaria.runtime.launch.training.folder import job_folder
from planaria.runtime.observers import views, webhook
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_emulated_job

STOP = """
from planaria import records

def stop_after_three(record, run):
    if isinstance(record, records.StepCommitted) and record.step >= 3:
        run.stop("three are enough")
"""
SECRET = "S3CRET"


@pytest.fixture
def deaf() -> Iterator[str]:
    """The URL of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/services/{SECRET}"


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_run_that_is_shown_everywhere_has_the_same_bits(
    run: Run,
    slow_layers: Path,
    tmp_path: Path,
    reference: Reference,
    deaf: str,
    free_port: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    event_accumulator: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    pytest.importorskip("prometheus_client", reason="the extra prometheus is not installed")
    monkeypatch.setattr(webhook, "ALERT_WITHIN_S", 0.1)
    monkeypatch.setattr(webhook.Webhook, "rests_s", (0.0,))
    (tmp_path / "stopping.py").write_text(STOP)
    told = tmp_path / "told.txt"
    plain = make_emulated_job(slow_layers, train__steps=8)
    observe = ObserveSection(
        tensorboard=True, metrics_port=free_port, webhook=deaf, command=f'echo "$PLANARIA_TEXT" >> {told}'
    )
    job = msgspec.structs.replace(plain, observe=observe)
    section = msgspec.structs.replace(job.run, callbacks=("stopping:stop_after_three",))
    stopping = msgspec.structs.replace(job, run=section)
    outcome = run(stopping, "kill:node=2,step=2,at=backward", import_path=tmp_path)
    assert outcome.result.status == "stopped"
    folder = outcome.result.folder
    run(job, resume=folder).assert_same_bits(reference(plain))

    found = event_accumulator.EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    losses = [(event.step, event.value) for event in found.Scalars("train/loss")]
    assert [step for step, _ in losses] == list(range(1, 9))
    (recovery,) = found.Scalars("cluster/recovery_s")
    assert recovery.step == 2
    name = folder.name
    assert [line.partition(" after")[0] for line in told.read_text().splitlines()] == [
        f"{name}: ended: stopped", f"{name}: ended: completed",
    ]  # fmt: skip
    said = capfd.readouterr().err
    assert said.count("the webhook at 127.0.0.1 did not take a message (no answer within 0 s); training goes on") == 2
    assert SECRET not in said
    (folder / "job.json").unlink()  # the fixture's, which writes what it is given
    for file in folder.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file


def test_the_folder_s_job_has_no_secrets(tmp_path: Path, slow_layers: Path) -> None:
    job = make_emulated_job(
        slow_layers,
        run__folder=str(tmp_path),
        observe__webhook=f"https://me:{SECRET}@hooks.example/{SECRET}?k={SECRET}",
    )
    with job_folder(job, "run", resume=False) as own:
        text = own.folder.job.read_text()
        assert own.job.observe.webhook == job.observe.webhook
    assert SECRET not in text
    assert job_from_json(text.encode()).observe.webhook == "https://hooks.example/hidden"


def test_what_is_not_installed_is_refused_with_its_remedy(
    run: Run, slow_layers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "find_spec", lambda module: None)
    with pytest.raises(UserError, match=r"observe.mlflow needs mlflow, .*: pip install mlflow-skinny, or leave"):
        run(make_emulated_job(slow_layers, observe__mlflow="mlruns"))
    with pytest.raises(UserError, match=r"observe.dashboard_port needs starlette, .*: pip install starlette uvi"):
        run(make_emulated_job(slow_layers, observe__dashboard_port=8265))
