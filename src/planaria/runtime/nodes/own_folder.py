"""The run folder of a host that does not see the coordinator's: data and logs of the nodes that run here.

The job and what belongs to it come from the coordinator; the data are prepared here, from the job's own sources, in a
thread beside the agent's. The ends of logs go back.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from contextlib import ExitStack
from pathlib import Path

import msgspec

from planaria.checkpoint.retries import Tries, told_by
from planaria.checkpoint.store import check_writable
from planaria.checkpoint.weights import with_weights_here
from planaria.data.opening import prepare, prepare_elsewhere
from planaria.job.errors import UserError
from planaria.job.parse import job_json
from planaria.job.values import check_name, is_dataset
from planaria.plan.plan import NodeId
from planaria.protocol.messages.agent import MOST_LOG_BYTES, NodeLog, Welcome
from planaria.runtime.component_settings import is_emulated
from planaria.runtime.nodes.own_stream import OwnStream
from planaria.runtime.run_folder.claim import claimed, say
from planaria.runtime.run_folder.run_folder import RunFolder


class OwnFolder:
    """The run folder of one run on one host. Made when it is constructed, prepared once `prepare` was called.

    Args:
        root: folder of run folders on this host.
        welcome: what the coordinator told of the run.
        before: of the run before, if there was one: its preparations are waited for.

    Attributes:
        folder: the run folder.
        job: of the run; once it is ready, its weights are those on this host.
        notes: what people are to be told of the preparation.
        stream: the blocks of the run's stream, once it is ready; None: its data are none.

    Raises:
        UserError: it cannot be written, or another agent has it.
    """

    def __init__(self, root: Path, welcome: Welcome, before: OwnFolder | None = None) -> None:
        self._root = root
        self._welcome = welcome
        self._before = before
        self.job = welcome.job
        self.notes: deque[str] = deque()
        self.stream: OwnStream | None = None
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="folder", daemon=True)
        self._claim = ExitStack()
        name = Path(welcome.run_folder).name
        check_name("run.name", name)
        path = root / name
        if before is not None:
            before.close()
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._claim.enter_context(claimed(RunFolder(path).claim))
            say(RunFolder(path).claim, "a node of a run that another host coordinates")
            RunFolder(path).job.write_bytes(job_json(welcome.job))
        except OSError as error:
            raise UserError(f"--folder {root}: {path} cannot be written ({error.strerror or error}).") from None
        except UserError:
            raise UserError(
                f"--folder {root}: another process has {path}. Give each agent of a host a folder of its own."
            ) from None
        self.folder = RunFolder.reopen(path)

    @property
    def is_begun(self) -> bool:
        """Whether its preparation was ordered."""
        return self._thread.ident is not None

    def prepare(self) -> None:
        """Begins to prepare what workers need; returns at once."""
        self._thread.start()

    def is_ready(self) -> bool:
        """Returns whether workers can start here. Raises what prevents it."""
        if self._thread.is_alive():
            return False
        if self._failed is not None:
            raise self._failed
        return True

    def forget_logs(self, node: NodeId) -> None:
        """Removes logs that an earlier run of the name left of a node with this number."""
        for worker in self._workers(node):
            self.folder.worker_log(worker).unlink(missing_ok=True)

    def logs(self, node: NodeId) -> list[NodeLog]:
        """Returns the ends of what the workers of a node have logged."""
        workers = self._workers(node)
        most_bytes = MOST_LOG_BYTES // len(workers)
        found = [(worker, self._end_of(self.folder.worker_log(worker), most_bytes)) for worker in workers]
        return [NodeLog(node=node, worker=worker, tail=tail) for worker, tail in found if tail]

    def close(self) -> None:
        """Leaves the folder to others; what is in it stays."""
        self._claim.close()

    def _workers(self, node: NodeId) -> range:
        per_node = self._welcome.job.cluster.devices_per_node
        return range(node * per_node, (node + 1) * per_node)

    def _end_of(self, log: Path, most_bytes: int) -> bytes:
        first = f"(what came before is on {socket.gethostname()})\n".encode()
        try:
            with log.open("rb") as file:
                if file.seek(0, os.SEEK_END) <= most_bytes:
                    first = b""
                file.seek(-most_bytes + len(first) if first else 0, os.SEEK_END if first else os.SEEK_SET)
                return first + file.read(most_bytes - len(first))
        except OSError:
            return b""

    def _run(self) -> None:
        try:
            if self._before is not None:
                self._before._thread.join()
                self._before = None
            with told_by(lambda level, text: self.notes.append(text)):
                self._prepare()
        except Exception as error:
            self._failed = error

    def _prepare(self) -> None:
        job = self._welcome.job
        check_writable(job.run.checkpoints_url, f"run.checkpoint_folder = {job.run.checkpoint_folder!r}")
        if is_emulated(job):
            self.folder.profile.write_bytes(self._welcome.profile)
            return
        if (weights := job.model.weights) is not None and not job.model.weights_from and not Path(weights).is_dir():
            raise UserError(
                f"model.weights = {weights!r} is not on this host. Copy the folder to the same path here, or give the "
                "job the URL of one."
            )
        here = msgspec.structs.replace(job, run=msgspec.structs.replace(job.run, folder=str(self._root)))
        self.job = msgspec.structs.replace(job, model=with_weights_here(here).model)
        if self._welcome.stream:
            self.stream = OwnStream(*prepare_elsewhere(here, self.folder.data, self._welcome.stream, Tries))
        elif not is_dataset(job.data.source):
            prepare(here, self.folder.data, order=self._welcome.order, attempts_at=Tries)


def check_folder(welcome: Welcome) -> None:
    """Checks the run folder. Raises UserError where this node sees another than the coordinator, or none."""
    folder = RunFolder(Path(welcome.run_folder))
    try:
        found = folder.identity.read_text()
    except OSError:
        found = ""
    if found != welcome.mark:
        raise UserError(
            f"this node does not see the coordinator's run folder at {folder.path}, where tokens and checkpoints are. "
            "Set run.folder to a folder that every node mounts at the same path, or give this node one of its own by "
            "--folder FOLDER."
        )
