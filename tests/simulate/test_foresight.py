"""Decisions in advance: the whole history of a run is the same with them and without, to the last message."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from planaria.job.registry import PolicyName
from planaria.policy.adaptive.adaptive import AdaptivePolicy
from tests.proof import rest_in_proof
from tests.testkit.cluster.cluster import Cluster
from tests.testkit.schedules.schedule import Schedule, schedule


def adaptively(seed: int) -> Schedule:
    which = schedule(seed)
    return replace(which, setup=replace(which.setup, policy=PolicyName.ADAPTIVE))


def history(which: Schedule) -> list[str]:
    cluster = Cluster(which, is_telling=True)
    cluster.run()
    return cluster.history


@pytest.mark.parametrize("seeds", rest_in_proof([range(6), range(6, 24)]), ids=str)
def test_an_answer_in_advance_is_the_answer(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """With everything thought out as soon as there is time, and with single pieces of it."""
    schedules = [adaptively(seed) for seed in seeds]
    plain = [history(which) for which in schedules]
    asked = prepared = 0
    original = AdaptivePolicy.reconfigure

    def counting(policy: AdaptivePolicy, *args: object, **kwargs: object) -> object:
        nonlocal asked, prepared
        before = set(policy.answers.known)
        proposal = original(policy, *args, **kwargs)  # type: ignore[arg-type]
        asked, prepared = asked + 1, prepared + (before == set(policy.answers.known))
        return proposal

    monkeypatch.setattr(AdaptivePolicy, "reconfigure", counting)
    for pieces in (1, 10_000):
        monkeypatch.setattr("tests.testkit.server.server.PIECES", pieces)
        for which, expected in zip(schedules, plain, strict=True):
            assert history(which) == expected, f"seed {which.seed}, {pieces} pieces"
    assert prepared >= 1, (prepared, asked)


def test_what_will_be_asked_after_the_step_is_prepared_whatever_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """While survivors finish a struck step, while state moves beside one, and once a node came: the answer is there."""
    missing = []
    original = AdaptivePolicy.reconfigure

    def noting(policy: AdaptivePolicy, *args: object, **kwargs: object) -> object:
        before = set(policy.answers.known)
        proposal = original(policy, *args, **kwargs)  # type: ignore[arg-type]
        missing.append(before != set(policy.answers.known))
        return proposal

    monkeypatch.setattr(AdaptivePolicy, "reconfigure", noting)
    monkeypatch.setattr("planaria.protocol.planning.precompute.Precomputed.has_time", lambda *_: False)
    found = []
    for pieces in (0, 10_000):
        monkeypatch.setattr("tests.testkit.server.server.PIECES", pieces)
        missing.clear()
        for seed in range(12):
            Cluster(adaptively(seed)).run()
        found.append(sum(missing))
    without, with_it = found
    assert with_it < 0.7 * without, found
