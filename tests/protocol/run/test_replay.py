"""What a journal says: a fold over its entries, whole or cut off anywhere."""

from __future__ import annotations

import msgspec
import pytest

from planaria.plan.plan import NodeId, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol.messages.checkpoint_ref import CheckpointRef
from planaria.protocol.messages.journal import (
    AnyEntry,
    Fate,
    JournalCheckpoint,
    JournalCommit,
    JournalDisputes,
    JournalDistrust,
    JournalEnd,
    JournalEvaluation,
    JournalNode,
    JournalPlan,
    JournalRecovery,
    JournalRestart,
    JournalStop,
    JournalVoid,
    OpenDispute,
    PlanValidityState,
    decode_entry,
    encode_entry,
    is_lasting,
)
from planaria.protocol.messages.records import AnyRecord, ComputedWrong, Evaluated, Note
from planaria.protocol.messages.to_worker import NOT_APPLIED, Commit, PlanMessage, StateSource
from planaria.protocol.run.replay import JournalState
from planaria.protocol.thresholds import PROBATION_STEPS
from tests.plan.profiles import uniform_profile
from tests.protocol.told import committed


def note(text: str) -> tuple[AnyRecord, ...]:
    return (Note(level="info", text=text),)


def plan(generation: int, step: int, source: StateSource = StateSource.LIVE, *newcomers: int) -> JournalPlan:
    planner = PlannerSettings(num_microbatches=4, fault_tolerance=1, num_nodes=3, devices_per_node=1)
    policy = TemplatesPolicy.of(Planner(uniform_profile(1, tied=False), planner))
    message = PlanMessage(
        plan=policy.initial([NodeId(n) for n in range(3)], generation).plan,
        step=step,
        addresses={WorkerId(0): "a:1"},
        exponents=(1,),
        source=source,
    )
    came = tuple(NodeId(node) for node in newcomers)
    stand = PlanValidityState(placed=(NodeId(0),), needed=(), newcomers=came, is_warming=False)
    return JournalPlan(message=message, stand=stand, step_time_s=1.0, longest_s=0.5, records=note(f"plan {generation}"))


def commit(step: int, generation: int = 1, *, factor: float = 1.0) -> JournalCommit:
    told = Commit(
        generation=generation,
        step=step,
        clip_factor=factor,
        exponents=(1,),
        hold=False,
        loss=2.0,
        norm=3.0,
        learning_rate=0.5,
    )
    return JournalCommit(commit=told, records=note(f"step {step}"))


def node(number: int, fate: Fate, *, strikes: bool = False) -> JournalNode:
    text = f"node {number} {fate.value}"
    return JournalNode(node=NodeId(number), fate=fate, cause="x", strikes=strikes, records=note(text))


ENTRIES: list[AnyEntry] = [
    *(node(number, Fate.JOINED) for number in range(3)),
    plan(1, 1, StateSource.INITIAL),
    commit(1),
    commit(2, factor=NOT_APPLIED),
    JournalCheckpoint(checkpoint=CheckpointRef(step=2, folder="f", exponents=(1,))),
    node(3, Fate.JOINED),
    node(0, Fate.LEAVING),
    node(1, Fate.LOST, strikes=True),
    plan(2, 3, StateSource.LIVE, 3),
    commit(3, 2),
    JournalRecovery(),
    node(0, Fate.RELEASED),
    JournalStop(),
    JournalRestart(),
]


def test_a_whole_journal_tells_the_state_of_the_run() -> None:
    past = JournalState.of(ENTRIES)
    assert (past.step, past.commit, past.plan) == (4, ENTRIES[11], ENTRIES[10])
    assert (past.joined, past.lost, past.released, past.leaving) == ({2, 3}, {1}, {0}, frozenset())
    assert past.gone == {0, 1}
    assert past.newcomers == {3}
    assert past.checkpoint == CheckpointRef(step=2, folder="f", exponents=(1,))
    assert past.skipped_steps == {2}
    assert (past.is_stopping, past.restarts, past.end, past.losses) == (True, 1, None, ())
    assert past.records == note("step 3") + note("node 0 released")


def test_an_empty_journal_tells_nothing() -> None:
    past = JournalState.of([])
    assert (past.step, past.plan, past.commit, past.records) == (None, None, None, ())


def test_a_loss_stays_open_until_it_is_recovered_from() -> None:
    before = JournalState.of(ENTRIES[:10])
    assert [loss.node for loss in before.losses] == [1]
    assert not before.has_resumed
    after = JournalState.of(ENTRIES[:12])
    assert [loss.node for loss in after.losses] == [1]
    assert after.has_resumed
    idle = JournalState.of([*ENTRIES[:9], node(2, Fate.LOST)])
    assert idle.losses == (), "the loss of a node that nothing needed is nothing to recover from"


def test_zones_of_live_nodes_are_known() -> None:
    entries = [
        JournalNode(node=NodeId(number), fate=Fate.JOINED, zone=zone) for number, zone in enumerate(["a", "b", "", "a"])
    ]
    assert JournalState.of(entries).zones == {0: "a", 1: "b", 3: "a"}
    assert JournalState.of([*entries, node(3, Fate.LOST), node(1, Fate.RELEASED)]).zones == {0: "a"}


def test_labels_of_live_nodes_are_known() -> None:
    entries = [
        JournalNode(node=NodeId(number), fate=Fate.JOINED, label=label) for number, label in enumerate(["7_0", "", "x"])
    ]
    assert JournalState.of(entries).labels == {0: "7_0", 2: "x"}
    assert JournalState.of([*entries, node(2, Fate.LOST)]).labels == {0: "7_0"}


def test_a_restore_in_the_journal_goes_back_to_its_checkpoint() -> None:
    past = JournalState.of([*ENTRIES, plan(3, 2, StateSource.CHECKPOINT)])
    assert (past.step, past.commit, past.skipped_steps) == (2, None, frozenset())
    assert JournalState.of([*ENTRIES, plan(3, 2, StateSource.CHECKPOINT), commit(2, 3)]).step == 3


def test_a_node_that_came_before_the_placement_is_none_of_the_newcomers() -> None:
    assert JournalState.of(ENTRIES[:3]).newcomers == {0, 1, 2}
    assert JournalState.of(ENTRIES[:4]).newcomers == frozenset()


@pytest.mark.parametrize("entry", [*ENTRIES, JournalEnd(records=note("over"))], ids=lambda e: type(e).__name__)
def test_what_is_written_is_what_is_read(entry: AnyEntry) -> None:
    assert decode_entry(encode_entry(entry)) == entry


def test_what_is_no_entry_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_entry(b"\x81\xa4type\xa4none")


def test_how_long_the_last_step_took_is_known() -> None:
    took = committed(3, duration_s=0.25)
    commit = Commit(generation=1, step=3, clip_factor=1.0, exponents=(4,), hold=False)
    assert JournalState.of(()).last_step_s is None
    assert JournalState.of([JournalCommit(commit=commit)]).last_step_s is None
    undisturbed = JournalCommit(commit=commit, records=(took,))
    assert JournalState.of([undisturbed]).last_step_s == 0.25
    lost = node(2, Fate.LOST, strikes=True)
    assert JournalState.of([lost, undisturbed]).last_step_s is None, "finding the loss took time too"
    assert JournalState.of([lost, undisturbed, JournalRecovery()]).last_step_s is None


def wrong(node: int, host: str) -> JournalNode:
    record = ComputedWrong(node=node, step=2, held="replica", layers=(0,), host=host, times=1)
    return JournalNode(node=NodeId(node), fate=Fate.LOST, cause="computed wrong", records=(record,))


def test_hosts_of_nodes_that_computed_wrong_are_remembered() -> None:
    past = JournalState.of([wrong(0, "a"), wrong(1, "b"), wrong(2, "a")])
    assert past.wrong_hosts == {"a": 2, "b": 1}
    assert past.lost == {0, 1, 2}


def test_who_joins_on_such_a_host_is_on_probation_for_as_long_as_commits_say() -> None:
    entries = [wrong(0, "a")]
    entries += [JournalNode(node=NodeId(4 + at), fate=Fate.JOINED, host=host) for at, host in enumerate(["a", "b", ""])]
    past = JournalState.of([node(4, Fate.JOINED), *entries[:1], *entries[2:]])
    assert past.probation == {}, "it came before, or to another host"
    past = JournalState.of(entries)
    assert past.probation == {4: PROBATION_STEPS}
    said = msgspec.structs.replace(commit(2), probation={NodeId(4): 3}, suspects=(NodeId(5),))
    past = past.after(decode_entry(encode_entry(said)))
    assert (past.probation, past.suspects) == ({4: 3}, {5})
    assert past.after(node(4, Fate.LOST)).probation == {}
    assert past.after(commit(3)).probation == {}


def test_a_dispute_is_open_until_its_step_is_committed_or_others_are() -> None:
    open_ = tuple(OpenDispute(step=step, held="sum", items=(), claims=(), num_dropped=0) for step in (2, 5))
    past = JournalState.of([plan(1, 1), JournalDisputes(disputes=open_)])
    assert past.disputes == open_
    assert past.after(plan(2, 1, StateSource.INITIAL)).disputes == open_
    assert past.after(commit(2)).disputes == open_[1:]
    assert past.after(JournalDisputes(disputes=open_[:1])).disputes == open_[:1]


@pytest.mark.parametrize(
    ("entry", "lasts"),
    [(wrong(0, "a"), True), (node(0, Fate.LOST), False), (JournalDisputes(disputes=()), True), (JournalVoid(), True),
     (JournalStop(), True), (commit(1), False), (plan(1, 1), False)],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_no_worker_knows_outlasts_a_power_cut(entry: AnyEntry, lasts: bool) -> None:
    assert is_lasting(entry) is lasts


def test_all_evaluations_are_known() -> None:
    told = tuple(
        Evaluated(step=step, loss=1.0, perplexity=None, accuracy=None, microbatches=1, generation=1, duration_s=1.0)
        for step in (1, 2)
    )
    past = JournalState.of([plan(1, 1), *(JournalEvaluation(evaluated=each) for each in told)])
    assert past.evaluated == told


def test_a_distrusted_checkpoint_gives_way_to_the_one_before_it() -> None:
    saved = [CheckpointRef(step=step, folder=f"step-{step}", exponents=()) for step in (2, 4)]
    past = JournalState.of([JournalCheckpoint(checkpoint=one) for one in saved])
    assert (past.checkpoint, past.earlier, past.saved) == (saved[1], saved[0], {2, 4})
    past = past.after(JournalDistrust(step=4))
    assert (past.checkpoint, past.earlier, past.saved) == (saved[0], None, {2})


def test_a_step_that_came_of_a_wrong_state_is_void_until_it_is_begun_anew() -> None:
    past = JournalState.of([plan(1, 1), commit(1), JournalVoid(), node(2, Fate.LOST)])
    assert past.is_void
    assert not past.after(plan(2, 2)).is_void
    assert not past.after(commit(2)).is_void


def test_a_checkpoint_is_unproven_until_votes_have_compared_what_it_was_made_of() -> None:
    saved = JournalCheckpoint(checkpoint=CheckpointRef(step=1, folder="f", exponents=(1,)))
    past = JournalState.of([plan(1, 1, StateSource.INITIAL), commit(1)])
    assert past.unproven is None, "there is none"
    past = past.after(saved)
    assert past.unproven == 1
    assert past.after(commit(2)).unproven is None
    assert past.after(plan(2, 2, StateSource.CHECKPOINT)).unproven is None, "the step began with it"
