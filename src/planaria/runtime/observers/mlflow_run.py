"""A run of MLflow. Needs the extra `mlflow`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planaria.protocol.messages.records import Recovered, RunEnded, RunStatus
from planaria.runtime.observers.figures import FigureReader, ending, hyperparameters
from planaria.runtime.observers.thresholds import RECOVERIES_TAGGED
from planaria.runtime.observers.view import TimedRecord, ViewedRun
from planaria.runtime.run_folder.recorder import write_atomically
from planaria.runtime.run_folder.sentences import sentence

_EXPERIMENT = "planaria"
_PARAMETERS_AT_ONCE = 100
_LONGEST_VALUE = 500
_LONGEST_TAG = 5000
_STATUS = {
    RunStatus.COMPLETED: "FINISHED",
    RunStatus.STOPPED: "KILLED",
    RunStatus.INTERRUPTED: "KILLED",
    RunStatus.EXHAUSTED: "FAILED",
    RunStatus.FAILED: "FAILED",
}


class MlflowRun:
    """A view that logs to MLflow; its id is kept, and a run that goes on is the same one there.

    The experiment is MLFLOW_EXPERIMENT_NAME, or "planaria". Recoveries are tags, by the step in which they were.

    Args:
        place: a server's URL, or a folder.
    """

    name = "MLflow"

    def __init__(self, place: str) -> None:
        self._place = place
        self._figures = FigureReader()
        self._client: Any = None
        self._id = ""
        self._status = "FAILED"
        self._num_tagged = 0

    def start(self, run: ViewedRun) -> None:
        # By its own settings it would try for minutes, which the end of a run does not wait for.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        is_folder = "://" not in self._place or self._place.startswith("file:")
        if is_folder:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions ask for a database otherwise
        from mlflow.environment_variables import MLFLOW_EXPERIMENT_NAME
        from mlflow.tracking import MlflowClient

        self._figures = FigureReader(run.step)
        uri = self._place if "://" in self._place else Path(self._place.removeprefix("file:")).absolute().as_uri()
        client = MlflowClient(tracking_uri=uri)
        kept = run.folder.id_at("mlflow")
        if kept.exists():
            self._id = kept.read_text().strip()
            client.update_run(self._id, status="RUNNING")
        else:
            named = MLFLOW_EXPERIMENT_NAME.get() or _EXPERIMENT
            experiment = client.get_experiment_by_name(named)
            experiment_id = client.create_experiment(named) if experiment is None else experiment.experiment_id
            self._id = client.create_run(experiment_id, run_name=run.name).info.run_id
            write_atomically(kept, f"{self._id}\n".encode())
            self._client = client
            self._log_job(run)
        self._client = client

    def show(self, records: Sequence[TimedRecord]) -> Sequence[str]:
        from mlflow.entities import Metric, RunTag

        metrics, tags = [], []
        for record, time_s in records:
            figures = self._figures.read(record)
            if figures is not None:
                at_ms = int(time_s * 1e3)
                metrics += [Metric(name, value, at_ms, figures.step) for name, value in figures.values.items()]
            if isinstance(record, Recovered) and self._num_tagged < RECOVERIES_TAGGED:
                self._num_tagged += 1
                told = (sentence(record) or "")[:_LONGEST_TAG]
                tags.append(RunTag(f"planaria.recovery.step_{record.recovery.step}", told))
            elif isinstance(record, RunEnded):
                self._status = _STATUS[record.status]
                tags.append(RunTag("planaria.ended", ending(record)[:_LONGEST_TAG]))
        self._client.log_batch(self._id, metrics=metrics, tags=tags)
        return ()

    def close(self) -> None:
        if self._client is not None:
            self._client.set_terminated(self._id, status=self._status)

    def _log_job(self, run: ViewedRun) -> None:
        from mlflow.entities import Param

        table = hyperparameters(run.job)
        parameters = [Param(name, str(value)[:_LONGEST_VALUE]) for name, value in table.items()]
        for at in range(0, len(parameters), _PARAMETERS_AT_ONCE):
            self._client.log_batch(self._id, params=parameters[at : at + _PARAMETERS_AT_ONCE])
