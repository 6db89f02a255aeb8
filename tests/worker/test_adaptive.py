"""The adaptive policy in virtual time: the reference's bits, whatever it chooses."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
from tests.worker.dst import laboratory as new_laboratory
from tests.worker.schedules import Schedule, any_policy, comings_and_goings
from tests.worker.test_cluster import Laboratory

from planaria.job.settings import PolicyName
from planaria.policy.outlook import Outlook
from planaria.policy.worth import Course, Worth
from planaria.protocol.records import PlanTaken

SEEDS = range(40)


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    with new_laboratory() as place:
        yield place


def adaptively(schedule: Schedule) -> Schedule:
    resilience = msgspec.structs.replace(schedule.job.resilience, policy=PolicyName.ADAPTIVE)
    return replace(schedule, job=msgspec.structs.replace(schedule.job, resilience=resilience))


def test_random_schedules_with_random_choices(laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every candidate is taken now and then, in every situation: none may cost a bit."""
    draw = random.Random(5)

    def fickle(course: Course, outlook: Outlook, seconds: float) -> Worth:
        return Worth(risk_s=0.0, steps_per_s=draw.random())

    monkeypatch.setattr("planaria.policy.adaptive.worth", fickle)
    taken: Counter[str] = Counter()
    for seed in SEEDS:
        draw.seed(seed)
        make = any_policy if seed % 2 else comings_and_goings
        try:
            outcome = laboratory.run(adaptively(make(seed, str(laboratory.source))))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        for plan in outcome.of(PlanTaken):
            if plan.candidates:
                taken[f"{plan.purpose}: {plan.candidates[0].name.split(' ')[0]}"] += 1
    assert {"reconfigure: reroute", "reconfigure: templates", "warm up: one"} <= set(taken), taken
