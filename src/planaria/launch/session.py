"""A training run on this machine, from tokens to summary: starts the nodes and the coordinator, and cleans up."""

from __future__ import annotations

import logging
import secrets
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals

import msgspec

from planaria.checkpoint.manifest import read_manifest, weights_sha256
from planaria.coordinator.client import Contact
from planaria.coordinator.executor import Observer
from planaria.coordinator.link import Finished
from planaria.coordinator.settings import CoordinatorSettings
from planaria.coordinator.switchboard import listen
from planaria.data.tokens import TokensAbout, prepare_tokens
from planaria.job.errors import PlanariaError, UserCodeError, UserError
from planaria.job.faults import Fault, FaultKind
from planaria.job.history import History, Stretch, continued
from planaria.job.settings import Job, Launcher
from planaria.launch.hosts import announce, imported, reachable, share
from planaria.launch.interrupts import interrupts
from planaria.launch.local import LauncherError, LocalNodes, cause_of
from planaria.launch.losses import losses_of_trace
from planaria.launch.oversubscription import check_oversubscription
from planaria.launch.result import TrainResult
from planaria.launch.resumption import Resumption, data_identity, find_resumption
from planaria.launch.settings import check_size, is_emulated, named_profile, node_settings
from planaria.launch.supervisor import Supervisor
from planaria.observe.claim import say
from planaria.observe.output import OutputClosed
from planaria.observe.recorder import Recorder, write_atomically
from planaria.observe.run_folder import RunFolder
from planaria.plan.plan import NodeId
from planaria.plan.profile import ModelProfile
from planaria.profile import ERROR_SUFFIX
from planaria.protocol.checkpoint_ref import CheckpointRef
from planaria.protocol.course.end import STOPPED_BY_USER
from planaria.protocol.failures import Watched
from planaria.protocol.records import AnyRecord, Note, Restored, RunEnded, RunStatus, StepCommitted, StepSkipped

log = logging.getLogger(__name__)


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
    traces: bool = False,
    earlier: Job | None = None,
    accept_changed_data: bool = False,
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
        traces: every worker writes what it did when into the logs, for benchmarks.
        earlier: as what the folder's job was trained before; None: as this one.
        accept_changed_data: go on even where the data are not those that the checkpoint was trained on.

    Raises:
        UserError (or another ValueError of Planaria's): a mistake in the job, found before anything was recorded.
    """
    check_oversubscription(job)
    check_size(job)
    if job.cluster.launcher is Launcher.AGENTS:
        folder = RunFolder(folder.path.resolve())  # nodes have another working folder
    watched = losses_of_trace(job)
    resumption = (
        find_resumption(job, folder, earlier or job, accepts_changed_data=accept_changed_data) if resume else None
    )
    if is_emulated(job):
        _keep_profile(job, folder, resume=resume)
    own = LocalNodes(folder.logs / "launcher.log", imported(job)) if nodes is None else nullcontext(nodes)
    with own as nodes:
        say(folder.claim, "starting: the data are read")
        start = _prepared(job, folder, resumption)
        if not is_emulated(job):
            say(folder.claim, f"starting: the layers of {job.model.type} are measured")
            _measure(job, nodes, folder.data, folder.profile, import_path)
        say(folder.claim, "starting: the first plan is made")
        token = token or secrets.token_hex(16)
        run = _Run(job, folder, faults, tuple(observers), import_path, metadata_url, start, token, traces)
        if resume and (earlier is None or _nodes_of(earlier) == _nodes_of(job)):
            watched += run.recorder.watched
        run.watched = watched
        with run.recorder:
            return run.train(nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """What a run begins with.

    Attributes:
        checkpoint: that it goes on from; None: it is new.
        history: of its samples and rates, with what is to come.
        data_hash: of the tokens, as every node must have them; "": an emulated device, which has none.
        notes: what people are to be told first.
    """

    checkpoint: CheckpointRef | None
    history: History
    data_hash: str
    notes: tuple[Note, ...]


def _prepared(job: Job, folder: RunFolder, resumption: Resumption | None) -> _Start:
    """Makes the tokens, and looks whether they are those that the checkpoint was trained on."""

    def check(about: TokensAbout) -> None:
        if resumption is not None:
            resumption.check_data(data_identity(job, about))

    identity, data_hash = None, ""
    if not is_emulated(job):
        tokens = prepare_tokens(job.data, folder.data, check)
        identity, data_hash = data_identity(job, tokens.about), tokens.quick_hash()
    checkpoint = resumption.checkpoint if resumption is not None else None
    now = Stretch(since=checkpoint.step if checkpoint else 0, steps=job.train.steps, data=identity)
    complaints = resumption.complaints if resumption is not None else ()
    notes = [Note(level="warning", text=complaint) for complaint in complaints]
    if resumption is not None and identity is not None and (changes := resumption.changes(identity)):
        text = f"from step {now.since + 1} on the data are others, as accepted: {', and '.join(changes)}"
        notes.append(Note(level="warning", text=text))
    if resumption is not None and resumption.history[-1].steps != now.steps:
        before = resumption.history[-1].steps
        text = f"train.steps was {before}; from step {now.since + 1} on the schedule of the rates ends at {now.steps}"
        notes.append(Note(level="info", text=text))
    history = continued(resumption.history if resumption is not None else (), now)
    return _Start(checkpoint=checkpoint, history=history, data_hash=data_hash, notes=tuple(notes))


def _keep_profile(job: Job, folder: RunFolder, *, resume: bool) -> None:
    """Put an emulated job's profile into the run folder."""
    profile = named_profile(job)
    if resume and folder.profile.exists():
        before = msgspec.json.decode(folder.profile.read_bytes(), type=ModelProfile)
        if _structure(before) != _structure(profile):
            raise UserError(
                f"cluster.profile = {job.cluster.profile!r} has other layers or parameter groups than the profile with "
                f"which run folder {folder.path} was trained. Give that one, or start a new run by --name NAME."
            )
    write_atomically(folder.profile, msgspec.json.format(msgspec.json.encode(profile), indent=1))


def _structure(profile: ModelProfile) -> object:
    return [layer.name for layer in profile.layers], [group.layers for group in profile.groups]


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


class ModelFailed(PlanariaError):
    """A layer of the user's raised while it was measured. The message ends with its traceback."""

    def __init__(self, summary: str, trace: str) -> None:
        super().__init__(f"{summary}\n\n{trace}")


def _nodes_of(job: Job) -> object:
    """What must be the same for losses of before to say something of those to come."""
    cluster = job.cluster
    return cluster.launcher, cluster.nodes, cluster.devices_per_node, cluster.device, cluster.zones


class _Run:
    """One run: its records, its processes, its end.

    Attributes:
        watched: what earlier runs saw of losses, and the job's trace.
    """

    def __init__(
        self,
        job: Job,
        folder: RunFolder,
        faults: tuple[Fault, ...],
        observers: tuple[Observer, ...],
        import_path: Path | None,
        metadata_url: str,
        start: _Start,
        token: str,
        traces: bool,
    ) -> None:
        self._token = token
        self._mark = secrets.token_hex(8)
        self._metadata_url = metadata_url
        self._traces = traces
        self._job = job
        self._folder = folder
        self._faults = faults
        self._import_path = import_path
        self._start = start
        self.recorder = Recorder(folder, job)
        self._observers: tuple[Observer, ...] = (self.recorder, *observers)
        self._last: StepCommitted | None = None
        self._last_number = start.checkpoint.step if start.checkpoint else 0
        self._skipped_steps: set[int] = set()
        self._ended: RunEnded | None = None
        self._signal: Signals | None = None
        self._supervisor: Supervisor | None = None
        self.watched = Watched()

    def record(self, record: AnyRecord, time_s: float) -> None:
        match record:
            case StepCommitted(step=step):
                self._last, self._last_number = record, step
            case StepSkipped(step=step):
                self._last_number = step
                self._skipped_steps.add(step)
            case Restored(to_step=step):
                self._last_number = step
            case RunEnded():
                self._ended = record
                return  # the display and the summary get it once the weights' hash is known
            case _:
                pass
        for observer in self._observers:
            try:
                observer(record, time_s)
            except OutputClosed:
                self._heed(Signals.SIGPIPE, insists=False)

    def _heed(self, number: Signals, insists: bool) -> None:
        """Have the run finish its step, save and end; at once if somebody insists."""
        self._signal = self._signal or number
        if self._supervisor is None:
            return
        if insists:
            self._supervisor.abort()
        else:
            self._supervisor.request_stop()

    def train(self, nodes: LocalNodes) -> TrainResult:
        job = self._job
        is_local = job.cluster.launcher is Launcher.LOCAL
        with ExitStack() as heeding, listen(job.cluster.host, job.cluster.port) as listener:
            address = f"{job.cluster.host}:{listener.getsockname()[1]}"
            contact = Contact(address=reachable(address), token=self._token)
            settings = CoordinatorSettings(
                job=job,
                folder=str(self._folder.path),
                run_id=self._mark,
                token=self._token,
                resume=self._start.checkpoint,
                history=self._start.history,
                data_hash=self._start.data_hash,
                watched=self.watched,
                faults=() if is_local else tuple(f for f in self._faults if f.kind is not FaultKind.COORDINATOR),
                log=str(self._folder.logs / "coordinator.log"),
            )
            supervisor = self._supervisor = Supervisor(
                nodes,
                settings,
                listener,
                lambda node: self._spawn(nodes, contact, node),
                self.record,
                tuple(fault for fault in self._faults if fault.kind is FaultKind.COORDINATOR),
            )
            try:
                supervisor.prepare()
                for note in self._start.notes:
                    self.record(note, time.time())
                if not job.run.writes_checkpoints:
                    text = "no checkpoints are written on the way (run.checkpoint_every = 0), only where the run ends"
                    self.record(Note(level="info", text=text), time.time())
                contact.write(self._folder.contact)
                if not is_local:
                    share(self._folder, self._token, self._mark)
                    self.record(announce(job, self._folder, address), time.time())
                heeding.enter_context(interrupts(self._heed))
                finished = supervisor.run(NodeId(node) for node in range(job.cluster.nodes if is_local else 0))
            finally:
                say(self._folder.claim, "ending")
                self._folder.contact.unlink(missing_ok=True)
                supervisor.close()
                nodes.release()
            return self._result(finished)

    def _spawn(self, nodes: LocalNodes, contact: Contact, node: NodeId) -> None:
        for settings in node_settings(
            self._job,
            self._folder,
            node,
            coordinator=contact.address,
            token=contact.token,
            faults=tuple(fault for fault in self._faults if fault.node == node),
            import_path=self._import_path,
            zone=self._job.cluster.zone_of(node),
            mark=self._mark,
            metadata_url=self._metadata_url,
            traces=self._traces,
        ):
            nodes.spawn(settings)

    def _result(self, finished: Finished | None) -> TrainResult:
        ended = self._ended or RunEnded(
            status=RunStatus.INTERRUPTED,
            steps=self._last_number,
            message="ended at once by the user; what was not saved is lost",
            skipped_microbatches=0,
            duplicated_microbatches=0,
            skipped_steps=len(self._skipped_steps),
        )
        if self._signal is not None and ended.status is RunStatus.STOPPED:
            message = ended.message.replace(STOPPED_BY_USER, _interruption(self._signal))
            ended = msgspec.structs.replace(ended, status=RunStatus.INTERRUPTED, message=message)
        saved = finished.checkpoint if finished is not None else None
        digest = None
        if saved is not None and saved.step == ended.steps:
            folder = Path(saved.folder)
            digest = weights_sha256(folder, read_manifest(folder, verify=False))
        result = finish_run(self.recorder, self._observers, self._folder, ended, self._last, digest)
        return replace(result, signal=self._signal if ended.status is RunStatus.INTERRUPTED else None)


def _interruption(number: Signals) -> str:
    """For people."""
    match number:
        case Signals.SIGINT:
            return "interrupted by Ctrl-C"
        case Signals.SIGPIPE:
            return "interrupted, as nobody reads its output any more"
        case _:
            return f"interrupted by {number.name}"


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
        with suppress(OutputClosed):
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
