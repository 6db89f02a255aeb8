"""A job that a benchmark watches and interferes with: it trains in a thread, and its records come as they are told."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from figures import SCRATCH

from planaria.job.parse import job_json
from planaria.job.settings import Job
from planaria.protocol.messages.records import AnyRecord, PlanTaken, RunEnded, RunStatus, StepCommitted
from planaria.runtime.launch.session import train_job
from planaria.runtime.launch.training.request import TrainRequest
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.ui.cli import live

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.chaos import coordinator_of, workers_of

PATIENCE_S = 120.0
STILL_STEPS = 3
"""Undisturbed steps before the next thing happens."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A record, and when it was told (monotonic seconds)."""

    record: AnyRecord
    at_s: float


class Run:
    """A job in a thread of this process, and what it told."""

    def __init__(self, job: Job, name: str, *, resume: RunFolder | None = None) -> None:
        self.folder = resume or RunFolder.create(SCRATCH / "runs", f"{name}-{secrets.token_hex(4)}")
        self.folder.job.write_bytes(job_json(job))
        self.told: list[Timed] = []
        self._news: queue.Queue[Timed] = queue.Queue()
        self._job = job
        self._resumes = resume is not None
        self._error: BaseException | None = None
        self.began_s = time.monotonic()
        self._thread = threading.Thread(target=self._train)
        self._thread.start()

    def _train(self) -> None:
        try:
            request = TrainRequest(
                job=self._job, folder=self.folder, resume=self._resumes, observers=(self._observe,), traces=True
            )
            train_job(request)
        except BaseException as error:
            self._error = error
            failed = RunEnded(
                status=RunStatus.FAILED, steps=0, message=str(error), skipped_microbatches=0, duplicated_microbatches=0
            )
            self._news.put(Timed(failed, time.monotonic()))

    def _observe(self, record: AnyRecord, time_s: float) -> None:
        self._news.put(Timed(record, time.monotonic()))

    def next(self, timeout_s: float = PATIENCE_S) -> Timed:
        try:
            timed = self._news.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"{self.folder.path}: nothing happened for {timeout_s:.0f} s") from None
        if self._error is not None:
            raise self._error
        self.told.append(timed)
        return timed

    def until(self, wanted: Callable[[AnyRecord], bool]) -> Timed:
        """The next record that is wanted."""
        ends = time.monotonic() + PATIENCE_S
        while True:
            timed = self.next(max(0.0, ends - time.monotonic()))
            if wanted(timed.record):
                return timed

    def pause(self, seconds: float) -> None:
        """Take what is told meanwhile."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                self.next(left)

    def still(self, steps: int = STILL_STEPS) -> None:
        """Until so many steps in a row were committed and nothing else happened."""
        seen = 0
        while seen < steps:
            record = self.next().record
            seen = seen + 1 if isinstance(record, StepCommitted) else 0

    def add(self) -> int:
        """Ask for a node; returns its number."""
        return int(live.add(self.folder.path, 1).split()[1])

    def signal(self, node: int, number: int) -> float:
        """To the processes of a node; returns when."""
        pids = workers_of(self.folder.path, node)
        at_s = time.monotonic()
        for pid in pids:
            os.kill(pid, number)
        return at_s

    def stop(self) -> None:
        live.stop(self.folder.path)
        self._thread.join(PATIENCE_S)
        while not self._news.empty():
            self.told.append(self._news.get())

    def abandon(self) -> None:
        """After a failure: no process shall be left."""
        if self._thread.is_alive():
            with contextlib.suppress(Exception):
                live.stop(self.folder.path)
            self._thread.join(PATIENCE_S)

    @property
    def plan(self) -> PlanTaken:
        """The last that was told."""
        return next(t.record for t in reversed(self.told) if isinstance(t.record, PlanTaken))

    @property
    def coordinator(self) -> int | None:
        """Its pid, where it is a process of its own."""
        return coordinator_of(self.folder.path)

    @property
    def placed(self) -> list[int]:
        return sorted({stage[0] for pipeline in self.plan.pipelines for stage in pipeline})

    def step_s(self) -> float:
        """Of the last undisturbed steps."""
        found: list[float] = []
        for timed in reversed(self.told):
            if not isinstance(timed.record, StepCommitted) or len(found) == STILL_STEPS:
                break
            found.append(timed.record.duration_s)
        return statistics.median(found)
