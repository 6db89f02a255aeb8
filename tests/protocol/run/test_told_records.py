from __future__ import annotations

import msgspec

from planaria.protocol.messages.records import PlanTaken, Restored
from planaria.protocol.run.told_records import ToldRecords
from tests.protocol.told import committed


def restored(generation: int) -> tuple[Restored, PlanTaken]:
    taken = PlanTaken(
        generation=generation,
        step=1,
        purpose="restore",
        policy="morph",
        reason="",
        pipelines=(),
        microbatches=(),
        estimated_step_s=1.0,
        transfer_bytes=0,
        plan_hash="",
    )
    return Restored(from_step=1, to_step=0, reason="node 4 lost"), taken


def test_a_step_reaches_readers_once_also_where_it_is_told_again_with_fewer_facts() -> None:
    told = ToldRecords()
    assert told.takes(committed(1), again=False)
    assert not told.takes(committed(1), again=True)
    assert not told.takes(committed(1, duration_s=2.0), again=True)


def test_a_step_after_a_return_to_a_checkpoint_is_new_and_one_before_it_is_not_told_again() -> None:
    told = ToldRecords()
    assert told.takes(committed(1), again=False)
    assert all(told.takes(record, again=False) for record in restored(4))
    assert not told.takes(committed(1, duration_s=2.0), again=True)
    assert told.takes(msgspec.structs.replace(committed(1), generation=4), again=True)
