"""Endings that still have the state save it, and a run whose launcher is killed has checkpoints by default."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from planaria.protocol.messages.records import AnyRecord, CheckpointSaved, Note, StepCommitted
from planaria.runtime.launch.training.result import RunStatus
from planaria.ui.cli import live
from tests.e2e.commands import Command, descendants, wait_until
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_job
from tests.e2e.test_checkpoints import BrokenDisk
from tests.e2e.test_robustness import Filler, alone, arm, job_of, mine, small_disk  # noqa: F401 (fixtures)


def saved_steps(folder: Path) -> list[int]:
    """Of the whole checkpoints in a run's folder."""
    found = (folder / "checkpoints").glob("step-*/manifest.json")
    return sorted(json.loads(path.read_text())["step"] for path in found)


def test_a_launcher_that_is_killed_loses_little_by_default(command: Command) -> None:
    """SIGKILL to every process of the run, as when its host goes; nothing was set for checkpoints."""
    command.write_emulated_job(steps=30)
    process = command.start("train", "job.toml")
    run = command.folder / "runs" / "job"
    try:
        assert wait_until(lambda: saved_steps(run))
    finally:
        for pid in [process.pid, *descendants(command.folder)]:
            with contextlib.suppress(ProcessLookupError):  # the kernel kills some with those that started them
                os.kill(pid, signal.SIGKILL)
        process.communicate()
    assert wait_until(lambda: not descendants(command.folder))
    before = saved_steps(run)[-1]
    assert before < 30
    status, said = command.run("train", "job.toml", "--resume")
    assert status == 0, said
    assert saved_steps(run)[-1] == 30
    first = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    assert first["step"] == 1


@pytest.mark.proof
def test_a_layer_that_raises_leaves_the_last_step_saved(
    mine: Path,  # noqa: F811
    text: Path,
    run: Run,
    alone: Reference,  # noqa: F811
) -> None:
    job = job_of(mine, text, cluster__nodes=4, train__steps=20, run__checkpoint_every=0)
    outcome = run(job, observers=[arm(mine, "forward.all", after=5)], import_path=mine)
    assert outcome.result.status is RunStatus.FAILED
    last = outcome.events("step_committed")[-1]["step"]
    assert last >= 5
    assert saved_steps(outcome.result.folder) == [last]
    assert not outcome.events("node_lost")
    (mine / "forward.all").unlink()
    run(job, resume=outcome.result.folder, import_path=mine).assert_same_bits(alone(job))


class WhenUnsaved:
    """Does something, in a thread of its own, as soon as it is told that the last state cannot be saved."""

    def __init__(self, do: Callable[[], object]) -> None:
        self._do = do
        self.came_of_it: list[object] = []
        self._thread = threading.Thread(target=lambda: self.came_of_it.append(do()))

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        if isinstance(record, Note) and "it is tried again" in record.text and not self._thread.ident:
            self._thread.start()

    def result(self) -> object:
        self._thread.join(timeout=60)
        return self.came_of_it[0]


def test_a_disk_that_is_full_at_the_end_is_waited_for(
    tmp_path: Path, text: Path, run: Run, reference: Reference
) -> None:
    folder = tmp_path / "run-0" / "checkpoints"

    def make_room() -> None:
        folder.unlink()

    job = make_job(text, cluster__nodes=4, run__checkpoint_every=0)
    unsaved = WhenUnsaved(make_room)
    outcome = run(job, observers=[BrokenDisk(folder, 1, 99), unsaved])
    outcome.assert_same_bits(reference(job))
    (told,) = [note["text"] for note in outcome.events("note") if "it is tried again" in note["text"]]
    assert told.startswith("step 5 could not be saved: ")
    assert "planaria save RUN --to FOLDER" in told
    assert "planaria stop RUN --discard" in told


def test_another_folder_is_taken_for_what_cannot_be_saved(
    tmp_path: Path, text: Path, run: Run, reference: Reference
) -> None:
    job = make_job(text, cluster__nodes=4, run__checkpoint_every=0)
    elsewhere = tmp_path / "elsewhere"
    unsaved = WhenUnsaved(lambda: live.save(tmp_path / "run-0", elsewhere))
    outcome = run(job, observers=[BrokenDisk(tmp_path / "run-0" / "checkpoints", 1, 99), unsaved])
    assert outcome.result.status is RunStatus.COMPLETED
    assert unsaved.result() == f"step 5 is saved in {elsewhere}/step-00000005"
    assert outcome.summary["weights_sha256"] == reference(job).summary["weights_sha256"]
    assert outcome.events("checkpoint_saved")[-1]["folder"] == f"{elsewhere}/step-00000005"


def test_the_user_may_end_a_run_without_its_state(tmp_path: Path, text: Path, run: Run) -> None:
    folder = tmp_path / "run-0"
    unsaved = WhenUnsaved(lambda: (live.status(folder, as_json=False), live.stop(folder, discard=True)))
    job = make_job(text, cluster__nodes=4, run__checkpoint_every=0)
    outcome = run(job, observers=[BrokenDisk(tmp_path / "run-0" / "checkpoints", 1, 99), unsaved])
    assert outcome.result.status is RunStatus.FAILED
    assert outcome.result.message.startswith("step 5 could not be saved")
    assert outcome.result.steps == 5
    status, said = unsaved.result()
    assert status.startswith(f"{folder}: saving, 5 of 5 steps done")
    assert said == "the run ends; the state after step 5 is not saved"
    assert any("no checkpoints are written on the way" in note["text"] for note in outcome.events("note"))


@pytest.mark.proof
def test_a_save_on_the_way_goes_elsewhere_and_is_found_again(
    tmp_path: Path, text: Path, run: Run, reference: Reference
) -> None:
    job = make_job(text, cluster__nodes=4, train__steps=20, run__checkpoint_every=0)
    folder, elsewhere = tmp_path / "run-0", tmp_path / "elsewhere"
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(live.save(folder, elsewhere)))

    def ask(record: AnyRecord, time_s: float) -> None:
        if isinstance(record, StepCommitted) and record.step == 3:
            asking.start()
        if isinstance(record, CheckpointSaved) and not record.folder.startswith(str(folder)):
            live.stop(folder, discard=True)

    outcome = run(job, observers=[ask])
    asking.join(timeout=60)
    (saved,) = outcome.events("checkpoint_saved")
    assert answers == [f"step {saved['step']} is saved in {elsewhere}/step-{saved['step']:08d}"]
    assert outcome.result.status is not RunStatus.COMPLETED
    assert saved_steps(folder) == [saved["step"]]
    run(job, resume=folder).assert_same_bits(reference(job))


def test_a_disk_without_a_byte_of_room_at_the_end_loses_nothing(
    small_disk: Path,  # noqa: F811
    tmp_path: Path,
    text: Path,
    run: Run,
    reference: Reference,
) -> None:
    """Journal, events and summary are on it too."""
    job = make_job(text, cluster__nodes=4, run__checkpoint_every=0)
    elsewhere = tmp_path / "elsewhere"
    unsaved = WhenUnsaved(lambda: live.save(small_disk, elsewhere))
    outcome = run(job, observers=[Filler(small_disk, 1, 99), unsaved])
    assert outcome.result.status is RunStatus.COMPLETED
    assert unsaved.result() == f"step 5 is saved in {elsewhere}/step-00000005"
    (small_disk / "filler").unlink()
    assert outcome.result.weights_sha256 == reference(job).result.weights_sha256
