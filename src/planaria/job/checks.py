"""What makes a well-typed job impossible: one function a section, and one for what concerns several.

Each check raises a `UserError` that names the field, its value and the remedy. Nothing looks at the machine.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from planaria.job.data_checks import check_data, check_eval
from planaria.job.errors import UserError
from planaria.job.registry import Launcher, PolicyName
from planaria.job.settings import (
    LOOPBACK,
    OPTIMIZER_FIELDS,
    PREEMPTION_SOURCES,
    ClusterSection,
    Device,
    DType,
    Job,
    LoraSection,
    LrSchedule,
    ModelSection,
    NodeRange,
    ObserveSection,
    ParameterRule,
    ResilienceSection,
    RunSection,
    TrainSection,
)
from planaria.job.suggestions import did_you_mean
from planaria.job.values import (
    ETCD_URL,
    at_least,
    function,
    is_dataset,
    is_function,
    is_host_port,
    is_hub_weights,
    is_reference,
    is_url,
    path,
    positive,
    refuse,
    shown,
    text,
)

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
MAX_ZONE_LENGTH = 128


def check_job(job: Job) -> None:
    """Refuses an impossible combination.

    Raises:
        UserError: one line with field, value and remedy.
    """
    _check_model(job.model)
    check_data(job.data)
    check_eval(job)
    _check_train(job.train)
    _check_sequence(job)
    _check_cluster(job.cluster)
    _check_precision(job)
    _check_resilience(job.resilience)
    _check_budget(job)
    _check_run(job.run, job.cluster.launcher)
    _check_observe(job.observe)
    if job.observe.instructions and job.cluster.launcher is not Launcher.LOCAL:
        refuse(
            "observe.instructions", True, f"goes with nodes of this machine, not with {job.cluster.launcher.value}",
            "Leave it out: hosts have clocks of their own.",
        )  # fmt: skip
    _check_morph(job)
    _check_replicas(job)


def _check_model(model: ModelSection) -> None:
    path("model.type", model.type)
    if is_function(model.type):
        function("model.type", model.type)
        if model.weights is not None:
            refuse(
                "model.weights", model.weights, "goes with a Hugging Face model type only",
                "Leave it out, and load the weights in the function.",
            )  # fmt: skip
        if model.lora is not None:
            refuse(
                "model.type", model.type, "is a function, and model.lora goes with a Hugging Face model type only",
                "Leave [model.lora] out, and put adapters into the layers there.",
            )  # fmt: skip
    elif model.loss is not None:
        refuse(
            "model.loss", model.loss,
            f"goes with a model that is a function, not with model.type = {shown(model.type)}",
            "Leave it out.",
        )  # fmt: skip
    if model.weights is not None and not is_hub_weights(model.weights):
        path("model.weights", model.weights)
    if model.loss is not None:
        function("model.loss", model.loss)
    if model.lora is not None:
        _check_lora(model.lora)


def _check_lora(lora: LoraSection) -> None:
    at_least("model.lora.r", lora.r, 1)
    at_least("model.lora.lora_alpha", lora.lora_alpha, 1)
    if not 0 <= lora.lora_dropout < 1:
        refuse("model.lora.lora_dropout", lora.lora_dropout, "is not within [0, 1)", "Set for instance 0.05.")
    for name in lora.target_modules:
        text("model.lora.target_modules", name)


def _check_train(train: TrainSection) -> None:
    for name in ("steps", "global_batch", "microbatch"):
        at_least(f"train.{name}", getattr(train, name), 1)
    at_least("train.sequence_length", train.sequence_length, 0)
    for name in ("learning_rate", "eps"):
        positive(f"train.{name}", getattr(train, name))
    for name in ("warmup_steps", "decay_steps", "weight_decay", "momentum", "clip_norm", "seed", "start_steps"):
        at_least(f"train.{name}", getattr(train, name), 0)
    if train.global_batch % train.microbatch:
        refuse(
            "train.global_batch", train.global_batch,
            f"is not divisible by train.microbatch = {train.microbatch}",
            _nearest_batches(train.global_batch, train.microbatch),
        )  # fmt: skip
    if train.start_from:
        text("train.start_from", train.start_from)
    elif train.start_optimizer:
        refuse(
            "train.start_optimizer", True, "is for a start from a checkpoint, and train.start_from is missing",
            "Name one, or leave this out.",
        )  # fmt: skip
    if train.warmup_steps > train.steps:
        refuse(
            "train.warmup_steps", train.warmup_steps, f"is more than train.steps = {train.steps}",
            f"Set it to at most {train.steps}.",
        )  # fmt: skip
    if not 0 <= train.min_lr_ratio <= 1:
        refuse("train.min_lr_ratio", train.min_lr_ratio, "is not within [0, 1]", "Set for instance 0.1.")
    if not all(0 <= beta < 1 for beta in train.betas):
        refuse("train.betas", list(train.betas), "are not within [0, 1)", "Set for instance [0.9, 0.95].")
    if train.momentum >= 1:
        refuse("train.momentum", train.momentum, "is not within [0, 1)", "Set for instance 0.9.")
    _check_optimizer(train)
    _check_schedule(train)
    for number, rule in enumerate(train.parameters):
        field = f"train.parameters[{number}]"
        text(f"{field}.match", rule.match)
        at_least(f"{field}.learning_rate_factor", rule.learning_rate_factor, 0)
        if rule.weight_decay is not None:
            at_least(f"{field}.weight_decay", rule.weight_decay, 0)
        for name in ("learning_rate_factor", "weight_decay") if not rule.trainable else ():
            if (value := getattr(rule, name)) != getattr(ParameterRule(match=""), name):
                refuse(f"{field}.{name}", value, "does not go with trainable = false", "Leave one of the two out.")


def _check_sequence(job: Job) -> None:
    """Tokens are cut into sequences; a dataset's samples are what they are."""
    if not job.train.sequence_length and not is_dataset(job.data.source):
        raise UserError(
            "train.sequence_length is missing (expected a whole number). Add sequence_length to [train]: the tokens of "
            "a sequence."
        )


def _check_optimizer(train: TrainSection) -> None:
    """What an optimizer does not heed must not be set, as if it did."""
    heeded = train.optimizer_fields
    for name, unused in OPTIMIZER_FIELDS.items():
        if name not in heeded and getattr(train, name) != unused:
            refuse(
                f"train.{name}", getattr(train, name), f'is not for train.optimizer = "{train.optimizer.value}"',
                f"Leave it out; it heeds {', '.join(heeded)}.",
            )  # fmt: skip
    if train.nesterov and not train.momentum:
        refuse("train.nesterov", True, "goes with momentum, and train.momentum is 0", "Set for instance 0.9.")


def _check_schedule(train: TrainSection) -> None:
    schedule = train.lr_schedule
    if schedule not in [*LrSchedule] and not is_reference(schedule):
        names = ", ".join(f'"{known.value}"' for known in LrSchedule)
        remedy = did_you_mean(schedule, [*LrSchedule]).strip() or f"There are {names}."
        refuse("train.lr_schedule", schedule, f'is not {names} or "module:function"', remedy)
    if is_function(schedule) and train.warmup_steps:
        refuse(
            "train.warmup_steps", train.warmup_steps, f"goes with no train.lr_schedule = {shown(schedule)}",
            "Leave it out: the function says what every step's rate is.",
        )  # fmt: skip
    if train.decay_steps and schedule != LrSchedule.WSD:
        refuse(
            "train.decay_steps", train.decay_steps, f"is not for train.lr_schedule = {shown(schedule)}",
            'Leave it out, or set lr_schedule = "wsd".',
        )  # fmt: skip
    if train.decay_steps + train.warmup_steps > train.steps and schedule == LrSchedule.WSD:
        refuse(
            "train.decay_steps", train.decay_steps,
            f"and train.warmup_steps = {train.warmup_steps} are more than train.steps = {train.steps}",
            f"Set it to at most {train.steps - train.warmup_steps}.",
        )  # fmt: skip


def _nearest_batches(global_batch: int, microbatch: int) -> str:
    below = global_batch // microbatch * microbatch
    nearest = [batch for batch in (below, below + microbatch) if batch > 0]
    divisors = [d for d in range(min(microbatch, 1 << 16), 0, -1) if global_batch % d == 0]
    return f"Set global_batch to {' or '.join(map(str, nearest))}, or microbatch to {divisors[0]}."


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


def _check_cluster(cluster: ClusterSection) -> None:
    if isinstance(cluster.nodes, NodeRange):
        at_least("cluster.nodes.least", cluster.nodes.least, 1)
        if cluster.nodes.most < cluster.nodes.least:
            refuse(
                "cluster.nodes.most", cluster.nodes.most, f"is below cluster.nodes.least = {cluster.nodes.least}",
                f"Set it to {cluster.nodes.least} or more.",
            )  # fmt: skip
    else:
        at_least("cluster.nodes", cluster.nodes, 1)
    at_least("cluster.devices_per_node", cluster.devices_per_node, 1)
    at_least("cluster.devices_per_stage", cluster.devices_per_stage, 1)
    if cluster.devices_per_node % cluster.devices_per_stage:
        refuse(
            "cluster.devices_per_stage", cluster.devices_per_stage,
            f"does not divide cluster.devices_per_node = {cluster.devices_per_node}",
            f"Set a divisor of {cluster.devices_per_node}.",
        )  # fmt: skip
    at_least("cluster.most_workers", cluster.most_workers, 0)
    at_least("cluster.memory_gb", cluster.memory_gb, 0)
    positive("cluster.storage_gb_per_s", cluster.storage_gb_per_s)
    if cluster.device is Device.EMULATED and cluster.profile is None:
        refuse(
            "cluster.device", cluster.device.value, "takes its times from a profile, and cluster.profile is missing",
            "Set cluster.profile to the path of a profile's JSON file.",
        )  # fmt: skip
    if cluster.profile is not None:
        path("cluster.profile", cluster.profile)
    if not 0 <= cluster.port <= 65535:
        refuse("cluster.port", cluster.port, "is not a TCP port", "Set 1 to 65535, or 0 for any free one.")
    _check_host(cluster)
    for zone in cluster.zones:
        check_zone("cluster.zones", zone)
    if cluster.zones and cluster.launcher is not Launcher.LOCAL:
        refuse(
            "cluster.zones", list(cluster.zones), f"goes with nodes of this machine, not with {cluster.launcher.value}",
            "Leave it out, and give each agent its --zone.",
        )  # fmt: skip


def _check_host(cluster: ClusterSection) -> None:
    if not _HOST.fullmatch(cluster.host):
        refuse(
            "cluster.host", cluster.host, "is not an IPv4 address or a host's name",
            'Write for instance "10.0.0.1", or "0.0.0.0" for every interface.',
        )  # fmt: skip
    if cluster.tls and cluster.launcher is Launcher.LOCAL:
        refuse("cluster.tls", cluster.tls, 'goes with cluster.launcher = "agents" only', "Leave it out.")
    if not cluster.data_encryption and not cluster.tls:
        refuse("cluster.data_encryption", False, "goes with cluster.tls only", "Leave it out, or set cluster.tls.")
    if cluster.launcher is Launcher.LOCAL and cluster.host != LOOPBACK:
        refuse(
            "cluster.host", cluster.host, 'goes with cluster.launcher = "agents" only',
            "Leave it out: nodes of this machine are reached on loopback.",
        )  # fmt: skip


def check_dealing(cluster: ClusterSection) -> None:
    """Checks that nodes can be dealt out to zones in turn. (A drill's zones are its script's, also of nodes to come.)

    A name may be repeated where there is one for each node. Raises UserError.
    """
    zones, nodes = cluster.zones, cluster.least_nodes
    if len(zones) > nodes:
        refuse(
            "cluster.zones", list(zones), f"are {len(zones)} names, and cluster.nodes is {nodes}",
            f"Name {nodes} or fewer, or set cluster.nodes = {len(zones)} or more.",
        )  # fmt: skip
    once = list(dict.fromkeys(zones))
    if len(once) < len(zones) and (len(zones) < nodes or len(once) == 1):
        each = f", or one zone for each of the {nodes} nodes" if len(once) > 1 else ""
        refuse(
            "cluster.zones", list(zones), "name a zone twice; nodes are dealt out to them in turn",
            f"Set {once}, every zone once{each}.",
        )  # fmt: skip


def check_zone(field: str, zone: str) -> None:
    """Raises UserError for what is no name of a zone."""
    if not (zone.strip() and zone.isprintable() and len(zone) <= MAX_ZONE_LENGTH):
        refuse(field, zone, "is not the name of a zone", f"Use 1 to {MAX_ZONE_LENGTH} printable characters.")


def _check_resilience(resilience: ResilienceSection) -> None:
    at_least("resilience.fault_tolerance", resilience.fault_tolerance, 0)
    at_least("resilience.min_nodes_per_pipeline", resilience.min_nodes_per_pipeline, 0)
    positive("resilience.coordinator_timeout_s", resilience.coordinator_timeout_s)
    positive("resilience.mean_time_between_failures_s", resilience.mean_time_between_failures_s)
    if resilience.failure_trace:
        path("resilience.failure_trace", resilience.failure_trace)
    source = resilience.preemption
    if source not in PREEMPTION_SOURCES and not is_reference(source):
        refuse(
            "resilience.preemption", source, f"is not {', '.join(PREEMPTION_SOURCES)} or module:function",
            'Write for instance "aws", or "notices:seconds_left".',
        )  # fmt: skip


def _check_run(run: RunSection, launcher: Launcher) -> None:
    path("run.folder", run.folder)
    if run.name is not None:
        check_name("run.name", run.name)
    if run.checkpoint_every is not None:
        at_least("run.checkpoint_every", run.checkpoint_every, 0)
    if run.checkpoint_every_s is not None:
        at_least("run.checkpoint_every_s", run.checkpoint_every_s, 0)
    at_least("run.keep_checkpoints", run.keep_checkpoints, 1)
    if run.checkpoint_folder and not is_url(run.checkpoint_folder):
        refuse(
            "run.checkpoint_folder", run.checkpoint_folder, "is not a URL",
            "Write for instance s3://bucket/folder, or leave it out: then they are in the run folder.",
        )  # fmt: skip
    members = run.journal.removeprefix(ETCD_URL).split(",")
    if run.journal and not (run.journal.startswith(ETCD_URL) and all(map(is_host_port, members))):
        refuse(
            "run.journal", run.journal, "is not etcd://HOST:PORT,HOST:PORT,...",
            "Name etcd's members, or leave it out: then the journal is in the run folder.",
        )  # fmt: skip
    if run.journal and launcher is Launcher.LOCAL:
        refuse(
            "run.journal", run.journal, 'is for nodes on other hosts (cluster.launcher = "agents")',
            "Leave it out: with this host all nodes are gone.",
        )  # fmt: skip
    for callback in run.callbacks:
        function("run.callbacks", callback)


def _check_observe(observe: ObserveSection) -> None:
    """Refuses an [observe] that cannot be. A URL may be secret, and is not shown."""
    for name in ("metrics_port", "dashboard_port"):
        if not 0 <= (port := getattr(observe, name)) <= 65535:
            refuse(f"observe.{name}", port, "is not a TCP port", "Set 1 to 65535, or 0 for none.")
    for name in ("wandb", "command"):
        value = getattr(observe, name)
        if "\0" in value or (value and not value.strip()):
            refuse(f"observe.{name}", value, "is empty or has a NUL character", "Give a text, or leave the line out.")
    if observe.webhook and not _is_http(observe.webhook):
        raise UserError(
            "observe.webhook is not a URL of http or https (it is not shown, as it may be secret). "
            'Write for instance "https://hooks.slack.com/services/...".'
        )
    if observe.mlflow and not _is_one_line(observe.mlflow):
        raise UserError('observe.mlflow is neither a URL nor a folder. Write for instance "http://127.0.0.1:5000".')


def _is_one_line(text: str) -> bool:
    return text.isascii() and text.isprintable() and bool(text.strip())


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return is_whole and parts.scheme in ("http", "https") and _is_one_line(url) and " " not in url


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


def check_name(field: str, name: str) -> None:
    """Checks that a run's name can be the name of its folder.

    Raises:
        UserError: it is none.
    """
    if not name.strip() or name in (".", "..") or any(c in "/\\" or not c.isprintable() for c in name):
        refuse(field, name, "cannot be a folder's name", "Use letters, digits, '-' and '_'.")
    if len(name.encode("utf-8", "surrogatepass")) > 200:
        refuse(field, name, "is too long for a folder's name", "Use at most 200 characters.")


def _check_replicas(job: Job) -> None:
    """Checks that f + 1 pipelines have as many nodes, and at least one microbatch each."""
    tolerance = job.resilience.fault_tolerance
    pipelines = tolerance + 1
    nodes_each = max(1, job.resilience.min_nodes_per_pipeline)
    if job.resilience.policy is PolicyName.REDUNDANCY and nodes_each > 1:
        pipelines = -(-pipelines // 2)  # an owner and its shadow are two replicas
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


def _check_budget(job: Job) -> None:
    budget, nodes = job.budget, job.cluster.least_nodes
    at_least("budget.price", budget.price, 0)
    positive("budget.price_every_s", budget.price_every_s)
    if budget.price_command:
        text("budget.price_command", budget.price_command)
    for zone, price in budget.zones.items():
        at_least(f"budget.zones.{zone}", price, 0)
    for name, limit in (("total", budget.total), ("per_hour", budget.per_hour)):
        if limit is None:
            continue
        positive(f"budget.{name}", limit)
        if not budget.is_counted:
            raise UserError(
                f"budget.{name} = {limit:g} needs budget.price, in dollars for a node and an hour, or "
                "budget.price_command, which prints them."
            )
    if budget.per_hour is None:
        return
    zones = job.cluster.zones or ("",)
    hourly = budget.hourly(zones[node % len(zones)] for node in range(nodes))
    if hourly > budget.per_hour:
        raise UserError(
            f"cluster.nodes = {nodes} cost {hourly:g} dollars an hour, over budget.per_hour = {budget.per_hour:g}. "
            "Set fewer nodes, or a higher limit."
        )
