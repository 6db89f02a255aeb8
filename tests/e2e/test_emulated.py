"""Emulated devices: real processes, messages and kills, made-up numbers; the same bits as one process, and no data."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from planaria.api import plan
from planaria.job.errors import UserError
from planaria.runtime.launch.export import export_run
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import LAYER_S, make_emulated_job, profile
from tests.proof import rest_in_proof


@pytest.fixture(scope="module")
def profile_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    path.write_bytes(msgspec.json.encode(profile()))
    return path


@pytest.mark.parametrize("at", rest_in_proof(["backward", "recv", "forward", "sync", "vote"]))
def test_a_kill_during_a_wait_changes_no_bit(at: str, profile_file: Path, run: Run, reference: Reference) -> None:
    job = make_emulated_job(profile_file)
    outcome = run(job, f"kill:node=3,step=2,at={at}")
    outcome.assert_same_bits(reference(job))
    assert len(outcome.result.recoveries) == 1


@pytest.mark.proof
def test_one_dies_while_another_is_recovered_from(profile_file: Path, run: Run, reference: Reference) -> None:
    job = make_emulated_job(profile_file, cluster__nodes=8)
    outcome = run(job, "kill:node=0,step=2,at=forward", "kill:node=5,step=2,at=transfer")
    outcome.assert_same_bits(reference(job))


def test_a_step_takes_at_least_what_its_busiest_worker_takes(profile_file: Path, run: Run) -> None:
    """Twelve workers, and not the cores of this machine, share the work."""
    job = make_emulated_job(profile_file, cluster__nodes=12, train__steps=2, train__global_batch=12)
    outcome = run(job)
    (taken,) = outcome.events("plan_taken")
    busiest = max(
        microbatches * (end - first) * 3 * LAYER_S
        for stages, microbatches in zip(taken["pipelines"], taken["microbatches"], strict=True)
        for _, first, end in stages
    )
    assert all(step["duration_s"] >= busiest for step in outcome.events("step_committed"))
    (measured,) = outcome.events("plan_measured")
    assert measured["estimated_step_s"] == taken["estimated_step_s"]


def test_a_restore_takes_at_least_the_storages_time(profile_file: Path, run: Run, reference: Reference) -> None:
    """The busiest node reads its layers' parameters and optimizer state, 3 MB each."""
    job = make_emulated_job(
        profile_file, resilience__policy="morph", run__checkpoint_every=1, cluster__storage_gb_per_s=0.05,
        train__steps=10,
    )  # fmt: skip
    outcome = run(job, "kill:node=1,step=8,at=backward")  # by then a checkpoint is written, however busy the disk
    outcome.assert_same_bits(reference(job))
    restore = outcome.events("plan_taken")[-1]
    assert restore["purpose"] == "restore"
    layers = max(end - first for stages in restore["pipelines"] for _, first, end in stages)
    (recovery,) = outcome.summary["recoveries"]
    least_s = layers * 3e6 / 0.05e9
    assert recovery["ready_ms"] >= 1e3 * least_s
    assert restore["estimated_transition_s"] >= least_s
    assert outcome.summary["time_s"]["recovering"] >= least_s


def test_resuming_asks_for_the_same_layers(profile_file: Path, tmp_path: Path, run: Run) -> None:
    """The run ends early, for want of nodes."""
    folder = run(make_emulated_job(profile_file, cluster__nodes=4), "kill:node=3,step=1,at=vote").result.folder
    other = tmp_path / "other.json"
    other.write_bytes(msgspec.json.encode(profile(6)))
    with pytest.raises(UserError, match="other layers or parameter groups"):
        run(make_emulated_job(other, cluster__nodes=4), resume=folder)
    with pytest.raises(UserError, match="made up"):
        export_run(folder, tmp_path / "exported")


def test_its_plan_is_made_from_the_named_profile(profile_file: Path) -> None:
    report = plan(make_emulated_job(profile_file))
    assert report.profile == profile()


def test_a_profile_that_does_not_fit_the_job_is_refused(profile_file: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train\.microbatch is 3.*Set train\.microbatch = 1"):
        plan(make_emulated_job(profile_file, train__microbatch=3))
    with pytest.raises(UserError, match=r"cluster\.profile = .*absent.json' cannot be read"):
        plan(make_emulated_job(tmp_path / "absent.json"))
    damaged = tmp_path / "damaged.json"
    damaged.write_text("{}")
    with pytest.raises(UserError, match="missing required field `layers`"):
        plan(make_emulated_job(damaged))


def test_emulated_devices_share_microbatches(tmp_path: Path, run: Run, reference: Reference) -> None:
    """A loss of a device within a step has the others take turns."""
    path = tmp_path / "profile.json"
    path.write_bytes(msgspec.json.encode(profile()))
    job = make_emulated_job(
        path, model__type="gpt2", model__virtual_shards=2, cluster__nodes=2, cluster__devices_per_node=2,
        cluster__devices_per_stage=2, cluster__stage_parallelism="tensor", resilience__min_nodes_per_pipeline=1,
    )  # fmt: skip
    outcome = run(job, "kill:node=1,step=2,at=backward,device=1")
    outcome.assert_same_bits(reference(job))
    shared, *others = outcome.events("plan_taken")
    assert all(before["estimated_step_s"] for before in (shared, *others))
    assert shared["microbatches"] == [5, 0, 4, 0]
    assert [event["device"] for event in outcome.events("device_lost")] == [1]
