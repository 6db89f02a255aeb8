"""The planner's settings: what a job asks of its plans, beside the model's costs."""

from __future__ import annotations

from dataclasses import dataclass

from planaria.plan.plan import PlanError, ScheduleKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """What every plan of a job must respect.

    Attributes:
        num_microbatches: microbatches in one step, over all pipelines.
        fault_tolerance: f. Plans have at least f + 1 pipelines.
        num_nodes: nodes at job start; templates are made for it and serve any smaller number.
        devices_per_node: M.
        memory_bytes: of one device; 0: unlimited.
        min_nodes: n0, the nodes of the smallest pipeline; 0: the fewest that the memory allows.
        schedule: order of forwards and backwards.
    """

    num_microbatches: int
    fault_tolerance: int
    num_nodes: int
    devices_per_node: int
    memory_bytes: int = 0
    min_nodes: int = 0
    schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B

    def __post_init__(self) -> None:
        for name, least in (
            ("num_microbatches", 1),
            ("fault_tolerance", 0),
            ("num_nodes", 1),
            ("devices_per_node", 1),
            ("memory_bytes", 0),
            ("min_nodes", 0),
        ):
            value = getattr(self, name)
            if value < least:
                raise PlanError(f"{name} is {value}; it must be at least {least}.")

    @property
    def microbatches_per_pipeline(self) -> int:
        """The share that templates are shaped for: the largest of an even split over f + 1 pipelines."""
        return -(-self.num_microbatches // (self.fault_tolerance + 1))
