"""Liveness: once a storm is over, a job that can go on does, within a bound; one that cannot says so.

Whether it can, an oracle says that knows nothing of the protocol: it looks at the machines that are well, and at the
replicas in their memory. It is sure where it says yes; where it says nothing, the job may go on or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planaria.plan.plan import NodeId
from planaria.protocol.messages.events import Finish
from planaria.protocol.messages.records import RunStatus
from planaria.protocol.phases import Phase
from tests.testkit.cluster.network import COORDINATOR
from tests.testkit.schedules.faults import FaultKind

if TYPE_CHECKING:
    from tests.testkit.cluster.cluster import Cluster
    from tests.testkit.worker.worker import Worker

BOUND_S = 100.0
"""Virtual seconds after a storm in which the job goes on or says that it does not; as many again for each node that is
not well or may be taken for lost, as one is found after the other. Before steps are measured each takes half a minute,
or twice as long where a message is stuck."""

ENOUGH_STEPS = 3
"""Steps after the storm whose commits show that the job goes on."""

PREVENTING = frozenset({FaultKind.RAISE, FaultKind.SHORT, FaultKind.DECAY, FaultKind.STOP})
"""Faults after which a job may end although its machines are well."""


class Liveness:
    """Whether one run goes on after its storm.

    Attributes:
        deadline_s: virtual time by which it must have; infinite: there is none.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.deadline_s = float("inf")
        self._num_steps = 0
        self._must_go_on = False
        setup, faults = cluster.schedule.setup, cluster.schedule.faults
        is_stopping = bool(setup.bad) and not setup.skips
        self._may_end = is_stopping or any(fault.kind in PREVENTING for fault in faults)

    def begin(self) -> None:
        """Begins when the storm is over. Whoever may be taken for lost for what befell it then is not counted on."""
        cluster = self._cluster
        well = self._well() - cluster.injector.disturbed
        nodes = {worker.node for worker in cluster.workers.values()}
        self.deadline_s = cluster.clock.now + BOUND_S * (1 + len(nodes - well))
        self._must_go_on = self._can_go_on(well, num_given_back=self._num_beyond_budget(nodes))
        cluster.note(f"* well: {sorted(well)}, and the job {'must' if self._must_go_on else 'may'} go on")

    def committed(self) -> None:
        """Notes a step; after enough of them the user ends the run."""
        if self.deadline_s == float("inf"):
            return
        self._num_steps += 1
        if self._num_steps == ENOUGH_STEPS:
            self._cluster.injector.stop()

    def check(self) -> None:
        """Checks, once the deadline has come, that the job went on, or says why it does not."""
        cluster = self._cluster
        self.deadline_s = float("inf")
        if cluster.server.finished is not None or self._num_steps >= ENOUGH_STEPS:
            return
        self.waits()
        is_told = cluster.server.machine.phase in (Phase.WAITING, Phase.GATHERING)
        cluster.invariants.require(
            is_told, f"after the storm the job neither goes on nor says why it does not\n{cluster.describe()}"
        )
        cluster.injector.stop()

    def waits(self) -> None:
        """Checks a job that waits: it must not be able to go on."""
        if self.deadline_s == float("inf") and not self._must_go_on:
            return
        could = self._must_go_on or self._can_go_on(self._well())
        self._cluster.invariants.require(
            not could or self._num_steps >= ENOUGH_STEPS,
            f"after the storm the job does not go on, and could: {sorted(self._well())} are well\n"
            f"{self._cluster.describe()}",
        )

    def ended(self, finish: Finish) -> None:
        """Checks how a run ended: not for want of what is there."""
        gave_up = finish.status in (RunStatus.EXHAUSTED, RunStatus.FAILED)
        self._cluster.invariants.require(
            not (gave_up and self._must_go_on), f"after the storm the job could go on, and ended: {finish.message}"
        )

    # The oracle

    def _well(self) -> set[NodeId]:
        """Returns the nodes that are well, reach all that are, and are neither given up nor about to leave."""
        cluster = self._cluster
        broken = {w.node for w in cluster.workers.values() if not _is_well(w)}
        islands = [island.places for island in cluster.network.islands]
        apart = {node for places in islands for node in places}
        gone = {w.node for w in cluster.workers.values() if cluster.server.admission.is_fenced(w.node)}
        nodes = {w.node for w in cluster.workers.values()} - broken - gone - cluster.injector.leaving
        return {node for node in nodes if node not in apart and cluster.network.reaches(node, COORDINATOR)}

    def _num_beyond_budget(self, nodes: set[NodeId]) -> int:
        """Returns how many nodes may be given back for their price, while those that are broken still count."""
        setup = self._cluster.schedule.setup
        return max(0, len(nodes) - setup.num_nodes) if setup.is_tight else 0

    def _can_go_on(self, nodes: set[NodeId], num_given_back: int = 0) -> bool:
        """Returns whether these nodes, less those given back, are enough, and hold the state of the last commit."""
        cluster, setup = self._cluster, self._cluster.schedule.setup
        if self._may_end or cluster.is_stopped or len(nodes) - num_given_back < setup.needed_nodes:
            return False
        if not cluster.invariants.has_plan:
            return True
        committed = cluster.invariants.committed
        held = {
            group
            for worker in cluster.workers.values()
            if worker.node in nodes
            for group in worker.holdings.held_at(committed)
        }
        return len(held) == len(cluster.profile.groups)


def _is_well(worker: Worker) -> bool:
    return (
        worker.is_started
        and worker.is_active
        and not (worker.is_in_trouble or worker.gave_up or worker.transport.is_blocked)
    )
