"""The loss of one device of a node: who is halted, what is written down, and when it may come back."""

from __future__ import annotations

from planaria.job.registry import PolicyName
from planaria.job.sections.train import TrainSection
from planaria.plan.ledger import Ledger
from planaria.plan.plan import WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.messages.events import (
    Command,
    DeviceGone,
    Evict,
    EvictDevice,
    Publish,
    Received,
    Restarted,
    Send,
    WorkerJoined,
)
from planaria.protocol.messages.from_worker import Ready, Report
from planaria.protocol.messages.journal import JournalEntry
from planaria.protocol.messages.records import DeviceJoined, DeviceLost, NodeLost
from planaria.protocol.messages.to_worker import Halt, PlanMessage
from planaria.protocol.phases import Phase
from planaria.protocol.run.replay import JournalState
from planaria.protocol.run.settings import RunSettings
from tests.plan.profiles import uniform_profile

NODES, DEVICES = 3, 2


class Job:
    """Three pipelines of one node each, whose stage is on two devices; everything that was commanded is kept."""

    def __init__(self, past: JournalState | None = None) -> None:
        profile = uniform_profile(2)
        planner = PlannerSettings(
            num_microbatches=6,
            fault_tolerance=1,
            num_nodes=NODES,
            devices_per_node=DEVICES,
            devices_per_stage=DEVICES,
        )
        settings = RunSettings(
            train=TrainSection(steps=3, global_batch=6, microbatch=1, sequence_length=8),
            policy_name="templates",
            fault_tolerance=1,
            num_nodes=NODES,
            devices_per_node=DEVICES,
            num_groups=len(profile.groups),
            checkpoint_root="checkpoints",
            checkpoint_every=0,
            resume=None,
        )
        self.machine = Coordinator(settings, make_policy(PolicyName.TEMPLATES, Planner(profile, planner)), past)
        self.commands: list[Command] = []
        self.now = 0.0

    def handle(self, event: object) -> list[Command]:
        self.now += 0.01
        found = list(self.machine.handle(event, self.now))  # type: ignore[arg-type]
        self.commands += found
        return found

    def begin(self) -> Job:
        for worker in range(NODES * DEVICES):
            self.handle(WorkerJoined(WorkerId(worker), f"host:{worker}"))
        for worker in range(NODES * DEVICES):
            self.handle(Received(WorkerId(worker), Ready(generation=1)))
        return self

    def report(self, worker: int) -> list[Command]:
        plan = self.machine.plan
        ledger = Ledger.empty(plan.num_layers)
        held = plan.groups_of[WorkerId(worker)]
        return self.handle(
            Received(WorkerId(worker), Report(generation=plan.generation, step=1, ledger=ledger, held=held))
        )

    @property
    def journal(self) -> JournalState:
        return JournalState.of(command for command in self.commands if isinstance(command, JournalEntry))  # type: ignore[misc]


def records(commands: list[Command], kind: type) -> list[object]:
    return [c.record for c in commands if isinstance(c, Publish) and isinstance(c.record, kind)]


def test_the_others_of_its_stage_stop_and_its_node_stays() -> None:
    job = Job().begin()
    commands = job.handle(DeviceGone(WorkerId(3), "connection closed"))
    assert EvictDevice(WorkerId(3)) in commands
    assert not any(isinstance(command, Evict) for command in commands)
    (lost,) = records(commands, DeviceLost)
    assert lost == DeviceLost(node=1, device=1, step=1, cause="connection closed", live_devices=1, detect_ms=None)
    assert [c.worker for c in commands if isinstance(c, Send) and isinstance(c.message, Halt)] == [2]
    assert job.machine.state.nodes == (0, 1, 2)
    assert job.machine.state.lost_devices == (3,)
    finish = job.report(2)
    told = {c.worker for c in finish if isinstance(c, Send) and isinstance(c.message, PlanMessage)}
    assert told == {0, 1, 2, 4, 5}
    assert job.machine.phase is Phase.TRAINING
    assert 3 not in job.machine.plan.workers


def test_there_is_something_to_recover_from_where_the_plan_needed_it() -> None:
    job = Job().begin()
    job.handle(DeviceGone(WorkerId(3), "connection closed"))
    job.report(2)
    (loss,) = job.journal.losses
    assert (loss.node, loss.device, loss.strikes) == (1, 1, True)
    job.handle(WorkerJoined(WorkerId(3), "host:3"))
    assert 3 not in job.machine.plan.workers
    job.handle(DeviceGone(WorkerId(3), "connection closed"))
    assert [one.strikes for one in job.journal.losses] == [True, False]


def test_the_last_device_of_a_node_is_the_node() -> None:
    job = Job().begin()
    job.handle(DeviceGone(WorkerId(3), "connection closed"))
    commands = job.handle(DeviceGone(WorkerId(2), "connection closed"))
    assert len(records(commands, NodeLost)) == 1
    assert job.machine.state.nodes == (0, 2)
    assert not job.machine.state.lost_devices


def test_a_device_comes_back_when_no_plan_has_it() -> None:
    job = Job().begin()
    job.handle(DeviceGone(WorkerId(3), "connection closed"))
    refusal = job.machine.device_refusal
    assert refusal(1, 1) == "device 1 of node 1 is in the plan of step 1 still. Ask again after that"
    assert refusal(1, 0) == "device 0 of node 1 is there"
    assert refusal(1, 2) == "node 1 has no device 2. Its devices are numbered 0 to 1"
    assert refusal(7, 0) == "node 7 is not there. The nodes are 0, 1, 2"
    job.report(2)
    assert job.machine.policy.planner.lost_devices == {3}
    assert refusal(1, 1) is None
    commands = job.handle(WorkerJoined(WorkerId(3), "host:30"))
    assert records(commands, DeviceJoined) == [DeviceJoined(node=1, device=1, live_devices=2)]
    assert not job.machine.state.lost_devices
    assert not job.machine.policy.planner.lost_devices, "the next plan may have it"
    assert not job.journal.lost_devices


def test_the_next_coordinator_knows_of_it_and_does_not_wait_for_it() -> None:
    job = Job().begin()
    job.handle(DeviceGone(WorkerId(3), "connection closed"))
    job.report(2)
    past = job.journal
    assert past.lost_devices == {(1, 1)}
    after = Job(past)
    commands = after.handle(Restarted())
    assert EvictDevice(WorkerId(3)) in commands
    assert after.machine.awaited == {0, 1, 2, 4, 5}
