"""The last whole checkpoint, and the one under way."""

from __future__ import annotations

import pytest
from tests.plan.profiles import uniform_profile

from planaria.job.settings import TrainSection
from planaria.plan.plan import WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.events import ManifestFailed, ManifestWritten
from planaria.protocol.messages import NotSaved, Saved, SavedGroup
from planaria.protocol.phases import Phase
from planaria.protocol.saving import Checkpoints, NobodyHolds, Saving
from planaria.protocol.settings import RunSettings

ONE, TWO, THREE = (WorkerId(n) for n in (1, 2, 3))


def begun(checkpoints: Checkpoints | None = None, step: int = 4) -> Saving:
    """Of three groups."""
    return (checkpoints or Checkpoints("root", 2, None)).begin(step, 3, (0, 0, 0), now=1.0)


def saved(*groups: int) -> list[SavedGroup]:
    return [SavedGroup(group=group, file=f"{group}", size_bytes=1, sha256="x") for group in groups]


def test_each_group_is_given_to_the_least_busy_holder_once() -> None:
    saving = begun()
    parts = saving.assign({ONE: (0, 1, 2), TWO: (1, 2)})
    assert {worker: save.groups for worker, save in parts.items()} == {ONE: (0, 2), TWO: (1,)}
    assert saving.assign({ONE: (0, 1, 2), TWO: (1, 2)}) == {}


def test_what_a_lost_writer_had_to_write_goes_to_another_holder() -> None:
    saving = begun()
    saving.assign({ONE: (0, 1, 2), TWO: (1, 2)})
    saving.written(saved(0))
    assert not saving.has_orphans
    saving.forget([ONE])
    assert saving.has_orphans
    assert {w: save.groups for w, save in saving.assign({TWO: (1, 2), THREE: (2,)}).items()} == {THREE: (2,)}
    saving.written(saved(1, 2))
    assert saving.is_whole
    assert [entry.group for entry in saving.groups] == [0, 1, 2]


def test_a_writer_that_was_released_finishes_what_it_was_given() -> None:
    saving = begun()
    saving.assign({ONE: (0, 1, 2)})
    assert saving.assign({TWO: (0, 1, 2)}) == {}, "it is a holder no longer, and still a writer"


def test_a_group_that_nobody_holds() -> None:
    with pytest.raises(NobodyHolds) as caught:
        begun().assign({ONE: (0, 2)})
    assert caught.value.group == 1


def test_answers_to_another_order_do_not_count() -> None:
    checkpoints = Checkpoints("root", 2, None)
    first = begun(checkpoints)
    again = begun(checkpoints)
    assert checkpoints.answered_by(Saved(step=4, serial=first.serial, groups=())) is None
    assert checkpoints.answered_by(NotSaved(step=4, serial=again.serial, text="")) is again
    assert checkpoints.complete(2.0) is again
    assert checkpoints.last is not None
    assert (checkpoints.last.step, checkpoints.last.folder) == (4, "root/step-00000004")
    assert checkpoints.answered_by(Saved(step=4, serial=again.serial, groups=())) is None


def test_when_one_is_due() -> None:
    for is_degraded in (False, True):
        every = Checkpoints("root", 2, None)
        assert [step for step in range(1, 7) if every.is_due(step, 0.0, is_degraded=is_degraded)] == [2, 4, 6]
    assert not any(Checkpoints("root", 0, None).is_due(step, 0.0, is_degraded=False) for step in range(1, 7))


@pytest.mark.parametrize(("took_s", "rests_s"), [(0.5, 60.0), (30.0, 600.0)])
def test_a_degraded_plan_has_the_state_saved_at_once_and_again_after_many_times_what_that_took(
    took_s: float, rests_s: float
) -> None:
    checkpoints = Checkpoints("root", 0, None)
    assert checkpoints.is_due(4, 1.0, is_degraded=True)
    begun(checkpoints)
    assert checkpoints.is_due(5, 1.1, is_degraded=True), "until one is whole"
    checkpoints.complete(1.0 + took_s)
    assert not checkpoints.is_due(6, 1.0 + took_s, is_degraded=True)
    assert not checkpoints.is_due(7, 0.9 + rests_s, is_degraded=True)
    assert checkpoints.is_due(8, 1.0 + rests_s, is_degraded=True)
    assert not checkpoints.is_due(8, 1.0 + rests_s, is_degraded=False)


@pytest.mark.parametrize("event", [ManifestWritten(4, "step-4", 0.1), ManifestFailed(4, "disk full")])
def test_news_of_a_checkpoint_that_a_later_one_replaced_is_not_taken_for_the_later_ones(
    event: ManifestWritten | ManifestFailed,
) -> None:
    """It is made whole beside the machine, which may want the next one meanwhile."""
    profile = uniform_profile(1)
    planner = PlannerSettings(num_microbatches=4, fault_tolerance=1, num_nodes=3, devices_per_node=1)
    settings = RunSettings(
        train=TrainSection(steps=5, global_batch=4, microbatch=1, sequence_length=8),
        policy_name="templates",
        fault_tolerance=1,
        num_nodes=3,
        devices_per_node=1,
        num_groups=len(profile.groups),
        checkpoint_root="root",
        checkpoint_every=4,
        resume=None,
    )
    machine = Coordinator(settings, TemplatesPolicy(profile, planner))
    machine._run.phase = Phase.SAVING
    for step in (4, 5):
        machine.checkpoints.begin(step, len(profile.groups), (4,), 0.0)
    assert machine.handle(event, 1.0) == ()
    assert machine.phase is Phase.SAVING
    assert machine.checkpoints.is_under_way(5)
    assert machine.checkpoints.last is None
