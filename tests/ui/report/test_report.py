"""Reports in one file: what is in it is read back, and nothing that is named in it ends as markup."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from planaria.job.registry import PolicyName
from planaria.job.sections.budget import BudgetSection
from planaria.protocol.messages.records import (
    AnyRecord,
    CheckpointSaved,
    Evaluated,
    RunStatus,
    StepCommitted,
)
from planaria.runtime.launch.rehearsal.comparison import Comparison, Row
from planaria.runtime.launch.rehearsal.rehearsal import Rehearsed
from planaria.simulate.results import Outcome, RunResult, summarise
from planaria.simulate.traces.scripts import Clock
from planaria.simulate.traces.tally import Curve, tally
from planaria.ui.cli.main import cli
from planaria.ui.report.report import write_report
from tests.runtime.run_folder.happenings import JOB, short_run
from tests.ui.dashboard.browser import browser, errors, why_not
from tests.ui.dashboard.made_up import HOSTILE, happenings, made_up_run

SPOT = Path(__file__).parents[3] / "examples" / "scenarios" / "spot.toml"


def read(report: Path) -> Any:
    """Returns what a report tells, having looked that nothing in it ends as markup and nothing is loaded."""
    text = report.read_text()
    assert text.count("<script") == text.count("</script>") == 2
    assert "src=" not in text.replace("src=x", "")
    return json.loads(re.findall(r'<script [^>]*id="data">(.*?)</script>', text)[0])


def written(source: Path, tmp_path: Path) -> Any:
    write_report(source, tmp_path / "report.html")
    return read(tmp_path / "report.html")


def section(found: Any, title: str) -> Any:
    return next(one for one in found["sections"] if one["title"] == title)


def priced() -> list[AnyRecord]:
    """A run of hostile names that cost half a dollar and was evaluated."""
    told = [
        msgspec.structs.replace(record, cost=0.5) if isinstance(record, StepCommitted) else record
        for record in happenings(8, 12, 1, HOSTILE)
    ]
    best = Evaluated(
        step=12, loss=2.0, perplexity=7.4, accuracy=0.5, microbatches=1, generation=2, duration_s=0.1, is_best=True
    )
    return [*told, best, CheckpointSaved(step=12, folder="", seconds=0.1)]


def test_a_report_of_a_run_has_regret_cost_and_the_best_evaluation(tmp_path: Path) -> None:
    job = msgspec.structs.replace(JOB, budget=BudgetSection(price=2.0))
    found = written(made_up_run(tmp_path, "priced", priced(), job).path, tmp_path)
    details, samples = found["details"], 12 * JOB.train.global_batch
    assert details["regret"] == {"num": 2, "weighed": 2, "judged": 2, "lost": 0.0, "trained": samples}
    names = [[one["name"] for one in decision["candidates"]] for decision in details["decisions"]]
    assert names == [[HOSTILE, f"not {HOSTILE}"]] * 2
    assert details["recoveries"][0]["generation"] == details["decisions"][1]["generation"] == 2
    assert details["costs"]["samples_per_dollar"] == 2 * samples
    assert found["series"]["rows"][-1][8:] == [0.5, samples]
    assert details["evaluations"] == [[12, 2.0, 0.5, True, 7.4]]
    assert details["best"] == {"metric": "loss", "step": 12, "saved": 12}


def result(policy: str, hourly: float) -> RunResult:
    return RunResult(
        policy=policy, trace=HOSTILE, seconds=3600.0, samples=7200.0 * (1 - hourly), steps=900,
        seconds_by={"training": 3000.0, "idle": 600.0}, node_hours=4.0, cost=4.0, losses=1, loss_times=1, joins=1,
        survived={"reroute": 1}, fatal=0, waits=0, moved_bytes=0, completed=False,
        timeline=((30.0, 4, 2.0), (600.0, 2, 1.0), (1200.0, 3, 1.5)),
    )  # fmt: skip


def outcome(*hourly: float) -> list[Outcome]:
    found = []
    for rate in hourly:
        runs = {policy: [result(policy, rate), result(policy, rate / 2)] for policy in ("templates", "ideal")}
        varied = {"hourly": rate} if len(hourly) > 1 else {}
        found.append(Outcome(varied=varied, summaries=[summarise(of) for of in runs.values()], runs=runs))
    return found


def simulated(tmp_path: Path, *hourly: float) -> Path:
    path = tmp_path / "spot.json"
    path.write_bytes(msgspec.json.encode(outcome(*hourly)))
    return path


def test_a_report_of_a_simulation_has_policies_over_each_other_with_the_losses_marked(tmp_path: Path) -> None:
    found = written(simulated(tmp_path, 0.1), tmp_path)
    assert (found["title"], found["subtitle"]) == (
        "spot",
        "4 simulated runs under templates, ideal. Nothing was trained.",
    )
    rates, nodes = section(found, "Throughput over time")["charts"]
    assert [(line["name"], line["kind"]) for line in rates["lines"]] == [
        ("templates", "run0"),
        ("ideal", "run1 dashed"),
    ]
    assert rates["lines"][0]["points"] == [
        [30.0, 2.0], [600.0, 2.0], [600.0, 1.0], [1200.0, 1.0], [1200.0, 1.5], [3600.0, 1.5], [3600.0, 1.5],
    ]  # fmt: skip
    assert rates["marks"] == nodes["marks"]
    assert [(mark["x"], mark["text"]) for mark in nodes["marks"]] == [
        (600.0, "2 nodes lost"),
        (1200.0, "1 node joined"),
    ]
    assert HOSTILE in nodes["label"]
    totals = section(found, "Totals")["table"]
    assert totals["heads"][:2] == ["policy", "samples/s"]
    assert totals["rows"][0][:2] == ["templates", "1.9 ±0.6"]
    shares = section(found, "Where the time went")["shares"][0]
    assert [part[:2] for part in shares["parts"] if part[1]] == [["training", 3000.0], ["idle", 600.0]]


def test_a_report_of_a_sweep_has_means_with_their_intervals_over_what_was_varied(tmp_path: Path) -> None:
    found = written(simulated(tmp_path, 0.2, 0.1), tmp_path)
    rates, value = section(found, "Over share of the nodes lost in an hour")["charts"]
    line = rates["lines"][0]
    assert line["points"] == [[0.1, pytest.approx(1.85)], [0.2, pytest.approx(1.7)]]
    assert all(low < mean < high for (_, mean), (_, low, high) in zip(line["points"], line["band"], strict=True))
    assert value["lines"][1]["name"] == "ideal"
    assert section(found, "Totals: share of the nodes lost in an hour = 0.2")["table"]["rows"]


def test_what_simulate_prints_is_reported(tmp_path: Path) -> None:
    command = ["simulate", str(SPOT), "--policy", "ideal", "--runs", "1", "--processes", "1", "--json", "--timeline"]
    printed = CliRunner().invoke(cli, [*command, "--report", str(tmp_path / "own.html")])
    (tmp_path / "ideal.json").write_text(printed.stdout)
    told = CliRunner().invoke(cli, ["report", str(tmp_path / "ideal.json"), "-o", str(tmp_path / "ideal.html")])
    assert (told.exit_code, told.exception) == (0, None)
    found = read(tmp_path / "ideal.html")
    assert section(found, "Totals")["table"]["rows"][0][0] == "ideal"
    assert section(found, "Throughput over time")["charts"][0]["lines"][0]["points"]
    assert read(tmp_path / "own.html") == {**found, "title": "spot"}


def rehearsed(folder: Path) -> Rehearsed:
    told = [(record, 10.0 + 0.5 * at) for at, record in enumerate(short_run())]
    return Rehearsed(
        policy=PolicyName.TEMPLATES, script=HOSTILE, clock=Clock.SECONDS, length=2.0, status=RunStatus.STOPPED,
        is_played=True, message="", unplanned_losses=1, folder=str(folder),
        tally=tally(told, 12.0, 16.0, global_batch=8, microbatch=2),
        throughput=Curve(at_s=(0.0, 1.0, 2.0), value=(8.0, 4.0, 6.0)),
        live_nodes=Curve(at_s=(0.0, 1.0, 2.0), value=(3.0, 2.0, 2.0)),
        script_nodes=Curve(at_s=(0.0, 0.9, 2.0), value=(3.0, 2.0, 2.0)),
    )  # fmt: skip


def test_a_report_of_a_comparison_has_all_policies_and_the_one_that_failed(tmp_path: Path) -> None:
    rows = (
        Row(policy=PolicyName.TEMPLATES, rehearsed=rehearsed(tmp_path), reason=""),
        Row(policy=PolicyName.MORPH, rehearsed=None, reason=HOSTILE),
    )
    compared = tmp_path / "compared"
    compared.mkdir()
    told = Comparison(job=HOSTILE, script="single", nodes=3, global_batch=8, rows=rows)
    (compared / "compare.json").write_bytes(msgspec.json.encode(told))
    found = written(compared, tmp_path)
    assert found == written(compared / "compare.json", tmp_path)
    assert found["title"] == "compared"
    rates, nodes = section(found, "Throughput while the script was played")["charts"]
    assert rates["lines"][0]["points"] == [[0.0, 8.0], [1.0, 4.0], [2.0, 6.0]]
    assert [(mark["x"], mark["kind"]) for mark in nodes["marks"]] == [(0.9, "lost")]
    totals = section(found, "Totals")
    assert [row[0] for row in totals["table"]["rows"]] == ["templates", "morph"]
    assert totals["table"]["rows"][1][1] == "-"
    assert totals["notes"] == ["templates: 1 node lost though the script did not take them", f"morph: {HOSTILE}"]


def test_a_report_of_a_drill_is_that_of_its_run_with_the_script_beside(tmp_path: Path) -> None:
    folder = made_up_run(tmp_path, "drilled", short_run())
    folder.drill.write_bytes(msgspec.json.encode(rehearsed(folder.path)))
    found = written(folder.path, tmp_path)
    assert found == written(folder.drill, tmp_path)
    assert found["now"]["step"] == 3
    nodes = section(found, "Throughput while the script was played")["charts"][1]
    assert [line["name"] for line in nodes["lines"]] == ["of the job", "of the script"]
    assert dict(section(found, "The drill in figures")["table"]["rows"])["recoveries"] == "1 by templates"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "has no result"),
        ("{}", "cannot be reported on"),
        ("no", "cannot be reported on"),
        (None, "does not exist"),
    ],
)
def test_what_is_nothing_of_the_kind_is_refused_in_one_line(content: str | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "x.json").write_text(content)
    told = CliRunner().invoke(cli, ["report", str(tmp_path / "x.json"), "-o", str(tmp_path / "x.html")])
    assert told.exit_code == 2
    assert said in told.stderr
    assert len(told.stderr.splitlines()) == 1
    assert not (tmp_path / "x.html").exists()


@pytest.mark.page
@pytest.mark.timeout(120)
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_browser_draws_reports_and_runs_nothing_that_is_named_in_them(tmp_path: Path) -> None:
    job = msgspec.structs.replace(JOB, budget=BudgetSection(price=2.0))
    folder = made_up_run(tmp_path, "drilled", priced(), job)
    folder.drill.write_bytes(msgspec.json.encode(rehearsed(folder.path)))
    write_report(folder.path, tmp_path / "drill.html")
    write_report(simulated(tmp_path, 0.1, 0.2), tmp_path / "sweep.html")

    with browser(1280, 900) as driver:

        def number(selector: str) -> int:
            return int(driver.execute_script(f"return document.querySelectorAll('{selector}').length"))

        driver.get((tmp_path / "drill.html").as_uri())
        assert "192 samples and 24 steps a dollar" in driver.find_element("id", "cost").text
        assert "2 judged decisions" in driver.find_element("id", "regret").text
        assert driver.find_element("id", "best").text.endswith("after step 12; its checkpoint is kept.")
        assert number(".best.evaluation") == 4
        assert number("img") == 0
        assert errors(driver) == []
        driver.get((tmp_path / "sweep.html").as_uri())
        assert number(".line") == 2 * 2 + 2 * (2 + 1)
        assert number(".mark.lost") == number(".mark.joined") == 4
        assert number("img") == 0
        assert errors(driver) == []
