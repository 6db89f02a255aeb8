"""Messages between workers that arrive damaged, in virtual time: never used, and what they carried comes again."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from planaria.protocol.messages.records import NodeLost, Note, RunStatus
from planaria.runtime.worker.transport.mailbox import Kind
from tests.proof import batches, rest_in_proof
from tests.runtime.worker.cluster import Kill, Weather
from tests.runtime.worker.schedules import Schedule, comings_and_goings, job_of
from tests.runtime.worker.test_cluster import Laboratory, no_garbage  # noqa: F401 (a fixture)


@pytest.mark.parametrize("batch", batches(range(11000, 11012), size=6, kept=1), ids=str)
def test_random_damage_keeps_every_promise(batch: range, laboratory: Laboratory) -> None:
    """Under any deaths, joins and notices: the reference's bits."""

    def damaged(seed: int, source: str) -> Schedule:
        usual = comings_and_goings(seed, source)
        return replace(usual, weather=replace(usual.weather, damage=0.003))

    outcomes = laboratory.run_all(batch, damaged)
    assert any("arrived damaged" in note.text for outcome in outcomes for note in outcome.of(Note))


def test_state_that_is_damaged_is_sent_again_and_costs_no_node(laboratory: Laboratory) -> None:
    """By another holder, where there is one."""
    job = job_of(nodes=7, depth=4, steps=4, smallest=2, source=str(laboratory.source))
    others = same = 0
    for seed in range(4):
        weather = Weather(damage=0.3, damaged=Kind.STATE)
        kills = (Kill(node=0, at="backward", step=2),)
        outcome = laboratory.run(Schedule(seed=seed, job=job, kills=kills, weather=weather, stop_at_s=None))
        assert outcome.finish.status is RunStatus.COMPLETED
        texts = [note.text for note in outcome.of(Note) if "arrived damaged" in note.text]
        for text in texts:
            assert text.startswith("the state of layer")
            first, again = re.findall(r"worker (\d+)(?: sends|;)", text)
            others += first != again
            same += first == again
        lost = [record for record in outcome.of(NodeLost) if "damaged" in record.cause]
        assert all(record.cause.endswith("again and again") for record in lost)
    assert others >= 2, (others, same)


@pytest.mark.parametrize("kind", rest_in_proof([Kind.ACTIVATION, Kind.GRADIENT, Kind.SUM]))
def test_messages_that_are_not_kept_are_computed_again_with_their_step(
    kind: Kind,
    laboratory: Laboratory,
) -> None:
    job = job_of(nodes=7, depth=4, steps=6, smallest=2, source=str(laboratory.source))
    begun_anew = 0
    for seed in range(3):
        weather = Weather(damage=0.01, damaged=kind)
        outcome = laboratory.run(Schedule(seed=seed, job=job, kills=(), weather=weather, stop_at_s=None))
        assert outcome.finish.status is RunStatus.COMPLETED
        begun_anew += sum("is begun anew" in note.text for note in outcome.of(Note))
        assert all(lost.cause.endswith("again and again") for lost in outcome.of(NodeLost))
    assert begun_anew
