"""Prepares a job whose nodes are other hosts: its token, what agents are told, and the command to run on each node."""

from __future__ import annotations

import json
import os
import shlex
import socket
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from planaria.data.streams.blocks import open_stream
from planaria.job.errors import UserError
from planaria.job.faults import Fault
from planaria.job.history import History, order_of
from planaria.job.parse import EMULATED_MODEL
from planaria.job.registry import Launcher
from planaria.job.sections.model import AUTO_MODEL
from planaria.job.settings import Job
from planaria.job.values import ETCD_URL, is_loopback
from planaria.plan.plan import NodeId
from planaria.protocol.messages.agent import Welcome
from planaria.protocol.messages.records import Note
from planaria.runtime.component_settings import is_emulated
from planaria.runtime.coordinator.agents import Agents
from planaria.runtime.coordinator.client import write_private
from planaria.runtime.machine.boot import boot_id
from planaria.runtime.run_folder.recorder import write_atomically
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.wire.tls import Security

MIN_TOKEN_LENGTH: Final = 16
ANY_ADDRESS: Final = "0.0.0.0"

StartAgents = Callable[[Sequence[str], int], None]
"""Starts a command on each of so many nodes, and waits for none: an agent ends with its run."""


def read_token(path: Path) -> str:
    """Reads the job's token from a file that only its owner can read.

    Raises:
        UserError: there is none, others can read it, or it is no token.
    """
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(4096)
    except OSError as error:
        raise UserError(f"token file {path} cannot be read: {error.strerror}. Give the run's token file.") from None
    except UnicodeDecodeError:
        raise UserError(f"token file {path} is not text. Give the run's token file.") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UserError(f"token file {path} can be read by others (mode {mode & 0o777:o}). Run chmod 600 {path}.")
    return check_token(text.strip(), f"token file {path}")


def check_token(token: str, origin: str) -> str:
    """Checks a token. Raises UserError if it is too short or cannot be sent."""
    if len(token) < MIN_TOKEN_LENGTH or len(token) > 1024 or not (token.isascii() and token.isprintable()):
        raise UserError(
            f"{origin}: a token has {MIN_TOKEN_LENGTH} to 1024 printable ASCII characters. "
            "Make one for instance with: openssl rand -hex 16."
        )
    return token


def write_token(path: Path, token: str) -> None:
    """Writes the token to a file that only the user can read."""
    write_private(path, f"{token}\n".encode())


def imported(job: Job) -> str:
    """Returns the model type whose code workers need to import."""
    if is_emulated(job):
        return EMULATED_MODEL
    if job.model.type != AUTO_MODEL or job.model.weights is None:
        return job.model.type
    try:
        return str(json.loads((Path(job.model.weights) / "config.json").read_text())["model_type"])
    except (OSError, ValueError, KeyError, TypeError):
        return AUTO_MODEL  # whoever loads the model says what is wrong


def agents_of(
    job: Job, folder: RunFolder, token: str, mark: str, faults: Sequence[Fault], history: History = ()
) -> Agents | None:
    """Makes the agents' side of a job that waits for them; None where nodes are started here.

    Args:
        job: the whole job.
        folder: of the run; its path is absolute.
        token: the job's token.
        mark: of this run, the same for every coordinator that it has.
        faults: the faults that the user asked for.
        history: of the run's samples.
    """
    if job.cluster.launcher is Launcher.LOCAL:
        return None
    welcome = Welcome(
        job=job,
        run_folder=str(folder.path),
        mark=mark,
        patience_s=job.resilience.coordinator_timeout_s,
        order=order_of(history),
    )
    by_node: dict[NodeId, tuple[Fault, ...]] = {}
    for fault in faults:
        by_node[NodeId(fault.node)] = (*by_node.get(NodeId(fault.node), ()), fault)
    refused = own_folders_refused(job, folder)
    if not is_emulated(job):
        return Agents(welcome, token, by_node, "", own_folders_refused=refused)
    return Agents(welcome, token, by_node, boot_id(), folder.profile.read_bytes(), refused)


def own_folders_refused(job: Job, folder: RunFolder) -> str:
    """Returns why hosts that do not see the run folder cannot take part, and what to do; "": they can."""
    place = job.run.checkpoint_folder
    if not place or place.startswith("file:"):
        return (
            "with a run folder of its own (--folder) it needs checkpoints where every node reads and writes them, "
            f"and run.checkpoint_folder = {place!r}. Set it to the URL of a store, for instance s3://bucket/folder"
        )
    if open_stream(folder.data) is not None:
        return (
            f"data.source = {job.data.source!r} is a stream, which is read into the run folder: every node must see "
            "that. Start agents without --folder"
        )
    return ""


def share(folder: RunFolder, token: str, mark: str, address: str) -> None:
    """Writes into the run folder what agents look for there; to be done before they are told to come."""
    folder.identity.write_text(mark)
    write_token(folder.token, token)
    write_atomically(folder.address, f"{named(address)}\n".encode())


def named(address: str) -> str:
    """Returns where any host finds a coordinator that listens at `address`."""
    host, _, port = address.rpartition(":")
    return f"{socket.gethostname() if host == ANY_ADDRESS else host}:{port}"


def call_agents(job: Job, folder: RunFolder, address: str) -> Note:
    """Has the job's launcher start the agents; returns a note of that, or of how the user is to start them."""
    nodes = f"{job.cluster.least_nodes} node{'s' if job.cluster.least_nodes > 1 else ''}"
    if job.cluster.launcher is Launcher.RAY:  # it has begun to start them before this run began
        return Note(level="info", text=f"waiting for {nodes}; Ray runs an agent on each")
    command = ["planaria", "agent", "--coordinator", named(address), "--token-file", str(folder.token)]
    if job.cluster.tls:
        command += ["--tls", job.cluster.tls]
    start: StartAgents | None = job.cluster.launcher.load()
    if start is None:
        return Note(level="info", text=f"waiting for {nodes}; run on each: {shlex.join(command)}")
    start(command, job.cluster.most_nodes or job.cluster.least_nodes)
    return Note(level="info", text=f"waiting for {nodes}; {job.cluster.launcher} runs on each: {shlex.join(command)}")


def network_warnings(job: Job) -> tuple[Note, ...]:
    """Returns what people should know of how processes of the run talk to each other."""
    cluster = job.cluster
    if cluster.tls:
        warnings = Security(Path(cluster.tls)).warnings
        if job.run.journal.startswith(ETCD_URL):
            warnings += (f"run.journal: connections to {job.run.journal} are plain; etcds:// encrypts these too",)
        return tuple(Note(level="warning", text=text) for text in warnings)
    if cluster.launcher is Launcher.LOCAL or is_loopback(cluster.host):
        return ()
    text = (
        f"connections at {cluster.host} are plain: whoever is on the network can read and change what travels. "
        "planaria certificates FOLDER and cluster.tls encrypt it"
    )
    return (Note(level="info", text=text),)
