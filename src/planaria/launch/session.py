"""A training run on this machine, from tokens to summary: starts the nodes and the coordinator, and cleans up."""

from __future__ import annotations

import dataclasses
import os
import secrets
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType

import msgspec

from planaria.checkpoint.manifest import newest, read_manifest, retain, weights_sha256, write_manifest
from planaria.coordinator.client import Contact
from planaria.coordinator.journal import Journal
from planaria.coordinator.server import Observer, Server
from planaria.data.tokens import prepare_tokens
from planaria.job.errors import PlanariaError, UserError
from planaria.job.faults import Fault
from planaria.job.parse import EMULATED_MODEL, job_fingerprint
from planaria.job.settings import Device, Job, Launcher, WhenExhausted
from planaria.launch.hosts import PATIENCE_S, agents_of, announce, reachable, share
from planaria.launch.local import LauncherError, LocalNodes
from planaria.launch.result import TrainResult
from planaria.launch.settings import is_emulated, job_profile, named_profile, planner_settings
from planaria.observe.recorder import Recorder, write_atomically
from planaria.observe.run_folder import RunFolder
from planaria.plan.plan import NodeId, WorkerId
from planaria.plan.profile import ModelProfile
from planaria.policy.templates import TemplatesPolicy
from planaria.profile import ERROR_SUFFIX
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.events import WriteManifest
from planaria.protocol.liveness import Limits
from planaria.protocol.records import AnyRecord, Note, RunEnded, RunStatus, StepCommitted
from planaria.protocol.settings import CheckpointRef, RunSettings
from planaria.worker.settings import WorkerSettings

CROWDED = 10
"""How many times longer a process of this machine may be silent that is runnable: it may be short of cores."""


def train_job(
    job: Job,
    folder: RunFolder,
    *,
    faults: tuple[Fault, ...] = (),
    resume: bool = False,
    observers: Sequence[Observer] = (),
    import_path: Path | None = None,
    nodes: LocalNodes | None = None,
    metadata_url: str = "",
    token: str = "",
) -> TrainResult:
    """Train, or go on from the folder's last checkpoint.

    Args:
        job: what to train.
        folder: of the run.
        faults: nodes to kill on order.
        resume: go on from the last checkpoint in the folder.
        observers: called with each record.
        import_path: where a model given as "module:function" is looked for.
        nodes: started; their processes are used and then left to the next job. None: own ones.
        metadata_url: of the metadata server that resilience.preemption asks; "": the cloud's own.
        token: of the job; "": a new one.

    Raises:
        UserError (or another ValueError of Planaria's): a mistake in the job, found before anything was recorded.
    """
    if job.cluster.launcher is Launcher.AGENTS:
        folder = RunFolder(folder.path.resolve())  # nodes have another working folder
    checkpoint, complaints = _checkpoint(job, folder) if resume else (None, [])
    given = _given_profile(job, folder, resume=resume) if is_emulated(job) else None
    own = LocalNodes(folder.logs / "launcher.log", _imported(job)) if nodes is None else nullcontext(nodes)
    with own as nodes:
        if given is None:
            prepare_tokens(job.data, folder.data)
            given = _measure(job, nodes, folder.data, folder.profile, import_path)
        profile = job_profile(job, given)
        policy = TemplatesPolicy(profile, planner_settings(job))
        policy.initial(
            [NodeId(node) for node in range(job.cluster.nodes)], 1
        )  # a job that cannot be planned is refused here
        run = _Run(job, folder, faults, tuple(observers), import_path, metadata_url, token or secrets.token_hex(16))
        for complaint in complaints:
            run.record(Note(level="warning", text=complaint), time.time())
        with run.recorder:
            return run.train(nodes, policy, profile, checkpoint)


def _checkpoint(job: Job, folder: RunFolder) -> tuple[CheckpointRef, list[str]]:
    path, manifest, complaints = newest(folder.checkpoints, job_fingerprint(job))
    if manifest.step >= job.train.steps:
        raise UserError(
            f"run folder {folder.path}: all {manifest.step} steps are done. Raise train.steps in a new run."
        )
    reference = CheckpointRef(step=manifest.step, folder=str(path), exponents=manifest.exponents)
    return reference, complaints


def _given_profile(job: Job, folder: RunFolder, *, resume: bool) -> ModelProfile:
    """An emulated job's profile, which is kept in the run folder."""
    profile = named_profile(job)
    if resume and folder.profile.exists():
        before = msgspec.json.decode(folder.profile.read_bytes(), type=ModelProfile)
        if _structure(before) != _structure(profile):
            raise UserError(
                f"cluster.profile = {job.cluster.profile!r} has other layers or parameter groups than the profile with "
                f"which run folder {folder.path} was trained. Give that one, or start a new run by --name NAME."
            )
    write_atomically(folder.profile, msgspec.json.format(msgspec.json.encode(profile), indent=1))
    return profile


def _structure(profile: ModelProfile) -> object:
    return [layer.name for layer in profile.layers], [group.layers for group in profile.groups]


def _imported(job: Job) -> str:
    """Of what model type workers need the library."""
    return EMULATED_MODEL if is_emulated(job) else job.model.type


def profile_job(job: Job, folder: RunFolder | None, *, import_path: Path | None = None) -> ModelProfile:
    """The job's profile, measured in a process of its own (or taken from the folder's, if it still fits), or the one
    that an emulated job names.

    Raises:
        UserError: the data, the model or the named profile cannot be used.
    """
    if is_emulated(job):
        return named_profile(job)
    with tempfile.TemporaryDirectory() as scratch:
        data = folder.data if folder else Path(scratch)
        output = folder.profile if folder else Path(scratch) / "profile.json"
        with LocalNodes(None, job.model.type) as nodes:
            prepare_tokens(job.data, data)
            return _measure(job, nodes, data, output, import_path)


def _measure(job: Job, nodes: LocalNodes, data: Path, output: Path, import_path: Path | None) -> ModelProfile:
    error = output.with_name(output.name + ERROR_SUFFIX)
    error.unlink(missing_ok=True)
    status = nodes.measure(job, data, output, import_path)
    if status != 0:
        if not error.exists():
            raise LauncherError(f"measuring the profile ended with status {status}; see the launcher's log")
        text = error.read_text()
        error.unlink()
        first, _, trace = text.partition("\n")
        raise ModelFailed(first, trace) if status == 1 else UserError(text)
    return msgspec.json.decode(output.read_bytes(), type=ModelProfile)


class ModelFailed(PlanariaError):
    """A layer of the user's raised while it was measured. The message ends with its traceback."""

    def __init__(self, summary: str, trace: str) -> None:
        super().__init__(f"{summary}\n\n{trace}")


def _limits(job: Job) -> Limits:
    """After what time a worker counts as hung: longer where the workers of this machine share its cores."""
    timeout_s, workers = job.resilience.heartbeat_timeout_s, job.cluster.nodes * job.cluster.devices_per_node
    plain = Limits(silence_s=timeout_s, crowded_silence_s=CROWDED * timeout_s)
    if job.cluster.device is Device.CUDA or job.cluster.launcher is Launcher.AGENTS:
        return plain
    share = max(1.0, workers / len(os.sched_getaffinity(0)))
    return dataclasses.replace(plain, least_s=plain.least_s * share, factor=plain.factor * share)


class _Run:
    """One run: its records, its processes, its end."""

    def __init__(
        self,
        job: Job,
        folder: RunFolder,
        faults: tuple[Fault, ...],
        observers: tuple[Observer, ...],
        import_path: Path | None,
        metadata_url: str,
        token: str,
    ) -> None:
        self._token = token
        self._metadata_url = metadata_url
        self._job = job
        self._folder = folder
        self._faults = faults
        self._import_path = import_path
        self.recorder = Recorder(folder, job)
        self._observers: tuple[Observer, ...] = (self.recorder, *observers)
        self._last: StepCommitted | None = None
        self._ended: RunEnded | None = None

    def record(self, record: AnyRecord, time_s: float) -> None:
        if isinstance(record, StepCommitted):
            self._last = record
        if isinstance(record, RunEnded):
            self._ended = record
            return  # the display and the summary get it once the weights' hash is known
        for observer in self._observers:
            observer(record, time_s)

    def train(
        self,
        nodes: LocalNodes,
        policy: TemplatesPolicy,
        profile: ModelProfile,
        checkpoint: CheckpointRef | None,
    ) -> TrainResult:
        job = self._job
        settings = RunSettings(
            train=job.train,
            policy_name=job.resilience.policy.value,
            fault_tolerance=job.resilience.fault_tolerance,
            num_nodes=job.cluster.nodes,
            devices_per_node=job.cluster.devices_per_node,
            num_groups=len(profile.groups),
            checkpoint_root=str(self._folder.checkpoints),
            checkpoint_every=job.run.checkpoint_every,
            resume=checkpoint,
            waits=job.resilience.when_exhausted is WhenExhausted.WAIT,
        )
        machine = Coordinator(settings, policy)
        journal = Journal(self._folder.journal)
        journal.start()
        mark = secrets.token_hex(8)
        agents = agents_of(job, self._folder, self._token, mark, self._faults)
        layers = tuple(group.layers for group in profile.groups)
        server = Server(
            machine,
            self._token,
            journal,
            nodes,
            (self.record,),
            lambda command: self._write_manifest(command, layers),
            limits=_limits(job),
            add_node=None if agents else lambda node: self._spawn(nodes, contact, node),
            agents=agents,
            patience_s=PATIENCE_S,
        )
        try:
            address = server.start(job.cluster.host, job.cluster.port)
            contact = Contact(address=reachable(address), token=self._token)
            contact.write(self._folder.contact)
            if agents is not None:
                share(self._folder, self._token, mark)
                self.record(announce(job, self._folder, address), time.time())
            for node in range(0 if agents else job.cluster.nodes):
                self._spawn(nodes, contact, NodeId(node))
            with _interrupts(server):
                server.run()
        finally:
            self._folder.contact.unlink(missing_ok=True)
            server.close()
            nodes.release()
            journal.close()
        return self._result(machine)

    def _spawn(self, nodes: LocalNodes, contact: Contact, node: NodeId) -> None:
        for device in range(self._job.cluster.devices_per_node):
            worker = WorkerId(node * self._job.cluster.devices_per_node + device)
            nodes.spawn(
                WorkerSettings(
                    worker=worker,
                    node=node,
                    coordinator=contact.address,
                    token=contact.token,
                    job=self._job,
                    data_folder=str(self._folder.data),
                    profile=str(self._folder.profile),
                    faults=tuple(fault for fault in self._faults if fault.node == node),
                    import_path=None if self._import_path is None else str(self._import_path),
                    metadata_url=self._metadata_url,
                    log=str(self._folder.logs / f"worker-{worker}.log"),
                )
            )

    def _write_manifest(self, command: WriteManifest, layers: tuple[tuple[int, ...], ...]) -> None:
        write_manifest(
            Path(command.folder),
            step=command.step,
            job_fingerprint=job_fingerprint(self._job),
            exponents=command.exponents,
            saved=command.groups,
            layers=layers,
        )
        retain(self._folder.checkpoints, self._job.run.keep_checkpoints, Path(command.folder))

    def _result(self, machine: Coordinator) -> TrainResult:
        ended = self._ended or RunEnded(
            status=RunStatus.INTERRUPTED,
            steps=machine.step - 1,
            message="ended at once by the user; what was not saved is lost",
            skipped_microbatches=machine.skipped,
            duplicated_microbatches=machine.duplicated,
            skipped_steps=len(machine.skipped_steps),
        )
        saved = machine.checkpoints.last
        digest = None
        if saved is not None and saved.step == ended.steps:
            folder = Path(saved.folder)
            digest = weights_sha256(folder, read_manifest(folder, verify=False))
        return finish_run(self.recorder, self._observers, self._folder, ended, self._last, digest)


def finish_run(
    recorder: Recorder,
    observers: Sequence[Observer],
    folder: RunFolder,
    ended: RunEnded,
    last: StepCommitted | None,
    digest: str | None,
) -> TrainResult:
    """Tell everybody of the end, and make the result."""
    recorder.finish(weights_sha256=digest)
    for observer in observers:
        observer(ended, time.time())
    return TrainResult(
        status=ended.status,
        steps=ended.steps,
        final_loss=last.loss if last is not None else None,
        weights_sha256=digest,
        recoveries=recorder.recoveries,
        folder=folder.path,
        message=ended.message,
    )


@contextmanager
def _interrupts(server: Server) -> Iterator[None]:
    """First Ctrl-C: finish the step, save, end. Second: end at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = 0

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            server.request_stop()
        else:
            server.abort()

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
