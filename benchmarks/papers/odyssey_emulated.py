"""Odyssey, Figures 6 and 9: its clusters on emulated devices of this machine, before and after a real kill.

Takes some minutes: steps are waited for. What is measured is true on a machine with time left.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

sys.path.append(str(Path(__file__).parents[1]))

from fidelity import SCRATCH, STEPS_BETWEEN, Plan
from fidelity import run as measured
from odyssey_data import BATCHES, ESTIMATE_ERROR, FIGURE_6, Setting
from odyssey_figure6 import FAULT_TOLERANCE, LOST, profile, settings_of
from ours import PUBLISHED, scaled
from section import Comparison, Row, Section, run
from sides import make_job

from planaria.job.registry import PolicyName
from planaria.job.settings import Job
from planaria.plan.costs.model_profile import LinkCost, Links, ModelProfile
from planaria.plan.plan import NodeId
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy

POLICIES = (PolicyName.ADAPTIVE, PolicyName.TEMPLATES)
BATCH = BATCHES[0]
MOST_DEVICES = 16
"""Processes of a run. The third cluster, of 32, is simulated alone: of its stages of 8 devices that share a microbatch
one process each would wait, and seven do nothing."""
STEP_S = 1.5
"""Seconds of a step here: all times are shortened alike."""
ATTEMPTS = 2


def shortened(costs: ModelProfile, factor: float) -> ModelProfile:
    """The same costs, `factor` times as long. A vote takes what it takes on this machine, little beside such a step."""

    def link(of: LinkCost) -> LinkCost:
        return LinkCost(latency_s=factor * of.latency_s, bandwidth_bytes_per_s=of.bandwidth_bytes_per_s / factor)

    step = costs.step
    return msgspec.structs.replace(
        scaled(costs, factor),
        links=Links(within_node=link(costs.links.within_node), between_nodes=link(costs.links.between_nodes)),
        step=msgspec.structs.replace(
            step,
            apply_s_per_byte=factor * step.apply_s_per_byte,
            sum_s_per_byte=factor * step.sum_s_per_byte,
        ),
    )


def job_of(setting: Setting, policy: PolicyName) -> Job:
    """The paper's grid on emulated devices. After the loss the policy has no more pipelines, and none longer."""
    costs, asked = profile(setting, PUBLISHED), settings_of(setting, BATCH, PUBLISHED)
    first = make_policy(PolicyName.TEMPLATES, Planner(costs, asked)).initial(
        [NodeId(node) for node in range(asked.num_nodes)], 1
    )
    path = SCRATCH / f"odyssey-{secrets.token_hex(4)}.json"
    path.write_bytes(msgspec.json.encode(shortened(costs, STEP_S / first.step_time_s)))
    text = f"""
[train]
steps = {2 * STEPS_BETWEEN}
global_batch = {BATCH}
microbatch = 1
sequence_length = 1
[cluster]
nodes = {asked.num_nodes}
schedule = "{asked.schedule.value}"
device = "emulated"
profile = "{path}"
memory_gb = {asked.memory_bytes / 1e9}
[resilience]
policy = "{policy.value}"
fault_tolerance = {FAULT_TOLERANCE}
num_pipelines = {setting.pipelines}
nodes_per_pipeline = {setting.stages}
"""
    return make_job(text)


def plans_of(setting: Setting, policy: PolicyName) -> tuple[Plan, Plan]:
    """The plan before the kill and the last one after it, as estimated and as measured."""
    job = job_of(setting, policy)
    kill = f"kill:node={LOST},step={STEPS_BETWEEN},at=backward"
    before, *after = measured(f"{setting.devices} devices, {policy.value}", job, [kill], ATTEMPTS)
    return before, after[-1]


def section(traces: Path | None = None) -> Section:
    SCRATCH.mkdir(parents=True, exist_ok=True)
    kept: list[Row] = []
    errors: list[Row] = []
    for setting, share in FIGURE_6.items():
        if setting.devices > MOST_DEVICES:
            continue
        for policy in POLICIES:
            before, after = plans_of(setting, policy)
            what = f"{policy.value}, {setting.devices} -> {setting.devices - setting.tensor} devices, batch {BATCH}"
            kept += [
                Row(what=what, paper=100 * share, ours=100 * before.measured_s / after.measured_s),
                Row(what=f"{what}, as estimated", paper=None, ours=100 * before.estimated_s / after.estimated_s),
            ]
            errors += [
                Row(what=f"{what}, {when}", paper=100 * ESTIMATE_ERROR, ours=100 * abs(plan.error))
                for when, plan in (("before", before), ("after", after))
            ]
    return Section(
        key="odyssey_emulated",
        source="Odyssey, Figures 6 and 9",
        title="the same clusters on emulated devices",
        setting=(
            "Figure 6's first two clusters, (PP, DP, TP) = (4, 2, 1) and (4, 4, 1), as jobs of this project: a process "
            'for each NPU, which computes nothing and takes the profile\'s times (`cluster.device = "emulated"`), '
            "`num_pipelines` and `nodes_per_pipeline` as the paper's DP and PP, and the SIGKILL of one process in step "
            f"{STEPS_BETWEEN}'s backward. 16 bytes a parameter, 1F1B, batch {BATCH}. All times are shortened alike, so "
            f"that a step takes {STEP_S:g} s. A job keeps to its DP and PP after the loss, as far as nodes are enough: "
            "where Figure 6 above has other pipelines, its policy was free to choose. Medians of steps."
        ),
        comparisons=[
            Comparison(title="measured, % of the speed before", rows=kept),
            Comparison(title="error of the estimate of a step, % (paper: at most)", rows=errors),
        ],
        verdict=verdict(kept, errors),
    )


def verdict(kept: Sequence[Row], errors: Sequence[Row]) -> str:
    worst = max(row.ours or 0.0 for row in errors)
    pairs = zip(kept[::2], kept[1::2], strict=True)
    apart = max(abs((measured.ours or 0.0) - (foretold.ours or 0.0)) for measured, foretold in pairs)
    return (
        f"Estimates are within {worst:.1f}% of what steps take, the paper's within {100 * ESTIMATE_ERROR:.2f}%; the "
        f"speed that is kept is within {apart:.1f} points of what was foretold. Adaptive may split backwards before "
        "the loss, too, so that it keeps another share than above. Whatever else the machine does is in what is "
        "measured."
    )


if __name__ == "__main__":
    run(section)
