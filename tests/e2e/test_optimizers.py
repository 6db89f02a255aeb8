"""Optimizers, rules and schedules of real runs: the reference's bits after kills, whatever state there is to move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from planaria.checkpoint.manifest import newest
from planaria.checkpoint.state import read_group
from planaria.job.errors import UserError
from planaria.job.sections.train import ParameterRule
from planaria.job.settings import Job
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_job
from tests.proof import rest_in_proof

KILLS = ("kill:node=1,step=2,at=backward", "kill:node=4,step=3,at=sync")
JOBS: dict[str, dict[str, Any]] = {
    "sgd": {"train__optimizer": "sgd", "train__momentum": 0.0},
    "lion": {"train__optimizer": "lion", "train__lr_schedule": "wsd", "train__learning_rate": 1e-3},
    "momentum": {"train__optimizer": "sgd", "train__nesterov": True, "train__lr_schedule": "inverse-sqrt"},
    "adam": {"train__optimizer": "adam", "resilience__policy": "redundancy"},
}
STATES: dict[str, set[str]] = {
    "sgd": set(),
    "lion": {"exp_avg"},
    "momentum": {"momentum_buffer"},
    "adam": {"exp_avg", "exp_avg_sq"},
}


def ruled(job: Job, *rules: ParameterRule) -> Job:
    return msgspec.structs.replace(job, train=msgspec.structs.replace(job.train, parameters=rules))


@pytest.mark.parametrize("name", rest_in_proof(list(JOBS)))
def test_kills(name: str, text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, **JOBS[name])
    outcome = run(job, *KILLS)
    outcome.assert_same_bits(reference(job))
    assert [recovery.lost_nodes for recovery in outcome.result.recoveries] == [(1,), (4,)]
    folder, manifest, _ = newest(outcome.result.folder / "checkpoints")
    assert read_group(folder, manifest, 0).keys() == {"parameter", *STATES[name]}


@pytest.mark.proof
def test_rules_with_kills(text: Path, run: Run, reference: Reference) -> None:
    plain = make_job(text, **JOBS["lion"])
    rules = ParameterRule(match="*.h.1.*", learning_rate_factor=0.1), ParameterRule(match="*.bias", weight_decay=0.3)
    job = ruled(plain, *rules)
    run(job, *KILLS).assert_same_bits(reference(job))
    assert reference(job).losses != reference(plain).losses


def test_a_rule_that_holds_for_nothing_is_refused(text: Path, run: Run) -> None:
    with pytest.raises(UserError, match=r"match = 'encoder\.\*' holds for none of the"):
        run(ruled(make_job(text), ParameterRule(match="encoder.*")))


def test_a_schedule_that_is_a_function(text: Path, run: Run, reference: Reference) -> None:
    job = make_job(text, cluster__nodes=5, train__lr_schedule="math:sqrt", train__warmup_steps=0)
    outcome = run(job, KILLS[0])
    outcome.assert_same_bits(reference(job))
    rates = [step["learning_rate"] for step in outcome.metrics]
    assert rates == [1e-2 * step**0.5 for step in range(1, 6)]


@pytest.mark.parametrize(
    ("function", "said"),
    [("math:nothing", "has no function 'nothing'"), ("math:log1p_", "no function"), ("operator:neg", "gives -1")],
)
def test_a_schedule_that_cannot_be_used_is_refused(function: str, said: str, text: Path, run: Run) -> None:
    with pytest.raises(UserError, match=said):
        run(make_job(text, train__lr_schedule=function, train__warmup_steps=0))
