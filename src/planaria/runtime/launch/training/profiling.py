"""The profile of a job: the costs of its layers, measured in a process of its own, or those that an emulated job names.

It lies in the run folder, where the coordinator and the workers read it.
"""

from __future__ import annotations

import logging
import tempfile
from contextlib import closing
from pathlib import Path

import msgspec

from planaria.checkpoint.weights import with_weights_here
from planaria.data.opening import prepare
from planaria.job.errors import PlanariaError, UserCodeError, UserError
from planaria.job.settings import Job
from planaria.job.users_code import look_in
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.quantities import count
from planaria.runtime.component_settings import is_emulated, named_profile
from planaria.runtime.coordinator.kernel_kills import KernelKills, counters
from planaria.runtime.coordinator.remote_nodes import imported
from planaria.runtime.launch.training.request import TrainRequest
from planaria.runtime.measure import ERROR_SUFFIX
from planaria.runtime.nodes.local_nodes import LauncherError, LocalNodes, cause_of
from planaria.runtime.run_folder.claim import say
from planaria.runtime.run_folder.recorder import write_atomically

log = logging.getLogger(__name__)


class ModelFailed(PlanariaError):
    """A layer of the user's model raised while it was measured. The message ends with its traceback."""

    def __init__(self, summary: str, trace: str) -> None:
        super().__init__(f"{summary}\n\n{trace}")


def keep_named(request: TrainRequest) -> None:
    """Puts an emulated job's profile into the run folder; of any other job nothing is known before it is measured.

    Raises:
        UserError: it cannot be used, or not to go on with.
    """
    job, folder = request.job, request.folder
    if not is_emulated(job):
        return
    profile = named_profile(job)
    if request.resume and folder.profile.exists():
        before = msgspec.json.decode(folder.profile.read_bytes(), type=ModelProfile)
        if _structure(before) != _structure(profile):
            raise UserError(
                f"cluster.profile = {job.cluster.profile!r} has other layers or parameter groups than the profile with "
                f"which run folder {folder.path} was trained. Give that one, or start a new run by --name NAME."
            )
    write_atomically(folder.profile, msgspec.json.format(msgspec.json.encode(profile), indent=1))


def _structure(profile: ModelProfile) -> object:
    return [layer.name for layer in profile.layers], [group.layers for group in profile.groups]


def measure(request: TrainRequest, nodes: LocalNodes) -> None:
    """Measures the layers of a job that is not emulated, once its data are there.

    Raises:
        UserError: the model cannot be used, or a microbatch does not fit this machine.
        ModelFailed: a layer raised.
    """
    if is_emulated(request.job):
        return
    folder = request.folder
    job = request.job
    of = count(job.train.microbatch, "sample")
    say(folder.claim, f"starting: the layers of {job.model.type} are measured, on microbatches of {of}")
    if request.resume:  # from its own checkpoint: what it started from may be gone
        train = msgspec.structs.replace(job.train, start_from="", start_optimizer=False)
        job = msgspec.structs.replace(job, train=train)
    _measure(job, nodes, folder.data, folder.profile, request.import_path)


def profile_job(job: Job, *, import_path: Path | None = None) -> ModelProfile:
    """Returns the profile of a job that is not trained: measured, or the one that an emulated job names.

    Raises:
        UserError: the data, the model or the named profile cannot be used.
    """
    if is_emulated(job):
        return named_profile(job)
    job = with_weights_here(job)
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch)
        look_in(import_path)
        with LocalNodes(None, imported(job)) as nodes, closing(prepare(job, data)):
            return _measure(job, nodes, data, data / "profile.json", import_path)


def _measure(job: Job, nodes: LocalNodes, data: Path, output: Path, import_path: Path | None) -> ModelProfile:
    error = output.with_name(output.name + ERROR_SUFFIX)
    error.unlink(missing_ok=True)
    kills = KernelKills(counters())
    status = nodes.measure(job, data, output, import_path)
    if status < 0 and kills.explain(cause_of(status)):
        raise UserError(
            f"train.microbatch = {job.train.microbatch}: the layers of {job.model.type} could not be measured; the "
            "kernel killed the process for lack of memory. Lower it, or train.sequence_length."
        )
    if status < 0 and not error.exists():
        log.warning("the process that measures the profile is gone (%s); it is measured again", cause_of(status))
        status = nodes.measure(job, data, output, import_path)
    if status != 0:
        if not error.exists():
            raise LauncherError(f"measuring the profile: {cause_of(status)}; see the launcher's log")
        text = error.read_text()
        error.unlink()
        first, _, trace = text.partition("\n")
        if status == 1:
            raise ModelFailed(first, trace)
        raise UserCodeError(first, trace) if trace else UserError(first)
    return msgspec.json.decode(output.read_bytes(), type=ModelProfile)
