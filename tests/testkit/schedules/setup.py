"""The job of a schedule, and the cluster that it starts on."""

from __future__ import annotations

from random import Random

import msgspec

from planaria.job.registry import PolicyName
from planaria.job.sections.budget import BudgetSection
from planaria.job.sections.eval import EvalMetric, EvalSection, EvalTarget
from planaria.job.sections.train import TrainSection, WhenNotFinite
from planaria.plan.costs.model_profile import DeviceKind, LayerCost, LayerTimes, LinkCost, Links, ModelProfile
from planaria.plan.plan import Group, Redundancy, ScheduleKind
from planaria.plan.settings import PlannerSettings

SLOW_LAYER_S = 0.15
"""Seconds that the state of a layer takes on slow links."""


class Setup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job and the cluster that it starts on.

    Attributes:
        num_layers: of the model.
        is_tied: its first and last layer share a parameter group.
        is_large: its groups are so large that parts of them are worth moving apart.
        num_nodes: at the start.
        devices_per_node: workers on each.
        devices_per_stage: of them that share a stage.
        fault_tolerance: f.
        min_nodes: n0.
        num_microbatches: of a step.
        steps: of the job.
        checkpoint_every: steps; 0: only when it ends; None: as the run chooses.
        order: of forwards and backwards.
        waits: for nodes, when too few are left.
        bad: microbatches, as (step, microbatch), whose loss is not a number.
        skips: steps that are not finite; else they end the run.
        done: steps of an earlier run, from whose checkpoint this one begins.
        policy: that makes the plans.
        num_zones: to which nodes are dealt out in turn; 0: nobody knows where they are.
        redundancy: what shadows compute, where they do.
        may_drop: the policy adaptive may leave samples out.
        eval_every: steps between evaluations; 0: there are none.
        num_evaluated: microbatches of each.
        eval_target: accuracy that ends the run; 0: none does.
        may_restore: it may go back to a checkpoint where no replica is the last.
        is_tight: the budget is for the nodes at the start, and those that join are given back.
        audit: share of computation that is run again.
        spreads_optimizer: of each group, one device of a stage alone has the optimizer's state.
        share_microbatches: devices of a stage share each microbatch, wherever they can.
        is_slow: links, so that beside a step the state of a layer or two has room.
    """

    num_layers: int
    is_tied: bool
    is_large: bool
    num_nodes: int
    devices_per_node: int
    fault_tolerance: int
    min_nodes: int
    num_microbatches: int
    steps: int
    checkpoint_every: int | None
    order: ScheduleKind
    waits: bool
    bad: tuple[tuple[int, int], ...] = ()
    skips: bool = False
    done: int = 0
    policy: PolicyName = PolicyName.TEMPLATES
    num_zones: int = 0
    redundancy: Redundancy = Redundancy.EAGER_LAZY
    may_drop: bool = False
    may_restore: bool = False
    is_tight: bool = False
    is_slow: bool = False
    eval_every: int = 0
    num_evaluated: int = 1
    eval_target: float = 0.0
    devices_per_stage: int = 1
    audit: float = 0.0
    spreads_optimizer: bool = False
    share_microbatches: bool = False

    def zone_of(self, node: int) -> str:
        return f"zone-{node % self.num_zones}" if self.num_zones else ""

    @property
    def needed_nodes(self) -> int:
        return (self.fault_tolerance + 1) * self.min_nodes

    @property
    def evaluation(self) -> EvalSection:
        target = EvalTarget(metric=EvalMetric.ACCURACY, value=self.eval_target) if self.eval_target else None
        keeps = self.num_evaluated % 2 == 0
        return EvalSection(every=self.eval_every, microbatches=self.num_evaluated, keep_best=keeps, stop_at=target)

    @property
    def budget(self) -> BudgetSection:
        return BudgetSection(price=1.0, per_hour=float(self.num_nodes)) if self.is_tight else BudgetSection()

    @property
    def train(self) -> TrainSection:
        return TrainSection(
            steps=self.steps,
            global_batch=self.num_microbatches,
            microbatch=1,
            sequence_length=1,
            clip_norm=1.5,
            when_not_finite=WhenNotFinite.SKIP if self.skips else WhenNotFinite.STOP,
        )

    @property
    def planner(self) -> PlannerSettings:
        return PlannerSettings(
            num_microbatches=self.num_microbatches,
            fault_tolerance=self.fault_tolerance,
            num_nodes=self.num_nodes,
            devices_per_node=self.devices_per_node,
            devices_per_stage=self.devices_per_stage,
            spreads_optimizer=self.spreads_optimizer,
            share_microbatches=self.share_microbatches,
            min_nodes=self.min_nodes,
            schedule=self.order,
            redundancy=self.redundancy,
            may_drop=self.may_drop,
            may_restore=self.may_restore and self.checkpoint_every != 0,
            audit=self.audit,
        )

    @property
    def profile(self) -> ModelProfile:
        """The profile, with uneven layers."""
        draw = Random(31 * self.num_layers + self.num_nodes)
        size_bytes = 3_000_000 if self.is_large else 100
        layers = tuple(
            LayerCost(
                name=f"layer.{number}",
                times=(
                    LayerTimes(
                        forward_s=draw.randint(1, 9) * 1e-3,
                        backward_input_s=(half := draw.randint(1, 9) * 1e-3),
                        backward_weight_s=half,
                    ),
                ),
                parameter_bytes=size_bytes,
                gradient_bytes=size_bytes,
                optimizer_bytes=2 * size_bytes,
                activation_bytes=100,
                recompute_activation_bytes=50,
                output_bytes=draw.choice([0, 0 if self.is_slow else 100_000]),
            )
            for number in range(self.num_layers)
        )
        groups = [Group(layers=(number,), size_bytes=size_bytes) for number in range(self.num_layers)]
        if self.is_tied:
            groups.append(Group(layers=(0, self.num_layers - 1), size_bytes=size_bytes))
        rate = 3 * size_bytes / SLOW_LAYER_S if self.is_slow else 1e9
        link = LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=rate)
        return ModelProfile(
            layers=layers,
            groups=tuple(groups),
            links=Links(within_node=link, between_nodes=link),
            device=DeviceKind(name="virtual"),
        )
