"""Sample dropping, and a change of policy on a live job, with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from planaria.job.errors import UserError
from planaria.protocol.messages.records import Recovered, StepCommitted
from planaria.runtime.launch.reference import train_reference
from planaria.runtime.run_folder.recorder import read_drops
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.ui.cli import live
from planaria.ui.cli.main import cli
from tests.e2e.conftest import EXAMPLES, Reference, Run
from tests.e2e.jobs import Outcome, make_emulated_job, make_job
from tests.e2e.test_live import User


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of the test's first run."""
    return tmp_path / "run-0"


def test_what_is_dropped_is_what_one_process_leaves_out(text: Path, run: Run, tmp_path: Path) -> None:
    job = make_job(text, resilience__policy="drop")
    outcome = run(job, "kill:node=2,step=3,at=backward")
    drops = read_drops(outcome.result.folder / "events.jsonl")
    assert set(drops) in ({3, 4, 5}, {4, 5})
    alone = Outcome(train_reference(job, RunFolder.create(tmp_path, "alone"), import_path=EXAMPLES, drops=drops))
    outcome.assert_same_bits(alone)
    num_dropped = sum(map(len, drops.values()))
    assert outcome.summary["dropped_samples"] == alone.summary["dropped_samples"] == num_dropped > 0
    last = outcome.events("step_committed")[-1]
    assert (last["num_dropped"], last["scale"]) == (num_dropped, (9 - len(last["dropped"])) / 9)


@pytest.mark.proof
def test_a_policy_outlives_the_coordinator_that_was_told_of_it(
    folder: Path, slow_layers: Path, run: Run, reference: Reference
) -> None:
    def act(run_folder: Path) -> str:
        return live.switch(run_folder, "reroute")

    job = make_emulated_job(slow_layers, train__steps=12)
    user = User(folder, StepCommitted, act)
    outcome = run(job, "coordinator:step=7,at=commit", "kill:node=1,step=10,at=backward", observers=[user])
    assert str(user.answer).startswith("policy reroute makes the plans from now on")
    outcome.assert_same_bits(reference(job))
    assert [event["policy"] for event in outcome.events("policy_switched")] == ["reroute"]
    assert [recovery["policy"] for recovery in outcome.summary["recoveries"]] == ["reroute"]
    assert outcome.events("plan_taken")[-1]["transfer_bytes"] == 0
    assert outcome.summary["policy"] == "reroute"


def test_samples_count_again_under_another_policy(folder: Path, slow_layers: Path, run: Run) -> None:
    """After the loss every step leaves some out, until the user wants all of them."""

    def act(run_folder: Path) -> str:
        answer = live.switch(run_folder, "templates")
        return "\n".join([answer, live.status(run_folder, as_json=False), live.policy(run_folder, as_json=False)])

    job = make_emulated_job(slow_layers, resilience__policy="drop", train__steps=12)
    user = User(folder, Recovered, act)
    outcome = run(job, "kill:node=1,step=2,at=backward", observers=[user])
    answer = str(user.answer)
    assert "policy: templates" in answer
    assert "dropped: " in answer
    steps = outcome.events("step_committed")
    assert steps[1]["dropped"]
    assert not steps[-1]["dropped"]
    assert steps[-1]["num_dropped"] == outcome.summary["dropped_microbatches"]
    assert outcome.summary["policy_switches"][0]["before"] == "drop"


def test_what_a_user_cannot_have_is_said(
    folder: Path, slow_layers: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    def act(run_folder: Path) -> list[object]:
        with pytest.raises(SystemExit) as unknown:
            cli.main(["policy", str(run_folder), "fastest"])
        with pytest.raises(UserError) as forbidden:
            live.switch(run_folder, "drop")
        return [unknown.value.code, str(forbidden.value), live.switch(run_folder, "templates")]

    user = User(folder, StepCommitted, act)
    run(make_emulated_job(slow_layers, train__steps=5), observers=[user])
    code, forbidden, same = user.answer  # type: ignore[misc]
    assert code == 2
    assert "policy = 'fastest' is unknown. Choose templates, reroute" in capsys.readouterr().err
    assert "the job file does not allow it. Set resilience.allow_drop = true" in forbidden
    assert same == "policy templates is in force already"
