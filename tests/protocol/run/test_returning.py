"""A machine that begins on the journal of one that died. Whole runs are in tests/runtime/worker."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, Plan, Route, Stage, WorkerId
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.messages.events import (
    Command,
    DecisionTook,
    Event,
    Evict,
    Finish,
    NodeGone,
    Publish,
    Received,
    Restarted,
    Send,
    StopRequested,
    WorkerJoined,
)
from planaria.protocol.messages.from_worker import Damaged, Report, Returned, WorkerPhase
from planaria.protocol.messages.journal import (
    AnyEntry,
    Fate,
    JournalCommit,
    JournalEnd,
    JournalEntry,
    JournalNode,
    JournalPlan,
)
from planaria.protocol.messages.records import (
    CoordinatorRestarted,
    NodeJoined,
    NodeLost,
    Note,
    Recovered,
    RunEnded,
    RunStatus,
    StepCommitted,
)
from planaria.protocol.messages.to_worker import Commit, Halt, PlanMessage, Recall, Save, StateSource, Stop
from planaria.protocol.phases import Phase
from planaria.protocol.run.replay import JournalState
from planaria.protocol.run.returning import ReturningWorkers, without_routes
from tests.protocol.test_coordinator import make_machine, sent, vote


class Life:
    """A machine, what it wrote down, and a successor on that."""

    def __init__(self, machine: Coordinator, journal: Iterable[AnyEntry] = ()) -> None:
        self.machine = machine
        self.journal: list[Any] = list(journal)
        self.said: list[Command] = []

    def does(self, *events: Event) -> list[Command]:
        commands = list(itertools.chain(*(self.machine.handle(event, 1.0) for event in events)))
        self.journal += [command for command in commands if isinstance(command, JournalEntry)]
        self.said += commands
        return commands

    def after(self, *, cut: int = 0) -> Life:
        """The coordinator dies; `cut` entries are lost with it."""
        kept = self.journal[: len(self.journal) - cut]
        return Life(make_machine(JournalState.of(kept)), kept)

    def told(self, worker: int, kind: type) -> Any:
        """The last message of the kind to the worker."""
        return [c.message for c in sent(self.said, kind) if c.worker == worker][-1]


@pytest.fixture
def life() -> Life:
    """In the first step."""
    life = Life(make_machine())
    life.does(*(WorkerJoined(WorkerId(worker), f"host:{worker}") for worker in range(3)))
    return life


def returned(
    life: Life, worker: int, phase: WorkerPhase = WorkerPhase.RUNNING, *, step: int | None = None, **others: Any
) -> Received:
    """In the plan that the life's machine has in force."""
    fields: dict[str, Any] = {
        "generation": life.machine.plan.generation,
        "step": life.machine.step if step is None else step,
        "phase": phase,
        "is_settled": True,
        "ledger": Ledger.empty(1),
        "held": (0,),
        "given": (0,),
        "serial": 0,
        "commit": None,
        "vote": None,
        "message": None,
    }
    return Received(WorkerId(worker), Returned(**{**fields, **others}))


def joined(*workers: int) -> list[Event]:
    return [WorkerJoined(WorkerId(worker), f"new:{worker}") for worker in workers]


def votes(life: Life, *workers: int) -> list[Event]:
    return [vote(life.machine, worker) for worker in workers]


def records(commands: Iterable[Command], kind: type) -> list[Any]:
    return [c.record for c in commands if isinstance(c, Publish) and isinstance(c.record, kind)]


def test_whoever_computes_goes_on_undisturbed(life: Life) -> None:
    cast = vote(life.machine, 2)
    after = life.after()
    commands = after.does(Restarted(), *joined(0, 1, 2), *(returned(life, w) for w in (0, 1)))
    assert after.machine.awaited == {2}
    commands += after.does(returned(life, 2, WorkerPhase.VOTED, vote=cast.message))
    assert not [command for command in commands if isinstance(command, Send)]
    (record,) = records(commands, CoordinatorRestarted)
    assert (record.step, record.returned, record.lag) == (1, 3, 0)
    assert after.machine.phase is Phase.TRAINING
    assert sent(after.does(*votes(life, 0, 1)), Commit), "the vote of before counts"


def test_whoever_joins_meanwhile_is_told_with_those_who_are_yet_to_come_back(life: Life) -> None:
    commands = life.after().does(Restarted(), *joined(0, 7))
    told = records(commands, NodeJoined)[-1]
    assert (told.node, told.live_nodes) == (7, 4)


def test_a_vote_between_the_report_and_the_end_of_the_return_counts(life: Life) -> None:
    cast = votes(life, 0, 1, 2)
    after = life.after()
    after.does(Restarted(), *joined(0, 1, 2), returned(life, 0), cast[0], returned(life, 1), cast[1])
    assert after.machine.step == 1
    commands = after.does(returned(life, 2, WorkerPhase.VOTED, vote=vote(life.machine, 2).message))
    assert len(sent(commands, Commit)) == 3


def test_a_commit_that_was_lost_is_told_again_as_it_was(life: Life) -> None:
    cast = vote(life.machine, 2).message
    life.does(*votes(life, 0, 1, 2))
    told = life.told(2, Commit)
    after = life.after()
    commands = after.does(
        Restarted(),
        *joined(0, 1, 2),
        returned(life, 0, commit=told),
        returned(life, 1, commit=told),
        returned(life, 2, WorkerPhase.VOTED, step=1, vote=cast),
    )
    assert [(c.worker, c.message) for c in commands if isinstance(c, Send)] == [(2, told)]
    (again,) = [c for c in commands if isinstance(c, Publish) and isinstance(c.record, StepCommitted)]
    assert again.again
    assert after.machine.step == 2


def test_a_commit_that_only_a_worker_knows_wins(life: Life) -> None:
    """It is written down before the others hear of it, and told of."""
    cast = [vote(life.machine, worker).message for worker in range(3)]
    life.does(*votes(life, 0, 1, 2))
    told = life.told(0, Commit)
    after = life.after(cut=1)
    assert after.machine.step == 1
    commands = after.does(
        Restarted(),
        *joined(0, 1, 2),
        returned(life, 0, commit=told),
        *(returned(life, w, WorkerPhase.VOTED, step=1, vote=cast[w]) for w in (1, 2)),
    )
    assert [(c.worker, c.message) for c in commands if isinstance(c, Send)] == [(1, told), (2, told)]
    (entry,) = [c for c in commands if isinstance(c, JournalCommit)]
    assert entry.commit == told
    assert commands.index(entry) < min(commands.index(c) for c in sent(commands, Commit))
    (record,) = records(commands, StepCommitted)
    assert (record.step, record.loss, record.grad_norm) == (1, told.loss, told.norm)
    assert records(commands, CoordinatorRestarted)[0].lag == 1
    assert JournalState.of(after.journal).step == 2


def test_a_plan_that_only_workers_know_is_asked_for_once(life: Life) -> None:
    plan = life.told(1, PlanMessage)
    after = life.after(cut=1)
    commands = after.does(Restarted(), *joined(0, 1, 2), *(returned(life, w) for w in range(3)))
    assert [(c.worker, c.message) for c in commands if isinstance(c, Send)] == [(0, Recall())]
    assert after.machine.awaited == {0}
    commands = after.does(returned(life, 0, message=plan))
    assert not [c for c in commands if isinstance(c, Send)]
    (entry,) = [c for c in commands if isinstance(c, JournalPlan)]
    assert entry.message == plan
    assert after.machine.phase is Phase.TRAINING
    assert after.machine.plan == plan.plan


def test_who_was_asked_for_the_plan_dies(life: Life) -> None:
    plan = life.told(1, PlanMessage)
    after = life.after(cut=1)
    after.does(Restarted(), *joined(0, 1, 2), *(returned(life, w) for w in range(3)))
    commands = after.does(NodeGone(NodeId(0), "x"))
    assert [c.worker for c in sent(commands, Recall)] == [1]
    commands = after.does(returned(life, 1, message=plan))
    assert {c.worker for c in sent(commands, PlanMessage)} == {1, 2}, "nobody had counted anything: a new placement"


def test_a_plan_that_was_written_down_reaches_those_that_lack_it(life: Life) -> None:
    after = life.after()
    commands = after.does(
        Restarted(),
        *joined(0, 1, 2),
        returned(life, 0),
        returned(life, 1, WorkerPhase.IDLE, generation=-1, step=0, held=()),
        returned(life, 2, WorkerPhase.IDLE, generation=-1, step=0, held=()),
    )
    plans = {c.worker: c.message for c in commands if isinstance(c, Send)}
    assert set(plans) == {1, 2}
    told = life.told(1, PlanMessage)
    assert plans[WorkerId(1)] == msgspec.structs.replace(told, addresses={w: f"new:{w}" for w in range(3)})


def test_a_node_lost_in_between_is_an_ordinary_loss(life: Life) -> None:
    after = life.after()
    commands = after.does(Restarted(), *joined(0, 1), returned(life, 0, ledger=Ledger.of([[0]])), returned(life, 1))
    assert after.machine.awaited == {2}
    commands = after.does(NodeGone(NodeId(2), "process killed"))
    kinds = [type(command) for command in commands]
    assert kinds.index(JournalNode) < kinds.index(Evict), "written down before it is carried out"
    assert len(records(commands, NodeLost)) == 1
    (taken,) = {c.message.plan for c in sent(commands, PlanMessage) if isinstance(c.message, PlanMessage)}
    assert taken.nodes == (0, 1)


def test_a_loss_is_timed_from_when_it_was_seen_though_nobody_coordinated(life: Life) -> None:
    """A node that ended 0.6 s before its loss was heard of."""
    after = life.after()
    after.does(Restarted(gone_at={NodeId(2): 0.4}), *joined(0, 1), returned(life, 0), returned(life, 1))
    (lost,) = records(after.does(NodeGone(NodeId(2), "process killed")), NodeLost)
    assert lost.detect_ms == pytest.approx(600.0)


@pytest.mark.parametrize(("gone_at", "resume_ms"), [({NodeId(2): 0.4}, 600.0), ({}, 0.0)])
def test_a_recovery_that_was_under_way_is_timed_from_its_loss(
    gone_at: dict[NodeId, float], resume_ms: float, life: Life
) -> None:
    """Not from when the coordinator began again, where somebody had heard of the loss."""
    life.does(NodeGone(NodeId(2), "process killed"))
    after = life.after()
    first = Life(make_machine())
    first.does(*(WorkerJoined(WorkerId(worker), f"host:{worker}") for worker in range(3)))
    after.does(Restarted(gone_at=gone_at), *joined(0, 1), returned(first, 0), returned(first, 1))
    for worker in {c.worker for c in sent(after.said, Halt)}:
        after.does(Received(worker, Report(generation=1, step=1, ledger=Ledger.empty(1), held=(0,))))
    after.does(*votes(after, 0, 1), DecisionTook(0.0))
    (recovered,) = records(after.said, Recovered)
    assert recovered.recovery.resume_ms == pytest.approx(resume_ms)


def test_whoever_a_loss_had_halted_reports_again(life: Life) -> None:
    """The coordinator died between the reports and the plan."""
    life.does(NodeGone(NodeId(2), "x"))
    written = next(at for at, e in enumerate(life.journal) if isinstance(e, JournalNode) and e.fate is Fate.LOST)
    after = Life(make_machine(JournalState.of(life.journal[: written + 1])))
    first = Life(make_machine())
    first.does(*(WorkerJoined(WorkerId(worker), f"host:{worker}") for worker in range(3)))
    commands = after.does(Restarted())
    assert Evict(NodeId(2)) in commands
    assert records(commands, NodeLost), "published again: it may not have been"
    commands = after.does(*joined(0, 1), returned(first, 0), returned(first, 1, WorkerPhase.HALTED))
    assert [c.worker for c in sent(commands, Halt)] == [1]
    report = Report(generation=1, step=1, ledger=Ledger.empty(1), held=(0,))
    assert sent(after.does(Received(WorkerId(1), report)), PlanMessage)


def test_the_boundary_is_thought_over_again(life: Life) -> None:
    """A user's stop was accepted: everybody holds, and the coordinator dies before the state is saved."""
    life.does(StopRequested(), *votes(life, 0, 1, 2))
    told = life.told(0, Commit)
    assert told.hold
    after = life.after()
    commands = after.does(
        Restarted(), *joined(0, 1, 2), *(returned(life, w, WorkerPhase.IDLE, commit=told, serial=7) for w in range(3))
    )
    saves = [c.message for c in sent(commands, Save)]
    assert saves
    assert all(isinstance(save, Save) and save.serial == 8 for save in saves), "no answer to an older order counts"
    assert after.machine.phase is Phase.SAVING


def test_an_end_that_was_written_down_is_the_end(life: Life) -> None:
    life.does(StopRequested(), *votes(life, 0, 1, 2))
    ended = RunEnded(
        status=RunStatus.STOPPED, steps=1, message="because", skipped_microbatches=0, duplicated_microbatches=0
    )
    life.journal.append(JournalEnd(records=(ended,)))
    after = life.after()
    commands = after.does(Restarted())
    assert Finish(RunStatus.STOPPED, "because") in commands
    assert Publish(ended, again=True) in commands, "it may not have been told"
    assert [c.worker for c in sent(after.does(*joined(1)), Stop)] == [1]


def test_what_neither_the_commit_nor_the_plan_can_mend_is_fenced(life: Life) -> None:
    """A worker that had been given up, which the journal and everybody else went on without."""
    for _ in range(2):
        life.does(*votes(life, 0, 1, 2))
    told = life.told(0, Commit)
    after = life.after()
    commands = after.does(
        Restarted(), *joined(0, 1, 2), *(returned(life, w, commit=told) for w in (0, 1)), returned(life, 2, step=1)
    )
    assert Evict(NodeId(2)) in commands


def test_what_was_held_before_the_job_went_back_is_nothing_to_go_on_with(life: Life) -> None:
    """A plan takes for granted what came with the one that went back, and a worker heard of neither."""
    plan = msgspec.structs.replace(life.machine.plan, generation=5)
    entry = next(entry for entry in life.journal if isinstance(entry, JournalPlan))
    told = msgspec.structs.replace(entry.message, plan=plan, source=StateSource.LIVE, begun=5, lineage=4)
    fenced = []
    for lineage in (1, 4):
        told = msgspec.structs.replace(told, lineage=lineage)
        after = Life(make_machine(JournalState.of([*life.journal, msgspec.structs.replace(entry, message=told)])))
        commands = after.does(Restarted(), *joined(0, 1, 2), *(returned(life, w, generation=5) for w in (0, 1)))
        commands += after.does(returned(life, 2, WorkerPhase.IDLE, generation=1))
        fenced.append(Evict(NodeId(2)) in commands)
    assert fenced == [False, True]


@pytest.mark.parametrize(
    ("held", "given", "is_held"),
    [((0,), (0,), True), ((), (0,), True), ((0,), (), False)],
    ids=["as reported", "arrived before the vote", "taken away by its plan"],
)
def test_who_has_no_work_and_is_told_of_the_last_commit_holds_its_part(
    held: tuple[int, ...], given: tuple[int, ...], is_held: bool, life: Life
) -> None:
    """The plan in force does without two workers, and the third is lost."""
    cast = [vote(life.machine, worker).message for worker in range(3)]
    life.does(*votes(life, 0, 1, 2))
    entry = next(entry for entry in life.journal if isinstance(entry, JournalPlan))
    before = life.machine.plan
    route = msgspec.structs.replace(before.routes[0], microbatches=tuple(range(4)))
    plan = msgspec.structs.replace(before, generation=2, pipelines=before.pipelines[:1], routes=(route,))
    (left,) = plan.workers
    told = msgspec.structs.replace(entry.message, plan=plan, step=2, source=StateSource.LIVE, begun=2, lineage=1)
    after = Life(make_machine(JournalState.of([*life.journal, msgspec.structs.replace(entry, message=told)])))
    idle = [worker for worker in range(3) if worker != left]
    fields: dict[str, Any] = {"step": 1, "held": held, "given": given}
    commands = after.does(
        Restarted(),
        *joined(*idle),
        *(returned(life, w, WorkerPhase.VOTED, vote=cast[w], **fields) for w in idle),
        NodeGone(NodeId(left), "x"),
    )
    assert [c.worker for c in sent(commands, Commit)] == idle
    plans = [c.message for c in commands if isinstance(c, Send) and isinstance(c.message, PlanMessage)]
    assert [(plan.step, plan.source) for plan in plans] == [(2, StateSource.LIVE)] * (2 if is_held else 0)
    failures = [c.message for c in commands if isinstance(c, Finish)]
    assert is_held != any("no replica" in message for message in failures)


def test_a_death_before_anything_was_written_is_a_beginning() -> None:
    after = Life(make_machine(JournalState()))
    beginning = Life(make_machine())
    beginning.does(*(WorkerJoined(WorkerId(worker), f"host:{worker}") for worker in range(3)))
    nobody = {"generation": -1, "step": 0, "held": ()}
    commands = after.does(
        Restarted(), *joined(0, 1, 2), *(returned(beginning, w, WorkerPhase.IDLE, **nobody) for w in range(3))
    )
    assert len(sent(commands, PlanMessage)) == 3


def test_a_worker_that_comes_back_too_late_is_lost(life: Life) -> None:
    """It has a plan that nobody else knows, so that no other plan could reach it."""
    after = life.after()
    after.does(Restarted(), *joined(0, 1, 2), *(returned(life, w) for w in range(3)))
    commands = after.does(*joined(5), returned(life, 5, generation=9))
    assert Evict(NodeId(5)) in commands


def past(life: Life) -> ReturningWorkers:
    return ReturningWorkers(JournalState.of(life.journal), 3, devices_per_node=1)


def reported(life: Life, worker: int, **others: Any) -> Returned:
    report = returned(life, worker, **others).message
    assert isinstance(report, Returned)
    return report


def test_what_accumulators_hold_counts_of_this_step_and_of_who_is_in_it(life: Life) -> None:
    """Beside what the plan has the worker count."""
    returning, rest = past(life), Ledger.of([[0, 1, 2, 3]])
    of_plan = [m for route in life.machine.plan.routes if route.hops[0].worker == 0 for m in route.microbatches]
    returning.report(WorkerId(0), reported(life, 0, ledger=rest))
    returning.report(WorkerId(1), reported(life, 1, ledger=rest, step=life.machine.step - 1))
    returning.report(WorkerId(2), reported(life, 2, ledger=rest, phase=WorkerPhase.IDLE))
    returning.report(WorkerId(5), reported(life, 5, ledger=rest))
    position = returning.position()
    assert position is not None
    assert returning.earlier(position) == {0: Ledger.of([[m for m in range(4) if m not in of_plan]])}


@pytest.mark.parametrize("source", [StateSource.LIVE, StateSource.CHECKPOINT])
@pytest.mark.parametrize("afresh", [False, True])
@pytest.mark.parametrize("late", [0, 1])
def test_what_was_counted_before_a_step_was_begun_anew_is_nothing(
    life: Life, source: StateSource, afresh: bool, late: int
) -> None:
    """At whoever has not heard yet that it is: by another plan, or because the job went back."""
    returning, generation = past(life), life.machine.plan.generation
    returning.report(WorkerId(0), reported(life, 0, generation=generation - late))
    position = returning.position()
    assert position is not None
    message = msgspec.structs.replace(position.message, begun=generation - 1, afresh=afresh, source=source)
    is_anew = afresh or source is StateSource.CHECKPOINT
    assert (0 in returning.earlier(replace(position, message=message))) == (not late or not is_anew)


def test_what_a_lost_worker_reported_is_forgotten(life: Life) -> None:
    returning = past(life)
    for worker in range(3):
        returning.report(WorkerId(worker), reported(life, worker, phase=WorkerPhase.HALTED))
    returning.forget([WorkerId(1), WorkerId(7)])
    position = returning.position()
    assert position is not None
    assert sorted(returning.reports) == [0, 2]
    assert sorted(returning.held(position)) == [0, 2]


def test_a_ledger_is_told_without_the_work_of_routes(life: Life) -> None:
    plan: Plan = life.machine.plan
    stages = tuple(Stage(worker=WorkerId(worker), first_layer=worker, end_layer=worker + 1) for worker in range(2))
    route = Route(hops=stages, microbatches=(1, 2), born=0, counted=(0,))
    plan = msgspec.structs.replace(plan, routes=(route,))
    ledger = Ledger.of([[0, 1, 2], [1]])
    assert without_routes(plan, WorkerId(0), ledger) == Ledger.of([[0], [1]])
    assert without_routes(plan, WorkerId(1), ledger) == ledger, "the route does not count there"


@pytest.mark.parametrize("order", ["ascending", "descending", "mixed"])
@pytest.mark.parametrize("has_plan", [False, True])
def test_whether_anybody_is_awaited_is_asked_of_few(
    has_plan: bool, order: str, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_nodes = 256
    past = JournalState(joined=frozenset(map(NodeId, range(num_nodes))))
    returning = ReturningWorkers(past, num_nodes, devices_per_node=1)
    if has_plan:
        plan = SimpleNamespace(workers=tuple(range(num_nodes - 9)), generation=1)
        returning.message = cast("PlanMessage", SimpleNamespace(plan=plan))
    awaited, looks = returning.awaited, 0

    def look(joined: Collection[WorkerId], gone: Collection[NodeId]) -> frozenset[WorkerId]:
        nonlocal looks
        looks += 1
        return awaited(joined, gone)

    monkeypatch.setattr(returning, "awaited", look)
    report = returned(life, 0, generation=1).message
    assert isinstance(report, Returned)
    events = [(WorkerId(worker), is_report) for worker in range(num_nodes) for is_report in (False, True)]
    events = events[::-1] if order == "descending" else events
    if order == "mixed":
        random.Random(1).shuffle(events)
    joined, gone, lost = dict[WorkerId, str](), set[NodeId](), {WorkerId(7)}
    for worker, is_report in events:
        if worker % 16 == 3:
            gone.add(NodeId(worker))
        elif is_report and worker not in lost:
            returning.report(worker, report)
        else:
            joined[worker] = "there"
        assert returning.awaits_anybody(joined, gone, lost) == bool(awaited(joined, gone) - lost)
    assert not returning.awaits_anybody(joined, gone, lost)
    assert looks < 40, "of 512 times"


def test_complaints_told_meanwhile_are_heard_in_their_order_once_all_are_back(life: Life) -> None:
    plan = life.machine.plan
    complaints = [
        Received(
            WorkerId(worker),
            Damaged(generation=plan.generation, step=1, source=WorkerId(2), kind="sum", item=0),
        )
        for worker in (1, 0)
    ]
    after = life.after()
    commands = after.does(Restarted(), *joined(0, 1, 2), returned(life, 0), returned(life, 1), *complaints)
    assert not records(commands, Note)
    told = [note.text for note in records(after.does(returned(life, 2)), Note)]
    assert [text for text in told if "arrived damaged at worker 1" in text] == told[:1]


def test_no_plan_has_the_generation_of_one_that_a_worker_alone_knows() -> None:
    returning = ReturningWorkers(JournalState(), 3, 1)
    life = Life(make_machine())
    life.does(*(WorkerJoined(WorkerId(worker), f"host:{worker}") for worker in range(3)))
    for generation in (7, 5):
        message = returned(life, 0, generation=generation).message
        assert isinstance(message, Returned)
        returning.report(WorkerId(0), message)
    assert returning.generation == 7
