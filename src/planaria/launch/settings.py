"""From the job file's sections to the settings of other components."""

from __future__ import annotations

from planaria.job.settings import Job
from planaria.plan.plan import ScheduleKind
from planaria.plan.profile import ModelProfile
from planaria.plan.settings import PlannerSettings


def planner_settings(job: Job) -> PlannerSettings:
    """What the planner must respect. `cluster.memory_gb` counts GB of 10**9 bytes, for one device."""
    return PlannerSettings(
        num_microbatches=job.train.num_microbatches,
        fault_tolerance=job.resilience.fault_tolerance,
        num_nodes=job.cluster.nodes,
        devices_per_node=job.cluster.devices_per_node,
        memory_bytes=int(job.cluster.memory_gb * 1e9),
        min_nodes=job.resilience.min_nodes_per_pipeline,
        schedule=ScheduleKind(job.cluster.schedule.value),
    )


def job_profile(job: Job, profile: ModelProfile) -> ModelProfile:
    """The profile's costs as the job runs: with or without recomputation."""
    return profile.recomputed() if job.train.activation_checkpointing else profile
