"""Bamboo, Table 2: six models on spot nodes at three rates of preemption, against training on demand."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import fmean

from bamboo_data import DEMAND_COST, MODELS, OVER_VARUNA, RATES, RECONFIGURATION_SHARE, SPOT_PER_HOUR, TABLE_2
from bamboo_models import (
    MEAN_BULK,
    RECONFIGURATION_7_PERCENT_S,
    RECONFIGURATION_S,
    RESTART_S,
    Means,
    Spot,
    bamboo,
    bert,
    to_completion,
    varuna,
)
from ours import Ours
from pictures import bars
from section import Comparison, Plot, Row, Section, run

from planaria.simulate.traces.trace import HOUR_S

SEEDS = range(10)


def means(model: str, at: int, reconfiguration_s: float = RECONFIGURATION_S) -> Means:
    """At the rate of this number."""
    data, wanted = MODELS[model], MODELS[model].num_pipelines * MODELS[model].depth
    spot = Spot(wanted=wanted, hourly=RATES[at], mean_nodes=TABLE_2[model].cost[at] / SPOT_PER_HOUR)
    make = partial(bamboo, model, reconfiguration_s=reconfiguration_s)
    return to_completion(make, spot, data.samples, 60.0, SEEDS)


VARUNAS_RESTARTS_S = (RESTART_S, 3 * RESTART_S)
"""The paper does not say how long one took."""


def varunas(published: list[Means]) -> list[Comparison]:
    """Figure 12: Varuna on as many nodes as on demand, and Bamboo over it."""
    speeds, throughputs, values = [], [], []
    for at, (rate, (throughput, value)) in enumerate(OVER_VARUNA.items()):
        spot = Spot(wanted=32, hourly=rate, mean_nodes=32 * TABLE_2["BERT"].cost[at] / SPOT_PER_HOUR / 48)
        paper_speed = TABLE_2["BERT"].throughput[at] / throughput
        for restart_s in VARUNAS_RESTARTS_S:
            other = to_completion(partial(varuna, restart_s), spot, MODELS["BERT"].samples, 60.0, SEEDS)
            what = f"BERT, {rate:.0%} an hour, a restart takes {restart_s / 60:g} min"
            over = published[at].throughput / other.throughput
            speeds.append(Row(what=what, paper=paper_speed, ours=other.throughput))
            throughputs.append(Row(what=what, paper=throughput, ours=over))
            values.append(Row(what=what, paper=value, ours=published[at].value / other.value))
    return [
        Comparison(title="Varuna (Figure 12; the paper's by its ratio), samples/s", rows=speeds),
        Comparison(title="Bamboo over Varuna (Figure 12), throughput", rows=throughputs),
        Comparison(title="Bamboo over Varuna (Figure 12), value", rows=values),
    ]


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


def pauses(found: dict[str, list[Means]]) -> float:
    """The share of the time at 10%, on average over models."""
    return fmean(row[0].restart_share for row in found.values())


def kept(model: str) -> float:
    """In the paper at 33%, of the speed on demand."""
    return TABLE_2[model].throughput[2] / MODELS[model].demand


def section(traces: Path | None = None) -> Section:
    found = {model: [means(model, at) for at in range(len(RATES))] for model in MODELS}
    longer = {model: [means(model, at, RECONFIGURATION_7_PERCENT_S) for at in range(len(RATES))] for model in MODELS}

    def comparison(title: str, of: str, found: dict[str, list[Means]] = found) -> Comparison:
        rows = [
            Row(
                what=f"{model}, {rate:.0%} an hour",
                paper=getattr(TABLE_2[model], of)[at],
                ours=getattr(m, of),
                is_fitted=of == "cost",
            )
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
            f"costs as in Table 3a, where a reconfiguration takes {RECONFIGURATION_S:g} s. With it pauses take "
            f"{pauses(found):.0%} of the time at 10%, where the paper reports {RECONFIGURATION_SHARE:.0%}; with "
            f"{RECONFIGURATION_7_PERCENT_S:g} s they take {pauses(longer):.0%} (second comparison of throughput). "
            f"Means of {len(SEEDS)} seeds; ours: one seed."
        ),
        comparisons=[
            comparison("samples/s", "throughput"),
            comparison("dollars an hour (input)", "cost"),
            comparison("value, samples/s per dollar an hour", "value"),
            comparison(f"a reconfiguration takes {RECONFIGURATION_7_PERCENT_S:g} s, samples/s", "throughput", longer),
            *(beside(policy, "samples/s", "throughput") for policy in OURS),
            *(beside(policy, "value", "value") for policy in OURS),
            *varunas(found["BERT"]),
        ],
        verdict=(
            f"At 10% an hour the value is {gain:.2f} times that of training on demand (the paper: 1.95 times). VGG "
            "and GNMT come within 10% at that rate; AlexNet, BERT and GPT are a fifth to a third faster in the "
            "paper, nearly as fast as on demand, so its runs cannot have had the overhead of its Table 4. At 33% "
            "ResNet and GNMT are far slower in the paper than here. Longer reconfigurations explain a part (they "
            "would make every row of Table 3a slower, so the short one is kept), and no common costs explain it all: "
            f"on one segment of one trace the paper's AlexNet keeps {kept('AlexNet'):.0%} of its speed on demand, "
            f"VGG {kept('VGG'):.0%} and GNMT {kept('GNMT'):.0%}, all with 4 pipelines of 6 on the same nodes. "
            "ResNet's runs had fewer nodes than the cost column says (25.58 of 48, section 6.1). Bamboo-M (nodes of "
            "four GPUs) and our redundancy in all rows are in a section of their own. Varuna, whose checkpoints are "
            "written beside training in five minutes each, is slower than Bamboo "
            "here too; how long its restart took is not said. With five minutes it is 1.2 to 1.5 times as fast as in "
            "the paper, and at 10% has the better value of the two, against the paper. The paper's speed would take "
            "restarts of a quarter of an hour at 10%, but of eight minutes at 16%; at 33% it hung. The rest of the "
            "gap is that our Bamboo is slower than the paper's. Our templates train on all nodes "
            "and need none for redundancy. Our redundancy has the same rings, of a depth that it chooses itself, and "
            f"comes to {over_bamboo[0]:.2f}, {over_bamboo[1]:.2f} and {over_bamboo[2]:.2f} times our model of Bamboo. "
            "Our morph, on the nodes of Bamboo, keeps its processes: a restart takes seconds, not minutes, so it is "
            "near the others while losses are rare, and falls behind where it goes back to a checkpoint more often."
        ),
        plots=[Plot(name="bamboo_table2", caption="Value against training on demand, Bamboo's Table 2", svg=picture)],
    )


if __name__ == "__main__":
    run(section)
