"""What a job expects of losses before it has seen any: its owner's guess, a trace, and earlier runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from planaria import api
from planaria.job.errors import UserError
from planaria.job.parse import parse_job
from planaria.job.settings import Job
from planaria.policy.forecast import FailureForecast
from planaria.protocol.planning.failure_rate import Watched
from planaria.runtime.launch.expected_losses import expected_losses, losses_of_trace
from planaria.runtime.thresholds import LOSSES_COUNTED
from tests.plan.profiles import uniform_profile

NODES = 8


def job_with(trace: str | Path, *overrides: str) -> Job:
    return parse_job(
        f"""
[model]
type = "gpt2"
[data]
source = "python-stdlib"
[train]
steps = 1
global_batch = 16
microbatch = 1
sequence_length = 16
[cluster]
nodes = {NODES}
[resilience]
failure_trace = "{trace}"
mean_time_between_failures_s = 3600.0
""",
        overrides=overrides,
        origin="job.toml",
    )


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """16 nodes for an hour, of which two go at once at four times, each time as two others come."""
    rows = [f"0,add,n{node}" for node in range(16)]
    for at in range(4):
        rows += [f"{(at + 1) * 800_000},remove,n{node}" for node in (2 * at, 2 * at + 1)]
        rows += [f"{(at + 1) * 800_000},add,m{node}" for node in (2 * at, 2 * at + 1)]
    rows.append("3600000,add,last")
    path = tmp_path / "spot.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_trace_counts_as_if_the_job_had_seen_it(trace: Path) -> None:
    """Half as many nodes have seen as much in twice the time."""
    assert losses_of_trace(job_with("")) == Watched()
    seen = Watched(seconds=100.0, losses=1, nodes=1) + losses_of_trace(job_with(trace))
    assert seen == Watched(seconds=pytest.approx(100.0 + 7200.0), losses=5, nodes=9)
    expected = expected_losses(job_with(trace))
    assert expected.time_to_next_s(0.0) == pytest.approx((3600.0 + 7200.0) / (1 + 4))
    assert expected.nodes_together == pytest.approx((1 + 8) / (1 + 4))


def test_of_a_long_trace_it_is_the_rate_that_counts(tmp_path: Path) -> None:
    rows = [f"0,add,n{node}" for node in range(NODES)]
    rows += [f"{at * 10_000},{what},n0" for at in range(1, 801) for what in ("remove", "add")]
    path = tmp_path / "long.csv"
    path.write_text("\n".join(rows) + "\n")
    seen = losses_of_trace(job_with(path))
    assert seen.losses == seen.nodes == LOSSES_COUNTED
    assert seen.seconds == pytest.approx(LOSSES_COUNTED * 10.0, rel=0.01)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("missing.csv", None, "cannot be read: No such file or directory. Give a trace's path"),
        ("empty.csv", "", "empty.csv"),
        ("wrong.csv", "0,add,a\n5,went,a\n", "line 2"),
    ],
)
def test_what_is_no_trace_is_refused(name: str, text: str | None, said: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=said):
        losses_of_trace(job_with(tmp_path / name))


def test_a_plan_is_shown_for_what_the_trace_says(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[FailureForecast] = []

    def noting(**values: object) -> FailureForecast:
        asked.append(FailureForecast(**values))  # type: ignore[arg-type]
        return asked[-1]

    monkeypatch.setattr("planaria.runtime.launch.plan_report.FailureForecast", noting)
    api.plan(job_with(trace), profile=uniform_profile(8))
    (forecast,) = asked
    assert forecast.time_to_failure_s == pytest.approx(2160.0)
    assert forecast.nodes_together == pytest.approx(1.8)
