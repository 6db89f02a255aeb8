"""The page /metrics for Prometheus: the run as it is now. Needs the extra `prometheus`."""

from __future__ import annotations

import hmac
import math
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from planaria.protocol.messages.records import (
    AnyRecord,
    CheckpointSaved,
    ComputedWrong,
    CoordinatorRestarted,
    EstimateCorrected,
    Evaluated,
    NodeJoined,
    NodeLost,
    NodeReleased,
    Note,
    NoteSubject,
    PlanTaken,
    Recovered,
    Restored,
    StepCommitted,
    StepSkipped,
    Waiting,
)
from planaria.runtime.observers.figures import OF_A_STEP
from planaria.runtime.observers.view import TimedRecord, ViewedRun

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

GAUGES = {
    "planaria_step": "The last committed step.",
    "planaria_steps": "Steps of the job.",
    "planaria_loss": "Loss of the last step.",
    "planaria_grad_norm": "Global gradient norm of the last step.",
    "planaria_learning_rate": "Learning rate of the last step.",
    "planaria_step_seconds": "Seconds that the last step took.",
    "planaria_estimated_step_seconds": "Seconds that a step of the plan in force should take.",
    "planaria_tokens_per_second": "Tokens a second of the last step.",
    "planaria_eval_loss": "Loss of the last evaluation.",
    "planaria_live_nodes": "Nodes that live.",
    "planaria_spare_nodes": "Nodes that live and have no work in the plan in force.",
    "planaria_pipelines": "Pipelines of the plan in force.",
    "planaria_degraded": "1: some layer has fewer than fault_tolerance + 1 replicas.",
    "planaria_waiting": "1: too few nodes are left, and the run waits for others.",
    "planaria_last_step_timestamp_seconds": "When the last step was committed; before it, when the run began.",
    "planaria_last_checkpoint_timestamp_seconds": "When the last checkpoint was whole; before it, when the run began.",
    "planaria_checkpoint_step": "Step of the last checkpoint.",
    "planaria_last_recovery_seconds": "Seconds from the last loss to the next committed step.",
}
COUNTERS = {
    "planaria_node_losses": "Nodes lost, of this process's part of the run, as all counts are.",
    "planaria_nodes_wrong": "Of those, nodes that computed wrong.",
    "planaria_recoveries": "Losses that were survived.",
    "planaria_restores": "Returns to a checkpoint.",
    "planaria_steps_redone": "Steps trained again after a return to a checkpoint.",
    "planaria_steps_skipped": "Steps that were not applied, as their loss or gradient was not finite.",
    "planaria_coordinator_restarts": "Coordinators that were started again.",
    "planaria_checkpoints_given_up": "Checkpoints that could not be written.",
}

_UNKNOWN_AT_FIRST = (
    *(f"planaria_{name}" for name in ("loss", "grad_norm", "learning_rate", "tokens_per_second", "eval_loss")),
    *(f"planaria_{name}_seconds" for name in ("step", "estimated_step", "last_recovery")),
)


class _Silent(WSGIRequestHandler):
    """Answers, and logs nothing."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Says nothing of a request."""


def _server_at(host: str) -> type[WSGIServer]:
    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    return Server


def _for_bearers(page: WSGIApplication, token: str) -> WSGIApplication:
    """Returns the page as it is for those who show the token; others are told how."""
    wanted = f"Bearer {token}".encode()

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if hmac.compare_digest(environ.get("HTTP_AUTHORIZATION", "").encode("latin-1"), wanted):
            return page(environ, start_response)
        start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Type", "text/plain")])
        return [b"Show the token of observe.metrics_token_file, or of the run folder: Authorization: Bearer TOKEN\n"]

    return answer


class PrometheusPage:
    """A view that serves /metrics.

    Args:
        host: address at which it listens.
        port: TCP port.
        token: that whoever asks has to show, as `Authorization: Bearer TOKEN`; "": none.
    """

    name = "the page for Prometheus"

    def __init__(self, host: str, port: int, token: str = "") -> None:
        self._host = host
        self._port = port
        self._token = token
        self._server: Any = None
        self._metrics: dict[str, Any] = {}
        self._per_node = 1
        self._live_nodes = 0
        self._nodes_at_work = 0

    @property
    def port(self) -> int:
        """The TCP port at which it listens, once started."""
        return int(self._server.server_port)

    def start(self, run: ViewedRun) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, make_wsgi_app

        registry = CollectorRegistry()
        for kind, described in ((Gauge, GAUGES), (Counter, COUNTERS)):
            for name, about in described.items():
                self._metrics[name] = kind(name, about, ["run"], registry=registry).labels(run=run.name)
        self._per_node = run.job.cluster.devices_per_node
        for name in _UNKNOWN_AT_FIRST:
            self._set(name, math.nan)
        now = time.time()
        for name in ("step", "checkpoint"):
            self._set(f"planaria_last_{name}_timestamp_seconds", now)
        self._set("planaria_step", run.step)
        self._set("planaria_checkpoint_step", run.step)
        self._set("planaria_steps", run.job.train.steps)
        page = _for_bearers(make_wsgi_app(registry), self._token) if self._token else make_wsgi_app(registry)
        self._server = make_server(self._host, self._port, page, _server_at(self._host), _Silent)
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def show(self, records: Sequence[TimedRecord]) -> Sequence[str]:
        for record, time_s in records:
            self._note_training(record, time_s)
            self._note_cluster(record)
            self._note_trouble(record)
        return ()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _set(self, name: str, value: float | None) -> None:
        if value is not None:
            self._metrics[name].set(value)

    def _note_training(self, record: AnyRecord, time_s: float) -> None:
        match record:
            case StepCommitted() | StepSkipped():
                self._set("planaria_step", record.step)
                self._set("planaria_loss", record.loss)
                self._set("planaria_grad_norm", record.grad_norm)
                self._set("planaria_learning_rate", record.learning_rate)
                self._set("planaria_step_seconds", record.duration_s)
                self._set("planaria_tokens_per_second", record.tokens_per_s)
                self._set("planaria_last_step_timestamp_seconds", time_s)
                self._set("planaria_waiting", 0)
            case Evaluated():
                self._set("planaria_eval_loss", record.loss)
                self._set("planaria_last_step_timestamp_seconds", time_s)  # evaluating is progress as well
            case CheckpointSaved():
                self._set("planaria_checkpoint_step", record.step)
                self._set("planaria_last_checkpoint_timestamp_seconds", time_s)
            case EstimateCorrected():
                self._set("planaria_estimated_step_seconds", record.step_s)
            case Restored():
                self._set("planaria_step", record.to_step)
            case _:
                pass

    def _note_cluster(self, record: AnyRecord) -> None:
        match record:
            case NodeJoined() | NodeLost() | NodeReleased() | Waiting() | StepCommitted() | StepSkipped():
                self._live_nodes = record.live_nodes
            case PlanTaken():
                workers = {worker for stages in record.pipelines for worker, _, _ in stages}
                self._nodes_at_work = len({worker // self._per_node for worker in workers})
                self._set("planaria_pipelines", len(record.pipelines))
                if record.purpose not in OF_A_STEP:
                    self._set("planaria_estimated_step_seconds", record.estimated_step_s)
            case _:
                return
        self._set("planaria_live_nodes", self._live_nodes)
        self._set("planaria_spare_nodes", max(0, self._live_nodes - self._nodes_at_work))

    def _note_trouble(self, record: AnyRecord) -> None:
        match record:
            case Note(subject=NoteSubject.DEGRADED):
                self._set("planaria_degraded", 1)
            case Note(subject=NoteSubject.REPLICAS):
                self._set("planaria_degraded", 0)
            case Note(subject=NoteSubject.CHECKPOINT):
                self._metrics["planaria_checkpoints_given_up"].inc()
            case Waiting():
                self._set("planaria_waiting", 1)
            case NodeLost():
                self._metrics["planaria_node_losses"].inc()
            case ComputedWrong():
                self._metrics["planaria_nodes_wrong"].inc()
            case Recovered():
                self._metrics["planaria_recoveries"].inc()
                self._set("planaria_last_recovery_seconds", record.recovery.resume_ms / 1e3)
            case Restored():
                self._metrics["planaria_restores"].inc()
                self._metrics["planaria_steps_redone"].inc(record.from_step - record.to_step)
            case StepSkipped():
                self._metrics["planaria_steps_skipped"].inc()
            case CoordinatorRestarted():
                self._metrics["planaria_coordinator_restarts"].inc()
            case _:
                pass
