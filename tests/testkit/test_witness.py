"""The witness believes true histories, and finds what is forged in them."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from tests.testkit.cluster.cluster import Cluster
from tests.testkit.schedules.schedule import Schedule, schedule
from tests.testkit.witness import witness
from tests.testkit.witness.forgeries import decisions, telling
from tests.testkit.witness.forgeries.forgery import Forgery
from tests.testkit.witness.history import History, as_json, of_json
from tests.testkit.witness.rules import Rule
from tests.testkit.witness.run_folder import history_of, judge_folder
from tests.testkit.witness.witness import judge

FORGERIES = [*decisions.FORGERIES, *telling.FORGERIES]

RUN = Path(__file__).parents[1] / "compat" / "first" / "run"
CORPUS = Path(__file__).parents[1] / "simulate" / "corpus"
GUARANTEES = Path(__file__).parents[2] / "docs" / "explanation" / "guarantees.md"

MOST_SEEDS = 400
"""Schedules among whose histories each forgery has a place."""

ENOUGH = 2
"""Forged histories that are tried of each forgery."""

OF_FILES = (Rule.FILES, Rule.METRICS, Rule.SUMMARY)
"""Rules of a real run's files."""


def recorded(which: Schedule) -> History:
    """Returns the history of a schedule's run."""
    cluster = Cluster(which)
    cluster.run()
    return list(cluster.recorder.history())


@cache
def history_of_seed(seed: int) -> History:
    return recorded(schedule(seed))


def forged(forgery: Forgery) -> Iterator[History]:
    """Yields forged histories, each of another run. A coordinator's disk that loses its journal leaves things open."""
    for seed in range(MOST_SEEDS):
        history = history_of_seed(seed)
        if not any(entry[0] == "cut" for entry in history):
            made = forgery.change(history, Random(f"{forgery.what} {seed}"))
            if made is not None:
                yield made


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda forgery: forgery.what)
def test_a_forgery_is_found(forgery: Forgery) -> None:
    made = list(islice(forged(forgery), ENOUGH))
    assert made, "no history has a place for it"
    for history in made:
        assert forgery.rule in {finding.rule for finding in judge(history)}


def test_every_rule_has_a_forgery_and_a_line_in_the_docs() -> None:
    assert {forgery.rule for forgery in FORGERIES} | set(OF_FILES) == set(Rule)
    text = " ".join(GUARANTEES.read_text().split())
    assert not [rule for rule in Rule if rule.value not in text]


def test_who_goes_on_from_a_commit_that_was_lost_is_found() -> None:
    which = msgspec.json.decode((CORPUS / "a-lost-commit-whose-workers-all-died.json").read_bytes(), type=Schedule)
    history = recorded(which)
    cut = next(at for at, entry in enumerate(history) if entry[0] == "cut")
    lost = next(entry for entry in history[cut:] if entry[0] == "applied" and entry[2]["generation"] == 1)
    last = history[-1 - next(at for at, entry in enumerate(reversed(history)) if entry[0] == "applied")]
    assert not list(judge(history))
    assert Rule.APPLIED in {finding.rule for finding in judge([*history, [last[0], lost[1], *last[2:]]])}


def test_a_history_is_the_same_after_json() -> None:
    history = history_of_seed(0)
    again = of_json(as_json(history))
    assert [entry[0] for entry in again] == [entry[0] for entry in history]
    assert not judge(again)


def test_the_witness_imports_nothing_of_what_it_judges() -> None:
    names: set[str] = set()
    for path in Path(witness.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert not node.level
                names.add(node.module or "")
    own = {name for name in names if name.startswith("tests.testkit.witness")}
    assert {name.partition(".")[0] for name in names - own} <= {"msgspec", *sys.stdlib_module_names}


# A real run's folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return shutil.copytree(RUN, tmp_path / "run")


def test_a_real_run_is_believed(run: Path) -> None:
    assert judge_folder(run) == []
    assert {entry[0] for entry in history_of(run)} == {"job", "journal", "told"}


def lines_changed(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("name", ["loss", "grad_norm", "learning_rate", "live_nodes", "generation", "tokens_per_s"])
def test_a_forged_metric_is_found(run: Path, name: str) -> None:
    lines_changed(run / "metrics.jsonl", lambda lines: lines[3].update({name: lines[3][name] * 1.5 + 1}))
    assert [finding.rule for finding in judge_folder(run)] == [Rule.METRICS]


def test_a_metric_that_is_not_there_is_found(run: Path) -> None:
    lines_changed(run / "metrics.jsonl", lambda lines: lines.pop(2))
    assert [finding.rule for finding in judge_folder(run)] == [Rule.METRICS]


@pytest.mark.parametrize(
    "name", ["steps", "status", "final_loss", "live_nodes", "steps_redone", "skipped_steps", "recoveries", "message",
             "dropped_microbatches", "skipped_microbatches", "duplicated_microbatches", "weights_sha256"]
)  # fmt: skip
def test_a_forged_summary_is_found(run: Path, name: str) -> None:
    summary = json.loads((run / "summary.json").read_text())
    summary[name] = "forged"
    (run / "summary.json").write_text(json.dumps(summary))
    assert [finding.rule for finding in judge_folder(run)] == [Rule.SUMMARY]


def test_a_forged_event_is_found(run: Path) -> None:
    """Where the journal, the metrics and the summary say otherwise."""

    def change(lines: list[dict[str, Any]]) -> None:
        next(line for line in lines if line["event"] == "step_committed" and line["step"] == 8)["loss"] += 1e-9

    lines_changed(run / "events.jsonl", change)
    assert {finding.rule for finding in judge_folder(run)} == {Rule.TOLD_STEPS, Rule.METRICS, Rule.SUMMARY}


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_checkpoint_is_found(run: Path, damage: str) -> None:
    file = next((run / "checkpoints" / "step-00000004").glob("group-00002*"))
    data = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(data[:-1] if damage == "cut" else bytes([data[0] ^ 1]) + data[1:])
    assert [finding.rule for finding in judge_folder(run)] == [Rule.FILES]


def test_a_checkpoint_of_another_step_is_found(run: Path) -> None:
    path = run / "checkpoints" / "step-00000004" / "manifest.json"
    path.write_text(path.read_text().replace('"step": 4', '"step": 5'))
    assert Rule.SAVED in [finding.rule for finding in judge_folder(run)]
