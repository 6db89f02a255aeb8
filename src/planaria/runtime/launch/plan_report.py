"""The plan that a job would start with, or have after losses: made by its policy, and all that can be said of it."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planaria.estimate.restore_time import Storage
from planaria.job.errors import UserError
from planaria.job.registry import PolicyName
from planaria.job.settings import Job
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import NodeId, Plan, WorkerId
from planaria.plan.thresholds import MEAN_TIME_BETWEEN_FAILURES_S
from planaria.policy.forecast import FailureForecast

if TYPE_CHECKING:
    from planaria.estimate.evaluation_time import EvaluationShare
    from planaria.estimate.memory import MemoryUse
    from planaria.estimate.step_time import Timeline
    from planaria.plan.costs.pipeline_time import Template
    from planaria.plan.settings import PlannerSettings
    from planaria.policy.interface import Candidate, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What audits take and leave out under a plan.

    Attributes:
        share: of all forwards and backwards that is run again.
        seconds: that they add to a step, at most, as expected.
        unaudited: layers that no other node could run again.
    """

    share: float
    seconds: float
    unaudited: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """What a job would start with.

    Attributes:
        templates: the pipeline shapes that the planner may use, by number of nodes.
        plan: the first plan.
        profile: the costs it was made from.
        settings: what the planner was asked for.
        step_time_s: expected time of one step.
        lower_bound_s: no step of this plan is shorter, whatever the order in which workers do their work.
        reason: why this plan, in one sentence.
        timeline: which worker does what when, in one step.
        memory: what each worker's device must hold at most.
        planning_s: how long all this took to compute.
        after_losses: what the policy proposes after each of the losses that were asked for; the plan, its times and its
            memory are then those after the last.
        evaluations: what evaluations take under the plan; None: the model is not evaluated.
        audits: of computation; None: nothing is audited.
    """

    templates: tuple[Template, ...]
    plan: Plan
    profile: ModelProfile
    settings: PlannerSettings
    step_time_s: float
    lower_bound_s: float
    reason: str
    timeline: Timeline
    memory: Mapping[WorkerId, MemoryUse]
    planning_s: float
    after_losses: tuple[Candidate, ...] = ()
    evaluations: EvaluationShare | None = None
    audits: AuditReport | None = None


def plan_for(
    profile: ModelProfile,
    settings: PlannerSettings,
    *,
    policy: PolicyName = PolicyName.ADAPTIVE,
    mean_time_between_failures_s: float = MEAN_TIME_BETWEEN_FAILURES_S,
    nodes_together: float = 1.0,
    checkpoint_every: int = 0,
    checkpoint_every_s: float = 0.0,
    storage: Storage | None = None,
    losses: Sequence[Collection[int | str]] = (),
    zones: Mapping[int, str] | None = None,
) -> PlanReport:
    """Returns the plan that a job with these costs and settings would start with. Needs neither a job file nor torch.

    Args:
        profile: costs as the job would run, see `ModelProfile.recomputed`.
        settings: what the planner must respect.
        policy: that makes the plan, and those after losses.
        mean_time_between_failures_s: which an adaptive policy expects.
        nodes_together: that a loss takes, on average.
        checkpoint_every: steps between checkpoints; losses come in the middle between two.
        checkpoint_every_s: seconds between checkpoints, where they are by time.
        storage: that checkpoints are read from; None: as fast as is guessed.
        losses: nodes that are lost between two steps, at once or one after the other; "2:1": a device of node 2 alone.
        zones: where nodes are, as far as it is known.

    Raises:
        PlanError: there is no such plan; the message says why and what to do.
    """
    from planaria.estimate.lower_bound import lower_bound_s
    from planaria.estimate.memory import memory_use
    from planaria.estimate.step_time import simulate
    from planaria.policy.planner import Planner
    from planaria.policy.registry import make_policy

    began = time.perf_counter()
    forecast = FailureForecast(
        time_to_failure_s=mean_time_between_failures_s,
        nodes_together=nodes_together,
        checkpoint_every=checkpoint_every,
        checkpoint_every_s=checkpoint_every_s,
        steps_at_stake=checkpoint_every // 2,
        storage=storage or Storage(),
        after_loss=True,
    )
    located = {NodeId(node): zone for node, zone in (zones or {}).items()}
    made = make_policy(policy, Planner(profile, settings, zones=located)).with_forecast(forecast)
    first = made.initial([NodeId(node) for node in range(settings.num_nodes)], 1)
    after_losses = _after_losses(made, first, losses)
    planning_s = time.perf_counter() - began
    proposal = after_losses[-1] if after_losses else first
    timeline = simulate(proposal.plan, profile)
    return PlanReport(
        templates=made.planner.of_stages(proposal.plan.devices_per_stage).templates,
        plan=proposal.plan,
        profile=profile,
        settings=settings,
        step_time_s=proposal.step_time_s,
        lower_bound_s=lower_bound_s(proposal.plan, profile),
        reason=first.reason,
        timeline=timeline,
        memory={w: memory_use(proposal.plan, profile, w, settings.audit) for w in proposal.plan.workers},
        planning_s=planning_s,
        after_losses=after_losses,
        audits=_audits(proposal.plan, profile, timeline, settings),
    )


def _audits(plan: Plan, profile: ModelProfile, timeline: Timeline, settings: PlannerSettings) -> AuditReport | None:
    from planaria.estimate.conditions import Conditions
    from planaria.estimate.step_time import audit_s
    from planaria.plan.program.audits import unaudited

    if not settings.audit:
        return None
    conditions = Conditions(num_cores=settings.num_cores, audit=settings.audit)
    seconds = audit_s(plan, profile, timeline.compute_s, conditions)
    return AuditReport(share=settings.audit, seconds=seconds, unaudited=unaudited(plan))


def _after_losses(policy: Policy, first: Candidate, losses: Sequence[Collection[int | str]]) -> tuple[Candidate, ...]:
    """Returns what the policy proposes after each loss, between two steps."""
    from planaria.policy.interface import ReplanRequest

    proposals: list[Candidate] = []
    plan, gone, alone = first.plan, set[NodeId](), set[WorkerId]()
    for generation, loss in enumerate(losses, 2):
        alone |= {_device(text, first.plan, gone, alone) for text in loss if isinstance(text, str)}
        lost = {NodeId(node) for node in loss if not isinstance(node, str)}
        lost |= {node for node in {plan.node_of(w) for w in alone} - gone if _has_none_left(node, plan, alone)}
        if unknown := sorted(lost - set(first.plan.nodes) | lost & gone):
            raise UserError(
                f"Node {unknown[0]} cannot be lost: the plan has nodes {', '.join(map(str, first.plan.nodes))}"
                f"{', and it is lost already' if unknown[0] in gone else ''}. Name one that lives."
            )
        gone |= lost
        alone = {worker for worker in alone if plan.node_of(worker) not in gone}
        if alone != policy.planner.lost_devices:
            policy = policy.with_planner(policy.planner.with_lost_devices(frozenset(alone)))
        holders = {
            worker: groups
            for worker, groups in plan.kept_of.items()
            if plan.node_of(worker) not in gone and worker not in alone
        }
        proposals.append(
            policy.reconfigure(ReplanRequest(plan=plan, lost=sorted(gone), holders=holders, generation=generation))
        )
        plan = proposals[-1].plan
    return tuple(proposals)


def _device(text: str, plan: Plan, gone: Collection[NodeId], alone: Collection[WorkerId]) -> WorkerId:
    """Returns the worker of a text such as "2:1". Raises UserError: it is none that lives."""
    node, _, device = text.partition(":")
    per_node = plan.devices_per_node
    worker = WorkerId(int(node) * per_node + int(device))
    if int(node) not in plan.nodes or int(device) >= per_node or int(node) in gone or worker in alone:
        raise UserError(
            f"Device {text} cannot be lost: the plan has nodes {', '.join(map(str, plan.nodes))}, each with devices 0 "
            f"to {per_node - 1}{', and it is lost already' if int(node) in gone or worker in alone else ''}. Name one "
            "that lives."
        )
    return worker


def _has_none_left(node: NodeId, plan: Plan, alone: Collection[WorkerId]) -> bool:
    """Returns whether all of a node's devices are lost."""
    return sum(plan.node_of(worker) == node for worker in alone) == plan.devices_per_node


def evaluations_of(job: Job, report: PlanReport) -> EvaluationShare | None:
    """Returns what the job's evaluations take under a plan that was just made; None: there are none."""
    from planaria.estimate.conditions import Conditions
    from planaria.estimate.evaluation_time import EvaluationShare, evaluation_time

    if not job.eval.every:
        return None
    plan = report.plan.evaluating(job.eval.microbatches)
    took = evaluation_time(plan, report.profile, Conditions(num_cores=report.settings.num_cores))
    return EvaluationShare(
        seconds=took.total_s,
        microbatches=job.eval.microbatches,
        evaluations=job.eval.evaluations_in(job.train.steps),
        steps=job.train.steps,
        step_time_s=report.step_time_s,
    )
