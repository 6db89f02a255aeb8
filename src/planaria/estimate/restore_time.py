"""The time of a restore: how long it takes to go back to a checkpoint, and what that costs beside.

Every worker reads the groups that it will hold, all at once, and trains when the last one has its own. What was trained
since the checkpoint is trained again: time that passes without gain too (Bamboo, section 3: "wasted"; Oobleck, section
7.4.2: "fallback"). Processes live on; a system that starts them anew adds `restart_s`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from planaria.plan.plan import NodeId, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The storage from which checkpoints are read.

    Attributes:
        node_bytes_per_s: that one node reads. A guess until a run's first restore is measured: the order of an NVMe
            disk, and of the 10 Gb/s that Bamboo's and Varuna's instances have to their object store.
        shared_bytes_per_s: that all nodes read together; infinite where each has its own way.
        latency_s: before the first byte.
    """

    node_bytes_per_s: float = 1e9
    shared_bytes_per_s: float = math.inf
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("node_bytes_per_s", "shared_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0.")
        if not self.latency_s >= 0:
            raise ValueError(f"latency_s is {self.latency_s}; it must be at least 0.")

    def time_s(self, busiest_bytes: int, total_bytes: int) -> float:
        """Returns the seconds until the last of all nodes has read what it needs.

        Args:
            busiest_bytes: of the node that reads most.
            total_bytes: bytes that all nodes read.
        """
        return self.latency_s + max(busiest_bytes / self.node_bytes_per_s, total_bytes / self.shared_bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreTime:
    """The time of reading the state of a plan's workers from a checkpoint.

    Attributes:
        time_s: until the last worker has all.
        busiest_bytes: that the node reads which reads most.
        total_bytes: bytes that all nodes read.
    """

    time_s: float
    busiest_bytes: int
    total_bytes: int


def restore_time(plan: Plan, storage: Storage) -> RestoreTime:
    """Returns the time until all workers of the plan have read their parameters and optimizer state."""
    by_node: dict[NodeId, int] = {}
    for worker, groups in plan.groups_of.items():
        node = plan.node_of(worker)
        by_node[node] = by_node.get(node, 0) + sum(plan.groups[group].moved_bytes for group in groups)
    busiest, total = max(by_node.values(), default=0), sum(by_node.values())
    return RestoreTime(time_s=storage.time_s(busiest, total), busiest_bytes=busiest, total_bytes=total)


@dataclass(frozen=True, slots=True, kw_only=True)
class MorphTime:
    """The cost of a loss that is answered by going back to the last checkpoint, in seconds.

    Attributes:
        load_s: until all have their state.
        change_s: of plans, and of processes where they are started anew.
        redone_s: that the steps take which are trained again, under the new plan.
    """

    load_s: float
    change_s: float
    redone_s: float

    @property
    def transition_s(self) -> float:
        """Seconds without gain in all."""
        return self.load_s + self.change_s + self.redone_s


def morph_time(plan: Plan, storage: Storage, *, lost_steps: float, step_time_s: float, change_s: float) -> MorphTime:
    """Returns the predicted cost of a morph to this plan.

    Args:
        plan: on the nodes that are left.
        storage: that holds the checkpoint.
        lost_steps: committed since the checkpoint. Where a loss is yet to come: half of those between two checkpoints,
            and those for which one is under way.
        step_time_s: of a step under the plan.
        change_s: from the last instruction under one plan to the first under the next, state aside.
    """
    return MorphTime(
        load_s=restore_time(plan, storage).time_s,
        change_s=change_s,
        redone_s=lost_steps * step_time_s,
    )
