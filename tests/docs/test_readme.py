"""What the pages say: commands and examples run as written, links lead somewhere, named tests exist."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import planaria
from planaria.api import read_profile
from planaria.job.faults import check_faults, parse_fault
from planaria.job.parse import load_job, parse_job
from planaria.ui.cli.main import cli
from tests.e2e.incubator import Incubator

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
GUIDES = [README, *sorted(set((ROOT / "docs" / "howto").glob("*.md")) - {ROOT / "docs" / "howto" / "extending.md"})]
"""Pages whose commands are run from the repository's root."""

QUICKER = {"16": "10", "512": "64"}
"""What a page's nodes and samples are when its plans are made here."""

PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")],
)
LINK = re.compile(r"(?:\]\(|^\[[^]]+\]: )([^)\s]+)", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def path(page: Path) -> str:
    """Returns a page's path in the repository."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """Returns a page's code blocks in a language."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def commands(*pages: Path) -> list[list[str]]:
    """Returns the pages' `planaria` commands, each once, without their comments."""
    lines = [line for page in pages for block in blocks(page, "bash") for line in block.splitlines()]
    shown = [shlex.split(line, comments=True) for line in lines if line.startswith("planaria ")]
    return [command for at, command in enumerate(shown) if command not in shown[:at]]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=path)
def test_no_line_is_longer_than_120_characters(page: Path) -> None:
    lines = enumerate(page.read_text().splitlines(), start=1)
    assert [f"{number}: {line}" for number, line in lines if len(line) > 120] == []


@pytest.mark.parametrize("page", PAGES, ids=path)
def test_links_lead_to_files(page: Path) -> None:
    links = [link.partition("#")[0] for link in LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in links if link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=path)
def test_links_lead_to_headings(page: Path) -> None:
    """Those with a fragment: a heading's words in lower case, without punctuation, with dashes between them."""
    for link in LINK.findall(page.read_text()):
        path, _, fragment = link.partition("#")
        if fragment and "://" not in link:
            target = page.parent / path if path else page
            titles = re.findall(r"^#+ (.*)", target.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
            assert fragment in anchors, link


@pytest.mark.parametrize("page", PAGES, ids=path)
def test_tests_that_are_named_exist(page: Path) -> None:
    for file, name in TEST.findall(page.read_text()):
        assert (ROOT / file).is_file(), file
        functions = [node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if hasattr(node, "name")]
        assert not name or name in functions, f"{file} has no {name}"


def test_the_job_file_is_the_demos() -> None:
    (text,) = blocks(README, "toml")
    shown = parse_job(text, overrides=["run.name=demo"], origin="README.md")
    assert shown == load_job(ROOT / "examples" / "demo.toml")


def test_make_targets_that_are_named_exist() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page in PAGES:
        for target in re.findall(r"^make (\w+)", page.read_text(), re.MULTILINE):
            assert target in targets, f"{page.name}: make {target}"


def test_every_command_is_shown_and_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its arguments and options, its job file and its faults; training itself is tested in tests/e2e."""
    monkeypatch.chdir(ROOT)
    shown = commands(*GUIDES)
    assert {command[1] for command in shown} == {name for name, command in cli.commands.items() if not command.hidden}
    for _, name, *arguments in shown:
        given = cli.commands[name].make_context(name, list(arguments)).params
        if given.get("job") is not None:
            job = load_job(given["job"])
            check_faults([parse_fault(fault) for fault in given.get("faults", ())], job)


def test_commands_without_a_job_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, in an empty folder: profiles of presets, what is made of them, and plans from them."""
    monkeypatch.chdir(tmp_path)
    shown = [command[1:] for command in commands(*GUIDES) if command[1] in ("profile", "plan", "trace")]
    ran = [arguments for arguments in shown if arguments[0] == "trace" or arguments[1].startswith("--")]
    # Whoever goes on where another ends does what that one does.
    ran = [one for one in ran if not any(other[: len(one)] == one != other for other in ran)]
    assert {arguments[0] for arguments in ran} == {"profile", "plan", "trace"}
    for arguments in ran:
        result = CliRunner().invoke(cli, [QUICKER.get(argument, argument) for argument in arguments])
        assert result.exit_code == 0, f"{arguments}: {result.output}"


def test_the_emulated_example_fits_the_profile_that_is_made_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = load_job(ROOT / "examples" / "emulated.toml")
    (made,) = [command for command in commands(*GUIDES) if command[-1] == job.cluster.profile]
    assert CliRunner().invoke(cli, made[1:]).exit_code == 0
    report = planaria.plan(job, read_profile(tmp_path / made[-1]))
    assert len(report.plan.nodes) == job.cluster.nodes
    needed = (job.resilience.fault_tolerance + 1) * report.templates[0].num_nodes
    assert job.cluster.nodes > needed, "a node can be lost without waiting"


def test_the_python_example_is_the_file_in_examples() -> None:
    (shown,) = blocks(ROOT / "docs" / "reference" / "python-api.md", "python")
    example = (ROOT / "examples" / "train_from_python.py").read_text()
    assert example.endswith(shown), "docs/reference/python-api.md and examples/train_from_python.py differ"


@pytest.mark.timeout(120)
def test_the_python_example_runs(tmp_path: Path, incubator: Incubator) -> None:
    """As written, beside a demo job of a smaller model."""
    shutil.copy(ROOT / "examples" / "train_from_python.py", tmp_path)
    text = "".join(f"{n} bottles of beer on the wall, {n * n} of milk in the hall.\n" for n in range(200))
    (tmp_path / "text.txt").write_text(text)
    demo = (ROOT / "examples" / "demo.toml").read_text()
    for old, new in (
        ("n_embd = 128", "n_embd = 16"),
        ('"python-stdlib"', '"text.txt"'),
        ("nodes = 7", "nodes = 5"),
        ("global_batch = 48", "global_batch = 16"),
        ("sequence_length = 64", "sequence_length = 16"),
    ):
        assert old in demo
        demo = demo.replace(old, new, 1)
    (tmp_path / "demo.toml").write_text(demo)
    done = incubator.start(tmp_path, script=tmp_path / "train_from_python.py")
    said, error = done.communicate()
    assert done.returncode == 0, error
    assert "step 5: " in said
    assert said.rstrip().endswith("same bits: True")
    assert (tmp_path / "runs" / "from-python" / "summary.json").exists()


@pytest.mark.parametrize(
    "script", ["cli_reference.py", "job_file_reference.py", "state_diagram.py", "thresholds_reference.py"]
)
def test_generated_pages_are_up_to_date(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    monkeypatch.setattr(sys, "argv", [script, "--check"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "scripts" / script), run_name="__main__")
    assert ended.value.code == 0, capsys.readouterr().err


@pytest.mark.parametrize("job", sorted((ROOT / "examples").glob("*.toml")), ids=lambda job: job.name)
def test_every_example_is_a_valid_job(job: Path) -> None:
    assert planaria.load_job(job).run.name == job.stem


def test_ci_calls_all_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = [line.strip() for line in script.read_text().splitlines() if line.strip().startswith("make ")]
    assert lines == ["make test", "make test-page", "make proof", "make test-engines"]


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 150


@pytest.mark.timeout(120)
def test_the_tutorials_commands_end_with_equal_bits(tmp_path: Path, incubator: Incubator) -> None:
    """Its model, its job and its commands as written, on a smaller text and for fewer steps."""
    for name, language in (("model.py", "python"), ("job.toml", "toml")):
        (block,) = blocks(TUTORIAL, language)
        (tmp_path / name).write_text(block)
    (tmp_path / "text").mkdir()
    shutil.copy(README, tmp_path / "text")
    shown = [command for command in commands(TUTORIAL) if "job.toml" in command]
    assert [command[1] for command in shown] == ["plan", "train", "train", "train"]
    for command in shown:
        short = [argument.replace("step=15", "step=4") for argument in command[1:]]
        done = incubator.start(tmp_path, *short, "--set", "train.steps=8")
        _, error = done.communicate()
        assert done.returncode == 0, error
    summaries = [json.loads(summary.read_text()) for summary in (tmp_path / "runs").glob("*/summary.json")]
    assert [len(summary["recoveries"]) for summary in summaries].count(1) == 1
    assert len({summary["weights_sha256"] for summary in summaries}) == 1
    assert len(summaries) == 3
