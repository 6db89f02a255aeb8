"""Redundant computation (Bamboo): what each mode costs in every step, and how long the pause after a loss is.

Bamboo's Table 4 and Figure 13, on 4 pipelines of 8 emulated V100s each that train BERT-Large. A pipeline's later stages
have more layers, as in the paper (section 5.2, Figure 14: memory is evened out, so later stages take longer, and every
other one waits); a second model, with stages that differ more, is in the place of the paper's ResNet. A step takes a
few seconds, as theirs, so that what 32 processes on a few cores cost by themselves stays hidden.

Beside each measured overhead: the estimate of the same plan, and the paper's figure. The paper's lazy-lazy figure is
the cost of code that prepares for failures; ours is that of keeping shadows up to date to the bit, which is the price
of twice as many replicas in every sum (the paper's published code keeps none up to date).
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from fidelity import f_n0
from figures import SCRATCH, note, report
from sides import make_job, planaria_side, run_to_end

from planaria.estimate.step_time import step_time_s
from planaria.job.registry import PolicyName
from planaria.plan.costs.model_profile import (
    DeviceKind,
    LayerCost,
    LayerTimes,
    LinkCost,
    Links,
    ModelProfile,
    StepCosts,
)
from planaria.plan.plan import Group, NodeId, Plan, Redundancy
from planaria.plan.settings import PlannerSettings
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from planaria.protocol.messages.records import NodeLost, PlanTaken, StepCommitted
from planaria.runtime.run_folder.recorder import read_events

PIPELINES, DEPTH = 4, 8
NODES = PIPELINES * DEPTH
BERT_BYTES, RESNET_BYTES = 1_210_000_000, 241_000_000
"""Of parameters, in float32: BERT-Large's 24 blocks, ResNet-152."""
SLOWEST_S = 0.24
"""Forward and backward of a microbatch on the slowest stage: 4 x 16 microbatches then make about the paper's 1,024
samples in a step of several seconds."""
MICROBATCHES = 16
"""Of each pipeline."""
STEPS, WARM_UP = 6, 2
VICTIM = 4
"""A worker in the middle of the first pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Stages' times in parts of the slowest one's, and the paper's figures for the three modes."""

    name: str
    stages: tuple[float, ...]
    paper: dict[Redundancy, float]
    parameter_bytes: int = BERT_BYTES
    microbatches: int = MICROBATCHES


MODELS = (
    Model(
        name="bert",
        stages=(0.50, 0.55, 0.62, 0.70, 0.80, 0.83, 0.85, 1.00),
        paper={Redundancy.LAZY_LAZY: 0.0701, Redundancy.EAGER_LAZY: 0.1977, Redundancy.EAGER_EAGER: 0.7151},
    ),
    Model(
        name="resnet",
        stages=(0.25, 0.30, 0.38, 0.45, 0.52, 0.60, 0.74, 1.00),
        paper={Redundancy.LAZY_LAZY: 0.0765, Redundancy.EAGER_LAZY: 0.0951, Redundancy.EAGER_EAGER: 0.6424},
        parameter_bytes=RESNET_BYTES,
    ),
)
FITTING = Model(
    name="fitting", stages=(0.50, 0.52, 0.55, 0.58, 0.60, 0.62, 0.62, 1.00), paper={}, microbatches=2 * (DEPTH - 1)
)
"""Every forward that is run once more has a bubble."""
NAMES = {
    Redundancy.LAZY_LAZY: "lazy-lazy",
    Redundancy.EAGER_LAZY: "eager-lazy",
    Redundancy.EAGER_EAGER: "eager-eager",
}


def profile_of(model: Model) -> ModelProfile:
    """One layer a stage: the stages are given, not searched for. 10 Gbit/s between nodes."""
    total = sum(model.stages)
    layers = []
    for number, part in enumerate(model.stages):
        third = SLOWEST_S * part / 3
        size_bytes = round(model.parameter_bytes * part / total)
        layers.append(
            LayerCost(
                name=f"stage.{number}",
                times=(LayerTimes(forward_s=third, backward_input_s=third, backward_weight_s=third),),
                parameter_bytes=size_bytes,
                gradient_bytes=2 * size_bytes,
                optimizer_bytes=2 * size_bytes,
                activation_bytes=400_000_000,
                recompute_activation_bytes=8_000_000,
                output_bytes=8_000_000,
            )
        )
    return ModelProfile(
        name=model.name,
        layers=tuple(layers),
        groups=tuple(Group(layers=(n,), size_bytes=layer.parameter_bytes) for n, layer in enumerate(layers)),
        links=Links(
            within_node=LinkCost(latency_s=1e-5, bandwidth_bytes_per_s=10e9),
            between_nodes=LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=1.25e9),
        ),
        device=DeviceKind(name="V100, made up"),
        step=StepCosts(vote_s=0.005, apply_s_per_byte=5e-11, sum_s_per_byte=5e-12),
    )


def settings_of(model: Model, mode: Redundancy) -> PlannerSettings:
    return PlannerSettings(
        num_microbatches=PIPELINES * model.microbatches,
        fault_tolerance=1,
        num_nodes=NODES,
        devices_per_node=1,
        min_nodes=DEPTH,
        redundancy=mode,
    )


def plan_of(model: Model, mode: Redundancy | None, profile: ModelProfile) -> Plan:
    """The first plan of a job; without a mode that of templates, which has the same pipelines."""
    policy = make_policy(
        PolicyName.TEMPLATES if mode is None else PolicyName.REDUNDANCY,
        Planner(profile, settings_of(model, mode or Redundancy.EAGER_LAZY)),
    )
    plan = policy.initial([NodeId(node) for node in range(NODES)], 1).plan
    assert [len(pipeline.stages) for pipeline in plan.pipelines] == [DEPTH] * PIPELINES, "not a grid of 4 x 8"
    return plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Of one job: its step, and by how much the one in which a worker was lost was longer; seconds."""

    step_s: float
    pause_s: float | None


def run(model: Model, mode: Redundancy | None, *, loses: bool) -> Run:
    path = SCRATCH / f"profile-{secrets.token_hex(4)}.json"
    path.write_bytes(msgspec.json.encode(profile_of(model)))
    policy = "templates" if mode is None else "redundancy"
    text = f"""
[train]
steps = {STEPS}
global_batch = {PIPELINES * model.microbatches}
microbatch = 1
sequence_length = 1
[cluster]
nodes = {NODES}
device = "emulated"
schedule = "1f1b"
profile = "{path}"
[resilience]
policy = "{policy}"
redundancy = "{mode or Redundancy.EAGER_LAZY}"
heartbeat_timeout_s = 10
"""
    lost_in = STEPS - 1
    faults = [f"kill:node={VICTIM},step={lost_in},at=vote"] if loses else []
    side = planaria_side(f"redundancy-{model.name}", make_job(text, *f_n0(1, DEPTH)), faults)
    run_to_end(side, 900)
    records = [record for record, _ in read_events(side.log)]
    seconds = {record.step: record.duration_s for record in records if isinstance(record, StepCommitted)}
    usual = statistics.median(seconds[step] for step in seconds if WARM_UP < step < lost_in)
    pause = None
    if loses:
        assert any(isinstance(record, NodeLost) for record in records)
        reasons = [record.reason for record in records if isinstance(record, PlanTaken)]
        assert mode is None or any("takes over" in reason for reason in reasons), reasons
        pause = seconds[lost_in] - usual
    shutil.rmtree(side.log.parent)
    return Run(step_s=usual, pause_s=pause)


def table(models: Sequence[Model], *, measures: bool) -> None:
    """Table 4 and Figure 13."""
    for model in models:
        profile = profile_of(model)
        base_s = step_time_s(plan_of(model, None, profile), profile)
        base = run(model, None, loses=False) if measures else None
        pauses: dict[Redundancy, float] = {}
        overheads: list[float] = []
        for mode in NAMES:
            estimated = step_time_s(plan_of(model, mode, profile), profile) / base_s - 1
            report(f"redundancy.{model.name}.{NAMES[mode]}.overhead-estimated", estimated, "ratio")
            words = f"{model.name}, {NAMES[mode]}: estimated {estimated:+.1%}"
            if base is not None:
                found = run(model, mode, loses=True)
                assert found.pause_s is not None
                overheads.append(found.step_s / base.step_s - 1)
                measured, pauses[mode] = overheads[-1], found.pause_s / found.step_s
                report(f"redundancy.{model.name}.{NAMES[mode]}.overhead", measured, "ratio")
                report(f"redundancy.{model.name}.{NAMES[mode]}.pause", pauses[mode], "ratio")
                words += f", measured {measured:+.1%}, pause {pauses[mode]:.0%} of a step"
            note(f"{words}; paper {model.paper[mode]:+.1%}")
        if pauses:
            saved = 1 - pauses[Redundancy.EAGER_LAZY] / pauses[Redundancy.LAZY_LAZY]
            report(f"redundancy.{model.name}.pause-saved-by-eager-forwards", saved, "ratio", goal=">= 0.25")
            is_ordered = overheads == sorted(overheads)
            report(f"redundancy.{model.name}.in-the-papers-order", is_ordered, "count", goal=">= 1")
            note(f"{model.name}: eager forwards make the pause {saved:.0%} shorter; paper about 35%")


def fitting(*, measures: bool) -> None:
    """Forwards that fit the bubbles, beside the same shadows without any."""
    profile = profile_of(FITTING)
    lazy, eager = (
        step_time_s(plan_of(FITTING, mode, profile), profile) for mode in (Redundancy.LAZY_LAZY, Redundancy.EAGER_LAZY)
    )
    report("redundancy.fitting.forwards-estimated", eager / lazy - 1, "ratio", goal="<= 0.02")
    if measures:
        idle, busy = (run(FITTING, mode, loses=False).step_s for mode in (Redundancy.LAZY_LAZY, Redundancy.EAGER_LAZY))
        report("redundancy.fitting.forwards", busy / idle - 1, "ratio", goal="<= 0.02")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[model.name for model in MODELS], help="one alone")
    parser.add_argument("--estimates", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    SCRATCH.mkdir(parents=True, exist_ok=True)
    measures = not arguments.estimates
    fitting(measures=measures)
    table([model for model in MODELS if arguments.model in (None, model.name)], measures=measures)


if __name__ == "__main__":
    sys.exit(main())
