"""Real processes for tests: one forkserver for all jobs, and the reference of each job once."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import pytest

from planaria.api import Observer
from planaria.job.faults import parse_fault
from planaria.job.parse import job_json
from planaria.job.settings import Job
from planaria.runtime.component_settings import is_emulated
from planaria.runtime.launch.reference import train_reference
from planaria.runtime.launch.session import train_job
from planaria.runtime.launch.training.request import TrainRequest
from planaria.runtime.measure.measure import fingerprint
from planaria.runtime.nodes.local_nodes import LocalNodes
from planaria.runtime.run_folder.run_folder import RunFolder
from tests.e2e.agents import end_all
from tests.e2e.commands import Command, descendants
from tests.e2e.incubator import Incubator
from tests.e2e.jobs import Outcome, profile

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _forked(forked_forkservers: None) -> None:
    """All tests here share what one process has imported; those that start a command anew say so."""


@pytest.fixture(scope="session")
def nodes(incubator: Incubator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNodes]:
    local = LocalNodes(tmp_path_factory.mktemp("forkserver") / "log", "gpt2")
    incubator.start_forkserver(local)
    with contextlib.closing(local):
        yield local


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of pytest have: what one has measured, or trained alone, none does again."""
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


def keep(file: Path, data: bytes) -> None:
    """Writes a shared file, where no other worker has written it."""
    partial = file.with_name(f"{file.name}-{os.getpid()}")
    partial.write_bytes(data)
    with contextlib.suppress(FileExistsError):
        os.link(partial, file)
    partial.unlink()


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = shared_folder(tmp_path_factory) / "text.txt"
    lines = (f"{n} bottles of beer on the wall, {n * n} of milk in the hall.\n" for n in range(200))
    keep(path, "".join(lines).encode())
    return path


@pytest.fixture(scope="session")
def slow_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile with which a step of seven emulated nodes takes half a second: time for a user to act."""
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    path.write_bytes(msgspec.json.encode(profile(layer_s=0.01)))
    return path


@pytest.fixture
def command(tmp_path: Path, incubator: Incubator) -> Iterator[Command]:
    yield Command(tmp_path, incubator)
    for pid in descendants(tmp_path):
        os.kill(pid, signal.SIGKILL)


Reference = Callable[[Job], Outcome]
"""Gives the outcome of one process that trains a job alone."""


class Run(Protocol):
    def __call__(
        self,
        job: Job,
        *faults: str,
        resume: Path | None = None,
        observers: Sequence[Observer] = (),
        import_path: Path = ...,
        metadata_url: str = "",
        accept_changed_data: bool = False,
    ) -> Outcome: ...


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where a run on agents is; they are ended afterwards."""
    yield tmp_path
    end_all(tmp_path)


Pipelines = Sequence[Sequence[Sequence[int]]]
"""Stages of each: worker, first layer, end layer."""


@pytest.fixture(scope="session")
def first_plans() -> dict[bytes, Pipelines]:
    """What runs began with on all their nodes, by what it depends on."""
    return {}


def of_first_plan(job: Job, costs: bytes) -> bytes:
    """What the first plan depends on, beside the profile."""
    return costs + msgspec.json.encode((job.train.global_batch, job.cluster, job.resilience))


def profile_of(job: Job, factory: pytest.TempPathFactory) -> Path:
    """Where the profile of a job's layers is, once they have been measured."""
    return shared_folder(factory) / f"profile-{fingerprint(job)}"


@pytest.fixture
def run(
    nodes: LocalNodes,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    first_plans: dict[bytes, Pipelines],
) -> Run:
    """Train a job, with kills on order; `resume` is the folder of an earlier run.

    A run folder begins with the profile that an earlier one has of the same layers: they are not measured again.
    """
    names = itertools.count()

    def train(
        job: Job,
        *faults: str,
        resume: Path | None = None,
        observers: Sequence[Observer] = (),
        import_path: Path = EXAMPLES,
        metadata_url: str = "",
        accept_changed_data: bool = False,
    ) -> Outcome:
        folder = RunFolder.reopen(resume) if resume else RunFolder.create(tmp_path, f"run-{next(names)}")
        folder.job.write_bytes(job_json(job))
        measured = profile_of(job, tmp_path_factory)
        if measured.exists() and not resume:
            folder.profile.write_bytes(measured.read_bytes())
        request = TrainRequest(
            job=job,
            folder=folder,
            faults=tuple(parse_fault(fault) for fault in faults),
            resume=resume is not None,
            observers=tuple(observers),
            import_path=import_path,
            metadata_url=metadata_url,
            accept_changed_data=accept_changed_data,
        )
        outcome = Outcome(train_job(request, nodes))
        if not is_emulated(job) and job.cluster.profile is None and folder.profile.exists() and not resume:
            costs = folder.profile.read_bytes()
            keep(measured, costs)
            for plan in outcome.events("plan_taken")[:1]:
                if sum(map(len, plan["pipelines"])) == job.cluster.least_nodes * job.cluster.devices_per_node:
                    first_plans[of_first_plan(job, costs)] = plan["pipelines"]
        return outcome

    return train


@pytest.fixture
def first_pipelines(
    run: Run, tmp_path_factory: pytest.TempPathFactory, first_plans: dict[bytes, Pipelines]
) -> Callable[[Job], Pipelines]:
    """The pipelines that a job begins with; a run of one step tells, where none before has told."""

    def found(job: Job) -> Pipelines:
        measured = profile_of(job, tmp_path_factory)
        for _ in range(3):  # others may have measured in the meantime
            if measured.exists() and (key := of_first_plan(job, measured.read_bytes())) in first_plans:
                return first_plans[key]
            run(msgspec.structs.replace(job, train=msgspec.structs.replace(job.train, steps=1, warmup_steps=0)))
        pytest.fail("its first plan has not all nodes")

    return found


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The oracle's outcome; one run for all jobs that differ only in cluster and resilience."""

    def train(job: Job) -> Outcome:
        key = msgspec.json.encode((job.model, job.data, job.train, job.eval))
        known = shared_folder(tmp_path_factory) / f"reference-{hashlib.sha256(key).hexdigest()}"
        if not known.exists():
            folder = RunFolder.create(tmp_path_factory.mktemp("reference"), "run")
            keep(known, pickle.dumps(Outcome(train_reference(job, folder, import_path=EXAMPLES))))
        found: Outcome = pickle.loads(known.read_bytes())
        return found

    return train


@pytest.fixture
def worker_pids(nodes: LocalNodes) -> Callable[[], list[int]]:
    """Pids of the workers that run now, in the order in which they were started."""
    return nodes.pids
