"""Redundant computation in virtual time: the reference's bits, whoever is lost and whenever, in all three modes."""

from __future__ import annotations

import random

import pytest

from planaria.plan.plan import Redundancy
from planaria.protocol.messages.records import PlanTaken, Recovered, RunStatus
from tests.proof import batches, rest_in_proof
from tests.runtime.worker.cluster import Kill, Outcome, Visit, Weather
from tests.runtime.worker.schedules import INSTRUCTIONS, Schedule, comings_and_goings, job_of, schedule, shadowed
from tests.runtime.worker.test_cluster import Laboratory


@pytest.mark.parametrize("seeds", batches(range(12), size=11, kept=1), ids=str)
def test_random_schedules_keep_every_promise(seeds: range, laboratory: Laboratory) -> None:
    def drawn(seed: int, source: str) -> Schedule:
        draw = random.Random(f"redundancy {seed}")
        return shadowed(draw, draw.choice([schedule, comings_and_goings])(seed, source))

    laboratory.run_all(seeds, drawn)


def grid(
    laboratory: Laboratory,
    kills: tuple[Kill, ...],
    visits: tuple[Visit, ...] = (),
    *,
    depth: int = 3,
    mode: str = "eager-lazy",
    **changes: object,
) -> Schedule:
    """Two pipelines of so many stages."""
    job = job_of(
        nodes=2 * depth, depth=4, steps=6, microbatches=8, smallest=depth, policy="redundancy", redundancy=mode,
        source=str(laboratory.source), **changes,  # type: ignore[arg-type]
    )  # fmt: skip
    return Schedule(seed=1, job=job, kills=kills, visits=visits, weather=Weather(), stop_at_s=None)


def finishes(outcome: Outcome) -> list[PlanTaken]:
    return [plan for plan in outcome.of(PlanTaken) if plan.purpose == "finish step"]


@pytest.mark.parametrize("mode", rest_in_proof(Redundancy))
@pytest.mark.parametrize("at", [*(at for at in INSTRUCTIONS if at != "transfer"), "shadow"])
@pytest.mark.parametrize("victim", rest_in_proof([1, 0, 2]))
def test_a_kill_at_each_instruction_in_each_mode(victim: int, at: str, mode: str, laboratory: Laboratory) -> None:
    """The predecessor takes over in the middle of the step, and has both stages from then on. No state ever moves."""
    outcome = laboratory.run(grid(laboratory, (Kill(node=victim, at=at, step=2, delay_s=1e-3),), mode=mode))
    assert outcome.finish.status is RunStatus.COMPLETED
    plans = outcome.of(PlanTaken)
    assert [plan.transfer_bytes for plan in plans] == [0] * len(plans)
    before, after = plans[0].pipelines, plans[-1].pipelines
    taken = {(stages[(victim + 2) % 3][0], *stages[victim][1:]) for stages in before[:1]}
    expected = [tuple(taken) if stage[0] == victim else (tuple(stage),) for stage in before[0]]
    never = at == "shadow" or (at == "load" and victim == 1)  # the last layers' forwards take labels
    if never and mode == Redundancy.LAZY_LAZY:
        assert before == after
    else:
        assert [tuple(stage) for stage in after[0]] == [stage for (stage,) in expected]
        assert before[1] == after[1]


@pytest.mark.parametrize("mode", [*Redundancy])
def test_two_neighbours_are_a_reconfiguration(mode: str, laboratory: Laboratory) -> None:
    """A lost worker and its shadow: the step is finished elsewhere, then pipelines of depth 3 are made of the rest."""
    kills = (Kill(node=1, at="backward", step=2), Kill(node=2, at="backward", step=2))
    outcome = laboratory.run(grid(laboratory, kills, mode=mode))
    assert outcome.finish.status is RunStatus.COMPLETED
    last = outcome.of(PlanTaken)[-1]
    assert [len(stages) for stages in last.pipelines] == [3]
    assert "1 node waits in the standby queue" in last.reason


def test_two_that_are_no_neighbours_are_two_takeovers(laboratory: Laboratory) -> None:
    kills = (Kill(node=0, at="forward", step=2), Kill(node=2, at="backward", step=2))
    outcome = laboratory.run(grid(laboratory, kills, depth=4))
    last = outcome.of(PlanTaken)[-1]
    assert [worker for worker, _, _ in last.pipelines[0]] == [3, 1, 1, 3]
    assert all("take" in plan.reason for plan in finishes(outcome))


def test_who_comes_gets_the_lost_place_back(laboratory: Laboratory) -> None:
    """Trigger (a): as many wait as were lost."""
    kills = (Kill(node=1, at="backward", step=2),)
    outcome = laboratory.run(grid(laboratory, kills, (Visit(node=6, after="StepCommitted", nth=3),)))
    plans = outcome.of(PlanTaken)
    assert [[6 if w == 1 else w for w, _, _ in stages] for stages in plans[0].pipelines] == [
        [worker for worker, _, _ in stages] for stages in plans[-1].pipelines
    ]
    assert [(plan.purpose, plan.transfer_bytes > 0) for plan in plans[-2:]] == [
        ("warm up", True),
        ("reconfigure", False),
    ]


@pytest.mark.parametrize("mode", rest_in_proof(Redundancy))
@pytest.mark.parametrize("at", ["forward", "backward", "shadow", "sync", "vote"])
def test_in_pure_data_parallelism_each_node_runs_the_next_ones_work_too(
    at: str, mode: str, laboratory: Laboratory
) -> None:
    """Each node runs the next one's microbatches too; nobody is halted when that is lost."""
    job = job_of(
        nodes=3, depth=2, steps=4, microbatches=9, smallest=1, policy="redundancy", redundancy=mode,
        source=str(laboratory.source),
    )  # fmt: skip
    kills = (Kill(node=1, at=at, step=2, delay_s=1e-3),)
    outcome = laboratory.run(Schedule(seed=3, job=job, kills=kills, weather=Weather(), stop_at_s=None))
    assert outcome.finish.status is RunStatus.COMPLETED
    assert len(outcome.of(PlanTaken)[-1].pipelines) == (3 if at == "shadow" and mode == Redundancy.LAZY_LAZY else 2)
    assert all("takes over" in plan.reason for plan in finishes(outcome))


def test_recoveries_tell_of_what_was_taken_over(laboratory: Laboratory) -> None:
    outcome = laboratory.run(grid(laboratory, (Kill(node=1, at="backward", step=2),)))
    (recovered,) = outcome.of(Recovered)
    assert recovered.recovery.lost_nodes == (1,)
