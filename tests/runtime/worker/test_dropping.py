"""Sample dropping in virtual time: the bits of one process that leaves out the same microbatches, whatever is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from planaria.job.registry import PolicyName
from planaria.protocol.messages.records import PlanTaken, RunEnded, RunStatus, StepCommitted
from planaria.protocol.step.schedule import learning_rate
from tests.proof import rest_in_proof
from tests.runtime.worker.cluster import Crash, Kill, Visit, Weather
from tests.runtime.worker.schedules import INSTRUCTIONS, Schedule, comings_and_goings, job_of, restarts, schedule
from tests.runtime.worker.test_cluster import Laboratory

SEEDS = range(30)


def dropping(which: Schedule) -> Schedule:
    resilience = msgspec.structs.replace(which.job.resilience, policy=PolicyName.DROP)
    return replace(which, job=msgspec.structs.replace(which.job, resilience=resilience))


@pytest.mark.proof
@pytest.mark.parametrize("make", [schedule, comings_and_goings, restarts])
def test_random_schedules_keep_every_promise(make: Callable[[int, str], Schedule], laboratory: Laboratory) -> None:
    seeds = SEEDS[:: 1 if make is schedule else 2]
    outcomes = laboratory.run_all(seeds, lambda seed, source: dropping(make(seed, source)))
    assert sum(bool(outcome.drops) for outcome in outcomes) >= 3


def grid(
    laboratory: Laboratory,
    kills: tuple[Kill, ...],
    visits: tuple[Visit, ...] = (),
    crashes: tuple[Crash, ...] = (),
    **changes: object,
) -> Schedule:
    """Three pipelines of two stages, three microbatches each; node 2 p + s has stage s of pipeline p."""
    job = job_of(
        nodes=6, depth=2, steps=8, microbatches=9, smallest=2, policy="drop", source=str(laboratory.source),
        **changes,  # type: ignore[arg-type]
    )  # fmt: skip
    return Schedule(seed=1, job=job, kills=kills, visits=visits, crashes=crashes, weather=Weather(), stop_at_s=None)


@pytest.mark.parametrize("at", rest_in_proof([at for at in INSTRUCTIONS if at != "transfer"], kept=3))
def test_a_kill_at_each_instruction(at: str, laboratory: Laboratory) -> None:
    which = grid(laboratory, (Kill(node=1, at=at, step=3), Kill(node=3, at=at, step=5)))
    outcome = laboratory.run(which)
    assert outcome.finish.status is RunStatus.COMPLETED
    assert [len(step.dropped) for step in outcome.of(StepCommitted)][-1] in (3, 6)
    for step in outcome.of(StepCommitted):
        assert step.scale == (9 - len(step.dropped)) / 9
        assert step.learning_rate == learning_rate(which.job.train, step.step) * step.scale
    assert sum(plan.transfer_bytes for plan in outcome.of(PlanTaken)) == 0


def test_the_count_outlives_a_coordinator_and_ends_with_the_gap(laboratory: Laboratory) -> None:
    which = grid(
        laboratory,
        (Kill(node=1, at="backward", step=2),),
        (Visit(node=6, after="StepCommitted", nth=5),),
        (Crash(after="StepCommitted", nth=3), Crash(after="StepCommitted", nth=4)),
    )
    outcome = laboratory.run(which)
    assert outcome.restarts == 2
    steps = outcome.of(StepCommitted)
    assert [bool(step.dropped) for step in steps] == [False, True, True, True, True, True, True, False] or [
        bool(step.dropped) for step in steps
    ] == [False, True, True, True, True, True, False, False]
    assert [step.num_dropped for step in steps] == [sum(len(s.dropped) for s in steps[: n + 1]) for n in range(8)]
    (ended,) = outcome.of(RunEnded)
    assert ended.dropped_microbatches == steps[-1].num_dropped > 0


def test_broken_pipelines_are_combined(laboratory: Laboratory) -> None:
    """Nodes 1 and 2 are the second half of one pipeline and the first of another."""
    outcome = laboratory.run(grid(laboratory, (Kill(node=1, at="forward", step=2), Kill(node=2, at="sync", step=4))))
    last = outcome.of(PlanTaken)[-1]
    assert [[worker for worker, _, _ in stages] for stages in last.pipelines] == [[4, 5], [0, 3]]
    assert (sum(last.microbatches), last.transfer_bytes) == (6, 0)


def test_fast_numerics_differ_by_rounding_alone(laboratory: Laboratory) -> None:
    kills = (Kill(node=1, at="backward", step=2),)
    exact = laboratory.cluster(grid(laboratory, kills)).run()
    fast = laboratory.cluster(grid(laboratory, kills, numerics="fast")).run()
    assert fast.drops == exact.drops
    assert list(fast.losses.values()) == pytest.approx(list(exact.losses.values()), rel=1e-4)
