"""`planaria plan` from a given profile: tables, JSON and SVG, without measuring and without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

import planaria
from planaria.api import read_profile
from planaria.cli.main import cli
from planaria.plan.plan import Group
from planaria.plan.profile import DeviceKind, LinkCost, Links, ModelProfile
from tests.plan.profiles import layer_cost

DEMO = Path(__file__).parents[2] / "examples" / "demo.toml"
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


def test_tables_and_picture(profile: Path) -> None:
    result = run(profile)
    assert result.exit_code == 0, result.output
    for part in (
        "gpt2, 8 layers",
        "24 microbatches",
        "Templates",
        "Pipelines",
        "block.",
        "expected step time",
    ):
        assert part in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_only_templates(profile: Path) -> None:
    result = run(profile, "--templates")
    assert "Templates" in result.stdout
    assert "Pipelines" not in result.stdout


def test_json_has_every_workers_program(profile: Path) -> None:
    report = json.loads(run(profile, "--json").stdout)
    workers = {str(stage["worker"]) for pipeline in report["plan"]["pipelines"] for stage in pipeline["stages"]}
    assert set(report["programs"]) == workers
    for program in report["programs"].values():
        assert program[-1]["op"] == "apply"
    assert report["step_time_s"] > 0
    assert [template["num_nodes"] for template in report["templates"]] == [2, 3, 4, 5]


def test_svg(profile: Path, tmp_path: Path) -> None:
    assert run(profile, "--svg", str(tmp_path / "plan.svg")).exit_code == 0
    assert "<svg" in (tmp_path / "plan.svg").read_text()[:200]
    refused = run(profile, "--svg", str(tmp_path / "none" / "plan.svg"))
    assert refused.exit_code == 2
    assert "cannot be written" in refused.stderr


def test_too_few_nodes_is_one_line(profile: Path) -> None:
    refused = run(profile, "--set", "cluster.memory_gb=0.000001")
    assert refused.exit_code == 2
    assert len(refused.stderr.splitlines()) == 1


def test_from_python(profile: Path) -> None:
    report = planaria.plan(planaria.load_job(DEMO), read_profile(profile))
    assert sum(len(route.microbatches) for route in report.plan.routes) == 24
    assert report.step_time_s == pytest.approx(report.timeline.step_time_s)


def test_planning_needs_no_torch(profile: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None\nfrom planaria.cli.main import cli\n"
        f"cli(['plan', {str(DEMO)!r}, '--profile', {str(profile)!r}, '--json'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
