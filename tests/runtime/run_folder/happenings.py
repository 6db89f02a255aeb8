"""A short run as records, for the tests of what shows and writes runs."""

from __future__ import annotations

from planaria.job.parse import parse_job
from planaria.protocol.messages.records import (
    AnyRecord,
    CheckpointSaved,
    NodeJoined,
    NodeLost,
    PlanTaken,
    Recovered,
    Recovery,
    RunEnded,
    RunStatus,
    StepCommitted,
)

JOB = parse_job(
    "model = {type = 'gpt2'}\ncluster = {nodes = 3}\nrun = {name = 'short'}\n"
    "train = {steps = 3, global_batch = 8, microbatch = 2, sequence_length = 16}",
    origin="job.toml",
)

RECOVERY = Recovery(
    step=2,
    cause="connection closed",
    lost_nodes=(1,),
    policy="templates",
    reason="a pipeline of 2 nodes is left",
    detect_ms=8.0,
    decide_ms=1.0,
    transfer_bytes=1000,
    resume_ms=61.2,
    microbatches_rerun=4,
    microbatches_per_step=24,
)


def committed(step: int, loss: float = 0.1 + 0.2) -> StepCommitted:
    return StepCommitted(
        step=step,
        loss=loss,
        grad_norm=1.5,
        learning_rate=1e-3,
        clip_factor=1.0,
        generation=1 if step < 2 else 2,
        live_nodes=3 if step < 2 else 2,
        duration_s=0.25,
        tokens_per_s=41_234.0,
    )


def plan_taken(generation: int, purpose: str) -> PlanTaken:
    return PlanTaken(
        generation=generation,
        step=generation,
        purpose=purpose,
        policy="templates",
        reason="Fastest of 3.",
        pipelines=(((0, 0, 4), (1, 4, 8)), ((2, 0, 8),)),
        microbatches=(3, 1),
        estimated_step_s=0.12,
        transfer_bytes=0,
        plan_hash="00",
    )


def short_run() -> list[AnyRecord]:
    return [
        *(NodeJoined(node=node, live_nodes=node + 1) for node in range(3)),
        plan_taken(1, "start"),
        committed(1),
        NodeLost(node=1, step=2, cause="connection closed", live_nodes=2, detect_ms=8.0),
        plan_taken(2, "finish step"),
        committed(2),
        Recovered(recovery=RECOVERY),
        committed(3, loss=2.5),
        CheckpointSaved(step=3, folder="runs/short/checkpoints/3", seconds=0.01),
        RunEnded(status=RunStatus.COMPLETED, steps=3, message="", skipped_microbatches=0, duplicated_microbatches=0),
    ]
