"""Bamboo, Table 2: six models on spot nodes at three rates of preemption, against training on demand."""

from __future__ import annotations

from pathlib import Path

from bamboo_data import DEMAND_COST, MODELS, RATES, SPOT_PER_HOUR, TABLE_2, VARUNA_SLOWER
from bamboo_models import MEAN_BULK, Means, Spot, bamboo, bert, to_completion, varuna
from ours import Ours
from pictures import bars
from section import Comparison, Plot, Row, Section, run

from planaria.simulate.trace import HOUR_S

SEEDS = range(10)


def means(model: str, at: int) -> Means:
    """At the rate of this number."""
    data, wanted = MODELS[model], MODELS[model].num_pipelines * MODELS[model].depth
    spot = Spot(wanted=wanted, hourly=RATES[at], mean_nodes=TABLE_2[model].cost[at] / SPOT_PER_HOUR)
    return to_completion(lambda: bamboo(model), spot, data.samples, 60.0, SEEDS)


OURS = {"templates": "Bamboo", "redundancy": "Bamboo", "morph": None}
"""Policies of ours, and whose figures in the paper theirs are held against; Varuna's are not in the table."""


def own(policy: str, at: int) -> Ours:
    """With BERT at the rate of this number; one seed."""
    profile, settings = bert()
    spot = Spot(wanted=48, hourly=RATES[at], mean_nodes=TABLE_2["BERT"].cost[at] / SPOT_PER_HOUR)
    return Ours.run(
        policy,
        profile,
        settings,
        [spot.trace(12.0, 0)],
        samples=MODELS["BERT"].samples,
        mean_time_between_failures_s=MEAN_BULK * HOUR_S / (RATES[at] * spot.mean_nodes),
    )


def section(traces: Path | None = None) -> Section:
    found = {model: [means(model, at) for at in range(len(RATES))] for model in MODELS}

    def comparison(title: str, of: str) -> Comparison:
        rows = [
            Row(what=f"{model}, {rate:.0%} an hour", paper=getattr(TABLE_2[model], of)[at], ours=getattr(m, of))
            for model, row in found.items()
            for at, (rate, m) in enumerate(zip(RATES, row, strict=True))
        ]
        return Comparison(title=title, rows=rows)

    owns = {policy: [own(policy, at) for at in range(len(RATES))] for policy in OURS}

    def beside(policy: str, title: str, of: str) -> Comparison:
        paper = OURS[policy]
        rows = [
            Row(
                what=f"BERT, {rate:.0%} an hour",
                paper=getattr(TABLE_2["BERT"], of)[at] if paper else None,
                ours=getattr(found, of),
            )
            for at, (rate, found) in enumerate(zip(RATES, owns[policy], strict=True))
        ]
        return Comparison(title=f"ours, {policy}{f' (paper: {paper})' if paper else ''}, {title}", rows=rows)

    slower = []
    for at, (rate, paper) in enumerate(VARUNA_SLOWER.items()):
        spot = Spot(wanted=32, hourly=rate, mean_nodes=32 * TABLE_2["BERT"].cost[at] / SPOT_PER_HOUR / 48)
        other = to_completion(varuna, spot, MODELS["BERT"].samples, 60.0, SEEDS)
        slower.append(
            Row(what=f"BERT, {rate:.0%} an hour", paper=paper, ours=found["BERT"][at].throughput / other.throughput)
        )

    over_bamboo = [
        ours.throughput / bamboos.throughput for ours, bamboos in zip(owns["redundancy"], found["BERT"], strict=True)
    ]
    gain = sum(found[model][0].value * DEMAND_COST[model] / MODELS[model].demand for model in MODELS) / len(MODELS)
    picture = bars(
        {
            model: {
                "on demand": MODELS[model].demand / DEMAND_COST[model] / (MODELS[model].demand / DEMAND_COST[model]),
                "Bamboo, paper": TABLE_2[model].value[0] / (MODELS[model].demand / DEMAND_COST[model]),
                "Bamboo, ours": row[0].value / (MODELS[model].demand / DEMAND_COST[model]),
            }
            for model, row in found.items()
        },
        y="value, on demand = 1",
        title="10% an hour",
    )
    return Section(
        key="bamboo_table2",
        source="Bamboo, Table 2",
        title="six models on spot nodes (Bamboo-S)",
        setting=(
            "Each model to its number of samples (Table 1). The step is Demand-S's with the overhead of redundant "
            "computation that Table 4 gives for BERT (language models) and ResNet (the others). Nodes go at the "
            f"segment's rate, {MEAN_BULK:g} at a time, and come so that their mean is what the paper paid for. Other "
            f"costs as in Table 3a. Means of {len(SEEDS)} seeds."
        ),
        comparisons=[
            comparison("samples/s", "throughput"),
            comparison("dollars an hour (input)", "cost"),
            comparison("value, samples/s per dollar an hour", "value"),
            *(beside(policy, "samples/s", "throughput") for policy in OURS),
            *(beside(policy, "value", "value") for policy in OURS),
            Comparison(title="Bamboo over Varuna (Figure 12), throughput", rows=slower),
        ],
        verdict=(
            f"At 10% an hour the value is {gain:.2f} times that of training on demand (the paper: 1.95 times). VGG "
            "and GNMT come within 10% at that rate; BERT, AlexNet and GPT are a fifth to a quarter faster in the "
            "paper, nearly as fast as on demand, so its runs cannot have had the overhead of its Table 4. At 33% the "
            "paper loses more than its number of nodes explains. ResNet's runs had fewer nodes than the cost column "
            "says (25.58 of 48, section 6.1). Bamboo-M (nodes of four GPUs) is not modelled: it was slow because "
            "such nodes came late, and the paper does not say how late. Varuna (five minutes a restart, checkpoints "
            "beside training) is slower than Bamboo here too, by less than the paper's 2.5 and 2.7 times: our Bamboo "
            "is slower than its, and how long Varuna's restart took is not said. Our templates train on all nodes "
            "and need none for redundancy. Our redundancy has the same rings, of a depth that it chooses itself, and "
            f"comes to {over_bamboo[0]:.2f}, {over_bamboo[1]:.2f} and {over_bamboo[2]:.2f} times our model of Bamboo. "
            "Our morph, on the nodes of Bamboo, keeps its processes: a restart takes seconds, not minutes, so it is "
            "near the others while losses are rare, and falls behind where it goes back to a checkpoint more often."
        ),
        plots=[Plot(name="bamboo_table2", caption="Value against training on demand, Bamboo's Table 2", svg=picture)],
    )


if __name__ == "__main__":
    run(section)
