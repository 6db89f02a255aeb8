"""Records and messages about plans and steps, made from what the coordinator decided."""

from __future__ import annotations

import math

from planaria.job.sections.train import TrainSection
from planaria.plan.plan import Plan
from planaria.plan.validate import lacking
from planaria.planner.reroute.plans import shares
from planaria.policy.interface import Candidate
from planaria.protocol.messages.records import Note, NoteSubject, PlanTaken, StepCommitted, StepSkipped
from planaria.protocol.messages.to_worker import NOT_APPLIED, Commit
from planaria.protocol.step.commit import loss_scale


def shapes(plan: Plan) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """Returns, for each pipeline, its stages as (worker, first layer, end layer)."""
    return tuple(pipeline.key for pipeline in plan.pipelines)


def plan_taken(proposal: Candidate, step: int, purpose: str, policy_name: str, plan_hash: str) -> PlanTaken:
    """Returns the record of a plan, pipeline by pipeline, with what each of them carries."""
    plan = proposal.plan
    return PlanTaken(
        generation=plan.generation,
        step=step,
        purpose=purpose,
        policy=policy_name,
        reason=proposal.reason,
        pipelines=shapes(plan),
        microbatches=shares(plan),
        estimated_step_s=proposal.step_time_s,
        estimated_transition_s=proposal.transition_s,
        shares_microbatches=plan.shares_microbatches,
        transfer_bytes=proposal.transfer_bytes,
        plan_hash=plan_hash,
        candidates=proposal.candidates,
    )


def replicas_note(
    proposal: Candidate, fault_tolerance: int, *, was_degraded: bool, writes_checkpoints: bool
) -> Note | None:
    """Returns a note that a plan has fewer than f + 1 replicas of some layer, or that there are enough again."""
    if proposal.is_degraded:
        fewest = min(lacking(proposal.plan, fault_tolerance).values(), default=0)
        losses = f"{fewest} more loss{'es' if fewest > 1 else ''} may take the last replica of a layer"
        saved = "" if writes_checkpoints else "; until that is over, the state is saved now and then beside training"
        text = f"the plan is degraded: of {fault_tolerance + 1} replicas some layer has {fewest}, so {losses}{saved}"
        return Note(level="warning", text=f"{text}; add nodes (planaria add)", subject=NoteSubject.DEGRADED)
    if was_degraded:
        text = f"every layer has {fault_tolerance + 1} replicas again"
        return Note(level="info", text=text, subject=NoteSubject.REPLICAS)
    return None


def step_committed(
    train: TrainSection,
    commit: Commit,
    *,
    loss: float,
    norm: float,
    live_nodes: int,
    duration_s: float,
    cost: float = 0.0,
) -> StepCommitted | StepSkipped:
    """Returns the record of a committed step, with its mean loss and global gradient norm.

    Samples that are no sequences of tokens count as one token each.
    """
    num_counted = train.global_batch - train.microbatch * len(commit.dropped)
    tokens_per_s = num_counted * max(1, train.sequence_length) / duration_s
    if commit.clip_factor == NOT_APPLIED:
        return StepSkipped(
            step=commit.step,
            loss=loss if math.isfinite(loss) else None,
            grad_norm=norm if math.isfinite(norm) else None,
            learning_rate=commit.learning_rate,
            generation=commit.generation,
            live_nodes=live_nodes,
            duration_s=duration_s,
            tokens_per_s=tokens_per_s,
            loss_scale=loss_scale(commit.exponents, train.dtype),
            dropped=commit.dropped,
            num_dropped=commit.num_dropped,
        )
    return StepCommitted(
        step=commit.step,
        loss=loss,
        grad_norm=norm,
        learning_rate=commit.learning_rate,
        clip_factor=commit.clip_factor,
        generation=commit.generation,
        live_nodes=live_nodes,
        duration_s=duration_s,
        tokens_per_s=tokens_per_s,
        scale=commit.scale,
        loss_scale=loss_scale(commit.exponents, train.dtype),
        dropped=commit.dropped,
        num_dropped=commit.num_dropped,
        cost=cost,
    )


def not_finite(step: int, loss: float, norm: float) -> str:
    """Returns why a step whose loss or gradient is not a number is not committed."""
    return (
        f"step {step} has loss {loss} and gradient norm {norm}, so it is not applied; the state after step {step - 1} "
        "is saved. Lower train.learning_rate, raise train.warmup_steps, look at the data, or set "
        'train.when_not_finite = "skip"'
    )
