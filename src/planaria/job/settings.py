"""The job file's sections: one frozen struct each, every field documented, nothing read from anywhere.

Parsing, cross-field checks and the messages that a user sees live in `planaria.job.parse`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from planaria.job.data_settings import DataSection, EvalSection
from planaria.job.registry import Launcher, OptimizerName, PolicyName
from planaria.job.section import Section
from planaria.plan.schedule_kind import ScheduleKind
from planaria.plan.thresholds import MEAN_TIME_BETWEEN_FAILURES_S


class Numerics(enum.StrEnum):
    """How gradients are summed.

    `exact`: independently of order and grouping, so that runs are bit-identical to `--reference`.
    `fast`: in float32.
    """

    EXACT = "exact"
    FAST = "fast"


class Device(enum.StrEnum):
    """What workers compute on. `emulated`: on nothing; layers and messages take the times of `cluster.profile`."""

    CPU = "cpu"
    CUDA = "cuda"
    EMULATED = "emulated"


class DType(enum.StrEnum):
    """Dtype of what is computed, or passed on, in forwards and backwards. Parameters and their state are float32.

    `tf32`: products of float32 values rounded to 10 bits, on CUDA devices. `float16`: as `bfloat16` under autocast, and
    the loss is scaled so that small gradients do not vanish.
    """

    FLOAT32 = "float32"
    TF32 = "tf32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class RedundancyMode(enum.StrEnum):
    """What workers compute of their successors' layers, beside their own: forward passes, then backward passes.

    `eager`: in every step; `lazy`: only once the successor is lost. The more is eager, the shorter is the pause after a
    loss, and the longer is each step.
    """

    EAGER_LAZY = "eager-lazy"
    LAZY_LAZY = "lazy-lazy"
    EAGER_EAGER = "eager-eager"


class WhenExhausted(enum.StrEnum):
    """What to do when fewer than (f + 1) n0 nodes are left, and the policy does not go on with fewer replicas.

    `exit` saves a checkpoint and ends with exit code 3; `wait` saves one, keeps the survivors' state, and goes on as
    soon as enough nodes have joined.
    """

    EXIT = "exit"
    WAIT = "wait"


LOOPBACK = "127.0.0.1"

NO_PREEMPTION = "none"
AWS = "aws"
GOOGLE = "google"
PREEMPTION_SOURCES = (NO_PREEMPTION, AWS, GOOGLE)
"""Sources of preemption notices that need no function of the user's."""


class WhenNotFinite(enum.StrEnum):
    """What to do with a step whose loss or gradient norm is NaN or infinite; it is never applied.

    `stop` saves the state before it and ends the run as failed; `skip` counts the step and goes on with the next one.
    """

    STOP = "stop"
    SKIP = "skip"


class LrSchedule(enum.StrEnum):
    """How the learning rate goes on after the warm-up.

    `linear` and `cosine` decay until the last step; `wsd` (warm-up, stable, decay) stays, and decays linearly over the
    last `decay_steps`; `inverse-sqrt` is learning_rate x sqrt(warmup_steps / step). Decays end at min_lr_ratio.
    """

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"
    WSD = "wsd"
    INVERSE_SQRT = "inverse-sqrt"


AUTO_MODEL = "auto"
"""`model.type` of a job that leaves it to the folder of weights."""


ALL_LINEAR = "all-linear"
"""In `model.lora.target_modules`: every linear module but the head, as peft means it."""


class LoraSection(Section, frozen=True):
    """[model.lora]

    Attributes:
        r: rank of the adapters.
        lora_alpha: what an adapter gives is scaled by lora_alpha / r.
        lora_dropout: dropout of what an adapter is given.
        target_modules: last names of the modules that get adapters, or ["all-linear"]; left out: peft's own choice for
            the type of model.
    """

    r: int = 8
    lora_alpha: int = 8
    lora_dropout: float = 0.0
    target_modules: tuple[str, ...] = ()


class ModelSection(Section, frozen=True):
    """[model]

    An emulated device (cluster.device) runs the layers of its profile instead; the section may then be left out.

    Attributes:
        type: a Hugging Face model type (gpt2, qwen3, bert, t5, ...), "auto" for the type of `weights`, or
            "module:function" returning a list of layers or a torch.nn.Module.
        config: overrides of the Hugging Face config, or keyword arguments of the function.
        weights: local Hugging Face folder to start from, or "hf://OWNER/NAME?revision=main", a model of the hub by its
            name; random weights when absent.
        split_at: paths of the modules between which a model can be cut, a star for any one name, as in
            "encoder.layers.*"; by default the members of the model's own lists of blocks.
        loss: "module:function" (outputs, batch) -> scalar; only for a model that is a function.
            Default: cross entropy of the labels, of tokens the next ones.
        lora: adapters (LoRA, by peft) that are trained in place of the model's own parameters; see
            docs/howto/fine-tuning.md.
    """

    type: str
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    weights: str | None = None
    split_at: tuple[str, ...] = ()
    loss: str | None = None
    lora: LoraSection | None = None


class ParameterRule(Section, frozen=True):
    """[[train.parameters]]

    Attributes:
        match: names of parameters, as checkpoints have them, with * and ?. The first rule that matches a parameter
            holds for it.
        learning_rate_factor: what the learning rate is multiplied by.
        weight_decay: of these parameters, whatever their dimensions; left out: as [train] says.
        trainable: false: they stay as they are at first, and take no gradient, no optimizer state and no sums.
    """

    match: str
    learning_rate_factor: float = 1.0
    weight_decay: float | None = None
    trainable: bool = True


OPTIMIZER_FIELDS: Mapping[str, object] = {
    "betas": (0.9, 0.95),
    "eps": 1e-8,
    "weight_decay": 0.1,
    "momentum": 0.9,
    "nesterov": False,
}
"""Fields that an optimizer may have defaults of its own for, and what they are where it does not heed them."""

_THE_OPTIMIZERS: Any = None


class TrainSection(Section, frozen=True):
    """[train]

    Attributes:
        steps: optimizer steps of the job.
        global_batch: sequences in one step, or samples of a dataset; never changes.
        microbatch: sequences in one microbatch; divides global_batch.
        sequence_length: tokens in a sequence. Required; with a dataset it may be left out, and only the tokens a second
            that a run tells depend on it.
        optimizer: adamw, adam, sgd or lion; see docs/howto/optimizers.md for what each computes.
        learning_rate: peak learning rate.
        lr_schedule: how it goes on after the warm-up: constant, linear, cosine, wsd, inverse-sqrt, or "module:function"
            of the step, which returns what learning_rate is multiplied by.
        warmup_steps: steps of linear warm-up from zero.
        min_lr_ratio: where the decay of linear, cosine and wsd ends, as a share of learning_rate.
        decay_steps: of wsd: the last steps, over which it decays; 0: a tenth of all.
        betas: of adamw, adam (default [0.9, 0.999]) and lion (default [0.9, 0.99]).
        eps: of adamw and adam.
        weight_decay: on parameters with two or more dimensions; decoupled (adamw, lion), or added to the gradient (adam
            and sgd, default 0).
        momentum: of sgd; 0: none.
        nesterov: whether sgd's momentum is Nesterov's.
        parameters: rules for some of the parameters.
        clip_norm: global gradient norm limit; 0 turns clipping off.
        start_from: run folder, checkpoint of one, or folder of torch.distributed.checkpoint, whose parameters the run
            begins with; see docs/howto/resume-and-save.md.
        start_optimizer: whether it begins with the optimizer's state as well.
        start_steps: steps that the optimizer has made there, if it does; filled in when the run begins.
        seed: of initial weights, sampling, masking and dropout.
        dtype: compute dtype: float32, tf32 (CUDA alone), bfloat16 or float16 (with dynamic loss scaling); see
            docs/howto/precision.md.
        boundary_dtype: what activations and their gradients are rounded to between any two layers, whether or not the
            plan cuts there. Messages of bfloat16 have half the bytes of float32. An emulated device's messages have the
            bytes that its profile gives them.
        activation_checkpointing: recompute each layer's forward in its backward.
        compile: compile each layer by torch.compile; see docs/howto/precision.md. Needs a C++ compiler, or on CUDA
            triton. An emulated device has nothing to compile.
        numerics: exact or fast.
        when_not_finite: what to do with a step whose loss or gradient is NaN or infinite: stop (save the state before
            it, and end) or skip (count it, leave parameters and optimizer state as they are, and go on). Learning rate
            and AdamW's bias correction follow the step's number, skipped or not.
    """

    steps: int
    global_batch: int
    microbatch: int
    sequence_length: int = 0
    optimizer: OptimizerName = OptimizerName.ADAMW
    learning_rate: float = 3e-4
    lr_schedule: str = LrSchedule.COSINE.value
    warmup_steps: int = 0
    min_lr_ratio: float = 0.1
    decay_steps: int = 0
    betas: tuple[float, float] = _THE_OPTIMIZERS
    eps: float = _THE_OPTIMIZERS
    weight_decay: float = _THE_OPTIMIZERS
    momentum: float = _THE_OPTIMIZERS
    nesterov: bool = _THE_OPTIMIZERS
    parameters: tuple[ParameterRule, ...] = ()
    clip_norm: float = 1.0
    start_from: str = ""
    start_optimizer: bool = False
    start_steps: int = 0
    seed: int = 0
    dtype: DType = DType.FLOAT32
    boundary_dtype: DType = DType.FLOAT32
    activation_checkpointing: bool = False
    compile: bool = False
    numerics: Numerics = Numerics.EXACT
    when_not_finite: WhenNotFinite = WhenNotFinite.STOP

    def __post_init__(self) -> None:
        for name, value in self.optimizer_defaults.items():
            if getattr(self, name) is None:
                msgspec.structs.force_setattr(self, name, value)

    @property
    def optimizer_defaults(self) -> Mapping[str, object]:
        """Returns the optimizer's fields with their values where the job does not say."""
        return {**OPTIMIZER_FIELDS, **self.optimizer_fields}

    @property
    def optimizer_fields(self) -> Mapping[str, object]:
        """The fields that the job's optimizer heeds, with their defaults."""
        known = [*OptimizerName]  # a job made in Python may have another one, which is refused later
        return OptimizerName(self.optimizer).load().fields if self.optimizer in known else {}

    @property
    def num_microbatches(self) -> int:
        return self.global_batch // self.microbatch


class NodeRange(Section, frozen=True):
    """[cluster.nodes]

    Attributes:
        least: machines that the job starts on.
        most: that it grows to as they come; plans are made for so many.
    """

    least: int
    most: int


class ClusterSection(Section, frozen=True):
    """[cluster]

    Attributes:
        nodes: machines that the job starts on. { least = 8, most = 32 }: it starts on 8, grows to 32 as they come, and
            gives back those that bring too little; see docs/howto/hosts.md.
        devices_per_node: worker processes on each.
        devices_per_stage: of a node that each stage is on, a divisor of devices_per_node: every one of them holds the
            stage's layers, and they take its microbatches in turn. Losses and weights are the same for any number.
        device: cpu, cuda, or emulated: processes, messages and recoveries as ever, but nothing is computed; layers
            and messages take the times that `profile` gives, losses and weights are made up, no data is needed.
        profile: file of a model profile. An emulated device needs it; on a real one the layers are not measured, and
            the run begins with the profile's costs.
        memory_gb: memory of one device in GB (10**9 bytes); 0: as much as it has. The workers of a host's processors
            share its memory: there 0 sets no limit.
        storage_gb_per_s: GB (10**9 bytes) a second that a node is expected to read checkpoints with, until the run has
            measured it at its first restore. Only policies that weigh one ask. An emulated device takes that long.
        schedule: order of forwards and backwards in a pipeline: eager-1f1b, 1f1b, gpipe, zb-h1 or zb-h2. The policies
            adaptive and reroute take zb-h1, adaptive zb-h2 too, for what they plan wherever that is quicker and fits.
        port: TCP port of the coordinator; 0: any free one.
        launcher: local: nodes are processes of this machine. agents: nodes are hosts on which `planaria agent` runs.
        host: IPv4 address, or name, at which the coordinator listens; loopback unless told otherwise. Goes with agents.
        tls: folder with ca.pem, cert.pem and key.pem (planaria certificates makes one): every connection is under TLS,
            and both ends show a certificate that ca.pem has signed. Goes with agents, which name theirs by --tls.
        data_encryption: false: with cluster.tls, tensors between workers travel plain nevertheless.
        zones: names of zones, to which nodes that are processes of this machine are dealt out in turn, to try out what
            an outage of one does: each named once, or one for each node; agents say theirs by --zone. Whatever fails as
            one is a zone: the replicas of a layer are spread over zones as far as can be.
        most_workers: processes that may be started as nodes of this machine at a time; 0: 64 for each processor, 256 at
            least, as far as there are 16 MB of memory for each. A job with more is refused.
    """

    nodes: NodeRange | int
    devices_per_node: int = 1
    devices_per_stage: int = 1
    device: Device = Device.CPU
    profile: str | None = None
    memory_gb: float = 0.0
    storage_gb_per_s: float = 1.0
    schedule: ScheduleKind = ScheduleKind.EAGER_ONE_F_ONE_B
    port: int = 0
    launcher: Launcher = Launcher.LOCAL
    host: str = LOOPBACK
    tls: str = ""
    data_encryption: bool = True
    zones: tuple[str, ...] = ()
    most_workers: int = 0

    @property
    def least_nodes(self) -> int:
        """Returns how many nodes the job starts on."""
        return self.nodes.least if isinstance(self.nodes, NodeRange) else self.nodes

    @property
    def most_nodes(self) -> int | None:
        """Returns how many nodes the job grows to; None: it names no range, and takes all that come."""
        return self.nodes.most if isinstance(self.nodes, NodeRange) else None

    def zone_of(self, node: int) -> str:
        """Returns the zone of a node that is a process of this machine; "": it has none."""
        return self.zones[node % len(self.zones)] if self.zones else ""


class ResilienceSection(Section, frozen=True):
    """[resilience]

    Attributes:
        fault_tolerance: f. At least f + 1 pipelines are kept, so any f nodes may be lost at once.
        policy: how plans are made after a change: templates (new pipelines from templates; state moves), reroute
            (peers that own the same layers run what lost nodes did; no state moves, replicas become fewer), redundancy
            (each worker shadows its successor in the pipeline and takes over when that is lost), morph (all go back to
            the last checkpoint, on the best symmetric grid; not with run.checkpoint_every = 0), drop (the samples of a
            pipeline that lost a node are left out until it is complete again; they are counted, and the learning rate
            is scaled by what is left of the batch), or adaptive (at each change, any of
            these, or one after the other, whichever trains most until the next loss; drop only with allow_drop, morph
            not with run.checkpoint_every = 0).
        redundancy: under the policy redundancy, what each worker computes of its successor's layers beside its own:
            eager-lazy (forwards in every step, backwards once the successor is lost), lazy-lazy or eager-eager.
        allow_drop: whether samples may be left out on a live job, by `planaria policy RUN drop`, or by the policy
            adaptive where that trains more. With policy = "drop" it is a matter of course.
        mean_time_between_failures_s: seconds between losses of nodes, over the whole job, as expected before it runs;
            what is then observed counts more and more. Only the adaptive policy asks.
        failure_trace: path of a trace of nodes of the kind that the job runs on (`planaria trace describe`); "": none.
            How often nodes go in it, and how many at a time, counts as if this job had seen it.
        when_exhausted: what to do when fewer than (f + 1) n0 nodes are left and the policy has no plan for them.
        min_nodes_per_pipeline: n0; 0: the fewest that the memory allows.
        heartbeat_timeout_s: seconds without a sign of life after which a node counts as lost. A process that is seen to
            be gone is lost at once; one that is seen to be runnable has ten times as long.
        coordinator_timeout_s: seconds for which a worker whose coordinator is gone tries to reach the next one, before
            it ends itself. It goes on computing meanwhile.
        preemption: where notices come from that a node will be taken away, so that it hands over its work before: none,
            aws (EC2 Spot, IMDSv2), google (Compute Engine Spot VMs), or "module:function", which the first worker of
            each node calls about once a second and which returns None or the seconds that the node has left.
    """

    fault_tolerance: int = 1
    policy: PolicyName = PolicyName.ADAPTIVE
    redundancy: RedundancyMode = RedundancyMode.EAGER_LAZY
    allow_drop: bool = False
    mean_time_between_failures_s: float = MEAN_TIME_BETWEEN_FAILURES_S
    failure_trace: str = ""
    when_exhausted: WhenExhausted = WhenExhausted.EXIT
    min_nodes_per_pipeline: int = 0
    heartbeat_timeout_s: float = 1.0
    coordinator_timeout_s: float = 60.0
    preemption: str = NO_PREEMPTION

    @property
    def may_drop(self) -> bool:
        """Whether samples may be left out at all."""
        return self.allow_drop or self.policy is PolicyName.DROP


class RunSection(Section, frozen=True):
    """[run]

    Attributes:
        folder: where run folders are made.
        name: of the run; default: the job file's name.
        checkpoint_every: steps between checkpoints; 0: only where a run ends, and now and then under a plan with fewer
            than f + 1 replicas of some layer. Where neither this nor checkpoint_every_s is set, the run chooses: so
            seldom that checkpoints take 1% of the time by what they cost as measured, at least every 15 minutes.
        checkpoint_every_s: seconds between checkpoints; 0: as checkpoint_every = 0. With both set, whichever is first.
        keep_checkpoints: how many of the newest stay.
        checkpoint_folder: a URL under which checkpoints are written, in a folder of the run's name: s3://bucket/folder,
            or another that fsspec knows; "": in the run folder. See docs/howto/resume-and-save.md.
        journal: where the coordinator's decisions are kept: "etcd://HOST:PORT,HOST:PORT,...", so that another host may
            go on when the coordinator's dies (nodes are agents); "": in the run folder. See docs/howto/standby.md.
        callbacks: functions, each "module:function" (record, run), that are called with each record of the run; see
            docs/howto/callbacks.md.
    """

    folder: str = "runs"
    name: str | None = None
    checkpoint_every: int | None = None
    checkpoint_every_s: float | None = None
    keep_checkpoints: int = 2
    checkpoint_folder: str = ""
    journal: str = ""
    callbacks: tuple[str, ...] = ()

    @property
    def writes_checkpoints(self) -> bool:
        """Whether some are written on the way, whatever happens."""
        is_automatic = self.checkpoint_every is None and self.checkpoint_every_s is None
        return is_automatic or bool(self.checkpoint_every or self.checkpoint_every_s)

    @property
    def checkpoints_url(self) -> str:
        """Where the run's checkpoints are written; "": in its folder."""
        return f"{self.checkpoint_folder.rstrip('/')}/{self.name}" if self.checkpoint_folder else ""


class ObserveSection(Section, frozen=True):
    """[observe]

    None of these determines a number: all may be changed before a run goes on by `--resume`. A drill heeds none.
    See docs/howto/watching.md.

    Attributes:
        tensorboard: whether event files are written into the folder tensorboard of the run folder (the extra
            tensorboard).
        wandb: project of Weights & Biases that the run is logged to (the extra wandb); "": none. Account, server and
            mode are wandb's own settings, for instance WANDB_MODE=offline.
        mlflow: where MLflow keeps its runs (the extra mlflow): a server's URL or a folder; "": nowhere.
        metrics_port: TCP port at which Prometheus finds /metrics (the extra prometheus), on loopback, or at
            cluster.host; 0: none.
        metrics_token_file: file, readable by you alone, with the token that Prometheus shows (16 characters or more);
            "": on loopback none is needed, elsewhere it is that of the file metrics-token in the run folder.
        dashboard_port: TCP port on loopback at which the run's page is served while it lasts (the extra dashboard), as
            `planaria dashboard` serves it; 0: none.
        webhook: URL that is told, in JSON as Slack takes it, that a run is degraded, waits, is exhausted, has ended, or
            has given a checkpoint up; "": none. It is kept secret: no message shows it, and job.json leaves it out.
        command: command of the shell that is run for the same; "": none.
        instructions: whether every worker writes what it did when into the logs, for `planaria trace-steps`; some 80
            bytes for each forward, backward, message and sum. Goes with nodes of this machine.
    """

    tensorboard: bool = False
    wandb: str = ""
    mlflow: str = ""
    metrics_port: int = 0
    metrics_token_file: str = ""
    dashboard_port: int = 0
    webhook: str = ""
    command: str = ""
    instructions: bool = False


class BudgetSection(Section, frozen=True):
    """[budget]

    Attributes:
        price: dollars for a node and an hour; 0: nothing is counted.
        zones: dollars for a node and an hour of a zone, where that is another price.
        total: dollars that the run may cost, with all parts of it. Before the step that would go beyond, it saves and
            ends with exit code 3; --resume with more goes on.
        per_hour: dollars an hour that its nodes may cost together: nodes beyond cluster.nodes (its least) that would
            cost more are not started, nor kept when prices rise.
        price_command: command of the shell that prints the dollars for a node and an hour of now; "": `price` holds.
        price_every_s: seconds after which it is asked again.
    """

    price: float = 0.0
    zones: Mapping[str, float] = {}
    total: float | None = None
    per_hour: float | None = None
    price_command: str = ""
    price_every_s: float = 300.0

    @property
    def is_counted(self) -> bool:
        """Whether there are prices at all."""
        return bool(self.price or self.zones or self.price_command)

    def hourly(self, zones: Iterable[str]) -> float:
        """Returns the dollars an hour of nodes in these zones; "" where a node's is not known."""
        return sum(self.zones.get(zone, self.price) for zone in zones)


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole job file."""

    model: ModelSection
    train: TrainSection
    cluster: ClusterSection
    data: DataSection = DataSection()
    eval: EvalSection = EvalSection()
    resilience: ResilienceSection = ResilienceSection()
    run: RunSection = RunSection()
    budget: BudgetSection = BudgetSection()
    observe: ObserveSection = ObserveSection()
