"""Kernels interpreted and compiled: the same bits, and no numba for small plans."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from planaria.plan import compiled
from planaria.plan.compiled import Kernel, Numbers, Work
from planaria.plan.thresholds import WORTH_COMPILING_S

PLAN = """
import sys
from planaria.plan.settings import PlannerSettings
from planaria.planner.templates.templates import make_templates
from tests.plan.profiles import uniform_profile
settings = PlannerSettings(num_microbatches=16, fault_tolerance=1, num_nodes=8, devices_per_node=1)
assert make_templates(uniform_profile(24), settings)
print("numba" in sys.modules)
"""


def test_a_small_plan_imports_no_numba() -> None:
    """In its own process: imports cannot be undone."""
    done = subprocess.run([sys.executable, "-c", PLAN], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def _running_sums(rows: Numbers, sums: Numbers, total: Numbers) -> int:
    for at in range(len(rows)):
        so_far = 0.0
        for each in range(len(rows[at])):
            so_far += rows[at][each]
            sums[at][each] = so_far
        total[at] = so_far
    return len(rows)


def test_interpreted_loops_write_into_the_arrays_and_have_the_same_bits_compiled() -> None:
    kernel = Kernel(_running_sums, writes=(1, 2))
    rows = np.random.default_rng(1).random((3, 50))
    for is_compiled in (False, True):
        sums, total = np.zeros_like(rows), np.zeros(3)
        assert kernel.form(compiled=is_compiled)(rows, sums, total) == 3
        assert (sums == np.cumsum(rows, axis=1)).all()
        assert (total == sums[:, -1]).all()


def test_an_array_that_is_read_and_written_is_one_list() -> None:
    kernel = Kernel(_running_sums, writes=(1, 2))
    rows = np.ones((2, 3))
    kernel.form(compiled=False)(rows, rows, np.zeros(2))
    assert rows.tolist() == [[1.0, 2.0, 3.0]] * 2


def test_work_is_compiled_once_a_second_of_it_was_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_loaded", [])
    monkeypatch.setattr(Work, "interpreted_s", 0.0)
    first, second = Work(), Work()
    first.add(0.9 * WORTH_COMPILING_S)
    assert not second.compiled
    second.add(0.1 * WORTH_COMPILING_S)
    assert first.compiled, "whoever did it"


def test_work_that_is_known_to_take_long_is_compiled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_loaded", [])
    monkeypatch.setattr(Work, "interpreted_s", 0.0)
    assert Work(2 * WORTH_COMPILING_S).compiled
    assert not Work(0.5 * WORTH_COMPILING_S).compiled
    assert not Work(2 * WORTH_COMPILING_S, compiled=False).compiled
