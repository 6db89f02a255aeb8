"""Tells what a run is at a glance, from the ends of its files: a million steps are read as fast as ten."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from planaria.job.errors import UserError
from planaria.job.parse import job_from_json
from planaria.runtime.run_folder.claim import claimant
from planaria.runtime.run_folder.run_folder import RunFolder

GONE = "gone"
"""State of a run whose process ended without a word."""

_TAIL_BYTES = 1 << 13


class _Summary(msgspec.Struct):
    """What is read of summary.json, which has every recovery."""

    status: str = GONE
    policy: str = ""


class RunOverview(msgspec.Struct, frozen=True, kw_only=True):
    """A run at a glance.

    Attributes:
        run: the path of its folder.
        state: starting, training or ending, while a process writes the folder; else how it ended, or "gone".
        step: the last committed step; 0: none.
        steps: the job's number of steps.
        loss: of that step; None: it has none that is finite.
        nodes: alive after that step; None: not known.
        policy: the job's, or the one that it ended with.
        changed_s: when the folder was last written, in seconds since 1970 (UTC).
    """

    run: str
    state: str
    step: int
    steps: int
    loss: float | None
    nodes: int | None
    policy: str
    changed_s: float


def overview(folder: RunFolder) -> RunOverview:
    """Returns the run at a glance. Raises UserError: its job.json or summary.json cannot be read."""
    try:
        job = job_from_json(folder.job.read_bytes())
        written = folder.summary.read_bytes() if folder.summary.exists() else b"{}"
        summary = msgspec.json.decode(written, type=_Summary)
        files = [path for path in (folder.metrics, folder.events, folder.summary, folder.job) if path.exists()]
        changed_s = max(path.stat().st_mtime for path in files)
    except (OSError, msgspec.MsgspecError) as error:
        raise UserError(f"run folder {folder.path} cannot be read: {error}. Remove it, or restore it.") from None
    owner = claimant(folder.claim)
    metrics = _last_step(folder.metrics)
    state = summary.status if owner is None else owner.doing.partition(":")[0]
    return RunOverview(
        run=str(folder.path),
        state="training" if state == "starting" and owner is not None and folder.contact.exists() else state,
        step=metrics.get("step", 0),
        steps=job.train.steps,
        loss=metrics.get("loss"),
        nodes=metrics.get("live_nodes"),
        policy=(owner is None and summary.policy) or job.resilience.policy.value,
        changed_s=changed_s,
    )


def find_runs(place: Path) -> Iterator[RunFolder]:
    """Yields the run folders in a folder, by name; of a run folder, itself.

    Raises:
        UserError: there is no such folder, or it cannot be read.
    """
    if not place.is_dir():
        raise UserError(f"folder {place} does not exist. Give the folder of your runs, or that of one.")
    try:
        found = [place] if RunFolder(place).job.is_file() else sorted(path for path in place.iterdir() if path.is_dir())
    except OSError as error:
        raise UserError(f"folder {place} cannot be read: {error.strerror or error}. Give another.") from None
    for path in found:
        with contextlib.suppress(PermissionError):
            if RunFolder(path).job.is_file():
                yield RunFolder(path)


def _last_step(path: Path) -> dict[str, Any]:
    """Returns the last whole line of metrics that is of a step, not of an evaluation; {}: there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            whole = file.read().rpartition(b"\n")[0]
    except FileNotFoundError:
        return {}
    for line in reversed(whole.split(b"\n")):
        with contextlib.suppress(msgspec.DecodeError):  # the first one of the tail may be cut
            found: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
            if "live_nodes" in found:
                return found
    return {}
