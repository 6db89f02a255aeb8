"""The coordinator's machine alone: its table, its settings, its refusals. Whole runs are in tests/worker."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import msgspec
import pytest

from planaria.job.registry import PolicyName
from planaria.job.sections.budget import BudgetSection
from planaria.job.sections.train import TrainSection, WhenNotFinite
from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, PlanError, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.policy.interface import Policy
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.messages.events import (
    Command,
    DecisionTook,
    Discard,
    Finish,
    ManifestWritten,
    NodeGone,
    PolicyRequested,
    Publish,
    Received,
    Release,
    SaveRequested,
    Send,
    StopRequested,
    WorkerJoined,
    WriteManifest,
)
from planaria.protocol.messages.from_worker import AwaitsSamples, Failed, Notice, Ready, Report, Saved, SavedGroup, Vote
from planaria.protocol.messages.journal import JournalCommit, JournalNode, JournalStop
from planaria.protocol.messages.records import (
    Note,
    PlanTaken,
    Recovered,
    RunStatus,
    StepCommitted,
    StepSkipped,
    Waiting,
)
from planaria.protocol.messages.to_worker import NOT_APPLIED, Commit, Halt, PlanMessage, Save, Stop
from planaria.protocol.phases import Phase, ProtocolError, Purpose
from planaria.protocol.run.replay import JournalState
from planaria.protocol.run.settings import RunSettings
from planaria.protocol.step.checkpoint import SaveAnswer
from planaria.protocol.transitions import TRANSITIONS
from tests.plan.profiles import uniform_profile


@pytest.fixture
def machine() -> Coordinator:
    """Three pipelines of one node each, four microbatches, one layer; nobody has joined."""
    return make_machine()


def make_machine(past: JournalState | None = None, **changes: Any) -> Coordinator:
    planner = PlannerSettings(num_microbatches=4, fault_tolerance=1, num_nodes=3, devices_per_node=1)
    profile = uniform_profile(1, tied=False)
    settings = RunSettings(
        train=TrainSection(steps=3, global_batch=4, microbatch=1, sequence_length=8),
        policy_name="templates",
        fault_tolerance=1,
        num_nodes=3,
        devices_per_node=1,
        num_groups=len(profile.groups),
        checkpoint_root="checkpoints",
        checkpoint_every=0,
        resume=None,
    )
    settings = dataclasses.replace(settings, **changes)
    return Coordinator(settings, TemplatesPolicy.of(Planner(profile, planner)), past)


def join_all(machine: Coordinator) -> list[Command]:
    commands: list[Command] = []
    for worker in range(3):
        commands += machine.handle(WorkerJoined(WorkerId(worker), f"host:{worker}"), 0.0)
    for worker in range(3):
        machine.handle(Received(WorkerId(worker), Ready(generation=1)), 0.0)
    return commands


def vote(machine: Coordinator, worker: int) -> Received:
    """A vote for what the plan gives the worker."""
    plan = machine.plan
    mine = [route for route in plan.routes if any(hop.worker == worker for hop in route.hops)]
    counted = [
        [m for route in mine for m in route.microbatches if layer in plan.layers_of.get(WorkerId(worker), ())]
        for layer in range(plan.num_layers)
    ]
    tells = [g for g, owners in enumerate(plan.owners_of) if owners[g % len(owners)] == worker]
    losses = {m: 2.0 for route in mine for m in route.microbatches if route.hops[-1].worker == worker}
    message = Vote(
        generation=plan.generation,
        step=machine.step,
        norms=dict.fromkeys(tells, 1.0),
        losses=losses,
        ledger=Ledger.of(counted),
    )
    return Received(WorkerId(worker), message)


def sent(commands: list[Command] | tuple[Command, ...], kind: type) -> list[Send]:
    return [command for command in commands if isinstance(command, Send) and isinstance(command.message, kind)]


@pytest.mark.parametrize("hashes_plans", [True, False])
def test_records_of_plans_bear_their_hash_where_it_is_wanted(hashes_plans: bool) -> None:
    machine = make_machine(hashes_plans=hashes_plans)
    (taken,) = (
        command.record
        for command in join_all(machine)
        if isinstance(command, Publish) and isinstance(command.record, PlanTaken)
    )
    assert taken.plan_hash == (machine.plan.content_hash if hashes_plans else "")


def test_the_plan_goes_out_when_all_have_joined(machine: Coordinator) -> None:
    assert len(sent(join_all(machine), PlanMessage)) == 3
    assert machine.phase is Phase.TRAINING


def test_the_journal_comes_before_the_commit(machine: Coordinator) -> None:
    join_all(machine)
    commands = list(itertools.chain(*(machine.handle(vote(machine, worker), 1.0) for worker in range(3))))
    kinds = [type(command.message if isinstance(command, Send) else command) for command in commands]
    assert kinds.index(JournalCommit) < kinds.index(Commit)
    assert machine.step == 2


def test_a_vote_for_another_generation_does_not_count(machine: Coordinator) -> None:
    join_all(machine)
    stale = vote(machine, 2)
    machine.handle(vote(machine, 0), 1.0)
    machine.handle(NodeGone(NodeId(1), "connection closed"), 1.0)
    assert machine.plan.generation == 2
    machine.handle(vote(machine, 0), 1.1)
    assert machine.handle(stale, 1.2) == ()
    assert machine.step == 1
    assert sent(machine.handle(vote(machine, 2), 1.3), Commit)


def votes(machine: Coordinator, *, loss: float = 2.0, norm: float = 1.0) -> list[Command]:
    """All three workers vote, with this loss of worker 1's microbatches and this norm."""
    commands: list[Command] = []
    for worker in range(3):
        message = vote(machine, worker).message
        assert isinstance(message, Vote)
        losses = dict.fromkeys(message.losses, loss) if worker == 1 else message.losses
        message = msgspec.structs.replace(message, losses=losses, norms=dict.fromkeys(message.norms, norm))
        commands += machine.handle(Received(WorkerId(worker), message), 1.0)
    return commands


def with_skipping(machine: Coordinator) -> Coordinator:
    train = msgspec.structs.replace(machine.settings.train, when_not_finite=WhenNotFinite.SKIP, lr_schedule="constant")
    return Coordinator(dataclasses.replace(machine.settings, train=train), machine.policy)


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (2.0, math.nan), (2.0, math.inf)])
def test_a_step_that_is_not_finite_is_committed_and_not_applied(loss: float, norm: float, machine: Coordinator) -> None:
    """And the next one is as if it had not been, but for its number."""
    skipping = with_skipping(machine)
    join_all(skipping)
    before = skipping._run.exponents
    commands = votes(skipping, loss=loss, norm=norm)
    (journalled,) = [command for command in commands if isinstance(command, JournalCommit)]
    told = journalled.commit
    assert (told.step, told.clip_factor, told.exponents) == (1, NOT_APPLIED, before)
    commits = [command.message for command in sent(commands, Commit)]
    assert len(commits) == 3
    for message in commits:
        assert isinstance(message, Commit)
        assert (message.clip_factor, message.exponents, message.hold) == (NOT_APPLIED, before, False)
    (record,) = [command.record for command in commands if isinstance(command, Publish)]
    assert isinstance(record, StepSkipped)
    assert (record.loss is None, record.grad_norm is None) == (not math.isfinite(loss), not math.isfinite(norm))
    assert (skipping.step, skipping._run.skipped_steps) == (2, {1})
    after = [command.record for command in votes(skipping) if isinstance(command, Publish)]
    assert isinstance(after[0], StepCommitted)
    last = votes(skipping, loss=math.nan)
    assert sent(last, Save), "the last step may be skipped too"


def test_a_step_that_is_not_finite_ends_the_run_unless_told_otherwise(machine: Coordinator) -> None:
    join_all(machine)
    votes(machine)
    commands = votes(machine, loss=math.nan)
    assert not sent(commands, Commit)
    (save,) = {command.message.step for command in sent(commands, Save) if isinstance(command.message, Save)}
    assert (save, machine.phase) == (1, Phase.SAVING)


def test_a_notice_before_the_first_plan_is_kept(machine: Coordinator) -> None:
    machine.handle(WorkerJoined(WorkerId(0), "host:0"), 0.0)
    notice = Received(WorkerId(0), Notice(grace_s=30.0, cause="the cloud"))
    written, leaving = machine.handle(notice, 0.0)
    assert isinstance(written, JournalNode)
    assert isinstance(leaving, Publish)
    join_all(machine)
    commands = list(itertools.chain(*(machine.handle(vote(machine, worker), 1.0) for worker in range(3))))
    assert Release(NodeId(0)) in commands
    assert machine.plan.nodes == (1, 2)


def test_contributions_counted_twice_stop_the_run(machine: Coordinator) -> None:
    join_all(machine)
    machine.handle(vote(machine, 0), 1.0)
    machine.handle(vote(machine, 1), 1.0)
    honest = vote(machine, 2).message
    assert isinstance(honest, Vote)
    everything = Ledger.of([range(4)])
    lying = Vote(generation=1, step=1, norms=honest.norms, losses=honest.losses, ledger=everything)
    with pytest.raises(ProtocolError, match="counted twice"):
        machine.handle(Received(WorkerId(2), lying), 1.0)


@pytest.mark.parametrize("microbatch", range(4))
def test_a_contribution_that_nobody_counted_stops_the_run(microbatch: int, machine: Coordinator) -> None:
    join_all(machine)
    with pytest.raises(ProtocolError, match="1 contributions missing and 0 counted twice"):
        for worker in range(3):
            honest = vote(machine, worker).message
            assert isinstance(honest, Vote)
            without = msgspec.structs.replace(honest, ledger=honest.ledger.without(1 << microbatch))
            machine.handle(Received(WorkerId(worker), without), 1.0)


def test_a_save_that_is_overtaken_by_the_one_of_the_end_is_answered(machine: Coordinator) -> None:
    join_all(machine)
    machine.handle(SaveRequested("/elsewhere"), 0.5)
    beside = [send.message for send in sent(votes(machine), Commit)]
    assert any(commit.save is not None for commit in beside if isinstance(commit, Commit))
    machine.handle(StopRequested(), 1.5)
    saves = [send.message for send in sent(votes(machine), Save)]
    assert {save.step for save in saves if isinstance(save, Save)} == {2}
    text = "step 1 could not be saved: it is written anew"
    assert machine.checkpoints.answered == SaveAnswer(is_done=False, text=text)


def test_the_stop_waits_for_the_step(machine: Coordinator) -> None:
    join_all(machine)
    written, note = machine.handle(StopRequested(), 0.5)
    assert isinstance(written, JournalStop)
    assert isinstance(note, Publish)
    commands = list(itertools.chain(*(machine.handle(vote(machine, worker), 1.0) for worker in range(3))))
    assert all(command.message.hold for command in sent(commands, Commit) if isinstance(command.message, Commit))
    assert sent(commands, Save)
    assert machine.phase is Phase.SAVING


def starved(machine: Coordinator, worker: int = 0) -> tuple[Command, ...]:
    """A worker says that it waits for samples; all that are halted then report that they did nothing."""
    generation, step, held = machine.plan.generation, machine.step, tuple(range(len(machine.plan.groups)))
    commands = machine.handle(Received(WorkerId(worker), AwaitsSamples(generation=generation, step=step)), 2.0)
    for send in sent(commands, Halt):
        report = Report(generation=generation, step=step, ledger=Ledger.empty(1), held=held)
        commands += machine.handle(Received(send.worker, report), 2.1)
    return commands


def test_a_stop_does_not_wait_for_samples_of_a_stream(machine: Coordinator) -> None:
    join_all(machine)
    votes(machine)
    assert starved(machine) == ()
    machine.handle(StopRequested(), 1.5)
    commands = starved(machine, 1)
    assert [len(sent(commands, kind)) for kind in (Halt, PlanMessage)] == [3, 0]
    assert machine.phase is Phase.SAVING
    saves = [send.message for send in sent(commands, Save)]
    assert {save.step for save in saves if isinstance(save, Save)} == {1}
    notes = [c.record.text for c in commands if isinstance(c, Publish) and isinstance(c.record, Note)]
    assert notes[0] == "step 2 waits for samples of the stream: it is given up, and step 1 saved"


def test_a_stop_in_the_first_step_ends_at_once_where_that_waits_for_samples(machine: Coordinator) -> None:
    join_all(machine)
    machine.handle(StopRequested(), 1.5)
    commands = starved(machine)
    assert [command.status for command in commands if isinstance(command, Finish)] == [RunStatus.STOPPED]
    notes = [c.record.text for c in commands if isinstance(c, Publish) and isinstance(c.record, Note)]
    assert notes[0] == "step 1 waits for samples of the stream: it is given up"


def test_samples_that_another_plan_waited_for_stop_nothing(machine: Coordinator) -> None:
    join_all(machine)
    machine.handle(StopRequested(), 1.5)
    stale = AwaitsSamples(generation=machine.plan.generation - 1, step=machine.step)
    assert machine.handle(Received(WorkerId(0), stale), 2.0) == ()


def test_a_node_that_leaves_is_let_go_while_all_wait_for_samples(machine: Coordinator) -> None:
    join_all(machine)
    machine.handle(Received(WorkerId(2), Notice(grace_s=30.0, cause="SIGTERM")), 1.0)
    commands = starved(machine)
    assert {send.worker for send in sent(commands, PlanMessage)} == {0, 1}
    assert [command.node for command in commands if isinstance(command, Release)] == [2]
    assert machine.step == 1
    assert starved(machine) == ()


def test_a_stop_without_saving_in_the_last_step_completes_no_run_without_its_state(machine: Coordinator) -> None:
    join_all(machine)
    votes(machine)
    votes(machine)
    machine.handle(StopRequested(discards=True), 2.0)
    commands = votes(machine)
    (finish,) = [command for command in commands if isinstance(command, Finish)]
    assert finish == Finish(RunStatus.FAILED, "step 3 is not saved, as the user does without it")
    assert not sent(commands, Save)


def test_a_stop_before_the_start_ends_at_once_and_latecomers_are_told(machine: Coordinator) -> None:
    machine.handle(WorkerJoined(WorkerId(0), "host:0"), 0.0)
    commands = machine.handle(StopRequested(), 0.1)
    assert Finish(RunStatus.STOPPED, "stopped by the user before the first step") in commands
    assert sent(machine.handle(WorkerJoined(WorkerId(1), "host:1"), 0.2), Stop)


@pytest.mark.parametrize("nodes_come", [False, True])
def test_a_run_that_waits_for_its_first_nodes_is_not_exhausted(nodes_come: bool) -> None:
    """If nodes come by themselves; others are started once, and then there are no more."""
    machine = make_machine(nodes_come=nodes_come)
    machine.handle(WorkerJoined(WorkerId(0), "host:0"), 0.0)
    commands: tuple[Command, ...] = ()
    for node in range(3):
        commands = machine.handle(NodeGone(NodeId(node), "connection closed"), 0.1)
    ends = [command.status for command in commands if isinstance(command, Finish)]
    assert ends == ([] if nodes_come else [RunStatus.EXHAUSTED])
    if nodes_come:
        assert any(isinstance(command, Publish) and isinstance(command.record, Waiting) for command in commands)
        for node in (3, 4):
            commands = machine.handle(WorkerJoined(WorkerId(node), f"host:{node}"), 1.0)
        assert sent(commands, PlanMessage)


def test_an_event_that_the_table_lacks_is_an_error_with_the_history(machine: Coordinator) -> None:
    report = Report(generation=1, step=1, ledger=Ledger.empty(1), held=())
    with pytest.raises(ProtocolError, match="Report is illegal in phase gathering"):
        machine.handle(Received(WorkerId(0), report), 0.0)


def test_every_phase_but_the_end_hears_of_losses_and_stops() -> None:
    for phase in Phase:
        assert (phase, "NodeGone") in TRANSITIONS
        assert (phase, "StopRequested") in TRANSITIONS


@pytest.mark.parametrize(
    ("every", "kept", "why"),
    [
        (0, 2, "writes none on the way. Set run.checkpoint_every in the job file"),
        (10, 1, "keeps only 1. Set run.keep_checkpoints to 2 or more in the job file"),
        (10, 2, None),
    ],
)
def test_morph_needs_the_checkpoints_that_a_job_file_with_it_needs(every: int, kept: int, why: str | None) -> None:
    usual = make_machine()
    planner = PlannerSettings(num_microbatches=4, fault_tolerance=1, num_nodes=3, devices_per_node=1)
    settings = dataclasses.replace(usual.settings, checkpoint_every=every, keep_checkpoints=kept)
    profile = uniform_profile(1, tied=False)
    machine = Coordinator(
        settings, usual.policy, make=lambda name, most_bytes: make_policy(name, Planner(profile, planner))
    )
    join_all(machine)
    refusal = machine.refusal("morph")
    assert refusal is None if why is None else why in str(refusal)


def test_a_policy_that_has_no_plan_for_the_job_is_refused_before_and_while_it_trains() -> None:
    def make(name: PolicyName, most_bytes: int) -> Policy:
        raise PlanError(f"too few nodes for {name}.")

    usual = make_machine()
    machine = Coordinator(usual.settings, usual.policy, make=make)
    for _ in range(2):
        assert machine.refusal("reroute") == "policy reroute has no plan for this job: too few nodes for reroute"
        assert machine.refusal("templates") is None, "it is in force"
        join_all(machine)


def test_plans_know_zones_whatever_policy_makes_them() -> None:
    """Nodes 0 and 2 are in one zone: a pipeline of both leaves the others' zone a whole one."""
    planner = PlannerSettings(num_microbatches=8, fault_tolerance=1, num_nodes=4, devices_per_node=1, min_nodes=2)
    profile = uniform_profile(2, tied=False)
    settings = dataclasses.replace(make_machine().settings, num_nodes=4, num_groups=len(profile.groups))
    policy = TemplatesPolicy.of(Planner(profile, planner))
    machine = Coordinator(settings, policy, make=lambda name, most_bytes: make_policy(name, Planner(profile, planner)))
    for worker in range(4):
        machine.handle(WorkerJoined(WorkerId(worker), f"host:{worker}", "ab"[worker % 2]), 0.0)
    assert [pipeline.workers for pipeline in machine.plan.pipelines] == [(0, 2), (1, 3)]
    assert machine.state.zones == {0: "a", 1: "b", 2: "a", 3: "b"}
    machine.handle(PolicyRequested(PolicyName.REROUTE), 1.0)
    machine.handle(NodeGone(NodeId(3), "killed"), 1.0)
    again = machine.policy.initial([NodeId(node) for node in range(4)], 9)
    assert [pipeline.workers for pipeline in again.plan.pipelines] == [(0, 2), (1, 3)]


def test_a_recovery_tells_how_long_its_last_decision_took(machine: Coordinator) -> None:
    """The one that is made after the step which the loss struck."""
    join_all(machine)
    machine.handle(NodeGone(NodeId(2), "connection closed"), 1.0)
    commands = list(machine.handle(DecisionTook(0.25), 1.1))
    commands += itertools.chain(*(machine.handle(vote(machine, worker), 1.2) for worker in range(2)))
    assert (machine.step, machine.plan.generation) == (2, 3)
    commands += machine.handle(DecisionTook(0.5), 1.3)
    (told,) = [c.record for c in commands if isinstance(c, Publish) and isinstance(c.record, Recovered)]
    assert told.recovery.decide_ms == 750.0


def test_nodes_cost_up_to_the_commit_that_tells_it() -> None:
    machine = make_machine(budget=BudgetSection(price=3600.0))
    join_all(machine)
    (told,) = [c.record for c in votes(machine) if isinstance(c, Publish) and isinstance(c.record, StepCommitted)]
    assert told.cost == pytest.approx(3.0)


def test_a_stop_while_the_state_is_saved_ends_the_run_with_that() -> None:
    """As all wait for a checkpoint, for another reason than the end."""
    machine = make_machine()
    join_all(machine)
    run = machine._run
    run.phase = Phase.SAVING
    machine.handle(StopRequested(), 0.5)
    assert run.intent.ending == (RunStatus.STOPPED, "stopped by the user")


def test_what_a_host_is_called_is_known(machine: Coordinator) -> None:
    machine.handle(WorkerJoined(WorkerId(1), "host:1", label="rack 7"), 0.0)
    assert machine._run.members.labels == {1: "rack 7"}


def test_another_policy_makes_the_plans_from_the_switch_on() -> None:
    usual = make_machine()
    machine = Coordinator(
        usual.settings, usual.policy, make=lambda name, most_bytes: make_policy(name, usual.policy.planner)
    )
    selector = machine._run.plan_selector
    selector.switch(PolicyName.REROUTE)
    assert type(selector.policy) is PolicyName.REROUTE.load()


def test_the_links_of_a_lost_node_are_forgotten(machine: Coordinator) -> None:
    join_all(machine)
    links = machine._run.plan_selector.measured.links
    links.hosts.update({NodeId(0): "a", NodeId(2): "b"})
    machine.handle(NodeGone(NodeId(2), "killed"), 1.0)
    assert links.hosts == {0: "a"}


def two_by_two(**changes: Any) -> Coordinator:
    """Two pipelines of two nodes at work, a layer each."""
    planner = PlannerSettings(num_microbatches=4, fault_tolerance=0, num_nodes=4, devices_per_node=1, min_nodes=2)
    profile = uniform_profile(2, tied=False)
    usual = make_machine(**changes).settings
    settings = dataclasses.replace(usual, num_nodes=4, num_groups=len(profile.groups), fault_tolerance=0)
    machine = Coordinator(settings, TemplatesPolicy.of(Planner(profile, planner)))
    for worker in range(4):
        machine.handle(WorkerJoined(WorkerId(worker), f"host:{worker}"), 0.0)
    return machine


def lose_the_first_layer(machine: Coordinator) -> list[Command]:
    commands = list[Command]()
    held, step = machine.plan.groups_of, machine.step
    for lost in [pipeline.workers[0] for pipeline in machine.plan.pipelines]:
        commands += machine.handle(NodeGone(NodeId(lost), "killed"), 1.0)
    for worker in [pipeline.workers[1] for pipeline in machine.plan.pipelines]:
        report = Report(generation=1, step=step, ledger=Ledger.empty(2), held=held[worker])
        commands += machine.handle(Received(worker, report), 1.05)
    assert machine.plan.generation > 1
    return commands


def test_a_whole_checkpoint_is_not_waited_for_where_the_job_goes_back() -> None:
    """Its manifest may be under way; the job does not go back to it."""
    machine = two_by_two(checkpoint_every=100)
    machine.handle(SaveRequested("/elsewhere"), 0.5)
    commands = list[Command]()
    for worker in machine.plan.workers:
        machine.handle(Received(worker, Ready(generation=1)), 0.5)
        commands += machine.handle(vote(machine, worker), 0.5)
    saves = [(c.worker, c.message.save) for c in sent(commands, Commit) if isinstance(c.message, Commit)]
    for worker, save in saves:
        if save is not None:
            groups = [SavedGroup(group=group, file=f"{group}", size_bytes=1, sha256="") for group in save.groups]
            commands += machine.handle(Received(worker, Saved(step=1, serial=save.serial, groups=tuple(groups))), 0.6)
    assert any(isinstance(command, WriteManifest) for command in commands)
    lose_the_first_layer(machine)
    assert machine.checkpoints.under_way is None
    text = "step 1 could not be saved: the job goes back"
    assert machine.checkpoints.answered == SaveAnswer(is_done=False, text=text)


def test_a_recovery_that_goes_back_says_why_and_to_where() -> None:
    machine = two_by_two()
    commands = lose_the_first_layer(machine)
    for worker in machine.plan.workers:
        commands += machine.handle(Received(worker, Ready(generation=machine.plan.generation)), 1.1)
    for worker in machine.plan.workers:
        commands += machine.handle(vote(machine, worker), 1.2)
    commands += machine.handle(DecisionTook(0.0), 1.3)
    (told,) = [c.record for c in commands if isinstance(c, Publish) and isinstance(c.record, Recovered)]
    assert told.recovery.reason == "no replica of layer 0 is left: back to step 0."


def test_a_save_for_which_all_wait_goes_on_where_its_writer_is_lost(machine: Coordinator) -> None:
    join_all(machine)
    machine.handle(StopRequested(), 0.5)
    ((writer, serial),) = {(c.worker, c.message.serial) for c in sent(votes(machine), Save)}  # type: ignore[union-attr]
    commands = machine.handle(NodeGone(NodeId(writer), "killed"), 1.0)
    ((other, again),) = {(c.worker, c.message.serial) for c in sent(commands, Save)}  # type: ignore[union-attr]
    assert other != writer
    assert again == serial, "it is the same checkpoint"
    assert not any(isinstance(command, Discard) for command in commands)


def test_a_stop_whose_state_is_lost_before_it_is_saved_ends_and_says_so(machine: Coordinator) -> None:
    join_all(machine)
    machine.handle(StopRequested(), 0.5)
    votes(machine)
    commands = [c for node in range(3) for c in machine.handle(NodeGone(NodeId(node), "killed"), 1.0)]
    (finish,) = [command for command in commands if isinstance(command, Finish)]
    assert finish.status is RunStatus.STOPPED
    assert finish.message.endswith("; step 1 could not be saved: no replica of parameter group 0 is left")


def test_a_node_that_joins_while_a_stopped_run_is_saved_changes_nothing(machine: Coordinator) -> None:
    join_all(machine)
    machine.handle(StopRequested(), 0.5)
    saves = sent(votes(machine), Save)
    machine.handle(WorkerJoined(WorkerId(3), "host:3"), 1.0)
    commands = list[Command]()
    for save in saves:
        assert isinstance(save.message, Save)
        groups = [SavedGroup(group=group, file="f", size_bytes=1, sha256="x") for group in save.message.groups]
        saved = Saved(step=1, serial=save.message.serial, groups=tuple(groups))
        commands += machine.handle(Received(save.worker, saved), 1.1)
    (manifest,) = [command for command in commands if isinstance(command, WriteManifest)]
    commands = list(machine.handle(ManifestWritten(manifest.step, manifest.folder, 0.1), 1.2))
    assert [command.status for command in commands if isinstance(command, Finish)] == [RunStatus.STOPPED]


def test_the_last_decision_is_the_last_placement_that_was_told(machine: Coordinator) -> None:
    assert machine.state.decision is None
    join_all(machine)
    decision = machine.state.decision
    assert decision is not None
    assert (decision.generation, decision.purpose) == (1, Purpose.START)


def test_code_that_fails_while_the_last_state_is_saved_ends_the_run_so(machine: Coordinator) -> None:
    join_all(machine)
    machine.handle(StopRequested(), 0.5)
    votes(machine)
    assert machine.phase is Phase.SAVING
    ending = machine._run.intent.ending
    failed = Failed(where="in the user's callback.", text="no room", holds=True)
    assert not sent(machine.handle(Received(WorkerId(1), failed), 2.0), Stop)
    assert machine._run.intent.ending == ending == (RunStatus.STOPPED, "stopped by the user")
    machine._run.intent.ending = None
    machine.handle(Received(WorkerId(1), failed), 2.0)
    assert machine._run.intent.ending == (RunStatus.FAILED, "in the user's callback: no room")


def test_what_becomes_of_the_plan_in_force_under_another_policy_is_told() -> None:
    usual = make_machine()
    machine = Coordinator(
        usual.settings, usual.policy, make=lambda name, most_bytes: make_policy(name, usual.policy.planner)
    )
    join_all(machine)
    machine.handle(PolicyRequested(PolicyName.REROUTE), 0.5)
    notes = [c.record.text for c in votes(machine) if isinstance(c, Publish) and isinstance(c.record, Note)]
    assert "policy reroute: the plan in force goes on, nothing that it has for now is better" in notes
