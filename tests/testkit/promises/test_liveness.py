"""After a storm a job goes on, or says that it does not; and the oracle that says so is itself on trial."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from planaria.job.registry import PolicyName
from planaria.protocol.messages.from_worker import FromWorker, Vote
from planaria.protocol.messages.records import RunStatus, Waiting
from tests.testkit.cluster.cluster import Cluster
from tests.testkit.cluster.network import OUTWARDS
from tests.testkit.promises.invariants import BrokenPromise
from tests.testkit.schedules.faults import FOR_GOOD, Fault, FaultKind
from tests.testkit.schedules.schedule import Schedule
from tests.testkit.schedules.setup import Setup
from tests.testkit.schedules.swarm import CALM_STEPS, Calm
from tests.testkit.schedules.weather import Weather
from tests.testkit.server.server import Connection, Server
from tests.testkit.small_world import world

CALM_S = 0.1


def storm(num_nodes: int, broken: tuple[Fault, ...] = (), *, waits: bool = False) -> Schedule:
    """Returns a schedule of nothing but what is broken at its end."""
    which = world(PolicyName.TEMPLATES)
    setup: Setup = msgspec.structs.replace(
        which.setup, num_nodes=num_nodes, num_microbatches=4, steps=CALM_STEPS, waits=waits
    )
    return Schedule(seed=1, setup=setup, weather=Weather(), faults=(), calm=Calm(at_s=CALM_S, broken=broken))


def broken(kind: FaultKind, node: int, what: str = "") -> Fault:
    return Fault(kind=kind, nodes=(node,), for_s=FOR_GOOD, what=what)


def test_a_job_goes_on_without_what_stays_broken() -> None:
    faults = broken(FaultKind.HANG, 0), broken(FaultKind.PARTITION, 1, OUTWARDS)
    cluster = Cluster(storm(4, faults))
    assert cluster.run().status is RunStatus.STOPPED  # by its user, who had seen enough
    assert not {0, 1} & set(cluster.server.machine.state.nodes)


def test_a_job_that_has_too_few_nodes_left_says_so() -> None:
    cluster = Cluster(storm(3, (broken(FaultKind.KILL, 0), broken(FaultKind.DARK, 1))))
    assert cluster.run().status is RunStatus.EXHAUSTED


def test_a_job_that_may_wait_for_nodes_says_that_it_does() -> None:
    cluster = Cluster(storm(3, (broken(FaultKind.KILL, 0), broken(FaultKind.DARK, 1)), waits=True))
    assert cluster.run().status is RunStatus.STOPPED
    assert any(isinstance(record, Waiting) for record in cluster.invariants.records)


def _hears(lost: Callable[[Server, FromWorker], bool], patch: pytest.MonkeyPatch) -> None:
    take = Server.take

    def deaf(self: Server, connection: Connection, message: FromWorker) -> None:
        if not lost(self, message):
            take(self, connection, message)

    patch.setattr(Server, "take", deaf)


def test_a_coordinator_that_counts_no_votes_any_more_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _hears(lambda server, message: isinstance(message, Vote) and server._now() > CALM_S, monkeypatch)
    with pytest.raises(BrokenPromise, match="after the storm"):
        Cluster(storm(4)).run()


def test_a_job_that_gives_up_though_it_could_go_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planaria.protocol.membership.liveness.Liveness.silent", _all_after_the_storm)
    which = storm(2)
    elsewhere = Fault(kind=FaultKind.SLOW, nodes=(7,))  # so that somebody may be taken for lost
    with pytest.raises(BrokenPromise, match="after the storm the job could go on"):
        Cluster(msgspec.structs.replace(which, faults=(elsewhere,))).run()


def _all_after_the_storm(self: object, now: float) -> list[tuple[int, float]]:
    return [(0, 1e3)] if now > CALM_S else []
