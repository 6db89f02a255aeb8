"""The adaptive policy in virtual time: the reference's bits, whatever it chooses."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import msgspec
import pytest

from planaria.job.registry import PolicyName
from planaria.policy import finishing
from planaria.policy.adaptive.adaptive import AdaptivePolicy
from planaria.policy.adaptive.canonical import Canonical
from planaria.policy.candidate_record import CandidateRecord
from planaria.policy.interface import Candidate
from planaria.protocol.messages.records import Note, PlanMeasured, PlanTaken, RunStatus
from planaria.protocol.run.settings import RunSettings
from tests.proof import rest_in_proof
from tests.runtime.worker.cluster import Kill, Weather
from tests.runtime.worker.schedules import INSTRUCTIONS, Schedule, any_policy, comings_and_goings, job_of
from tests.runtime.worker.test_cluster import Laboratory

SEEDS = range(20)


def adaptively(schedule: Schedule) -> Schedule:
    resilience = msgspec.structs.replace(schedule.job.resilience, policy=PolicyName.ADAPTIVE)
    return replace(schedule, job=msgspec.structs.replace(schedule.job, resilience=resilience))


@pytest.mark.proof
def test_random_schedules_with_random_choices_keep_every_promise(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kind of candidates is drawn at each decision, then one of that kind, so each is taken now and then, in every
    situation: none may cost a bit."""
    draw = random.Random(5)
    original = AdaptivePolicy._ranked

    def fickle(
        policy: AdaptivePolicy, asked: Canonical
    ) -> tuple[Sequence[Candidate], tuple[CandidateRecord, ...], float]:
        options, told, horizon = original(policy, asked)
        kinds: dict[str, list[int]] = {}
        for at, option in enumerate(options):
            kinds.setdefault(kind_of(option.name), []).append(at)
        first = draw.choice(kinds[draw.choice(sorted(kinds))])
        order = [first, *(at for at in range(len(options)) if at != first)]
        return [options[at] for at in order], tuple(told[at] for at in order), horizon

    monkeypatch.setattr(AdaptivePolicy, "_ranked", fickle)

    def drawn(seed: int, source: str) -> Schedule:
        draw.seed(seed)
        return adaptively((any_policy if seed % 2 else comings_and_goings)(seed, source))

    taken: Counter[str] = Counter()
    for outcome in laboratory.run_all(SEEDS, drawn):
        for plan in outcome.of(PlanTaken):
            if plan.candidates:
                taken[f"{plan.purpose}: {kind_of(plan.candidates[0].name)}"] += 1
    expected = {"reconfigure: reroute", "reconfigure: templates", "reconfigure: search", "warm up: one"}
    assert expected <= set(taken), taken


def kind_of(name: str) -> str:
    """The source's name; "one": of a step beside which state moves."""
    return name.split(" ")[0]


def grid(laboratory: Laboratory, kills: tuple[Kill, ...]) -> Schedule:
    """Three pipelines of two stages, of a job that expects no failures for long."""
    job = job_of(
        nodes=6, depth=2, steps=10, microbatches=9, smallest=2, policy="adaptive", source=str(laboratory.source)
    )
    return Schedule(seed=1, job=job, kills=kills, weather=Weather(), stop_at_s=None)


@pytest.mark.parametrize(("mean_time_s", "until"), [(1e6, "to the end"), (1e-9, "to the next loss")])
def test_the_horizon_is_what_is_expected_and_seen(mean_time_s: float, until: str, laboratory: Laboratory) -> None:
    """A loss in the second of ten steps: where none was expected for long, the job ends first."""
    plain = grid(laboratory, (Kill(node=1, at="backward", step=2),))
    resilience = msgspec.structs.replace(plain.job.resilience, mean_time_between_failures_s=mean_time_s)
    outcome = laboratory.run(replace(plain, job=msgspec.structs.replace(plain.job, resilience=resilience)))
    reasons = [plan.reason for plan in outcome.of(PlanTaken) if "samples/s over" in plan.reason]
    assert reasons
    assert until in reasons[0]


def favouring(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidates whose name begins so are the best."""
    original = AdaptivePolicy._judged

    def judged(policy: AdaptivePolicy, option: Candidate, *given: float) -> CandidateRecord:
        candidate = original(policy, option, *given)
        return msgspec.structs.replace(candidate, samples_per_s=1e9) if option.name.startswith(name) else candidate

    monkeypatch.setattr(AdaptivePolicy, "_judged", judged)


def test_state_moves_beside_one_rerouted_step(laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the new pipelines are taken, and nothing has to move any more."""
    favouring("one step rerouted", monkeypatch)
    outcome = laboratory.run(grid(laboratory, (Kill(node=1, at="backward", step=2),)))
    assert outcome.finish.status is RunStatus.COMPLETED
    start, finish, warm, after = outcome.of(PlanTaken)
    assert [plan.purpose for plan in (start, finish, warm, after)] == [
        "start", "finish step", "warm up", "reconfigure",
    ]  # fmt: skip
    assert warm.transfer_bytes > 0
    assert after.transfer_bytes == 0
    assert warm.step + 1 == after.step
    assert {w for stages in warm.pipelines for w, _, _ in stages} == {0, 2, 3, 4, 5}


@pytest.mark.parametrize("at", rest_in_proof([*INSTRUCTIONS, "apply"], kept=3))
def test_a_kill_beside_which_state_moves(at: str, laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    favouring("one step rerouted", monkeypatch)
    kills = (Kill(node=1, at="backward", step=2), Kill(node=4, at=at, step=3))
    outcome = laboratory.run(grid(laboratory, kills))
    assert "warm up" in [plan.purpose for plan in outcome.of(PlanTaken)]


def test_what_was_weighed_is_recorded_and_what_it_cost(laboratory: Laboratory) -> None:
    outcome = laboratory.run(grid(laboratory, (Kill(node=1, at="backward", step=2),)))
    taken = [plan for plan in outcome.of(PlanTaken) if plan.purpose in ("warm up", "reconfigure")]
    assert taken
    for plan in taken:
        best = plan.candidates[0]
        assert best.samples_per_s == max(candidate.samples_per_s for candidate in plan.candidates)
        assert plan.estimated_transition_s == best.transition_s
        assert best.name in plan.reason
        assert msgspec.json.decode(msgspec.json.encode(plan), type=PlanTaken) == plan
    (measured,) = (m for m in outcome.of(PlanMeasured) if m.generation == taken[-1].generation)
    assert measured.measured_transition_s is not None


@pytest.mark.parametrize("shares_cores", [False, True])
def test_a_step_is_begun_anew_where_that_is_quicker(
    shares_cores: bool, laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two pipelines of three stages one breaks, and five workers are quicker than three, where the two that are left
    of it take no part in the rest; not where they would take each other's cores."""
    monkeypatch.setattr(finishing, "FINISHING_BUDGET", 0)
    monkeypatch.setattr("tests.runtime.worker.cluster.RunSettings", partial(RunSettings, shares_cores=shares_cores))
    job = job_of(
        nodes=6, depth=3, steps=6, microbatches=12, smallest=3, policy="adaptive", source=str(laboratory.source)
    )
    kill = Kill(node=1, at="backward", step=3)
    outcome = laboratory.run(Schedule(seed=1, job=job, kills=(kill,), weather=Weather(), stop_at_s=None))
    anew = [note.text for note in outcome.of(Note) if "is quicker than to finish it" in note.text]
    finished = [plan for plan in outcome.of(PlanTaken) if plan.purpose == "finish step"]
    assert (len(anew), len(finished)) == ((0, 1) if shares_cores else (1, 0))
