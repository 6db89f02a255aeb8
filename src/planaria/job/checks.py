"""What makes a well-typed job impossible: one function a section, and one for what concerns several.

Each check raises a `UserError` that names the field, its value and the remedy. Nothing looks at the machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import msgspec

from planaria.job.data_settings import DataSection, Packing, TooLong
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
    ParameterRule,
    ResilienceSection,
    RunSection,
    TrainSection,
)
from planaria.job.suggestions import did_you_mean

_DOTTED = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_FUNCTION = re.compile(rf"{_DOTTED}:{_DOTTED}")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_MAX_SHOWN = 80
MAX_ZONE_LENGTH = 128


def check_job(job: Job) -> None:
    """Refuses an impossible combination.

    Raises:
        UserError: one line with field, value and remedy.
    """
    _check_model(job.model)
    _check_data(job.data)
    _check_eval(job)
    _check_train(job.train)
    _check_sequence(job)
    _check_cluster(job.cluster)
    _check_precision(job)
    _check_resilience(job.resilience)
    _check_run(job.run)
    _check_morph(job)
    _check_replicas(job)


def shown(value: object) -> str:
    """Returns a value as messages show it: one line, not too long."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits.
        return "a very large number"
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def is_function(model_type: str) -> bool:
    """Whether `model.type` means a Python function ("module:function") and not a Hugging Face model type."""
    return ":" in model_type


def is_dataset(source: str) -> bool:
    """Whether `data.source` names a Python function that returns a dataset, and no file ("./a:b" is one)."""
    return _FUNCTION.fullmatch(source) is not None


def _refuse(field: str, value: object, problem: str, remedy: str) -> None:
    raise UserError(f"{field} = {shown(value)} {problem}. {remedy}")


def _at_least(field: str, value: float, least: float) -> None:
    if not value >= least:
        _refuse(field, value, f"is below {least}", f"Set it to {least} or more.")


def _positive(field: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        _refuse(field, value, "is not above 0", "Set a finite number above 0.")


def _text(field: str, value: str) -> None:
    if not value.strip() or "\0" in value:
        _refuse(field, value, "is empty or has a NUL character", "Give a text, or leave the line out.")


def _path(field: str, value: str) -> None:
    """Checks that a path is no URL: what lies elsewhere is not fetched."""
    _text(field, value)
    if _URL.match(value):
        _refuse(
            field, value, "is a URL, and only files of this machine are read and written",
            "Copy it here (hf download, aws s3 sync, gsutil rsync, curl -O), or mount it, and give its path.",
        )  # fmt: skip


def _function(field: str, value: str) -> None:
    if not _FUNCTION.fullmatch(value):
        _refuse(field, value, "is not module:function", 'Write for instance "layers:transformer".')


def _check_model(model: ModelSection) -> None:
    _path("model.type", model.type)
    if is_function(model.type):
        _function("model.type", model.type)
        if model.weights is not None:
            _refuse(
                "model.weights", model.weights, "goes with a Hugging Face model type only",
                "Leave it out, and load the weights in the function.",
            )  # fmt: skip
        if model.lora is not None:
            _refuse(
                "model.type", model.type, "is a function, and model.lora goes with a Hugging Face model type only",
                "Leave [model.lora] out, and put adapters into the layers there.",
            )  # fmt: skip
    elif model.loss is not None:
        _refuse(
            "model.loss", model.loss,
            f"goes with a model that is a function, not with model.type = {shown(model.type)}",
            "Leave it out.",
        )  # fmt: skip
    if model.weights is not None:
        _path("model.weights", model.weights)
    if model.loss is not None:
        _function("model.loss", model.loss)
    if model.lora is not None:
        _check_lora(model.lora)


def _check_lora(lora: LoraSection) -> None:
    _at_least("model.lora.r", lora.r, 1)
    _at_least("model.lora.lora_alpha", lora.lora_alpha, 1)
    if not 0 <= lora.lora_dropout < 1:
        _refuse("model.lora.lora_dropout", lora.lora_dropout, "is not within [0, 1)", "Set for instance 0.05.")
    for name in lora.target_modules:
        _text("model.lora.target_modules", name)


def _check_data(data: DataSection) -> None:
    _text("data.source", data.source)
    _path("data.tokenizer", data.tokenizer)
    if not 0 < data.mask_probability < 1:
        _refuse("data.mask_probability", data.mask_probability, "is not between 0 and 1", "Set for instance 0.15.")
    if not is_dataset(data.source):
        _check_config("data", data.config, data.source)
        _check_examples(data, data)
        _check_sources(data)
        return
    unheeded = msgspec.structs.replace(data, source=DataSection().source, config={})
    for name in data.__struct_fields__:
        if getattr(unheeded, name) != getattr(DataSection(), name):
            _refuse(
                f"data.{name}", getattr(data, name), f"is for tokens, not for a dataset ({shown(data.source)})",
                "Leave it out, and give the function what it needs in [data.config].",
            )  # fmt: skip


def _check_config(section: str, config: Mapping[str, object], source: str) -> None:
    """What nobody is called with must not be set, as if somebody were."""
    if config:
        _refuse(
            f"{section}.config", dict(config), f"goes with a function, and {section}.source = {shown(source)} is none",
            'Leave it out, or name one, as in "images:train".',
        )  # fmt: skip


def _check_sources(data: DataSection) -> None:
    if data.sources and data.source != DataSection().source:
        _refuse("data.source", data.source, "does not go with [[data.sources]]", "Make it one of them.")
    for number, (given, section) in enumerate(zip(data.sources, data.parts, strict=False)):
        field = f"data.sources[{number}]"
        _text(f"{field}.source", given.source)
        if is_dataset(given.source):
            _refuse(f"{field}.source", given.source, "is a dataset, and only texts are mixed", "Mix in that dataset.")
        _positive(f"{field}.weight", given.weight)
        _check_examples(section, data)


def _check_examples(data: DataSection, whole: DataSection) -> None:
    if data.messages and data.prompt:
        _refuse("data.messages", data.messages, f"does not go with data.prompt = {data.prompt!r}", "Give one of them.")
    if bool(data.prompt) != bool(data.completion):
        missing, there = ("completion", "prompt") if data.prompt else ("prompt", "completion")
        _refuse(f"data.{there}", getattr(data, there), f"goes with data.{missing}", "Name the columns of both.")
    if data.chat_template:
        _path("data.chat_template", data.chat_template)
        if not data.messages:
            _refuse("data.chat_template", data.chat_template, "is for chats", 'Set data.messages = "messages".')
    if data.has_answers and data.windows is Packing.ACROSS:
        _refuse(
            "data.packing", data.windows.value, "would give windows without an answer",
            f'Set it to "{Packing.PAD.value}" or "{Packing.APART.value}".',
        )  # fmt: skip
    if data.windows is Packing.TRANSLATE and not data.prompt:
        _refuse("data.packing", data.windows.value, "is for pairs", "Name the columns data.prompt and data.completion.")
    if data.too_long is not TooLong.CUT and not any(part.has_examples for part in whole.parts):
        _refuse(
            "data.too_long", data.too_long.value, "is for chats, for pairs and for documents that are padded",
            'Leave it out, or set data.packing = "pad".',
        )  # fmt: skip


def _check_eval(job: Job) -> None:
    section = job.eval
    if section.source:
        _text("eval.source", section.source)
        if is_dataset(section.source) != is_dataset(job.data.source):
            _refuse(
                "eval.source", section.source, f"is of another kind than data.source = {shown(job.data.source)}",
                'Give functions that return datasets ("module:function") for both, or paths for both.',
            )  # fmt: skip
    if not is_dataset(section.source):
        _check_config("eval", section.config, section.source)
    if not 0 <= section.share < 1:
        _refuse("eval.share", section.share, "is not at least 0 and below 1", "Set for instance 0.01.")
    if section.share and section.source:
        _refuse("eval.share", section.share, f"does not go with eval.source = {section.source!r}", "Give one of them.")
    _at_least("eval.every", section.every, 0)
    _at_least("eval.microbatches", section.microbatches, 1)
    if section.stop_at is not None:
        if not math.isfinite(section.stop_at.value):
            _refuse("eval.stop_at", section.stop_at.value, "is not finite", "Give a finite value.")
        if not section.every:
            _refuse("eval.stop_at", section.stop_at.value, "needs evaluations", "Set eval.every to steps.")
    if section.every and not section.has_data and job.cluster.device is not Device.EMULATED:
        _refuse(
            "eval.every", section.every, "needs data that are not trained on",
            "Set eval.share, for instance to 0.01, or eval.source.",
        )  # fmt: skip


def _check_train(train: TrainSection) -> None:
    for name in ("steps", "global_batch", "microbatch"):
        _at_least(f"train.{name}", getattr(train, name), 1)
    _at_least("train.sequence_length", train.sequence_length, 0)
    for name in ("learning_rate", "eps"):
        _positive(f"train.{name}", getattr(train, name))
    for name in ("warmup_steps", "decay_steps", "weight_decay", "momentum", "clip_norm", "seed"):
        _at_least(f"train.{name}", getattr(train, name), 0)
    if train.global_batch % train.microbatch:
        _refuse(
            "train.global_batch", train.global_batch,
            f"is not divisible by train.microbatch = {train.microbatch}",
            _nearest_batches(train.global_batch, train.microbatch),
        )  # fmt: skip
    if train.warmup_steps > train.steps:
        _refuse(
            "train.warmup_steps", train.warmup_steps, f"is more than train.steps = {train.steps}",
            f"Set it to at most {train.steps}.",
        )  # fmt: skip
    if not 0 <= train.min_lr_ratio <= 1:
        _refuse("train.min_lr_ratio", train.min_lr_ratio, "is not within [0, 1]", "Set for instance 0.1.")
    if not all(0 <= beta < 1 for beta in train.betas):
        _refuse("train.betas", list(train.betas), "are not within [0, 1)", "Set for instance [0.9, 0.95].")
    if train.momentum >= 1:
        _refuse("train.momentum", train.momentum, "is not within [0, 1)", "Set for instance 0.9.")
    _check_optimizer(train)
    _check_schedule(train)
    for number, rule in enumerate(train.parameters):
        field = f"train.parameters[{number}]"
        _text(f"{field}.match", rule.match)
        _at_least(f"{field}.learning_rate_factor", rule.learning_rate_factor, 0)
        if rule.weight_decay is not None:
            _at_least(f"{field}.weight_decay", rule.weight_decay, 0)
        for name in ("learning_rate_factor", "weight_decay") if not rule.trainable else ():
            if (value := getattr(rule, name)) != getattr(ParameterRule(match=""), name):
                _refuse(f"{field}.{name}", value, "does not go with trainable = false", "Leave one of the two out.")


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
            _refuse(
                f"train.{name}", getattr(train, name), f'is not for train.optimizer = "{train.optimizer.value}"',
                f"Leave it out; it heeds {', '.join(heeded)}.",
            )  # fmt: skip
    if train.nesterov and not train.momentum:
        _refuse("train.nesterov", True, "goes with momentum, and train.momentum is 0", "Set for instance 0.9.")


def _check_schedule(train: TrainSection) -> None:
    schedule = train.lr_schedule
    if schedule not in [*LrSchedule] and not _FUNCTION.fullmatch(schedule):
        names = ", ".join(f'"{known.value}"' for known in LrSchedule)
        remedy = did_you_mean(schedule, [*LrSchedule]).strip() or f"There are {names}."
        _refuse("train.lr_schedule", schedule, f'is not {names} or "module:function"', remedy)
    if is_function(schedule) and train.warmup_steps:
        _refuse(
            "train.warmup_steps", train.warmup_steps, f"goes with no train.lr_schedule = {shown(schedule)}",
            "Leave it out: the function says what every step's rate is.",
        )  # fmt: skip
    if train.decay_steps and schedule != LrSchedule.WSD:
        _refuse(
            "train.decay_steps", train.decay_steps, f"is not for train.lr_schedule = {shown(schedule)}",
            'Leave it out, or set lr_schedule = "wsd".',
        )  # fmt: skip
    if train.decay_steps + train.warmup_steps > train.steps and schedule == LrSchedule.WSD:
        _refuse(
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
        _refuse(
            "train.dtype", DType.TF32.value, f'is for CUDA devices, not for cluster.device = "{job.cluster.device}"',
            'Set dtype = "float32" or "bfloat16".',
        )  # fmt: skip
    if job.train.boundary_dtype not in (DType.FLOAT32, DType.BFLOAT16):
        _refuse(
            "train.boundary_dtype", job.train.boundary_dtype.value, "is no dtype of messages",
            'Set it to "float32" or "bfloat16".',
        )  # fmt: skip


def _check_cluster(cluster: ClusterSection) -> None:
    _at_least("cluster.nodes", cluster.nodes, 1)
    _at_least("cluster.devices_per_node", cluster.devices_per_node, 1)
    _at_least("cluster.most_workers", cluster.most_workers, 0)
    _at_least("cluster.memory_gb", cluster.memory_gb, 0)
    _positive("cluster.storage_gb_per_s", cluster.storage_gb_per_s)
    if cluster.device is Device.EMULATED and cluster.profile is None:
        _refuse(
            "cluster.device", cluster.device.value, "takes its times from a profile, and cluster.profile is missing",
            "Set cluster.profile to the path of a profile's JSON file.",
        )  # fmt: skip
    if cluster.profile is not None:
        _path("cluster.profile", cluster.profile)
    if not 0 <= cluster.port <= 65535:
        _refuse("cluster.port", cluster.port, "is not a TCP port", "Set 1 to 65535, or 0 for any free one.")
    _check_host(cluster)
    for zone in cluster.zones:
        check_zone("cluster.zones", zone)
    if cluster.zones and cluster.launcher is not Launcher.LOCAL:
        _refuse(
            "cluster.zones", list(cluster.zones), f"goes with nodes of this machine, not with {cluster.launcher.value}",
            "Leave it out, and give each agent its --zone.",
        )  # fmt: skip


def _check_host(cluster: ClusterSection) -> None:
    if not _HOST.fullmatch(cluster.host):
        _refuse(
            "cluster.host", cluster.host, "is not an IPv4 address or a host's name",
            'Write for instance "10.0.0.1", or "0.0.0.0" for every interface.',
        )  # fmt: skip
    if cluster.launcher is Launcher.LOCAL and cluster.host != LOOPBACK:
        _refuse(
            "cluster.host", cluster.host, 'goes with cluster.launcher = "agents" only',
            "Leave it out: nodes of this machine are reached on loopback.",
        )  # fmt: skip


def check_dealing(cluster: ClusterSection) -> None:
    """Checks that nodes can be dealt out to zones in turn. (A drill's zones are its script's, also of nodes to come.)

    A name may be repeated where there is one for each node. Raises UserError.
    """
    zones, nodes = cluster.zones, cluster.nodes
    if len(zones) > nodes:
        _refuse(
            "cluster.zones", list(zones), f"are {len(zones)} names, and cluster.nodes is {nodes}",
            f"Name {nodes} or fewer, or set cluster.nodes = {len(zones)} or more.",
        )  # fmt: skip
    once = list(dict.fromkeys(zones))
    if len(once) < len(zones) and (len(zones) < nodes or len(once) == 1):
        each = f", or one zone for each of the {nodes} nodes" if len(once) > 1 else ""
        _refuse(
            "cluster.zones", list(zones), "name a zone twice; nodes are dealt out to them in turn",
            f"Set {once}, every zone once{each}.",
        )  # fmt: skip


def check_zone(field: str, zone: str) -> None:
    """Raises UserError for what is no name of a zone."""
    if not (zone.strip() and zone.isprintable() and len(zone) <= MAX_ZONE_LENGTH):
        _refuse(field, zone, "is not the name of a zone", f"Use 1 to {MAX_ZONE_LENGTH} printable characters.")


def _check_resilience(resilience: ResilienceSection) -> None:
    _at_least("resilience.fault_tolerance", resilience.fault_tolerance, 0)
    _at_least("resilience.min_nodes_per_pipeline", resilience.min_nodes_per_pipeline, 0)
    _positive("resilience.coordinator_timeout_s", resilience.coordinator_timeout_s)
    _positive("resilience.mean_time_between_failures_s", resilience.mean_time_between_failures_s)
    if resilience.failure_trace:
        _path("resilience.failure_trace", resilience.failure_trace)
    source = resilience.preemption
    if source not in PREEMPTION_SOURCES and not _FUNCTION.fullmatch(source):
        _refuse(
            "resilience.preemption", source, f"is not {', '.join(PREEMPTION_SOURCES)} or module:function",
            'Write for instance "aws", or "notices:seconds_left".',
        )  # fmt: skip


def _check_run(run: RunSection) -> None:
    _path("run.folder", run.folder)
    if run.name is not None:
        check_name("run.name", run.name)
    if run.checkpoint_every is not None:
        _at_least("run.checkpoint_every", run.checkpoint_every, 0)
    if run.checkpoint_every_s is not None:
        _at_least("run.checkpoint_every_s", run.checkpoint_every_s, 0)
    _at_least("run.keep_checkpoints", run.keep_checkpoints, 1)
    for callback in run.callbacks:
        _function("run.callbacks", callback)


def _check_morph(job: Job) -> None:
    """Checks that the checkpoint to which a loss takes the job back stays while the next one is written."""
    if job.resilience.policy is not PolicyName.MORPH:
        return
    morph = 'resilience.policy = "morph", which goes back to the last checkpoint after each loss'
    if not job.run.writes_checkpoints:
        field = "checkpoint_every" if job.run.checkpoint_every == 0 else "checkpoint_every_s"
        _refuse(f"run.{field}", 0, f"writes none for {morph}", "Leave it out, or set how often: 10, for instance.")
    if job.run.keep_checkpoints < 2:
        _refuse("run.keep_checkpoints", job.run.keep_checkpoints, f"is too few for {morph}", "Set it to 2 or more.")


def check_name(field: str, name: str) -> None:
    """Checks that a run's name can be the name of its folder.

    Raises:
        UserError: it is none.
    """
    if not name.strip() or name in (".", "..") or any(c in "/\\" or not c.isprintable() for c in name):
        _refuse(field, name, "cannot be a folder's name", "Use letters, digits, '-' and '_'.")
    if len(name.encode("utf-8", "surrogatepass")) > 200:
        _refuse(field, name, "is too long for a folder's name", "Use at most 200 characters.")


def _check_replicas(job: Job) -> None:
    """Checks that f + 1 pipelines have as many nodes, and at least one microbatch each."""
    tolerance = job.resilience.fault_tolerance
    pipelines = tolerance + 1
    nodes_each = max(1, job.resilience.min_nodes_per_pipeline)
    if job.resilience.policy is PolicyName.REDUNDANCY and nodes_each > 1:
        pipelines = -(-pipelines // 2)  # an owner and its shadow are two replicas
    if job.cluster.nodes < pipelines * nodes_each:
        each = f"{nodes_each} node{'s' if nodes_each > 1 else ''} each"
        possible = job.cluster.nodes // nodes_each - 1
        lower = f", or set resilience.fault_tolerance = {possible}" if possible >= 0 else ""
        _refuse(
            "resilience.fault_tolerance", tolerance,
            f"needs {pipelines} pipelines of {each} ({pipelines * nodes_each} nodes), "
            f"but cluster.nodes = {job.cluster.nodes}",
            f"Set cluster.nodes = {pipelines * nodes_each} or more{lower}.",
        )  # fmt: skip
    if job.train.num_microbatches < pipelines:
        _refuse(
            "train.global_batch", job.train.global_batch,
            f"gives {job.train.num_microbatches} microbatches of {job.train.microbatch}, "
            f"but fault_tolerance = {tolerance} needs {pipelines} pipelines with at least one each",
            f"Set global_batch to {pipelines * job.train.microbatch} or more, or a smaller microbatch.",
        )  # fmt: skip
