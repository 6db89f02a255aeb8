"""The planner's settings: what a job asks of its plans, beside the model's costs."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from planaria.plan.plan import PlanError, Redundancy, ScheduleKind

MOST_DEVICES = 16_384
"""Most devices of a job. A plan for 4,000 takes some ten seconds; a larger number is taken for a typing error."""


class Objective(enum.StrEnum):
    """What makes a template the best for its number of nodes."""

    STEP_TIME = "steptime"
    """The shortest step as simulated, for a given number of microbatches."""
    OOBLECK = "oobleck"
    """Oobleck's T1 + T2 + T3 with four microbatches a stage (section 4.1.2), for comparison with the paper: batches are
    dealt out by its Eq. 6, too, and pipelines chosen as it chooses them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """Settings that every plan of a job must respect.

    Attributes:
        num_microbatches: microbatches in one step, over all pipelines.
        fault_tolerance: f. Plans have at least f + 1 pipelines.
        num_nodes: nodes at job start; templates are made for it and serve any smaller number.
        most_nodes: nodes that may come to be there, for which templates are made too; 0: num_nodes.
        devices_per_node: M: the devices, and so workers, of each node.
        devices_per_stage: of a node that each stage is on; microbatches are dealt to them in turn. 0: whatever is best.
        spreads_optimizer: of each group, one device of a stage alone has the optimizer's state.
        share_microbatches: devices of a stage share each microbatch, wherever they can, instead of taking turns.
        most_sharing: so many devices of a stage at most, a power of two, share each microbatch where they can and that
            is clearly quicker; 0: see `share_microbatches`.
        wide_stages: whether templates may have a worker drive several devices, as an emulated one can.
        memory_bytes: of one device; 0: unlimited.
        min_nodes: n0, the nodes of the smallest pipeline; 0: the fewest that the memory allows.
        shape: number of pipelines, and nodes of each (Bamboo's D and P): a plan has these where there are nodes enough,
            and neither more pipelines nor larger ones where there are not; None: whatever is best.
        schedule: order of forwards and backwards.
        objective: what templates are made for, and how a batch is shared.
        powers_of_two: whether a stage's number of devices must be a power of two; else any that the profile has.
        overlap: whether messages travel beside the sender's compute; else a send occupies the sender.
        thorough: whether templates are searched for with a twentyfold budget, where their bounds are not close: large
            ones then take seconds, not tenths of one.
        shadows: whether each worker also holds a shadow of its successor's state, the last one of the first's (Bamboo,
            section 5): templates leave room for it.
        redundancy: under the policy of that name, what workers compute of what they shadow.
        microbatch_range: templates serve a pipeline's share from the first to the second number of microbatches; None:
            the one number `microbatches_per_pipeline`.
        may_drop: whether a policy may leave microbatches out of a step.
        may_restore: whether a policy may go back to the last checkpoint after a loss though no layer lost its last
            replica: checkpoints are written on the way, and the last one stays while the next is written.
        audit: share of all forwards and backwards that other workers run again.
        num_cores: that all workers share, where they are processes of one machine; None: each has its own device.
    """

    num_microbatches: int
    fault_tolerance: int
    num_nodes: int
    devices_per_node: int
    devices_per_stage: int = 1
    spreads_optimizer: bool = False
    share_microbatches: bool = False
    most_sharing: int = 0
    wide_stages: bool = True
    memory_bytes: int = 0
    min_nodes: int = 0
    shape: tuple[int, int] | None = None
    most_nodes: int = 0
    schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B
    objective: Objective = Objective.STEP_TIME
    powers_of_two: bool = False
    overlap: bool = True
    thorough: bool = False
    shadows: bool = False
    redundancy: Redundancy = Redundancy.EAGER_LAZY
    microbatch_range: tuple[int, int] | None = None
    may_drop: bool = False
    may_restore: bool = False
    num_cores: float | None = None
    audit: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (
            ("num_microbatches", 1),
            ("fault_tolerance", 0),
            ("num_nodes", 1),
            ("devices_per_node", 1),
            ("devices_per_stage", 0),
            ("memory_bytes", 0),
            ("min_nodes", 0),
        ):
            value = getattr(self, name)
            if value < least:
                raise PlanError(f"{name} is {value}; it must be at least {least}.")
        if self.largest * self.devices_per_node > MOST_DEVICES:
            raise PlanError(
                f"{self.largest} nodes of {self.devices_per_node} devices are more than the {MOST_DEVICES} devices "
                f"that plans are made for. Plan for {max(1, MOST_DEVICES // self.devices_per_node)} nodes or fewer."
            )
        if self.devices_per_stage and self.devices_per_node % self.devices_per_stage:
            raise PlanError(
                f"{self.devices_per_node} devices of a node are not shared by stages of {self.devices_per_stage}. "
                "Set a divisor of devices_per_node."
            )
        if self.shape is not None and min(self.shape) < 1:
            raise PlanError(f"shape is {self.shape}; give at least 1 pipeline of at least 1 node.")
        if self.microbatch_range is not None and not 1 <= self.microbatch_range[0] <= self.microbatch_range[1]:
            raise PlanError(
                f"microbatch_range is {self.microbatch_range}; give the fewest (at least 1) and the most microbatches."
            )

    @property
    def largest(self) -> int:
        """Returns the most nodes for which templates are made."""
        return max(self.num_nodes, self.most_nodes)

    @property
    def stage_choices(self) -> tuple[int, ...]:
        """Returns the numbers of devices that each stage may be on, ascending."""
        numbers = range(1, self.devices_per_node + 1)
        return (
            (self.devices_per_stage,)
            if self.devices_per_stage
            else tuple(number for number in numbers if not self.devices_per_node % number)
        )

    @property
    def may_share(self) -> bool:
        """Returns whether the devices of a stage may share each microbatch, where that is quicker."""
        devices = self.devices_per_stage
        return 1 < devices <= self.most_sharing and not devices & (devices - 1)

    @property
    def is_oobleck(self) -> bool:
        """Returns whether plans are to be the paper's: its templates, its sets of them, its shares of the batch."""
        return self.objective is Objective.OOBLECK

    @property
    def most_pipelines(self) -> int:
        """Returns the most pipelines that a plan may have: each has a microbatch at least."""
        return min(self.num_microbatches, self.shape[0] if self.shape else self.num_microbatches)

    def usable(self, num_nodes: int) -> int:
        """Returns how many of so many nodes a plan may have."""
        return min(num_nodes, self.shape[0] * self.shape[1]) if self.shape else num_nodes

    def is_enough(self, num_nodes: int) -> bool:
        """Returns whether so many nodes are enough for the whole shape that is asked for."""
        return self.shape is not None and num_nodes >= self.shape[0] * self.shape[1]

    @property
    def microbatches_per_pipeline(self) -> int:
        """Number of microbatches that templates are shaped for: the largest of an even split over f + 1 pipelines, or
        over as many as are asked for."""
        return -(-self.num_microbatches // (self.shape[0] if self.shape else self.fault_tolerance + 1))

    @property
    def shares(self) -> tuple[int, ...]:
        """Numbers of microbatches that templates are judged by: the share; of a range both ends and the middle."""
        if self.microbatch_range is None:
            return (self.microbatches_per_pipeline,)
        low, high = self.microbatch_range
        return tuple(sorted({low, (low + high) // 2, high}))
