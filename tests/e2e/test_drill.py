"""Drills and comparisons: nodes of real processes leave and join as a script says; nothing is lost or left behind."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from planaria.api import read_profile
from planaria.job.errors import UserError
from planaria.job.parse import load_job
from planaria.job.registry import PolicyName
from planaria.job.sections.cluster import Device
from planaria.job.settings import Job
from planaria.protocol.messages.records import DeviceLost, NodeJoined, Restored, RunStatus
from planaria.runtime.launch.rehearsal.comparison import ComparisonFolder, run_policy
from planaria.runtime.launch.rehearsal.rehearsal import (
    Rehearsed,
    differences,
    fitted,
    rehearse,
    rehearsed_job,
    script_for,
)
from planaria.runtime.nodes.local_nodes import LauncherError, LocalNodes
from planaria.runtime.run_folder.recorder import read_events
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.simulate.traces.formats import read_trace
from planaria.simulate.traces.generators import ConstantRate, Population, generate
from planaria.simulate.traces.script_format import read_script, write_script
from planaria.simulate.traces.scripts import Clock, Script, ScriptName, announced, busiest
from planaria.simulate.traces.trace import HOUR_S, Change, DeviceChange, DeviceEvent, Trace, TraceEvent
from planaria.ui.cli.main import cli
from tests.e2e.commands import DEADLINE_S, Command, descendants, wait_until
from tests.e2e.jobs import profile
from tests.proof import rest_in_proof

SPOT = Path(__file__).parents[3] / "shared" / "traces" / "p3-trace.csv"

needs_spot = pytest.mark.skipif(not SPOT.exists(), reason=f"{SPOT} is not there")

COSTS = profile(layer_s=0.004)


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    """Eight layers of 12 ms on eight emulated nodes, f = 1, n0 = 2, under templates."""
    (tmp_path / "profile.json").write_bytes(msgspec.json.encode(COSTS))
    path = tmp_path / "job.toml"
    path.write_text(f"""
[train]
steps = 1
global_batch = 8
microbatch = 1
sequence_length = 16
learning_rate = 1e-2
[cluster]
nodes = 8
device = "emulated"
profile = {str(tmp_path / "profile.json")!r}
[resilience]
policy = "templates"
min_nodes_per_pipeline = 2
when_exhausted = "wait"
[run]
folder = {str(tmp_path / "runs")!r}
checkpoint_every = 10
""")
    return path


def and_a_second(trace: Trace) -> Trace:
    """Longer, so that what happens last is seen by the job."""
    return msgspec.structs.replace(trace, horizon_s=trace.horizon_s + 1.0)


def play(job_file: Path, script: Script, nodes: LocalNodes) -> tuple[Job, Rehearsed, list[str]]:
    """With it, what the script did."""
    given = load_job(job_file)
    job = rehearsed_job(given, Path(given.cluster.profile or ""), script)
    folder = RunFolder.create(given.run.folder, "run")
    said: list[str] = []
    ended = rehearse(job, folder, script, nodes, say=said.append)
    return job, ended, said


def assert_played(job: Job, ended: Rehearsed, script: Script, said: list[str]) -> None:
    """To the end, with every node that the script names, and every microbatch counted once. A node may be on its way
    still when the script is over, or be taken away on its way."""
    assert ended.is_played, ended.message
    assert ended.tally is not None
    removed = sum(event.change is Change.REMOVE for event in script.trace.events)
    added = sum(event.change is Change.ADD and event.at_s > 0 for event in script.trace.events)
    assert ended.tally.lost + ended.tally.released - ended.unplanned_losses == removed
    assert sum("is started" in line for line in said) == added
    assert min(1, added) <= ended.tally.joined <= added
    assert ended.tally.duplicated_samples == ended.tally.skipped_samples == ended.tally.dropped_samples == 0
    folder = RunFolder(Path(ended.folder))
    assert differences(job, folder, RunFolder.create(folder.path, "alone")) == []


@pytest.mark.proof
def test_a_device_that_is_lost_alone_is_started_again_when_the_script_says_so(
    job_file: Path, nodes: LocalNodes
) -> None:
    text = job_file.read_text().replace("nodes = 8", "nodes = 4\ndevices_per_node = 2\ndevices_per_stage = 2")
    job_file.write_text(text)
    first = [TraceEvent(at_s=0.0, change=Change.ADD, node=name) for name in "abcd"]
    devices = [
        DeviceEvent(at_s=at_s, change=change, node="b", device=1)
        for at_s, change in ((0.3, DeviceChange.LOST), (0.8, DeviceChange.JOINED))
    ]
    trace = Trace(name="devices", horizon_s=2.5, events=tuple(first), device_events=tuple(devices))
    job, ended, said = play(job_file, Script(trace=trace), nodes)
    assert_played(job, ended, Script(trace=trace), said)
    assert said == ["device 1 of node 1 (b) is killed", "device 1 of node 1 (b) is brought back"]
    told = [record for record, _ in read_events(RunFolder(Path(ended.folder)).events)]
    assert [(record.node, record.device) for record in told if isinstance(record, DeviceLost)] == [(1, 1)]


@pytest.mark.proof
@needs_spot
def test_half_an_hour_of_a_spot_trace_is_survived(job_file: Path, nodes: LocalNodes) -> None:
    """Bamboo's, on some of its instances, 360 times as fast; every loss is announced two minutes before."""
    found = read_trace(SPOT.read_text(), SPOT.name).trace
    script, told = fitted(Script(trace=busiest(found, HOUR_S / 2)), 8)
    assert "every 3.5th is taken" in told
    script = announced(script, 120.0)
    script = msgspec.structs.replace(script, trace=and_a_second(script.trace.compressed(360.0)))
    job, ended, said = play(job_file, script, nodes)
    assert_played(job, ended, script, said)


@pytest.mark.proof
def test_losses_of_a_trace_come_unannounced(job_file: Path, nodes: LocalNodes) -> None:
    population = Population(nodes=8, arrival_s=200.0)
    made = generate(ConstantRate(hourly=2.0, mean_bulk=1.5), population, HOUR_S, seed=4, name="made")
    script = Script(trace=and_a_second(made.compressed(1200.0)))
    assert sum(event.change is Change.REMOVE for event in script.trace.events) >= 6
    job, ended, said = play(job_file, script, nodes)
    assert_played(job, ended, script, said)
    assert ended.tally is not None
    assert ended.tally.recoveries
    assert ended.tally.window_s == pytest.approx(4.0)


@pytest.mark.proof
@pytest.mark.parametrize("is_told", [True, False])
def test_nodes_are_in_the_zones_of_the_trace(job_file: Path, nodes: LocalNodes, is_told: bool) -> None:
    """A zone goes at once. Told of zones, the job goes on from a replica elsewhere; else it begins again."""
    (job_file.parent / "profile.json").write_bytes(msgspec.json.encode(profile(layer_s=0.01)))  # time for all to go
    zones = ["ab"[node % 2] if is_told else "" for node in range(8)]
    events = [TraceEvent(at_s=0.0, change=Change.ADD, node=f"n{at}", zone=zone) for at, zone in enumerate(zones)]
    events += [TraceEvent(at_s=3.5, change=Change.REMOVE, node=f"n{node}") for node in range(0, 8, 2)]
    events += [TraceEvent(at_s=5.0, change=Change.ADD, node="late", zone="c" if is_told else "")]
    script = Script(trace=Trace(name="outage", horizon_s=8.0, events=tuple(events)), clock=Clock.STEPS)
    job, ended, said = play(job_file, script, nodes)
    assert_played(job, ended, script, said)
    told = [record for record, _ in read_events(RunFolder(Path(ended.folder)).events)]
    joined = {record.node: record.zone for record in told if isinstance(record, NodeJoined)}
    assert joined == dict(enumerate([*zones, "c" if is_told else ""]))
    assert any(isinstance(record, Restored) for record in told) is not is_told


def test_a_script_by_steps_strikes_in_the_middle_of_a_step(job_file: Path, nodes: LocalNodes) -> None:
    first = [TraceEvent(at_s=0.0, change=Change.ADD, node=f"n{node}") for node in range(8)]
    later = [TraceEvent(at_s=3.5, change=Change.REMOVE, node="n6"), TraceEvent(at_s=5.0, change=Change.ADD, node="n6")]
    trace = Trace(name="steps", horizon_s=9.0, events=(*first, *later))
    script = Script(trace=trace, clock=Clock.STEPS)
    job, ended, said = play(job_file, script, nodes)
    assert_played(job, ended, script, said)
    assert said == ["node 6 (n6) is killed", "node 8 (n6) is started"]
    assert ended.tally is not None
    assert ended.tally.steps == pytest.approx(9.0)
    assert ended.script_nodes is None


def test_a_job_that_ends_before_its_script_is_measured_over_all_of_it(job_file: Path, nodes: LocalNodes) -> None:
    job_file.write_text(job_file.read_text().replace("nodes = 8", "nodes = 4").replace('"wait"', '"exit"'))
    job = load_job(job_file)
    script = script_for(ScriptName.SINGLE, job, COSTS, 2.0)
    _, ended, _ = play(job_file, script, nodes)
    assert ended.status is RunStatus.EXHAUSTED
    assert not ended.is_played
    assert ended.tally is not None
    assert ended.tally.window_s == pytest.approx(2.0)
    assert ended.tally.samples_per_s * 2.0 == pytest.approx(8 * ended.tally.steps)
    assert ended.throughput is not None
    assert ended.throughput.value[-1] == 0.0


def test_a_policy_that_fails_is_a_row(job_file: Path, tmp_path: Path) -> None:
    job = load_job(job_file)
    script = script_for(ScriptName.SINGLE, job, COSTS, 2.0)
    folder = ComparisonFolder(tmp_path, "compared")
    folder.begin(msgspec.structs.replace(COSTS, microbatch_size=2), script)
    row = run_policy(job, PolicyName.REROUTE, folder, script, observers=(), say=lambda line: None)
    assert row.rehearsed is None
    assert "has the times of microbatches of 2" in row.reason
    assert row.samples_per_s == 0.0


# The commands


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_a_drill_leaves_figures_and_pictures(job_file: Path) -> None:
    arguments = ("drill", str(job_file), "--trace", "loss-and-rejoin", "--length", "3", "--name", "d", "--verify")
    code, said = invoke(*arguments)
    assert code == 0, said
    assert "is killed" in said
    assert "the same losses and weights, bit for bit" in said
    folder = RunFolder(job_file.parent / "runs" / "d")
    ended = msgspec.json.decode(folder.drill.read_bytes(), type=Rehearsed)
    assert ended.is_played
    assert read_script(folder.script.read_text(), "script").script.trace.horizon_s == ended.length == 3.0
    assert all(plot.stat().st_size > 1000 for plot in folder.drill_plots)
    assert "d exists already" in invoke(*arguments)[1]


def test_a_job_for_another_device_is_drilled_on_a_profile(job_file: Path) -> None:
    text = job_file.read_text().replace('device = "emulated"', 'device = "cuda"')
    lines = [line for line in text.splitlines() if not line.startswith("profile")]
    job_file.write_text("\n".join(["[model]", 'type = "gpt2"', *lines]))
    profiled = ("--profile", str(job_file.parent / "profile.json"))
    code, said = invoke("drill", str(job_file), "--trace", "single", "--length", "1", *profiled)
    assert code == 0, said
    used = msgspec.json.decode((job_file.parent / "runs" / "job-drill" / "job.json").read_bytes(), type=Job)
    assert used.cluster.device is Device.EMULATED
    assert used.cluster.nodes == 8


@pytest.mark.parametrize(
    "error",
    [
        LauncherError("measuring the profile: process ended with status 1"),
        UserError('cluster.device = "cuda", but torch sees no CUDA device here. Set cluster.device = "cpu".'),
    ],
    ids=["crashed", "refused"],
)
def test_a_device_that_is_not_here_needs_a_profile(
    error: Exception, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("planaria.runtime.launch.training.profiling.profile_job", fails)
    monkeypatch.setenv("XDG_CACHE_HOME", str(job_file.parent / "cache"))
    changes = ("--set", "cluster.device=cuda", "--set", "model.type=gpt2")
    text = job_file.read_text()
    job_file.write_text("\n".join(line for line in text.splitlines() if not line.startswith("profile")))
    code, said = invoke("drill", str(job_file), "--trace", "single", *changes)
    assert code == 2
    assert "cluster.device = 'cuda' could not be measured here" in said
    assert "--profile FILE" in said


def test_a_drill_that_runs_out_of_nodes_says_so(job_file: Path) -> None:
    few = ("--set", "cluster.nodes=4", "--set", "resilience.when_exhausted=exit")
    code, said = invoke("drill", str(job_file), "--trace", "single", "--length", "2", *few)
    assert code == 3, said
    assert "exhausted: 3 nodes are left" in said


@pytest.mark.proof
def test_a_comparison_is_a_table_and_a_picture(job_file: Path) -> None:
    policies = ("--policies", "reroute,templates")
    code, said = invoke("compare", str(job_file), "--script", "single", "--length", "2", *policies)
    assert code == 0, said
    folder = job_file.parent / "runs" / "job-compare"
    compared: dict[str, Any] = json.loads((folder / "compare.json").read_text())
    assert [row["policy"] for row in compared["rows"]] == ["reroute", "templates"]
    windows = [row["rehearsed"]["tally"]["window_s"] for row in compared["rows"]]
    assert windows == pytest.approx([2.0, 2.0])
    assert all(row["rehearsed"]["tally"]["recoveries"] for row in compared["rows"])
    rows = [line.split() for line in said.splitlines() if line.startswith(("reroute ", "templates "))]
    assert [row[0] for row in rows if "%" in row[2]] == ["reroute", "templates"]
    for name in ("compare.png", "compare.svg"):
        assert (folder / name).stat().st_size > 1000
    assert read_profile(folder / "profile.json") == COSTS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", "no-such-file"], "no-such-file cannot be read: No such file or directory.*burst-in-stage"),
        (["--trace", "single", "--speed", "2"], "--speed does not go with single, which is built in"),
        (["--trace", "few.csv"], r"few.csv begins with 1 node, and cluster.nodes is 8.*--set cluster.nodes=1"),
        (["--trace", "few.csv", "--length", "2"], "--length does not go with .*few.csv"),
        (["--trace", "few.csv", "--from", "9"], r"--from 9: few.csv is 0\.\d+ hours long"),
        (["--trace", "few.csv", "--busiest", "1", "--hours", "1"], "--busiest finds a part of its own"),
        (["--trace", "bad.csv"], r"bad.csv, line 2: 'take' is neither add nor remove"),
        (["--trace", "few.csv", "--speed", "inf"], "Invalid value for '--speed': inf is not a finite number"),
        (["--trace", "few.csv", "--speed", "nan"], "Invalid value for '--speed': nan is not a finite number"),
        (["--trace", "few.csv", "--notice", "nan"], "Invalid value for '--notice': nan is not a finite number"),
        (["--trace", "few.csv", "--busiest", "inf"], "Invalid value for '--busiest': inf is not a finite number"),
        (["--trace", "few.csv", "--speed", "1e6"], r"few.csv would be over in [0-9.]+ ms; 500 ms is the least. Lower"),
        (["--trace", "few.csv", "--hours", "1e-9"], "few.csv would be over in 0.0036 ms; 500 ms is the least"),
        (["--trace", "single", "--length", "0.001"], "single would be over in 1 ms; .*Give a greater --length"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.csv").write_text("0,add,a\n60000,add,b\n")
    (tmp_path / "bad.csv").write_text("0,add,a\n60000,take,b\n")
    code, said = invoke("drill", str(job_file), *arguments)
    assert code == 2
    assert re.search(message, said), said
    assert not (tmp_path / "runs").exists()


def test_unknown_policies_are_refused(job_file: Path) -> None:
    code, said = invoke("compare", str(job_file), "--script", "single", "--policies", "templates,best")
    assert code == 2
    assert "there is no policy 'best'" in said


@pytest.mark.parametrize(
    ("arguments", "run"),
    rest_in_proof(
        [
            pytest.param(("compare", "--script"), "runs/job-compare/templates"),
            pytest.param(("drill", "--trace"), "runs/job-drill"),
        ]
    ),
)
def test_interrupt_leaves_no_process(arguments: tuple[str, str], run: str, job_file: Path, command: Command) -> None:
    name, option = arguments
    process = command.start(name, job_file.name, option, "single", "--length", "600")
    metrics = command.folder / run / "metrics.jsonl"
    assert wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 5)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, said
    assert "interrupted by Ctrl-C" in said
    assert not descendants(command.folder)


@pytest.mark.proof
def test_a_faster_trace_is_one_of_which_more_losses_are_expected(job_file: Path) -> None:
    script = script_for(ScriptName.SINGLE, load_job(job_file), COSTS, 20.0)
    path = job_file.parent / "single.jsonl"
    path.write_text(write_script(announced(script, 8.0)))
    code, said = invoke("drill", str(job_file), "--trace", str(path), "--speed", "20", "--hours", str(16 / 3600))
    assert code == 0, said
    assert "is given notice" in said
    folder = RunFolder(job_file.parent / "runs" / "job-drill")
    assert read_script(folder.script.read_text(), "script").script.trace.horizon_s == pytest.approx(0.8)
    used = msgspec.json.decode(folder.job.read_bytes(), type=Job)
    assert used.resilience.mean_time_between_failures_s == pytest.approx(10_800 / 20)
