"""Nodes that run out of memory, in virtual time: a loss like any other, or an end that says why and can be resumed."""

from __future__ import annotations

from collections import Counter

import pytest

from planaria.protocol.messages.records import NodeLost, Note, PlanTaken, RunStatus
from tests.runtime.worker.cluster import Kill, Weather
from tests.runtime.worker.schedules import Schedule, job_of, shortages
from tests.runtime.worker.test_cluster import Laboratory, no_garbage  # noqa: F401 (a fixture)


@pytest.mark.proof
@pytest.mark.parametrize("batch", [range(at, at + 15) for at in range(9000, 9030, 15)], ids=str)
def test_random_shortages_keep_every_promise(batch: range, laboratory: Laboratory) -> None:
    seen: Counter[str] = Counter()
    for outcome in laboratory.run_all(batch, shortages):
        seen[outcome.finish.status.value] += 1
        seen["refused"] += "is known to fit" in outcome.finish.message
        for at, record in enumerate(outcome.records):
            following = outcome.records[at + 1 :]
            plan_at = next((n for n, later in enumerate(following) if isinstance(later, PlanTaken)), None)
            if isinstance(record, NodeLost) and "out of memory" in record.cause and plan_at is not None:
                plan, told = following[plan_at], following[:plan_at]
                is_quicker = any(isinstance(note, Note) and "is begun anew" in note.text for note in told)
                seen["quicker anew" if is_quicker else plan.purpose] += 1
    assert seen["completed"] >= 3, seen
    assert seen["refused"] >= 2, seen
    assert seen["finish step"] >= 5, seen
    assert seen["reconfigure"] >= 1, "a step that nobody could finish was begun anew"


def test_a_first_step_that_does_not_fit_ends_the_job_before_others_run_out(laboratory: Laboratory) -> None:
    """Every plan without the node puts as much on the others."""
    job = job_of(nodes=3, depth=2, steps=3, source=str(laboratory.source))
    short = (Kill(node=0, at="forward", step=1),)
    schedule = Schedule(seed=1, job=job, kills=(), weather=Weather(), stop_at_s=None, shortages=short)
    outcome = laboratory.cluster(schedule).run()
    (plan,) = outcome.of(PlanTaken)
    assert [len(stages) for stages in plan.pipelines] == [1, 1, 1]
    assert outcome.finish.status is RunStatus.FAILED
    assert outcome.finish.message.startswith("node 0 ran out of memory in step 1: out of memory in the forward")
    assert "no more than" in outcome.finish.message
    assert len(outcome.of(NodeLost)) == 1
