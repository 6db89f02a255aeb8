"""`planaria simulate`: what it prints, keeps and draws; the same on any number of processes; without torch."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from planaria import __version__
from planaria.job.errors import UserError
from planaria.protocol.messages.records import NodeLost
from planaria.runtime.launch.rehearsal.simulations import SIMULATING
from planaria.simulate.timings import calibrated
from planaria.ui.cli.main import cli

TEXT = """
[model]
preset = "bert-large"
device = "v100"
[cluster]
nodes = 6
[job]
global_batch = 96
policies = ["templates", "ideal"]
min_nodes_per_pipeline = 2
[failures]
hourly = 1.0
arrival_s = 600
hours = 0.5
runs = 2
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "s.toml"
    path.write_text(TEXT)
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["simulate", *map(str, arguments), "--processes", "1"])


def test_a_table_for_each_policy(scenario: Path) -> None:
    result = run(scenario)
    assert result.exit_code == 0, result.output
    assert "bert-large, 6 nodes, constant failures" in result.output
    for word in ("templates", "ideal", "samples/s", "training", "losses survived"):
        assert word in result.output


def test_what_is_done_is_told_where_no_terminal_shows_it(scenario: Path) -> None:
    told = run(scenario, "--policy", "ideal").stderr.splitlines()
    assert told
    assert told[-1].startswith(f"planaria: simulated {len(told)} of {len(told)}: ")
    assert told[-1].endswith(": ideal")


def test_json_has_every_run(scenario: Path) -> None:
    (outcome,) = json.loads(run(scenario, "--json", "--policy", "templates").stdout)
    assert [summary["policy"] for summary in outcome["summaries"]] == ["templates"]
    runs = outcome["runs"]["templates"]
    assert len(runs) == 2
    assert runs[0]["trace"] == "constant, seed 0"
    assert outcome["summaries"][0]["figures"]["steps"]["mean"] == sum(run["steps"] for run in runs) / 2


def test_json_has_nodes_over_time_where_they_are_wanted(scenario: Path) -> None:
    arguments = (scenario, "--policy", "ideal", "--json", "--set", "failures.arrival_s=-1", "--runs", 1)
    (run_,) = json.loads(run(*arguments, "--timeline").stdout)[0]["runs"]["ideal"]
    nodes = [count for _, count, _ in run_["timeline"]]
    assert nodes == list(range(6, 5 - run_["losses"], -1))
    assert json.loads(run(*arguments).stdout)[0]["runs"]["ideal"][0]["timeline"] == []
    assert run(scenario, "--timeline").exit_code != 0


def test_what_is_kept_is_said_in_the_same_words(scenario: Path, tmp_path: Path) -> None:
    first, again = (run(scenario, "--results", tmp_path / "kept", "--json") for _ in range(2))
    assert "results were there already" in again.stderr
    assert first.stdout == again.stdout


def test_one_seed_has_one_result_on_any_number_of_processes(scenario: Path, tmp_path: Path) -> None:
    """On processes of their own, and in this one after another scenario."""
    many = CliRunner().invoke(cli, ["simulate", str(scenario), "--json", "--processes", "2"])
    run(scenario, "--set", "failures.hourly=3")
    assert json.loads(many.stdout) == json.loads(run(scenario, "--json").stdout)


def test_results_are_kept_and_a_changed_scenario_is_noticed(scenario: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first = run(scenario, "--json", "--results", kept)
    (kept / "scenario-ideal-0.json").unlink()
    again = run(scenario, "--json", "--results", kept)
    assert "1 of 2 results were there already" in again.stderr
    assert json.loads(again.stdout) == json.loads(first.stdout)
    changed = run(scenario, "--results", kept, "--set", "failures.hourly=2")
    assert "2 results" in changed.stderr
    assert "of another scenario" in changed.stderr
    (kept / "scenario-ideal-0.json").write_text("{")
    assert "is damaged; it is simulated again" in run(scenario, "--results", kept).stderr


@pytest.mark.parametrize("other", ["0.0.9-0123456789abcdef", None])
def test_results_of_another_simulator_are_not_taken(scenario: Path, tmp_path: Path, other: str | None) -> None:
    """None: of one that did not tell."""
    kept = tmp_path / "kept" / "scenario-ideal-0.json"
    first = run(scenario, "--json", "--policy", "ideal", "--results", kept.parent)
    written = json.loads(kept.read_bytes())
    assert written["simulator"].startswith(f"{__version__}-")
    changed = {**written, "simulator": other, "runs": []}
    kept.write_text(json.dumps({name: value for name, value in changed.items() if value is not None}))
    again = run(scenario, "--json", "--policy", "ideal", "--results", kept.parent)
    assert "1 results in" in again.stderr
    assert "are by another version of planaria; they are simulated again" in again.stderr
    assert again.stdout == first.stdout
    assert json.loads(kept.read_bytes()) == written


def test_a_simulator_is_known_by_all_that_it_imports() -> None:
    """But for what reads its files and deals out the work."""
    code = (
        "import sys, planaria.runtime.launch.rehearsal.simulations; "
        "print(*{name.split('.')[1] for name in sys.modules if name.startswith('planaria.')})"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(told.split()) - set(SIMULATING) <= {"runtime"}


def test_a_sweep_shows_each_scenario(scenario: Path) -> None:
    result = run(scenario, "--sweep", "--policy", "ideal", "--set", "sweep.nodes=[4, 6]")
    assert result.exit_code == 0, result.stdout
    assert "nodes = 4" in result.stdout
    assert "nodes = 6" in result.stdout
    refused = run(scenario, "--sweep")
    assert refused.exit_code == 2
    assert "[sweep] lists nothing" in refused.output


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_picture_of_runs_is_written(scenario: Path, tmp_path: Path, ending: str) -> None:
    target = tmp_path / f"p.{ending}"
    result = run(scenario, "--plot", target)
    assert result.exit_code == 0, result.output
    assert target.stat().st_size > 5000
    assert run(scenario, "--plot", tmp_path / "p.doc").exit_code == 2


def test_a_sweeps_picture_has_every_scenario(scenario: Path, tmp_path: Path) -> None:
    target = tmp_path / "p.svg"
    values = ("--set", "sweep.nodes=[4, 6, 8]", "--set", "sweep.fault_tolerance=[1, 2]")
    result = run(scenario, "--sweep", "--policy", "ideal", "--policy", "on-demand", *values, "--plot", target)
    assert result.exit_code == 0, result.output
    drawn = target.read_text()
    assert all(f"<!-- {text} -->" in drawn for text in ("f = 1", "f = 2", "nodes", "on-demand", "samples a second"))


def test_a_picture_of_kept_results_of_a_sweep_simulates_nothing(scenario: Path, tmp_path: Path) -> None:
    sweep = (scenario, "--sweep", "--policy", "ideal", "--set", "sweep.nodes=[4, 6]", "--results", tmp_path / "kept")
    assert run(*sweep).exit_code == 0
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}
    assert run(*sweep, "--plot", tmp_path / "p.svg").exit_code == 0
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()} == before


def test_pictures_that_cannot_be_drawn_are_refused_before_the_work(scenario: Path, tmp_path: Path) -> None:
    wrong = {tmp_path / "a.gif": "its ending is none of", tmp_path / "no" / "a.png": "there is no folder"}
    for target, said in wrong.items():
        result = run(scenario, "--plot", target)
        assert said in str(result.exception) + result.output
        assert "simulated" not in result.output


@pytest.mark.parametrize("processes", ["1", "2"])
def test_combinations_without_a_plan_are_left_out_of_a_sweep(scenario: Path, processes: str) -> None:
    values = ("--set", "sweep.nodes=[4, 6]", "--set", "job.fault_tolerance=2")
    result = run(scenario, "--policy", "ideal", "--policy", "morph", "--sweep", *values, "--processes", processes)
    assert result.exit_code == 0, result.output
    (told,) = (line for line in result.output.splitlines() if "nodes=4, morph is left out" in line)
    assert "4 nodes cannot hold 3 replicas" in told
    assert "nodes = 6" in result.stdout
    values = ("--set", "sweep.nodes=[2, 4]", "--set", "job.fault_tolerance=2")
    none = run(scenario, "--policy", "morph", "--sweep", *values)
    assert none.exit_code == 2
    assert "no plan for any scenario of the sweep" in none.output + str(none.exception)


def test_a_swept_scenario_says_its_own_nodes(scenario: Path) -> None:
    result = run(scenario, "--policy", "ideal", "--sweep", "--set", "sweep.nodes=[8]")
    assert "bert-large, 8 nodes, constant failures: nodes = 8" in result.output


def test_mistakes_end_with_two(scenario: Path, tmp_path: Path) -> None:
    for arguments in (
        (tmp_path / "none.toml",),
        (scenario, "--policy", "x"),
        (scenario, "--set", "job.global_batch=7"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2, result.output
        assert result.output.startswith("planaria: error: ")


def test_timings_are_taken_from_a_run(scenario: Path, tmp_path: Path) -> None:
    events = [
        {"event": "node_lost", "detect_ms": 40.0},
        {"event": "node_lost", "detect_ms": 60.0},
        {"event": "node_lost", "detect_ms": None},
        {"event": "recovered", "recovery": {"decide_ms": 8.0}},
        {"event": "node_lost", "detect_ms": None},
        {"event": "node_lost", "detect_ms": None},
        {"event": "plan_taken", "generation": 7, "transfer_bytes": 0, "purpose": "finish step"},
        {"event": "plan_taken", "generation": 8, "transfer_bytes": 0},
        {"event": "recovered", "recovery": {"decide_ms": 100.0, "lost_nodes": [1, 2]}},
        {"event": "plan_taken", "generation": 1, "transfer_bytes": 0, "purpose": "start"},
        {"event": "plan_measured", "generation": 1, "measured_transition_s": 5.0},
        {"event": "plan_taken", "generation": 3, "transfer_bytes": 0},
        {"event": "plan_taken", "generation": 4, "transfer_bytes": 9},
        {"event": "plan_measured", "generation": 3, "measured_transition_s": 0.02},
        {"event": "plan_measured", "generation": 4, "measured_transition_s": 9.0},
    ]
    known = NodeLost(node=1, step=2, cause="process killed", live_nodes=3, detect_ms=None)
    assert msgspec.to_builtins(known)["event"] == events[0]["event"], "as a run's recorder writes it"
    found, told = calibrated(events, {"detection_s": 1.0, "decision_s": 1.0, "change_s": 1.0, "start_s": 5.0})
    assert found == {"detection_s": 0.05, "decision_s": 0.008, "unprepared_s": 0.05, "change_s": 0.02, "start_s": 5.0}
    assert told[0] == "timings.detection_s = 0.05, the median of 2"
    torn = '\n{"event": "node_lo'  # of a run that was killed
    (tmp_path / "events.jsonl").write_text("\n".join(json.dumps(event) for event in events) + torn)
    assert "timings.decision_s = 0.008" in run(scenario, "--calibrate", tmp_path).stderr
    with pytest.raises(UserError, match="tell of no loss"):
        calibrated([], {})


def test_it_needs_no_torch(scenario: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from planaria.ui.cli.main import cli\n"
        f"cli(['simulate', {str(scenario)!r}, '--policy', 'ideal', '--processes', '1'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert "ideal" in done.stdout


def test_an_interrupted_sweep_goes_on_from_what_it_kept(scenario: Path, tmp_path: Path) -> None:
    """One line says so; no process is left, and none prints a traceback."""
    scenario.write_text(TEXT + "[sweep]\nhourly = [0.5, 1.0, 2.0]\nnodes = [6, 8, 10]\n")
    kept = tmp_path / "kept"
    command = [
        sys.executable,
        "-m",
        "planaria.ui.cli.main",
        "simulate",
        str(scenario),
        "--sweep",
        "--results",
        str(kept),
    ]
    process = subprocess.Popen(
        [*command, "--processes", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not list(kept.glob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=180)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    num_kept = len(list(kept.glob("*.json")))
    told = re.search(rf"(\d+) of 18 results are in {kept}; the same command goes on from there", said)
    assert told, said
    assert 1 <= num_kept - int(told[1]) + 1 <= 2  # it may have been interrupted when one was just written
    deadline = time.monotonic() + 30
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.05)
    again = run(scenario, "--sweep", "--results", kept)
    assert again.exit_code == 0, again.output
    assert f"{num_kept} of 18 results were there already" in again.stderr


def test_repairs_of_a_trace_are_said_once_with_their_lines(scenario: Path) -> None:
    trace = "".join(f"0,add,n{node}\n" for node in range(6)) + "900000,remove,n1\n600000,remove,ghost\n1800000,add,n1\n"
    (scenario.parent / "t.csv").write_text(trace)
    result = run(scenario, "--set", "failures.trace=t.csv", "--set", "failures.hours=0")
    assert result.exit_code == 0, result.output
    said = [line for line in result.stderr.splitlines() if "t.csv, line" in line]
    assert len(said) == len(set(said)) == 2, result.stderr
    assert "ghost" in result.stderr
    assert result.output.count("failures.arrival_s: not used, as arrivals, notices and zones are those of t.csv") == 1


def test_a_narrow_screen_has_two_tables(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is cut off."""
    monkeypatch.setattr("planaria.ui.cli.simulation.view._WIDTH_WITHOUT_TERMINAL", 70)
    narrow = run(scenario).stdout
    assert max(map(len, narrow.splitlines())) <= 70
    assert "…" not in narrow
    monkeypatch.undo()
    assert sorted(set(run(scenario).stdout.split())) == sorted(set(narrow.split()))
