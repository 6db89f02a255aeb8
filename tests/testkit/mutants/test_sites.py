"""Tests of what is changed by machine."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.testkit.mutants.command import SOURCES, sources, summary, told
from tests.testkit.mutants.explained import EXPLAINED, explanation_of
from tests.testkit.mutants.sites import install, sites_of
from tests.testkit.mutants.trial import Outcome, Trial

TOY = '''
class Counter:
    """Counts 3 things."""

    def __init__(self) -> None:
        self.number = 0

    def add(self, limit: int) -> list[str]:
        """Adds 1."""
        assert limit > 0
        if self.number < limit and not self.is_full():
            self.number += 1
        return [str(self.number), *self.told()]

    def is_full(self) -> bool:
        return self.number == 2

    def told(self) -> tuple[str, ...]:
        return ("full",) if self.is_full() else ()
'''


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[ModuleType]:
    path = tmp_path / "toy_of_mutants.py"
    path.write_text(TOY)
    spec = importlib.util.spec_from_file_location("toy_of_mutants", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["toy_of_mutants"] = module
    yield module
    del sys.modules["toy_of_mutants"]


def changes(toy: ModuleType) -> list[str]:
    return [f"{site.function[0]}: {site.what}" for site in sites_of(Path(str(toy.__file__)))]


def test_sites_are_all_that_can_be_changed_but_for_assertions_docstrings_and_annotations(toy: ModuleType) -> None:
    assert changes(toy) == [
        "Counter.__init__: left out",
        "Counter.__init__: 0 becomes 1",
        "Counter.add: and becomes or",
        "Counter.add: Lt becomes LtE",
        "Counter.add: not left out",
        "Counter.add: left out",
        "Counter.add: 1 becomes 2",
        "Counter.add: str(self.number) left out",
        "Counter.add: *self.told() left out",
        "Counter.is_full: Eq becomes NotEq",
        "Counter.is_full: 2 becomes 3",
        "Counter.told: condition turned round",
    ]


def outcome(toy: ModuleType) -> tuple[list[str], ...] | None:
    """Returns what a counter tells; None where it cannot count."""
    counter = toy.Counter()
    try:
        return tuple(counter.add(limit) for limit in (2, 1, 5, 5))
    except AttributeError:
        return None


def test_a_change_takes_the_place_of_a_loaded_function_wherever_it_is_known(toy: ModuleType) -> None:
    before, add = outcome(toy), toy.Counter.add
    site = sites_of(Path(str(toy.__file__)))[5]
    assert install(site)
    assert toy.Counter.add is add
    assert before == (["1"], ["1"], ["2", "full"], ["2", "full"])
    assert outcome(toy) == (["0"], ["0"], ["0"], ["0"])


def test_each_change_of_what_is_used_makes_a_difference(toy: ModuleType) -> None:
    before, same = outcome(toy), []
    for site in sites_of(Path(str(toy.__file__))):
        plain = {name: function.__code__ for name, function in vars(toy.Counter).items() if callable(function)}
        assert install(site)
        if outcome(toy) == before:
            same.append(f"{site.function[0]}: {site.what}")
        for name, code in plain.items():
            getattr(toy.Counter, name).__code__ = code
    assert same == []


def test_each_explanation_is_of_a_change() -> None:
    sites = [site for path in sources() for site in sites_of(path)]
    assert {explanation_of(site, SOURCES) for site in sites} - {None} == set(EXPLAINED)


def test_the_table_counts_who_found_a_change_and_what_nobody_found() -> None:
    sites = [site for path in sources() if path.name == "ballot.py" for site in sites_of(path)]
    explained = next(site for site in sites if explanation_of(site, SOURCES) is not None)
    other = next(site for site in sites if explanation_of(site, SOURCES) is None)
    became = [(other, outcome) for outcome in Outcome] + [(explained, Outcome.MISSED), (explained, Outcome.FOUND)]
    trials = [Trial(site, outcome) for site, outcome in became]
    *_, room, total = summary(trials)
    assert room.split() == ["protocol/step", "7", "3", "1", "1", "1", "1", "71%"]
    assert total.split()[1:] == room.split()[1:]
    assert told(trials[-2]).startswith("missed (both lists are of the voters, and as long): protocol/step/ballot.py:")
    assert told(trials[-1]).startswith("found: protocol/step/ballot.py:")
