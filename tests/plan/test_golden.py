"""Plans, estimates and decisions are those in tests/golden/: of all examples and ten of the random jobs."""

from __future__ import annotations

import json

import pytest
from scripts import golden

from tests.proof import rest_in_proof

KEPT = golden.kept()
JOBS = (1, 3, 6, 5, 7, 8, 9, 10, 11, 12)
EXAMPLES = ["demo.toml", "emulated.toml", "function.toml", "gpu-cluster.toml", "spot.toml"]


@pytest.mark.parametrize("name", rest_in_proof([*EXAMPLES, *map(str, JOBS)], kept=8))
def test_outputs_are_the_golden_ones(name: str) -> None:
    (found,) = golden.golden([name])
    assert not list(golden.differences(KEPT[name], json.loads(json.dumps(found))))


def test_every_example_and_job_has_golden_outputs() -> None:
    assert {*KEPT} == {path.name for path in golden.examples()} | {str(number) for number in range(golden.NUM_JOBS)}


def test_differences_say_what_became_worse() -> None:
    old = {"step_s": 1.0, "plan": {"digest": "a"}, "gap": None, "sizes": [1, 2]}
    new = {"step_s": 1.1, "plan": {"digest": "b"}, "gap": 0.0, "sizes": [1]}
    assert list(golden.differences(old, new)) == [
        "step_s: worse: 1 -> 1.1 (+10.000%)",
        "plan.digest: a -> b",
        "gap: None -> 0.0",
        "sizes: [1, 2] -> [1]",
    ]
    assert not list(golden.differences(old, {**old, "step_s": 1 + 1e-12}))
