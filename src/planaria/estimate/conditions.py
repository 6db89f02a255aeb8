"""Conditions: what an estimate of a step's time assumes about the machines, beside the profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planaria.plan.costs.network import Network
from planaria.plan.plan import NodeId, PlanError, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions in which the machines of a plan differ from the profile's.

    Attributes:
        overlap: whether messages travel while their sender computes. Without, a worker does one thing at a time: it
            waits until each message is gone, and reads the others' gradients only after its last compute.
        node_speeds: of a node, its compute relative to the profile's: at 0.5 all of it takes twice as long. A node
            that is left out has speed 1.
        num_cores: where all workers are processes of one machine and compute on its cores, their number; none: each
            has a device of its own. A step then takes at least all workers' compute over the cores.
        stretch: everything takes so many times longer, as it was measured.
        network: where links between nodes differ; None: they are alike.
        audit: share of all forwards and backwards that other workers run again.
        late_s: of a worker, so many seconds after the step's beginning its state is there and it begins; a worker that
            is left out begins with the step.
    """

    overlap: bool = True
    node_speeds: Mapping[NodeId, float] = field(default_factory=dict)
    num_cores: float | None = None
    stretch: float = 1.0
    network: Network | None = None
    late_s: Mapping[WorkerId, float] = field(default_factory=dict)
    audit: float = 0.0

    def __post_init__(self) -> None:
        for node, speed in self.node_speeds.items():
            if not 0 < speed < float("inf"):
                raise PlanError(f"Node {node} has speed {speed}. A speed is above 0; 1 is the profile's.")
        if self.num_cores is not None and not 0 < self.num_cores < float("inf"):
            raise PlanError(f"num_cores is {self.num_cores}. Give more than 0, or none where cores are not shared.")

    def speed(self, node: NodeId) -> float:
        return self.node_speeds.get(node, 1.0)


AS_PROFILED = Conditions()
"""Conditions as in the profile: communication overlaps, and every node is as fast as the profile's."""
