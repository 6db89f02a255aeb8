"""Derives the settings of other components, and the named profile, from the job file's sections."""

from __future__ import annotations

from pathlib import Path

from planaria.job.errors import UserError
from planaria.job.faults import Fault
from planaria.job.registry import Launcher
from planaria.job.sections.cluster import LOOPBACK, Device, OptimizerState, StageDevices, StageParallelism
from planaria.job.sections.run import RunSection
from planaria.job.settings import Job
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.profile_check import decode_profile
from planaria.plan.plan import NodeId, PlanError, WorkerId
from planaria.plan.settings import MOST_DEVICES, PlannerSettings
from planaria.protocol.step.cadence import Cadence
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.worker.settings import WorkerSettings


def check_size(job: Job) -> None:
    """Refuses a job whose size nobody can have meant, before anything is measured or started for it.

    Raises:
        UserError: it has more devices than plans are made for.
    """
    cluster = job.cluster
    nodes = cluster.most_nodes or cluster.least_nodes
    if nodes * cluster.devices_per_node > MOST_DEVICES:
        most = MOST_DEVICES // cluster.devices_per_node
        raise UserError(
            f"cluster.nodes = {nodes} with cluster.devices_per_node = {cluster.devices_per_node} is more than "
            f"the {MOST_DEVICES} devices that plans are made for. "
            + (f"Set it to {most} or less." if most else "Set fewer cluster.devices_per_node.")
        )


def planner_settings(job: Job, profile: ModelProfile) -> PlannerSettings:
    """Returns what the planner must respect. `cluster.memory_gb` counts GB of 10**9 bytes for one device; if it is 0,
    the profile says what a device has."""
    stages = job.cluster.devices_per_stage
    return PlannerSettings(
        num_microbatches=job.train.num_microbatches,
        fault_tolerance=job.resilience.fault_tolerance,
        num_nodes=job.cluster.least_nodes,
        most_nodes=job.cluster.most_nodes or 0,
        devices_per_node=job.cluster.devices_per_node,
        devices_per_stage=0 if isinstance(stages, StageDevices) else stages,
        spreads_optimizer=job.cluster.optimizer_state is OptimizerState.SPREAD,
        share_microbatches=job.cluster.stage_parallelism is StageParallelism.TENSOR,
        most_sharing=job.model.virtual_shards if job.cluster.stage_parallelism is StageParallelism.AUTO else 0,
        wide_stages=is_emulated(job),
        memory_bytes=int(job.cluster.memory_gb * 1e9) if job.cluster.memory_gb else profile.device.memory_bytes,
        min_nodes=job.resilience.min_nodes_per_pipeline,
        shape=_shape(job),
        schedule=job.cluster.schedule,
        objective=job.cluster.objective,
        may_drop=job.resilience.may_drop,
        may_restore=job.run.writes_checkpoints and job.run.keep_checkpoints > 1,
        redundancy=job.resilience.redundancy,
        audit=job.resilience.audit,
    )


def _shape(job: Job) -> tuple[int, int] | None:
    """Returns number and nodes of the pipelines that the job asks for; None: it asks for none."""
    depth, nodes = job.resilience.nodes_per_pipeline, job.cluster.most_nodes or job.cluster.least_nodes
    return (job.resilience.num_pipelines or nodes // depth, depth) if depth else None


def checkpoint_interval_s(run: RunSection, time_to_failure_s: float) -> float:
    """Returns the seconds between two checkpoints of a run that has not begun; 0: they are not by time."""
    return Cadence(run.checkpoint_every, run.checkpoint_every_s).interval_s(time_to_failure_s)


def job_profile(job: Job, profile: ModelProfile) -> ModelProfile:
    """Returns the profile's costs as the job runs: with all devices of a node at work, with or without
    recomputation."""
    costs = profile.contended(devices_at_work(job))
    return costs.recomputed() if job.train.activation_checkpointing else costs


def devices_at_work(job: Job) -> int:
    """Returns how many devices of a host are at work at a time: those of a node, or of all nodes of this machine."""
    cluster = job.cluster
    nodes = cluster.least_nodes if cluster.launcher is Launcher.LOCAL and cluster.device is Device.CPU else 1
    return cluster.devices_per_node * nodes


def is_emulated(job: Job) -> bool:
    return job.cluster.device is Device.EMULATED


def named_profile(job: Job) -> ModelProfile:
    """Returns the profile that a job names.

    Raises:
        UserError: it cannot be read, or is for microbatches of another size.
    """
    path = Path(job.cluster.profile or "")
    field = f"cluster.profile = {job.cluster.profile!r}"
    try:
        profile = decode_profile(path.read_bytes())
    except OSError as error:
        raise UserError(
            f"{field} cannot be read: {error.strerror}. Give a profile's path, from the folder in which you start; "
            "planaria profile JOB -o FILE measures one, --preset NAME --device NAME computes one."
        ) from None
    except PlanError as error:
        raise UserError(f"{field}: {error}") from None
    if profile.microbatch_size != job.train.microbatch:
        raise UserError(
            f"{field} has the times of microbatches of {profile.microbatch_size}, and train.microbatch is "
            f"{job.train.microbatch}. Set train.microbatch = {profile.microbatch_size}, or give another profile."
        )
    return profile


def node_settings(
    job: Job,
    folder: RunFolder,
    node: NodeId,
    *,
    coordinator: str,
    token: str,
    faults: tuple[Fault, ...],
    import_path: Path | None,
    host: str = LOOPBACK,
    zone: str = "",
    label: str = "",
    mark: str = "",
    tls: str = "",
    metadata_url: str = "",
    traces: bool = False,
) -> list[WorkerSettings]:
    """Returns what the workers of a node are told, one item for each device.

    Args:
        job: the whole job.
        folder: of the run, as the node sees it.
        node: its number.
        coordinator: where it is, see `planaria.runtime.journal.coordinator_place`.
        token: the job's token.
        faults: on order, of this node.
        import_path: where a model given as "module:function" is looked for.
        host: address on which peers reach the node.
        zone: where it is; "": not known.
        label: what whoever started its agent calls it; "": not known.
        mark: tells this run from others with the same token.
        tls: the node's folder with the run's certificates; "": connections are plain.
        metadata_url: of the cloud's metadata server; "": where it always is.
        traces: every worker writes what it did when into the logs, for benchmarks.
    """
    first = node * job.cluster.devices_per_node
    return [
        WorkerSettings(
            worker=WorkerId(worker),
            node=node,
            coordinator=coordinator,
            token=token,
            job=job,
            data_folder=str(folder.data),
            profile=str(folder.profile),
            faults=tuple(fault for fault in faults if fault.device in (-1, worker - first)),
            import_path=None if import_path is None else str(import_path),
            metadata_url=metadata_url,
            log=str(folder.worker_log(worker)),
            host=host,
            zone=zone,
            label=label,
            mark=mark,
            tls=tls,
            trace=str(folder.logs / f"trace-{worker}.jsonl") if traces else None,
        )
        for worker in range(first, first + job.cluster.devices_per_node)
    ]
