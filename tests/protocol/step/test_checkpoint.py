"""The last whole checkpoint, and the one under way."""

from __future__ import annotations

import pytest

from planaria.job.sections.train import TrainSection
from planaria.plan.plan import WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.messages.events import ManifestFailed, ManifestWritten
from planaria.protocol.messages.from_worker import NotSaved, Saved, SavedGroup
from planaria.protocol.phases import Phase
from planaria.protocol.run.settings import RunSettings
from planaria.protocol.step.cadence import Cadence
from planaria.protocol.step.checkpoint import Checkpoints, NobodyHolds, SaveAnswer, Saving
from tests.plan.profiles import uniform_profile

ONE, TWO, THREE = (WorkerId(n) for n in (1, 2, 3))


def kept(every: int | None = 2, every_s: float | None = None) -> Checkpoints:
    return Checkpoints("root", None, Cadence(every, every_s))


def begun(checkpoints: Checkpoints | None = None, step: int = 4) -> Saving:
    """Of three groups."""
    return (checkpoints or kept()).begin(step, 3, (0, 0, 0), now=1.0)


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


def test_a_group_that_nobody_holds_is_named() -> None:
    with pytest.raises(NobodyHolds) as caught:
        begun().assign({ONE: (0, 2)})
    assert caught.value.group == 1


def test_answers_to_another_order_do_not_count() -> None:
    checkpoints = kept()
    first = begun(checkpoints)
    again = begun(checkpoints)
    assert checkpoints.answered_by(Saved(step=4, serial=first.serial, groups=())) is None
    assert checkpoints.answered_by(NotSaved(step=4, serial=again.serial, text="")) is again
    assert checkpoints.complete(2.0) is again
    assert checkpoints.last is not None
    assert (checkpoints.last.step, checkpoints.last.folder) == (4, "root/step-00000004")
    assert checkpoints.answered_by(Saved(step=4, serial=again.serial, groups=())) is None


def test_what_the_user_wishes_for_is_written_where_he_wants_it_and_answered() -> None:
    checkpoints = kept()
    checkpoints.wish_for("/elsewhere")
    assert checkpoints.is_wished
    assert begun(checkpoints).folder == "/elsewhere/step-00000004"
    assert not checkpoints.is_wished, "it is on its way"
    assert checkpoints.answered is None
    checkpoints.complete(2.0)
    assert checkpoints.answered == SaveAnswer(is_done=True, text="step 4 is saved in /elsewhere/step-00000004")
    assert begun(checkpoints, 6).folder == "root/step-00000006"
    checkpoints.wish_for("/full")
    begun(checkpoints, 8)
    checkpoints.give_up("disk full")
    assert checkpoints.answered == SaveAnswer(is_done=False, text="step 8 could not be saved: disk full")


@pytest.mark.parametrize(
    "event", [ManifestWritten(4, "root/step-00000004", 0.1), ManifestFailed(4, "root/step-00000004", "disk full")]
)
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
    machine = Coordinator(settings, TemplatesPolicy.of(Planner(profile, planner)))
    machine._run.phase = Phase.SAVING
    for step in (4, 5):
        machine.checkpoints.begin(step, len(profile.groups), (4,), 0.0)
    assert machine.handle(event, 1.0) == ()
    assert machine.phase is Phase.SAVING
    assert machine.checkpoints.under_way is not None
    assert machine.checkpoints.under_way.step == 5
    assert machine.checkpoints.last is None


def completed(checkpoints: Checkpoints, step: int) -> None:
    begun(checkpoints, step)
    checkpoints.complete(2.0)


def test_a_checkpoint_of_what_was_not_compared_gives_way_to_the_one_before_it() -> None:
    checkpoints = kept()
    completed(checkpoints, 4)
    completed(checkpoints, 6)
    checkpoints.unproven = 6
    found = checkpoints.distrust(is_earlier_kept=True)
    assert found is not None
    assert checkpoints.last is not None
    assert (found.step, checkpoints.last.step) == (6, 4)
    assert checkpoints.distrust(is_earlier_kept=True) is None, "the one before it was compared"


def test_a_checkpoint_that_a_later_vote_proved_is_trusted() -> None:
    checkpoints = kept()
    completed(checkpoints, 4)
    checkpoints.unproven = 4
    checkpoints.prove(4)
    assert checkpoints.unproven == 4, "the vote for step 4 is from before it"
    checkpoints.prove(5)
    assert checkpoints.distrust(is_earlier_kept=True) is None


def test_where_only_one_checkpoint_is_kept_there_is_none_before_it() -> None:
    checkpoints = kept()
    completed(checkpoints, 4)
    completed(checkpoints, 6)
    checkpoints.unproven = 6
    assert checkpoints.distrust(is_earlier_kept=False) is not None
    assert checkpoints.last is None
