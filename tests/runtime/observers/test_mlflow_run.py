"""MLflow: what its own client reads back from a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planaria.protocol.messages.records import AnyRecord, Restored
from planaria.runtime.observers.mlflow_run import MlflowRun
from planaria.runtime.observers.view import ViewedRun
from planaria.runtime.observers.view_thread import Views
from planaria.runtime.run_folder.run_folder import RunFolder
from tests.runtime.run_folder.happenings import JOB, committed, short_run

pytestmark = pytest.mark.proof  # which installs what this needs


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow.tracking", reason="the extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)


def show(folder: Path, records: list[AnyRecord], step: int = 0, *, ends: bool = True) -> None:
    view = MlflowRun(str(folder / "mlruns"))
    view.start(ViewedRun(name="short", job=JOB, folder=RunFolder(folder), step=step))
    view.show([(record, 100.0 + at) for at, record in enumerate(records)])
    if ends:
        view.close()


def client(folder: Path) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=(folder / "mlruns").as_uri())


def only_run(folder: Path) -> Any:
    experiment = client(folder).get_experiment_by_name("planaria")
    (run,) = client(folder).search_runs([experiment.experiment_id])
    return run


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    found = client(folder).get_metric_history(only_run(folder).info.run_id, name)
    return [(metric.step, metric.value) for metric in found]


def test_a_run_is_read_back(tmp_path: Path) -> None:
    show(tmp_path, short_run())
    run = only_run(tmp_path)
    assert (run.info.run_name, run.info.status) == ("short", "FINISHED")
    assert curve(tmp_path, "train/loss") == [(1, 0.1 + 0.2), (2, 0.1 + 0.2), (3, 2.5)]
    assert curve(tmp_path, "cluster/recovery_s") == [(2, pytest.approx(0.0612))]
    assert run.data.params["train.sequence_length"] == "16"
    assert run.data.tags["planaria.recovery.step_2"].startswith("recovered: step 2 committed 61 ms after the loss")
    assert run.data.tags["planaria.ended"] == "completed after step 3"


def test_a_server_that_is_not_reached_is_told_in_a_line_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    views = Views(
        [MlflowRun("http://me:S3CRET@127.0.0.1:9")],
        ViewedRun(name="short", job=JOB, folder=RunFolder(tmp_path), step=0),
        lambda: False,
    )
    for record in short_run():
        views(record, 0.0)
    views.close()
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("MLflow failed: MlflowException: ")
    assert "training goes on" in line
    assert "S3CRET" not in line


def test_a_run_that_goes_on_is_the_same_one(tmp_path: Path) -> None:
    back = Restored(from_step=2, to_step=1, reason="all replicas of layer 3 were lost")
    show(tmp_path, [committed(1), committed(2), back, committed(2)], ends=False)
    assert only_run(tmp_path).info.status == "RUNNING"
    show(tmp_path, [committed(3), short_run()[-1]], step=2)
    assert sorted({step for step, _ in curve(tmp_path, "train/loss")}) == [1, 2, 3]
    assert only_run(tmp_path).info.status == "FINISHED"
