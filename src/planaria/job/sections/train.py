"""[train]: steps, batch, optimizer, learning rate and numbers' types."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from planaria.job.registry import OptimizerName
from planaria.job.sections.section import Section
from planaria.job.suggestions import did_you_mean
from planaria.job.values import at_least, is_function, is_reference, positive, refuse, shown, text


class Numerics(enum.StrEnum):
    """How gradients are summed.

    `exact`: independently of order and grouping, so that runs are bit-identical to `--reference`.
    `fast`: in float32.
    """

    EXACT = "exact"
    FAST = "fast"


class DType(enum.StrEnum):
    """Dtype of what is computed, or passed on, in forwards and backwards. Parameters and their state are float32.

    `tf32`: products of float32 values rounded to 10 bits, on CUDA devices. `float16`: as `bfloat16` under autocast, and
    the loss is scaled so that small gradients do not vanish.
    """

    FLOAT32 = "float32"
    TF32 = "tf32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


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


def check_train(train: TrainSection) -> None:
    """Refuses a [train] that cannot be. Raises UserError."""
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


def _nearest_batches(global_batch: int, microbatch: int) -> str:
    below = global_batch // microbatch * microbatch
    nearest = [batch for batch in (below, below + microbatch) if batch > 0]
    divisors = [d for d in range(min(microbatch, 1 << 16), 0, -1) if global_batch % d == 0]
    return f"Set global_batch to {' or '.join(map(str, nearest))}, or microbatch to {divisors[0]}."


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
