"""numba is optional, and not imported for small plans. Each case in its own process: imports cannot be undone."""

from __future__ import annotations

import subprocess
import sys

PLAN = """
import sys
{before}
from planaria.plan.settings import PlannerSettings
from planaria.plan.split_search import StepTimeSearch
from planaria.plan.split_space import make_space
from planaria.plan.templates import make_templates
from tests.plan.profiles import uniform_profile
profile = uniform_profile(24)
settings = PlannerSettings(num_microbatches=16, fault_tolerance=1, num_nodes=8, devices_per_node=1)
print([(t.step_time_s, t.lower_bound_s, t.stages) for t in make_templates(profile, settings)])
print(StepTimeSearch(make_space(profile, settings), 6, 8, compiled={compiled}).run())
print("numba" in sys.modules and sys.modules["numba"] is not None, file=sys.stderr)
"""


def run(*, before: str = "", compiled: bool = False) -> tuple[str, str]:
    """What a process that plans prints: the plan, and whether numba was imported."""
    code = PLAN.format(before=before, compiled=compiled)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout, done.stderr.strip().splitlines()[-1]


def test_a_small_plan_imports_no_numba() -> None:
    assert run()[1] == "False"


def test_without_numba_the_plain_forms_answer_the_same() -> None:
    without = run(before='sys.modules["numba"] = None', compiled=True)
    assert without[1] == "False"
    assert without[0] == run(compiled=True)[0]
