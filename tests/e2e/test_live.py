"""What a user does to a run that is under way: nodes more, nodes less, its state, its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from planaria.job.errors import UserError
from planaria.protocol.messages.records import AnyRecord, Recovered, StepCommitted, Waiting
from planaria.runtime.coordinator.client import Contact
from planaria.runtime.launch.training.result import RunStatus
from planaria.ui.cli import live
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_emulated_job, make_job


class User:
    """Does something at the first record of a kind, through the job's port and in a thread of its own."""

    def __init__(self, folder: Path, kind: type[AnyRecord], act: Callable[[Path], object]) -> None:
        self._folder = folder
        self._kind = kind
        self._act = act
        self._thread = threading.Thread(target=self._do)
        self._answer: list[object] = []

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        if isinstance(record, self._kind) and self._thread.ident is None:
            self._thread.start()

    def _do(self) -> None:
        try:
            self._answer.append(self._act(self._folder))
        except BaseException as error:
            self._answer.append(error)

    @property
    def answer(self) -> object:
        self._thread.join()
        return self._answer[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of the test's first run."""
    return tmp_path / "run-0"


def test_a_job_waits_for_nodes_and_goes_on_with_the_one_that_is_added(
    folder: Path, text: Path, run: Run, reference: Reference
) -> None:
    def act(run_folder: Path) -> str:
        contact = Contact.read(run_folder / "coordinator.json")
        address = live.Address(address=contact.address, token=contact.token)
        with pytest.raises(UserError, match="this is not its token"):
            live.add(live.Address(address=contact.address, token="0123456789abcdef"), 1)
        return live.status(address, as_json=False) + "\n" + live.add(run_folder, 1)

    job = make_job(text, cluster__nodes=4, resilience__when_exhausted="wait")
    user = User(folder, Waiting, act)
    outcome = run(job, "kill:node=0,step=2,at=backward", observers=[user])
    answer = user.answer
    assert isinstance(answer, str), answer
    first, second, *_, last = answer.splitlines()
    assert first.endswith("waiting, step 3 of 5")
    assert second == "3 nodes: 1, 2, 3"
    assert last == "node 4 started"
    outcome.assert_same_bits(reference(job))
    assert not outcome.events("restored")
    assert not folder.joinpath("coordinator.json").exists()


def test_a_node_is_drained(folder: Path, slow_layers: Path, run: Run, reference: Reference) -> None:
    job = make_emulated_job(slow_layers, cluster__nodes=5, train__steps=8)
    user = User(folder, StepCommitted, lambda run_folder: live.drain(run_folder, 1, 0.0))
    outcome = run(job, observers=[user])
    assert user.answer == "node 1 hands over its work and ends after the next steps"
    assert [event["node"] for event in outcome.events("node_released")] == [1]
    assert not outcome.events("node_lost")
    outcome.assert_same_bits(reference(job))


def test_a_device_that_was_lost_alone_is_started_again(
    folder: Path, slow_layers: Path, run: Run, reference: Reference
) -> None:
    devices = {"cluster__devices_per_node": 2, "cluster__devices_per_stage": 2}
    job = make_emulated_job(slow_layers, cluster__nodes=4, train__steps=12, **devices)

    def act(run_folder: Path) -> str:
        with pytest.raises(UserError, match="device 0 of node 1 is there"):
            live.add_device(run_folder, "1:0")
        assert "lost: device 1 of node 1" in live.status(run_folder, as_json=False)
        return live.add_device(run_folder, "1:1")

    user = User(folder, Recovered, act)
    outcome = run(job, "kill:node=1,step=2,at=backward,device=1", observers=[user])
    assert user.answer == "device 1 of node 1 started"
    outcome.assert_same_bits(reference(job))
    assert [(event["node"], event["device"]) for event in outcome.events("device_joined")] == [(1, 1)]
    assert not outcome.events("node_lost")
    at_work = [{worker for p in event["pipelines"] for worker, _, _ in p} for event in outcome.events("plan_taken")]
    assert [3 in workers for workers in (at_work[0], at_work[1], at_work[-1])] == [True, False, True]


def test_a_run_is_stopped_by_its_user_who_alone_can_read_how_it_is_reached(folder: Path, text: Path, run: Run) -> None:
    def act(run_folder: Path) -> tuple[int, str]:
        mode = (run_folder / "coordinator.json").stat().st_mode & 0o777
        return mode, live.stop(run_folder)

    user = User(folder, StepCommitted, act)
    outcome = run(make_job(text, cluster__nodes=4, train__steps=5000), observers=[user])
    mode, said = user.answer  # type: ignore[misc]
    assert "is finished and saved" in said
    assert mode == 0o600
    assert outcome.result.status is RunStatus.STOPPED
    assert outcome.result.weights_sha256 is not None


def test_what_cannot_be_done_is_said(folder: Path, slow_layers: Path, run: Run) -> None:
    user = User(folder, StepCommitted, lambda run_folder: live.drain(run_folder, 77, 0.0))
    run(make_emulated_job(slow_layers, train__steps=4), observers=[user])
    assert isinstance(user.answer, UserError)
    assert "node 77 is not there. The nodes are 0, 1, 2, 3, 4, 5, 6" in str(user.answer)
    with pytest.raises(UserError, match="does not run now"):
        live.drain(folder, 1, 0.0)
    assert live.status(folder, as_json=False).startswith(f"{folder}: completed: 4 of 4 steps, loss ")
    assert msgspec.json.decode(live.status(folder, as_json=True))["phase"] == "ended"
