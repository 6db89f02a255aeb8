"""What a coordinator learnt outlives it: at any moment, the journal says as much as its writer knows."""

from __future__ import annotations

from collections import Counter
from functools import partial

import msgspec
import pytest
from msgspec.structs import replace

from planaria.job.registry import PolicyName
from planaria.policy.interface import Policy
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.messages.events import Command, Event
from planaria.protocol.messages.journal import JournalCommit, JournalEntry, JournalPlan, decode_entry, encode_entry
from planaria.protocol.messages.run_measurements import RunMeasurements
from planaria.protocol.planning import step_times
from planaria.protocol.planning.memory_limits import Shortages
from planaria.protocol.run.replay import JournalState
from planaria.protocol.run.settings import RunSettings
from tests.testkit.cluster.cluster import Cluster
from tests.testkit.schedules.schedule import Schedule, schedule


def successor(cluster: Cluster, entries: list[bytes]) -> Coordinator:
    """A machine that knows nothing but a journal."""
    setup, profile = cluster.schedule.setup, cluster.profile

    def make(name: PolicyName, most_bytes: int) -> Policy:
        return make_policy(name, Planner(profile, setup.planner))

    past = JournalState.of([decode_entry(entry) for entry in entries])
    shortages = Shortages(profile, partial(make, setup.policy))
    return Coordinator(cluster.settings, make(setup.policy, 0), past, shortages, make)


def run(which: Schedule, monkeypatch: pytest.MonkeyPatch, *, shares_cores: bool) -> Counter[str]:
    """One schedule; returns how often each kind of news was compared."""
    if shares_cores:
        monkeypatch.setattr("tests.testkit.cluster.cluster.RunSettings", partial(RunSettings, shares_cores=True))
        monkeypatch.setattr(step_times, "CALIBRATED_AFTER", 2)
    cluster = Cluster(which)
    compared: Counter[str] = Counter()
    original = Coordinator.handle

    def handle(machine: Coordinator, event: Event, now: float) -> tuple[Command, ...]:
        commands = original(machine, event, now)
        entries = [command for command in commands if isinstance(command, JournalEntry)]
        if any(isinstance(entry, JournalPlan | JournalCommit) for entry in entries):
            journal = [*cluster.journal, *map(encode_entry, entries)]
            assert successor(cluster, journal).learnt == machine.learnt
            known, unknown = msgspec.structs.asdict(machine.learnt), msgspec.structs.asdict(RunMeasurements())
            compared.update(name for name in known if known[name] != unknown[name])
        return commands

    monkeypatch.setattr(Coordinator, "handle", handle)
    cluster.run()
    monkeypatch.undo()
    return compared


@pytest.mark.proof
def test_a_successor_knows_what_was_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """After every commit and plan of 60 schedules, half under the policy that weighs its plans, a third on shared
    cores."""
    compared: Counter[str] = Counter()
    for seed in range(60):
        which = schedule(seed)
        if seed % 2:
            which = replace(which, setup=replace(which.setup, policy=PolicyName.ADAPTIVE))
        compared += run(which, monkeypatch, shares_cores=seed % 3 == 0)
    # Simulated nodes measure no links, and are given back for the budget alone; when and by whose clock it was written
    # is no news: tests/protocol has these.
    seen = set(RunMeasurements.__struct_fields__) - {"links", "given_back", "clock", "at"}
    assert all(compared[name] for name in seen), compared
