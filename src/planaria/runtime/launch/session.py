"""Trains on this machine, from a request to its result, stage by stage (`planaria.runtime.launch.training`)."""

from __future__ import annotations

from contextlib import closing, nullcontext

from planaria.runtime.coordinator.remote_nodes import imported
from planaria.runtime.launch.training.data import prepared
from planaria.runtime.launch.training.ending import result_of
from planaria.runtime.launch.training.profiling import keep_named, measure
from planaria.runtime.launch.training.request import TrainRequest, checked
from planaria.runtime.launch.training.result import TrainResult
from planaria.runtime.launch.training.resumption import check_store, resumed
from planaria.runtime.launch.training.run import run
from planaria.runtime.nodes.local_nodes import LocalNodes


def train_job(request: TrainRequest, nodes: LocalNodes | None = None) -> TrainResult:
    """Trains a job, or goes on from its folder's last checkpoint.

    Args:
        request: what to train, and how.
        nodes: started; their processes are used and then left to the next job. None: own ones.

    Raises:
        UserError (or another ValueError of Planaria's): a mistake in the job, found before anything was recorded.
    """
    request = checked(request)
    check_store(request)
    resumption = resumed(request)
    keep_named(request)
    log = request.folder.logs / "launcher.log"
    with LocalNodes(log, imported(request.job)) if nodes is None else nullcontext(nodes) as processes:
        data = prepared(request, resumption)
        with closing(data):
            measure(request, processes)
            with run(request, data, processes) as outcome:
                return result_of(outcome)
