"""`planaria profile`: measured, preset, read and corrected profiles, and the mistakes that can be made with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from planaria.api import read_profile
from planaria.plan.costs.model_profile import ModelProfile, device_counts
from planaria.profile.calibrate import microbatch_s
from planaria.profile.presets.devices import DEVICES
from planaria.profile.presets.presets import MODELS, preset
from planaria.ui.cli.main import cli
from tests.plan.profiles import uniform_profile

JOB = """
[model]
type = "gpt2"
[train]
steps = 3
global_batch = 8
microbatch = 2
sequence_length = 16
[cluster]
nodes = 3
"""
PRESET = ("--preset", "gpt3-2.7b", "--device", "a40")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["profile", *arguments])


def test_a_preset_is_shown_and_written_as_python_makes_it() -> None:
    result = run(*PRESET, "--devices-per-node", "6", "--network-gbit", "25", "-o", "costs.json")
    assert result.exit_code == 0, result.output
    made = read_profile(Path("costs.json"))
    assert made == preset("gpt3-2.7b", "a40", device_counts=(1, 2, 4, 6), network_gbit_s=25)
    for part in ("gpt3-2.7b on NVIDIA A40: 34 layers", "block.0 ...", "1-32", "not measured", "profile: costs.json"):
        assert part in result.stdout
    smaller = run(*PRESET, "--microbatch", "3", "--sequence-length", "512")
    assert "microbatch of 3" in smaller.stdout
    assert "profile:" not in smaller.stdout


def test_a_file_is_corrected_by_one_number() -> None:
    run(*PRESET, "-o", "costs.json")
    before = Path("costs.json").read_bytes()
    result = run("--profile", "costs.json", "--calibrate", "0.5", "-o", "corrected.json")
    assert result.exit_code == 0, result.output
    assert "500 ms forward and backward" in result.stdout
    corrected = read_profile(Path("corrected.json"))
    assert microbatch_s(corrected) == pytest.approx(0.5)
    assert "one microbatch took 0.5 s" in corrected.provenance
    assert Path("costs.json").read_bytes() == before


def test_a_measured_profile_is_written_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement itself is replaced; tests/profile has it."""
    import planaria.runtime.launch.training.profiling

    asked: list[Any] = []

    def measure(job: Any, import_path: Path) -> ModelProfile:
        asked.append(job)
        return msgspec.structs.replace(uniform_profile(8, tied=False), microbatch_size=4)

    monkeypatch.setattr(planaria.runtime.launch.training.profiling, "profile_job", measure)
    Path("job.toml").write_text(JOB)
    result = run("job.toml", "--set", "train.microbatch=4", "-o", "costs.json")
    assert result.exit_code == 0, result.output
    assert read_profile(Path("costs.json")) == msgspec.structs.replace(
        uniform_profile(8, tied=False), microbatch_size=4
    )
    assert asked[0].train.microbatch == 4
    planned = CliRunner().invoke(cli, ["plan", "job.toml", "--set", "train.microbatch=4"])
    assert "--measure does it again" in planned.stdout
    assert len(asked) == 1


def test_the_list_names_everything_with_its_source() -> None:
    result = run("--list")
    assert result.exit_code == 0
    for name in (*MODELS, *DEVICES):
        assert name in result.stdout
    for part in ("Devlin et al.", "NVIDIA A100 datasheet", "312"):
        assert part in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Give one of JOB"),
        (["job.toml", *PRESET], "Give one of JOB"),
        (["--preset", "gpt3-2.7b"], "go together"),
        (["--device", "a40", "job.toml"], "go together"),
        (["--preset", "gpt3", "--device", "a40"], "Did you mean"),
        (["job.toml", "--microbatch", "2"], "go with --preset"),
        ([*PRESET, "--set", "train.steps=1"], "--set goes with JOB"),
        ([*PRESET, "--sequence-length", "4096"], "positions for 2048 tokens"),
        ([*PRESET, "--calibrate", "0"], "more than 0"),
        ([*PRESET, "--calibrate", "nan"], "more than 0"),
        ([*PRESET, "-o", "none/costs.json"], "none/costs.json cannot be written"),
        (["--profile", "none.json"], "none.json cannot be read"),
        (["--profile", "bad.json"], "layer 0 (block): forward_s is -1.0"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], said: str) -> None:
    Path("job.toml").write_text(JOB)
    run(*PRESET, "-o", "bad.json")
    text = Path("bad.json").read_text().replace('"name": "embedding"', '"name": "block"')
    first = text.index('"forward_s": ') + len('"forward_s": ')
    Path("bad.json").write_text(text[:first] + "-1.0" + text[text.index(",", first) :])
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("devices", "counts"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8)), (9, (1, 2, 4, 8, 9))]
)
def test_device_counts_are_powers_of_two_and_all_of_a_nodes(devices: int, counts: tuple[int, ...]) -> None:
    assert device_counts(devices) == counts


def test_without_a_measurement_no_torch_is_loaded() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from planaria.ui.cli.main import cli\n"
        "for arguments in (['--list'], ['--preset', 'vgg-19', '--device', 't4', '-o', 'x', '--calibrate', '1'],"
        " ['--profile', 'x', '--calibrate', '2']):\n"
        "    assert CliRunner().invoke(cli, ['profile', *arguments]).exit_code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=180)
