"""Bamboo, Table 3b: BERT with pipelines as deep as the on-demand price would pay for."""

from __future__ import annotations

from pathlib import Path

from bamboo_data import DEPTH_H, MODELS, SPOT_PER_HOUR, TABLE_3B
from bamboo_models import MEAN_BULK, Spot, bamboo, bert_profile, to_completion
from ours import PUBLISHED
from section import Comparison, Row, Section, run

from planaria.plan.costs.pipeline_time import step_times
from planaria.plan.settings import PlannerSettings
from planaria.planner.templates.templates import make_templates

SEEDS = range(20)
MICROBATCH = 8
NUM_LAYERS = 26
"""Embedding, 24 blocks, head: what we cut; a stage has one at least."""


def slower() -> float:
    """How many times longer a microbatch takes on the deepest pipeline than on 12 nodes, per node: a microbatch's
    period with one pipeline of each, by the planner."""
    profile = bert_profile(PUBLISHED)
    number = 256 // MICROBATCH
    settings = PlannerSettings(num_microbatches=number, fault_tolerance=0, num_nodes=NUM_LAYERS, devices_per_node=1)
    times = {t.num_nodes: float(step_times(t, number)[-1]) for t in make_templates(profile, settings)}
    return times[NUM_LAYERS] / times[12]


def section(traces: Path | None = None) -> Section:
    ratio = slower()
    demand = MODELS["BERT"].demand / ratio
    found = {}
    for probability, (_, cost, _) in TABLE_3B.items():
        nodes = cost / SPOT_PER_HOUR
        spot = Spot(wanted=4 * DEPTH_H, hourly=MEAN_BULK * probability, mean_nodes=nodes)
        found[probability] = to_completion(
            lambda: bamboo("BERT", demand=demand, depth=DEPTH_H), spot, MODELS["BERT"].samples, 120.0, SEEDS
        )
    papers = {p: dict(zip(("throughput", "cost", "value"), row, strict=True)) for p, row in TABLE_3B.items()}
    return Section(
        key="bamboo_table3b",
        source="Bamboo, Table 3b",
        title=f"BERT with {DEPTH_H} stages a pipeline",
        setting=(
            f"As Table 3a, with 4 pipelines of P_h = {DEPTH_H} nodes. How much slower the deeper pipeline is than one "
            f"of 12 comes from our planner (BERT-Large on V100s and 10 Gbit/s, {NUM_LAYERS} layers, so as many stages "
            f"at most): a step takes {ratio:.2f} times as long. Nodes follow from the paper's cost. Means of "
            f"{len(SEEDS)} seeds."
        ),
        comparisons=[
            Comparison(
                title=title,
                rows=[
                    Row(what=f"p = {p:g}", paper=papers[p][of], ours=getattr(m, of), is_fitted=of == "cost")
                    for p, m in found.items()
                ],
            )
            for title, of in (
                ("samples/s", "throughput"),
                ("dollars an hour (input)", "cost"),
                ("value, samples/s per dollar an hour", "value"),
            )
        ],
        verdict=(
            "In the paper a pipeline of P_h is about 0.6 times as fast as one of P although it has more than twice the "
            "nodes: poorer partitioning and messages between more stages. "
            f"Our planner finds splits for which a step takes {ratio:.2f} times as long, so throughput is "
            f"{'higher' if ratio < 1.6 else 'lower'} here; either way value falls, since the nodes are paid for."
        ),
    )


if __name__ == "__main__":
    run(section)
