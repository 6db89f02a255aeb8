"""The second judge of a change: tests of the protocol that reach it, where no schedule noticed.

What is told to people, estimated or chosen breaks no promise that schedules watch over. Tests say what it is to be.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.testkit.mutants.trial import Line, limit, tracer

FOLDERS = ("tests/protocol", "tests/plan/program", "tests/plan/test_ledger.py")
"""Of tests that judge, and files: without processes, and quick."""

ROOT = Path(__file__).parents[3]

OPTIONS = ("-q", "-p", "no:cacheprovider", "--hypothesis-seed=0")

ALL_S = 900
"""Of the processor, for all tests, also where each line of them is noted."""


class _Reached:
    """A plugin of pytest that notes the lines which each test runs, of some files; without tests that fail."""

    def __init__(self, files: set[str]) -> None:
        self.lines: dict[str, set[Line]] = {}
        self._files = files

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        reached = self.lines[item.nodeid] = set()
        sys.settrace(tracer(self._files, reached))
        try:
            return (yield)
        finally:
            sys.settrace(None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.lines.pop(report.nodeid, None)


def reached_by_tests(paths: Sequence[Path]) -> dict[str, set[Line]]:
    """Returns the lines of these sources that each test runs; tests run in another process."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        return pool.submit(_reached, {str(path) for path in paths}).result()


def _reached(files: set[str]) -> dict[str, set[Line]]:
    limit(ALL_S)
    plugin = _Reached(files)
    _run(OPTIONS, FOLDERS, plugin)
    return plugin.lines


def failing(tests: Sequence[str]) -> int | None:
    """Returns 0 if one of these tests fails; None: none does."""
    limit(ALL_S)
    code = _run((*OPTIONS, "-x"), tests)
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED), code
    return None if code == pytest.ExitCode.OK else 0


def _run(options: Sequence[str], tests: Sequence[str], *plugins: object) -> int:
    os.chdir(ROOT)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        return int(pytest.main([*options, *tests], plugins=list(plugins)))
