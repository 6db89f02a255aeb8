"""Real processes for tests: one forkserver for all jobs, and the reference of each job once."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
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
from tests.e2e.commands import Command, descendants
from tests.e2e.incubator import Incubator
from tests.e2e.jobs import Outcome, profile
from tests.testkit.witness.run_folder import judge_folder

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _forked(forked_forkservers: None) -> None:
    """All tests here share what one process has imported; those that start a command anew say so."""


@pytest.fixture(autouse=True)
def _witnessed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """The witness reads every run folder that a test leaves, unless the test itself changes what runs wrote there."""
    yield
    if request.node.get_closest_marker("tampers") is None:
        folders = [path.parent for path in tmp_path.rglob("events.jsonl") if (path.parent / "job.json").is_file()]
        found = {str(folder): [str(finding) for finding in judge_folder(folder)] for folder in folders}
        assert not any(found.values()), found


@pytest.fixture(scope="session")
def nodes(incubator: Incubator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNodes]:
    local = LocalNodes(tmp_path_factory.mktemp("forkserver") / "log", "gpt2")
    incubator.start_forkserver(local)
    with closing(local):
        yield local


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text("".join(f"{n} bottles of beer on the wall, {n * n} of milk in the hall.\n" for n in range(200)))
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


@pytest.fixture(scope="session")
def profiles() -> dict[str, bytes]:
    """What was measured, by what it depends on."""
    return {}


@pytest.fixture
def run(nodes: LocalNodes, tmp_path: Path, profiles: dict[str, bytes]) -> Run:
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
        layers = fingerprint(job)
        if layers in profiles and not resume:
            folder.profile.write_bytes(profiles[layers])
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
        if not is_emulated(job) and job.cluster.profile is None and folder.profile.exists():
            profiles[layers] = folder.profile.read_bytes()
        return outcome

    return train


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Job], Outcome]:
    """The oracle's outcome; one run for all jobs that differ only in cluster and resilience."""
    known: dict[bytes, Outcome] = {}

    def train(job: Job) -> Outcome:
        key = msgspec.json.encode((job.model, job.data, job.train, job.eval))
        if key not in known:
            folder = RunFolder.create(tmp_path_factory.mktemp("reference"), "run")
            known[key] = Outcome(train_reference(job, folder, import_path=EXAMPLES))
        return known[key]

    return train


@pytest.fixture
def worker_pids(nodes: LocalNodes) -> Callable[[], list[int]]:
    """Pids of the workers that run now, in the order in which they were started."""
    return nodes.pids
