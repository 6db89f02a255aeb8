"""What makes a whole job impossible, though each of its sections is possible.

Each check raises a `UserError` that names the field, its value and the remedy. Nothing looks at the machine. What one
section alone says is checked beside it, in `planaria.job.sections`.
"""

from __future__ import annotations

from collections import Counter

from planaria.job.errors import UserError
from planaria.job.registry import Launcher, PolicyName
from planaria.job.sections.budget import check_budget
from planaria.job.sections.cluster import ClusterSection, Device, StageDevices, StageParallelism, check_cluster
from planaria.job.sections.data import check_data
from planaria.job.sections.eval import check_eval
from planaria.job.sections.model import check_model
from planaria.job.sections.observe import check_observe
from planaria.job.sections.resilience import check_resilience
from planaria.job.sections.run import check_run
from planaria.job.sections.train import DType, Numerics, check_train
from planaria.job.settings import Job
from planaria.job.values import ETCD_TLS_URL, is_dataset, is_function, is_hub_stream, refuse, shown
from planaria.plan.settings import Objective


def check_job(job: Job) -> None:
    """Refuses an impossible combination.

    Raises:
        UserError: one line with field, value and remedy.
    """
    check_model(job.model)
    check_data(job.data)
    check_eval(job.eval)
    _check_evaluation_data(job)
    check_train(job.train)
    _check_sequence(job)
    check_cluster(job.cluster)
    _check_precision(job)
    _check_virtual_shards(job)
    check_resilience(job.resilience)
    _check_tensor_stages(job)
    check_budget(job.budget)
    _check_hourly_price(job)
    check_run(job.run)
    check_observe(job.observe)
    _check_launcher(job)
    _check_morph(job)
    _check_objective(job)
    _check_shape(job)
    _check_replicas(job)
    _check_audit(job)


def _check_evaluation_data(job: Job) -> None:
    """Checks that there is something to evaluate on, and of the same kind as what is trained on."""
    section = job.eval
    if section.source and is_dataset(section.source) != is_dataset(job.data.source):
        refuse(
            "eval.source", section.source, f"is of another kind than data.source = {shown(job.data.source)}",
            'Give functions that return datasets ("module:function") for both, or paths for both.',
        )  # fmt: skip
    if section.share and is_hub_stream(job.data.source):
        refuse("eval.share", section.share, "cannot be of a stream, which has no end", "Set eval.source.")
    if section.every and not section.has_data and job.cluster.device is not Device.EMULATED:
        refuse(
            "eval.every", section.every, "needs data that are not trained on",
            "Set eval.share, for instance to 0.01, or eval.source.",
        )  # fmt: skip


def _check_sequence(job: Job) -> None:
    """Tokens are cut into sequences; a dataset's samples are what they are."""
    if not job.train.sequence_length and not is_dataset(job.data.source):
        raise UserError(
            "train.sequence_length is missing (expected a whole number). Add sequence_length to [train]: the tokens of "
            "a sequence."
        )


def _check_precision(job: Job) -> None:
    if job.train.dtype is DType.TF32 and job.cluster.device is not Device.CUDA:
        refuse(
            "train.dtype", DType.TF32.value, f'is for CUDA devices, not for cluster.device = "{job.cluster.device}"',
            'Set dtype = "float32" or "bfloat16".',
        )  # fmt: skip
    if job.train.boundary_dtype not in (DType.FLOAT32, DType.BFLOAT16):
        refuse(
            "train.boundary_dtype", job.train.boundary_dtype.value, "is no dtype of messages",
            'Set it to "float32" or "bfloat16".',
        )  # fmt: skip


def _check_virtual_shards(job: Job) -> None:
    if job.model.virtual_shards and job.train.compile:
        refuse(
            "model.virtual_shards", job.model.virtual_shards, "does not go with train.compile = true",
            "Set virtual_shards = 0, or compile = false.",
        )  # fmt: skip


def _check_tensor_stages(job: Job) -> None:
    """Checks that the devices of a stage can share a microbatch, and nothing is asked for that cannot be shared."""
    cluster, shards = job.cluster, job.model.virtual_shards
    if cluster.stage_parallelism is not StageParallelism.TENSOR:
        return
    if whole := whole_layers_of(job):
        refuse(
            "cluster.stage_parallelism", StageParallelism.TENSOR.value,
            f"does not go with {whole}, whose layers are whole", 'Set it to "sharded".',
        )  # fmt: skip
    devices = tensor_devices(cluster)
    if not devices:
        asked = cluster.devices_per_stage
        refuse(
            "cluster.devices_per_stage", asked.value if isinstance(asked, StageDevices) else asked,
            'does not go with cluster.stage_parallelism = "tensor", whose stages are on 2, 4 or 8 devices',
            'Set it to 2, for instance, or stage_parallelism = "sharded".',
        )  # fmt: skip
    elif shards % devices or not shards:
        refuse(
            "model.virtual_shards", shards,
            f'is not shared by the {devices} devices of a stage (cluster.stage_parallelism = "tensor")',
            f'Set it to {devices}, or to a larger power of two, or stage_parallelism = "sharded"'
            + (', or train.numerics = "fast".' if not shards else "."),
        )  # fmt: skip


def whole_layers_of(job: Job) -> str:
    """Returns what of the job has layers that are not computed in shards; empty: nothing."""
    if is_function(job.model.type):
        return f"model.type = {shown(job.model.type)}"
    if job.model.lora is not None:
        return "model.lora"
    return "train.compile = true" if job.train.compile else ""


def tensor_devices(cluster: ClusterSection) -> int:
    """Returns how many devices share each microbatch in the job's tensor stages; 0: it has none, or so many cannot."""
    devices = cluster.devices_per_stage
    if cluster.stage_parallelism is not StageParallelism.TENSOR or isinstance(devices, StageDevices):
        return 0
    return 0 if devices < 2 or devices & (devices - 1) else devices


def _check_hourly_price(job: Job) -> None:
    budget, nodes = job.budget, job.cluster.least_nodes
    if budget.per_hour is None:
        return
    zones = job.cluster.zones or ("",)
    hourly = budget.hourly(Counter(zones[node % len(zones)] for node in range(nodes)))
    if hourly > budget.per_hour:
        raise UserError(
            f"cluster.nodes = {nodes} cost {hourly:g} dollars an hour, over budget.per_hour = {budget.per_hour:g}. "
            "Set fewer nodes, or a higher limit."
        )


def _check_launcher(job: Job) -> None:
    """Refuses what goes with the nodes of another launcher only."""
    launcher = job.cluster.launcher
    if job.run.journal and launcher is Launcher.LOCAL:
        refuse(
            "run.journal", job.run.journal, 'is for nodes on other hosts (cluster.launcher = "agents")',
            "Leave it out: with this host all nodes are gone.",
        )  # fmt: skip
    if job.run.journal.startswith(ETCD_TLS_URL) and not job.cluster.tls:
        refuse(
            "run.journal", job.run.journal, "is under TLS, and cluster.tls is missing",
            "Set that to the folder with the certificates.",
        )  # fmt: skip
    if job.observe.instructions and launcher is not Launcher.LOCAL:
        refuse(
            "observe.instructions", True, f"goes with nodes of this machine, not with {launcher.value}",
            "Leave it out: hosts have clocks of their own.",
        )  # fmt: skip


def _check_morph(job: Job) -> None:
    """Checks that the checkpoint to which a loss takes the job back stays while the next one is written."""
    if job.resilience.policy is not PolicyName.MORPH:
        return
    morph = 'resilience.policy = "morph", which goes back to the last checkpoint after each loss'
    if not job.run.writes_checkpoints:
        field = "checkpoint_every" if job.run.checkpoint_every == 0 else "checkpoint_every_s"
        refuse(f"run.{field}", 0, f"writes none for {morph}", "Leave it out, or set how often: 10, for instance.")
    if job.run.keep_checkpoints < 2:
        refuse("run.keep_checkpoints", job.run.keep_checkpoints, f"is too few for {morph}", "Set it to 2 or more.")


def _check_objective(job: Job) -> None:
    if job.cluster.objective is Objective.OOBLECK and job.resilience.policy is not PolicyName.TEMPLATES:
        refuse(
            "cluster.objective", job.cluster.objective.value,
            f'does not go with resilience.policy = "{job.resilience.policy.value}", whose plans are not the paper\'s',
            'Set resilience.policy = "templates".',
        )  # fmt: skip


def _check_shape(job: Job) -> None:
    """Checks that the pipelines that are asked for can be had, and keep f + 1 replicas."""
    resilience, nodes = job.resilience, job.cluster.most_nodes or job.cluster.least_nodes
    depth, number = resilience.nodes_per_pipeline, resilience.num_pipelines
    if not depth:
        if number:
            refuse(
                "resilience.num_pipelines", number, "goes with resilience.nodes_per_pipeline, which is missing",
                f"Set it too, for instance to {max(1, nodes // number)}, or leave this out.",
            )  # fmt: skip
        return
    if depth < resilience.min_nodes_per_pipeline:
        refuse(
            "resilience.nodes_per_pipeline", depth,
            f"is below resilience.min_nodes_per_pipeline = {resilience.min_nodes_per_pipeline}",
            f"Set it to {resilience.min_nodes_per_pipeline} or more.",
        )  # fmt: skip
    if max(1, number) * depth > nodes:
        field = "num_pipelines" if depth <= nodes else "nodes_per_pipeline"
        refuse(
            f"resilience.{field}", getattr(resilience, field),
            f"asks for {max(1, number)} x {depth} nodes, but cluster.nodes = {nodes}",
            f"Set it to {max(1, nodes // depth) if field == 'num_pipelines' else nodes} or less, or "
            f"cluster.nodes = {max(1, number) * depth} or more.",
        )  # fmt: skip
    number = number or nodes // depth
    if number < (needed := _pipelines_needed(job, depth)):
        refuse(
            "resilience.fault_tolerance", resilience.fault_tolerance,
            f"needs {needed} pipelines, but resilience.nodes_per_pipeline = {depth} makes {number} of them",
            "Set fewer nodes_per_pipeline, more num_pipelines, or a lower fault_tolerance.",
        )  # fmt: skip
    if job.train.num_microbatches < number:
        refuse(
            "resilience.nodes_per_pipeline", depth,
            f"makes {number} pipelines, and a step has {job.train.num_microbatches} microbatches",
            f"Set num_pipelines = {job.train.num_microbatches} or less, or a larger train.global_batch.",
        )  # fmt: skip


def _pipelines_needed(job: Job, nodes_each: int) -> int:
    """Returns how many pipelines of so many nodes keep f + 1 replicas."""
    pipelines = job.resilience.fault_tolerance + 1
    if job.resilience.policy is PolicyName.REDUNDANCY and nodes_each > 1:
        return -(-pipelines // 2)  # an owner and its shadow are two replicas
    return pipelines


def _check_replicas(job: Job) -> None:
    """Checks that f + 1 pipelines have as many nodes, and at least one microbatch each."""
    tolerance = job.resilience.fault_tolerance
    nodes_each = max(1, job.resilience.min_nodes_per_pipeline)
    pipelines = _pipelines_needed(job, max(nodes_each, job.resilience.nodes_per_pipeline))
    if job.cluster.least_nodes < pipelines * nodes_each:
        each = f"{nodes_each} node{'s' if nodes_each > 1 else ''} each"
        possible = job.cluster.least_nodes // nodes_each - 1
        lower = f", or set resilience.fault_tolerance = {possible}" if possible >= 0 else ""
        refuse(
            "resilience.fault_tolerance", tolerance,
            f"needs {pipelines} pipelines of {each} ({pipelines * nodes_each} nodes), "
            f"but cluster.nodes = {job.cluster.least_nodes}",
            f"Set cluster.nodes = {pipelines * nodes_each} or more{lower}.",
        )  # fmt: skip
    if job.train.num_microbatches < pipelines:
        refuse(
            "train.global_batch", job.train.global_batch,
            f"gives {job.train.num_microbatches} microbatches of {job.train.microbatch}, "
            f"but fault_tolerance = {tolerance} needs {pipelines} pipelines with at least one each",
            f"Set global_batch to {pipelines * job.train.microbatch} or more, or a smaller microbatch.",
        )  # fmt: skip


def _check_audit(job: Job) -> None:
    if job.resilience.audit and job.train.numerics is not Numerics.EXACT:
        refuse(
            "resilience.audit", job.resilience.audit,
            f'is for exact numerics, not for train.numerics = "{job.train.numerics.value}", where bits may differ',
            'Set train.numerics = "exact", or audit = 0.',
        )  # fmt: skip
