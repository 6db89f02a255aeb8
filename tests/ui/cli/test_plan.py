"""`planaria plan` from a given profile: tables, JSON and SVG, without measuring and without torch."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

import planaria
from planaria.api import read_profile
from planaria.plan.costs.model_profile import DeviceKind, LinkCost, Links, ModelProfile
from planaria.plan.plan import Group, ScheduleKind
from planaria.profile.presets.presets import preset
from planaria.runtime.machine import limits as machine_limits
from planaria.ui.cli.main import cli
from tests.plan.profiles import layer_cost

DEMO = Path(__file__).parents[3] / "examples" / "demo.toml"
COSTS_MS = {"embeddings": 0.5, **{f"block.{n}": 3.0 for n in range(6)}, "head": 2.0}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A profile of the demo's eight layers."""
    layers = tuple(
        layer_cost(
            name=name,
            forward_s=cost_ms / 1e3,
            backward_s=2 * cost_ms / 1e3,
            parameter_bytes=800_000,
            activation_bytes=100_000,
            output_bytes=32_768,
        )
        for name, cost_ms in COSTS_MS.items()
    )
    link = LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=1e9)
    made = ModelProfile(
        microbatch_size=planaria.load_job(DEMO).train.microbatch,
        layers=layers,
        groups=tuple(Group(layers=(layer,), size_bytes=800_000) for layer in range(len(layers))),
        links=Links(within_node=link, between_nodes=link),
        device=DeviceKind(name="cpu"),
    )
    path = tmp_path / "profile.json"
    path.write_bytes(msgspec.json.encode(made))
    return path


def run(profile: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["plan", str(DEMO), "--profile", str(profile), *arguments])


def test_a_plan_is_shown_as_tables_and_a_picture(profile: Path) -> None:
    result = run(profile)
    assert result.exit_code == 0, result.output
    for part in (
        "gpt2, 8 layers",
        "24 microbatches",
        "Templates",
        "Pipelines",
        "Stages",
        "block.",
        "expected",
    ):
        assert part in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100


@pytest.mark.parametrize(("cores", "told"), [(2.0, "share 2 cores. With a core each a step"), (64.0, "step time")])
def test_workers_that_share_cores_are_said(
    cores: float, told: str, profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_limits, "num_cores", lambda: cores)
    assert told in run(profile).stdout


def test_what_evaluations_take_is_said(profile: Path) -> None:
    asked = ("--set", "eval.every=20", "--set", "eval.share=0.02", "--set", "eval.microbatches=4")
    result = run(profile, *asked)
    text = " ".join(result.stdout.split())
    assert "An evaluation of 4 microbatches takes " in text
    assert "3 evaluations and 60 steps take " in text
    told = json.loads(run(profile, *asked, "--json").stdout)["evaluations"]
    assert 0 < told["seconds"] < told["step_time_s"]
    assert told["share"] == pytest.approx(3 * told["seconds"] / told["run_s"])
    assert json.loads(run(profile, "--json").stdout)["evaluations"] is None


def test_what_audits_take_and_leave_out_is_said(profile: Path) -> None:
    asked = ("--set", "resilience.audit=0.05")
    text = " ".join(run(profile, *asked).stdout.split())
    assert "Audits of 0.05 of all forwards and backwards take " in text
    assert "not audited" not in text
    fields = ("cluster.nodes=1", "resilience.fault_tolerance=0", "resilience.min_nodes_per_pipeline=1")
    alone = [word for field in fields for word in ("--set", field)]
    text = " ".join(run(profile, *asked, *alone).stdout.split())
    assert "Layers 0-7 are not audited: no other node could run them again." in text
    told = json.loads(run(profile, *asked, "--json").stdout)
    assert told["audits"]["unaudited"] == []
    assert 0 < told["audits"]["seconds"] < told["step_time_s"]


def test_templates_alone_are_shown_where_asked_for(profile: Path) -> None:
    result = run(profile, "--templates")
    assert "Templates" in result.stdout
    assert "Pipelines" not in result.stdout


def test_json_is_for_people_too_and_has_every_workers_program_where_asked_for(profile: Path) -> None:
    without = run(profile, "--json").stdout
    assert "programs" not in json.loads(without)
    assert len(without.splitlines()) > 100
    refused = run(profile, "--programs")
    assert refused.exit_code == 2
    assert "--programs goes with --json" in refused.stderr
    report = json.loads(run(profile, "--json", "--programs").stdout)
    workers = {str(stage["worker"]) for pipeline in report["plan"]["pipelines"] for stage in pipeline["stages"]}
    assert set(report["programs"]) == workers
    for program in report["programs"].values():
        assert program[-1]["op"] == "apply"
    assert report["step_time_s"] > 0
    assert [template["num_nodes"] for template in report["templates"]] == [2, 3, 4, 5]


def test_the_picture_is_written_as_svg(profile: Path, tmp_path: Path) -> None:
    assert run(profile, "--svg", str(tmp_path / "plan.svg")).exit_code == 0
    assert "<svg" in (tmp_path / "plan.svg").read_text()[:200]
    refused = run(profile, "--svg", str(tmp_path / "none" / "plan.svg"))
    assert refused.exit_code == 2
    assert "cannot be written" in refused.stderr


def test_too_few_nodes_is_one_line(profile: Path) -> None:
    refused = run(profile, "--set", "cluster.memory_gb=0.000001")
    assert refused.exit_code == 2
    assert len(refused.stderr.splitlines()) == 1


def test_a_plan_is_made_from_python(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_limits, "num_cores", lambda: 8.0)
    report = planaria.plan(planaria.load_job(DEMO), read_profile(profile))
    assert sum(len(route.microbatches) for route in report.plan.routes) == 24
    assert report.step_time_s == pytest.approx(report.timeline.step_time_s)


def test_planning_needs_no_torch(profile: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None\nfrom planaria.ui.cli.main import cli\n"
        f"cli(['plan', {str(DEMO)!r}, '--profile', {str(profile)!r}, '--json'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def from_profile(profile: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["plan", "--profile", str(profile), *arguments])


def test_without_a_job_a_profile_and_options_are_enough(profile: Path) -> None:
    options = ("--nodes", "5", "--fault-tolerance", "1", "--global-batch", "48", "--min-nodes", "2")
    report = json.loads(from_profile(profile, *options, "--json").stdout)
    assert [template["num_nodes"] for template in report["templates"]] == [2, 3]
    for template in report["templates"]:
        assert template["lower_bound_s"] <= template["step_time_s"] * (1 + 1e-9)
        assert template["gap"] >= 0
        assert [stage["end_layer"] for stage in template["stages"]][-1] == len(COSTS_MS)
    assert sum(pipeline["microbatches"] for pipeline in report["instantiation"]) == 24
    assert sorted(node for pipeline in report["instantiation"] for node in pipeline["nodes"]) == list(range(5))
    assert all(use["total"] >= use["parameters"] > 0 for use in report["memory"].values())
    assert report["planning_ms"] > 0
    assert 0 < report["lower_bound_s"] <= report["step_time_s"]
    shown = from_profile(profile, *options)
    assert shown.exit_code == 0
    assert "off by at most" in shown.stdout
    assert "5 nodes, fault_tolerance = 1" in shown.stdout


@pytest.mark.parametrize("schedule", list(ScheduleKind))
@pytest.mark.parametrize("objective", ["steptime", "oobleck"])
def test_every_schedule_and_objective_can_be_asked_for(schedule: ScheduleKind, objective: str, profile: Path) -> None:
    result = from_profile(
        profile, "--nodes", "4", "--global-batch", "16", "--min-nodes", "2", "--schedule", schedule.value,
        "--objective", objective, "--powers-of-two", "--no-overlap", "--thorough", "--recompute", "--shadows",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Give a JOB, or --profile"),
        (("--nodes", "4"), "--global-batch"),
        (("--nodes", "4", "--global-batch", "7"), "no whole number of microbatches of 2"),
        (("--nodes", "4", "--global-batch", "1"), "Set --global-batch = 4,"),
        (("--nodes", "4", "--global-batch", "8", "--microbatch", "4"), "times of microbatches of 2"),
        (("--nodes", "1", "--global-batch", "8"), "cannot hold 2 replicas"),
        (("--nodes", "4", "--global-batch", "2"), "microbatches"),
    ],
)
def test_what_is_missing_or_contradicts_is_said_in_one_line(
    arguments: tuple[str, ...], message: str, profile: Path
) -> None:
    refused = from_profile(profile, *arguments)
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("--nodes", "3"), "cluster.nodes"),
        (("--devices-per-node", "1"), "cluster.devices_per_node"),
        (("--min-nodes", "2"), "resilience.min_nodes_per_pipeline"),
        (("--objective", "oobleck"), "cluster.objective"),
        (("--schedule", "1f1b"), "cluster.schedule"),
        (("--recompute",), "train.activation_checkpointing"),
    ],
)
def test_what_a_job_file_has_fields_for_is_not_an_option_beside_it(
    arguments: tuple[str, ...], field: str, profile: Path
) -> None:
    refused = run(profile, *arguments)
    assert refused.exit_code == 2
    assert f"--set {field}=" in refused.stderr


def test_losses_are_answered_under_each_policy(profile: Path) -> None:
    """Peers carry what was lost, or new pipelines are made; and each loss has its sentence."""
    options = ("--nodes", "6", "--global-batch", "12", "--min-nodes", "2", "--lose", "1", "--lose", "3")
    rerouted = from_profile(profile, *options, "--policy", "reroute")
    assert rerouted.exit_code == 0, rerouted.output
    text = " ".join(rerouted.output.split())
    assert "Node 1 is gone." in text
    assert "No state moves." in text
    assert "Degraded" in text
    shown = json.loads(from_profile(profile, *options, "--policy", "reroute", "--json").output)
    assert [loss["how"] for loss in shown["after_losses"]] == ["reroute", "reroute"]
    assert len(shown["memory"]) == 4
    assert shown["step_time_s"] == shown["after_losses"][-1]["step_time_s"]
    templates = json.loads(from_profile(profile, *options, "--policy", "templates", "--json").output)
    assert all(loss["transfer_bytes"] for loss in templates["after_losses"])
    assert not any(loss["candidates"] for loss in templates["after_losses"])
    weighed = json.loads(from_profile(profile, *options, "--json").output)
    assert all(loss["candidates"] for loss in weighed["after_losses"]), "adaptive, unless told otherwise"


def test_a_loss_under_morph_goes_back_to_the_checkpoint(profile: Path) -> None:
    options = ("--nodes", "8", "--global-batch", "12", "--min-nodes", "2", "--lose", "5", "--policy", "morph")
    (after,) = json.loads(from_profile(profile, *options, "--json").output)["after_losses"]
    assert after["how"] == "morph"
    assert "Back to the last checkpoint on a grid of" in after["reason"]
    assert after["candidates"][0]["name"] == "grid 3 x 2"


@pytest.mark.parametrize(
    ("lose", "message"),
    [
        (("x",), "give numbers of nodes"),
        (("9",), "Node 9 cannot be lost: the plan has nodes 0, 1, 2, 3, 4, 5."),
        (("1", "1"), "it is lost already"),
        (("1:2",), "Device 1:2 cannot be lost: the plan has nodes 0, 1, 2, 3, 4, 5, each with devices 0 to 0."),
    ],
)
def test_losses_that_make_no_sense_are_refused(lose: tuple[str, ...], message: str, profile: Path) -> None:
    options = [option for node in lose for option in ("--lose", node)]
    result = from_profile(profile, "--nodes", "6", "--global-batch", "12", "--min-nodes", "2", *options)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_the_loss_of_a_device_alone_is_answered(profile: Path) -> None:
    """Its node goes on with the others; with all of them lost it is the node that is."""
    devices = ("cluster.devices_per_node=2", "cluster.devices_per_stage=2", "resilience.policy=templates")
    wide = (*(part for change in devices for part in ("--set", change)), "--json")
    one = json.loads(run(profile, *wide, "--lose", "1:1").stdout)
    workers = {stage["worker"] for pipeline in one["plan"]["pipelines"] for stage in pipeline["stages"]}
    assert 2 in workers
    assert 3 not in workers
    assert "No state has to move. It does without device 1 of node 1." in one["after_losses"][0]["reason"]
    node = json.loads(run(profile, *wide, "--lose", "1").stdout)
    both = json.loads(run(profile, *wide, "--lose", "1:0,1:1").stdout)
    assert both["plan"] == node["plan"]


def test_what_the_adaptive_policy_weighs_is_shown(profile: Path) -> None:
    arguments = ("--set", "resilience.policy=adaptive", "--lose", "1")
    shown = run(profile, *arguments)
    assert shown.exit_code == 0, shown.output
    assert "candidate " in shown.stdout
    assert "samples/s" in shown.stdout
    (after,) = json.loads(run(profile, *arguments, "--json").stdout)["after_losses"]
    rates = [candidate["samples_per_s"] for candidate in after["candidates"]]
    assert len(rates) > 1
    assert rates == sorted(rates, reverse=True)
    assert after["step_time_s"] == after["candidates"][0]["step_time_s"]


def test_how_many_devices_a_stage_is_on_is_told(profile: Path) -> None:
    """Eight layers on two nodes of eight devices or more a pipeline: too few for single ones."""
    wide = ("--set", "cluster.devices_per_node=8")
    auto = (*wide, "--set", "cluster.devices_per_stage=auto")
    shown = " ".join(run(profile, *auto).stdout.split())
    chosen = json.loads(run(profile, *auto, "--json").stdout)
    devices = chosen["plan"]["devices_per_stage"]
    assert devices > 1
    assert f"stages on {devices}, which take microbatches in turn (chosen from 1, 2, 4 and 8)" in shown
    assert f"With stages on {devices} devices each" in shown
    fixed = run(profile, *wide, "--set", f"cluster.devices_per_stage={devices}", "--json")
    assert json.loads(fixed.stdout)["plan_hash"] == chosen["plan_hash"]
    after = run(profile, *auto, "--set", "resilience.policy=adaptive", "--lose", "1")
    assert after.exit_code == 0, after.output
    assert all(f"stages on {count} device" in after.stdout for count in (2, 4, 8))


def test_a_job_that_training_would_refuse_here_is_planned_with_a_warning(profile: Path) -> None:
    shown = run(profile, "--set", "cluster.most_workers=4")
    assert shown.exit_code == 0
    assert "planaria train refuses the job on this machine: cluster.nodes" in shown.stderr
    assert run(profile).stderr == ""


def test_times_of_several_devices_are_for_those_that_share_microbatches(profile: Path, tmp_path: Path) -> None:
    """As in training, no stage of a real job shares a microbatch."""
    made = read_profile(profile)
    layers = [
        msgspec.structs.replace(
            layer, times=(*layer.times, msgspec.structs.replace(layer.times[0].scaled(0.1), num_devices=2))
        )
        for layer in made.layers
    ]
    wide = tmp_path / "wide.json"
    wide.write_bytes(msgspec.json.encode(msgspec.structs.replace(made, layers=tuple(layers))))
    devices = ("--set", "cluster.devices_per_node=2")
    shown = run(wide, *devices)
    assert "its times on several devices are for those that share microbatches" in " ".join(shown.stdout.split())
    plans = [json.loads(run(path, *devices, "--json").stdout)["plan_hash"] for path in (wide, profile)]
    assert plans[0] == plans[1]


def test_it_is_said_that_training_runs_no_stages_of_several_devices(tmp_path: Path) -> None:
    said = "Training cannot run this plan"
    for counts, is_said in (((1,), False), ((1, 2), True)):
        path = tmp_path / f"{len(counts)}.json"
        path.write_bytes(msgspec.json.encode(preset("gpt2-345m", "a100", device_counts=counts)))
        shown = from_profile(
            path, "--nodes", "4", "--devices-per-node", "2", "--global-batch", "64", "--min-nodes", "2"
        )
        assert (said in shown.stdout) == is_said, shown.output


def test_more_nodes_than_anybody_has_are_refused_at_once(
    profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for many in ("100000", str(10**15)):
        said = f"cluster.nodes = {many} with cluster.devices_per_node = 1 is more than the 16384 devices"
        for arguments in (("plan", str(DEMO), "--profile", str(profile)), ("plan", str(DEMO))):
            refused = CliRunner().invoke(cli, [*arguments, "--set", f"cluster.nodes={many}"])
            assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
            assert said in refused.stderr
        train = ("train", str(DEMO), "--set", f"cluster.nodes={many}")
        assert "cluster.most_workers" in CliRunner().invoke(cli, train).stderr
        refused = CliRunner().invoke(cli, [*train, "--set", "cluster.launcher=agents"])
        assert (refused.exit_code, said in refused.stderr) == (2, True)
        assert not list(tmp_path.glob("runs/*"))
        refused = from_profile(profile, "--nodes", many, "--global-batch", "64")
        assert (refused.exit_code, "more than the 16384 devices" in refused.stderr) == (2, True)


def test_a_terminal_is_told_what_takes_long(profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def busy(what: str) -> contextlib.AbstractContextManager[object]:
        told.append(what)
        return contextlib.nullcontext()

    monkeypatch.setattr("planaria.ui.cli.planning.costs_source.busy", busy)
    assert run(profile).exit_code == 0
    assert from_profile(profile, "--nodes", "4", "--global-batch", "64", "--min-nodes", "2").exit_code == 0
    assert told == ["planning ..."] * 2


GPU_CLUSTER = Path(__file__).parents[3] / "examples" / "gpu-cluster.toml"


def test_a_gpu_cluster_is_planned_on_a_machine_without_gpus_or_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planaria.profile.of_job._DRIVERS", ())
    shown = CliRunner().invoke(cli, ["plan", str(GPU_CLUSTER)])
    assert shown.exit_code == 0, shown.output
    for part in ("16 nodes of 8 devices", "computed for NVIDIA A100 SXM 80 GB, not measured", "--device"):
        assert part in " ".join(shown.stdout.split())
    assert "Training cannot run this plan" not in shown.stdout


def test_costs_are_computed_for_the_device_that_is_asked_for() -> None:
    times, sizes = [], []
    for device in ("a100", "h100"):
        report = json.loads(CliRunner().invoke(cli, ["plan", str(GPU_CLUSTER), "--device", device, "--json"]).stdout)
        times.append(report["step_time_s"])
        sizes.append(sum(group["size_bytes"] for group in report["profile"]["groups"]))
    assert times[1] < times[0]
    assert sizes[0] == sizes[1] == pytest.approx(4 * 1.1e9, rel=0.02)  # bytes of 1.1 billion parameters
    for arguments in (("--measure",), ("--profile", str(GPU_CLUSTER))):
        refused = CliRunner().invoke(cli, ["plan", str(GPU_CLUSTER), "--device", "a100", *arguments])
        assert (refused.exit_code, "--device" in refused.stderr) == (2, True)
    unknown = CliRunner().invoke(cli, ["plan", str(GPU_CLUSTER), "--device", "a10"])
    assert (unknown.exit_code, "Did you mean 'a100'?" in unknown.stderr) == (2, True)


def test_what_is_not_trained_is_planned_without_a_measurement() -> None:
    def planned(*arguments: str) -> dict[str, Any]:
        result = CliRunner().invoke(cli, ["plan", str(GPU_CLUSTER), "--device", "a100", "--json", *arguments])
        assert result.exit_code == 0, result.stderr
        report: dict[str, Any] = json.loads(result.stdout)
        return report

    whole = planned()
    part = planned("--set", 'train.parameters=[{match="*.layers.1.*", trainable=false}]')
    frozen, same = part["profile"]["layers"][2], whole["profile"]["layers"][2]
    assert frozen["frozen_bytes"] == pytest.approx(same["parameter_bytes"], rel=0.02)
    assert frozen["parameter_bytes"] == frozen["optimizer_bytes"] == 0
    assert frozen["times"][0]["backward_weight_s"] == 0
    assert part["profile"]["layers"][3] == whole["profile"]["layers"][3]
    assert part["step_time_s"] < whole["step_time_s"]
