"""Bamboo, Tables 2 and 6 and Figure 11: our redundancy in all rows, and nodes of four GPUs (Bamboo-M)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bamboo_data import DEMAND_M, GPUS_M, MODELS, RATES, SPOT_PER_HOUR, TABLE_2, TABLE_2_M, TABLE_6
from bamboo_models import MEAN_BULK, STEP_SAMPLES, Means, Spot, bamboo, to_completion
from bamboo_system import Bamboo
from bamboo_table6 import HOURS as HOURS_6
from bamboo_table6 import OVERPROVISIONED, WORKERS
from ours import OWN, PUBLISHED, Ours, scaled
from pictures import lines
from replay import replay
from section import Comparison, Plot, Row, Section, run

from planaria.job.registry import PolicyName
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import NodeId, Redundancy, ScheduleKind
from planaria.plan.settings import PlannerSettings
from planaria.policy.planner import Planner
from planaria.policy.registry import make_policy
from planaria.profile.presets.presets import LINK_SHARE, preset
from planaria.simulate.traces.trace import HOUR_S

SEEDS = range(10)
HOURS = 24.0
OVER_DEMAND = 1.5
"""A pipeline of Bamboo is so many times as deep as one on demand (section 6)."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A model as it is planned here: its preset, samples in a microbatch, and what shadows compute."""

    preset: str
    microbatch: int
    recomputes: bool = False
    redundancy: Redundancy = Redundancy.EAGER_LAZY


SETUPS = {
    "ResNet": Setup(preset="resnet-152", microbatch=16),
    "VGG": Setup(preset="vgg-19", microbatch=16),
    "AlexNet": Setup(preset="alexnet", microbatch=32),
    "GNMT": Setup(preset="gnmt-16", microbatch=8),
    "BERT": Setup(preset="bert-large", microbatch=8),
    # What eager forwards keep until a step's end does not fit beside 24 bytes a parameter into 16 GB.
    "GPT": Setup(preset="gpt2-1.5b", microbatch=4, recomputes=True, redundancy=Redundancy.LAZY_LAZY),
}


def profile_of(model: str, numerics: str) -> ModelProfile:
    """The model on V100s with 10 Gbit/s between nodes."""
    setup = SETUPS[model]
    found = preset(
        setup.preset, "v100", microbatch_size=setup.microbatch, network_gbit_s=LINK_SHARE * 10, numerics=numerics
    )
    return found.recomputed() if setup.recomputes else found


def settings_of(model: str, number: int, depth: int, fault_tolerance: int, devices: int = 1) -> PlannerSettings:
    """So many pipelines of so many nodes each."""
    return PlannerSettings(
        num_microbatches=STEP_SAMPLES // SETUPS[model].microbatch,
        fault_tolerance=fault_tolerance,
        num_nodes=number * depth,
        devices_per_node=devices,
        memory_bytes=profile_of(model, OWN).device.memory_bytes,
        shape=(number, depth),
        schedule=ScheduleKind.EAGER_ONE_F_ONE_B,
        redundancy=SETUPS[model].redundancy,
    )


@cache
def factor(model: str, demand: float, number: int, depth: int) -> float:
    """By how much times of forwards and backwards are multiplied, so that so many pipelines do what the paper's do on
    demand."""
    settings, found = settings_of(model, number, depth, 0), 1.0
    for _ in range(8):
        planner = Planner(scaled(profile_of(model, PUBLISHED), found), settings)
        nodes = [NodeId(node) for node in range(settings.num_nodes)]
        step_s = make_policy(PolicyName.TEMPLATES, planner).initial(nodes, 1).step_time_s
        found *= STEP_SAMPLES / demand / step_s
    return found


def factor_of(model: str) -> float:
    """See `factor`; as deep as the paper's pipelines on demand."""
    data = MODELS[model]
    return factor(model, data.demand, data.num_pipelines, round(data.depth / OVER_DEMAND))


def own(model: str, spot: Spot, hours: float, faster: float, settings: PlannerSettings, samples: float | None) -> Ours:
    """Our redundancy on one trace. `faster`: see `factor`."""
    return Ours.run(
        "redundancy",
        scaled(profile_of(model, OWN), faster),
        settings,
        [spot.trace(hours, 0)],
        samples=samples,
        mean_time_between_failures_s=spot.mean_bulk * HOUR_S / (spot.hourly * spot.mean_nodes),
        wants_timeline=True,
    )


@cache
def on_single(model: str, at: int) -> Ours:
    """With the paper's D and P at the rate of this number."""
    data = MODELS[model]
    spot = Spot(
        wanted=data.num_pipelines * data.depth, hourly=RATES[at], mean_nodes=TABLE_2[model].cost[at] / SPOT_PER_HOUR
    )
    return own(
        model, spot, HOURS, factor_of(model), settings_of(model, data.num_pipelines, data.depth, 1), data.samples
    )


def data_parallel(model: str, at: int) -> Ours:
    """Table 6: a ring of pipelines of one stage."""
    faster = factor(model, TABLE_6[model]["Demand"][0][0], WORKERS, 1)
    nodes = TABLE_6[model]["Bamboo"][1][at] / SPOT_PER_HOUR
    spot = Spot(wanted=OVERPROVISIONED, hourly=RATES[at], mean_nodes=nodes)
    return own(model, spot, HOURS_6, faster, settings_of(model, OVERPROVISIONED, 1, 1), None)


# Nodes of four GPUs


def group_shape(model: str) -> tuple[int, int]:
    """Pipelines, and nodes of four of each. Where P is no whole number of nodes they are longer and fewer, on as many
    GPUs: 3 of 8 stages in place of 4 of 6."""
    data = MODELS[model]
    nodes = -(-data.depth // GPUS_M)
    return data.num_pipelines * data.depth // (GPUS_M * nodes), nodes


def group_spot(model: str, at: int, *, as_many_nodes: bool) -> Spot:
    """Of nodes of four GPUs: as many GPUs go as of single ones, or as many nodes."""
    number, nodes = group_shape(model)
    return Spot(
        wanted=number * nodes,
        hourly=RATES[at] * (GPUS_M if as_many_nodes else 1),
        mean_nodes=TABLE_2_M[model].cost[at] / (GPUS_M * SPOT_PER_HOUR),
        mean_bulk=MEAN_BULK if as_many_nodes else 1.0,
    )


def on_groups(model: str, at: int, *, as_many_nodes: bool) -> Means:
    """Bamboo-M: a node's four stages have their replicas on the node before it."""
    number, nodes = group_shape(model)

    def made() -> Bamboo:
        found = bamboo(model, demand=DEMAND_M[model], depth=nodes)
        found.num_pipelines = number
        return found

    return to_completion(
        made,
        group_spot(model, at, as_many_nodes=as_many_nodes),
        MODELS[model].samples,
        60.0,
        SEEDS,
    )


def own_on_groups(model: str, at: int) -> Ours:
    """Ours, as many GPUs going as of single ones."""
    data = MODELS[model]
    settings = settings_of(model, *group_shape(model), 1, GPUS_M)
    spot = group_spot(model, at, as_many_nodes=False)
    return own(model, spot, HOURS, factor_of(model), settings, data.samples)


# The section


def _rows(
    papers: Mapping[str, Sequence[float]], found: Mapping[str, Sequence[Ours]], of: str, *, gpus: int = 1
) -> list[Row]:
    return [
        Row(
            what=f"{model}, {rate:.0%} an hour",
            paper=papers[model][at],
            ours=getattr(one, of) / (gpus if of == "value" else 1),
        )
        for model, row in found.items()
        for at, (rate, one) in enumerate(zip(RATES, row, strict=True))
    ]


def picture(model: str) -> str:
    """Figure 11 (b): throughput over time at 10% an hour."""
    data = MODELS[model]
    spot = Spot(
        wanted=data.num_pipelines * data.depth, hourly=RATES[0], mean_nodes=TABLE_2[model].cost[0] / SPOT_PER_HOUR
    )
    published = replay(bamboo(model), spot.trace(HOURS, 0), samples=data.samples)
    series = {"Bamboo as published": [(at_s / HOUR_S, rate) for at_s, rate in published.series]}
    timeline = on_single(model, 0).results[0].timeline
    series["ours, redundancy"] = [(at_s / HOUR_S, rate) for at_s, _, rate in timeline]
    last = max(points[-1][0] for points in series.values())
    series["on demand, paper"] = [(0.0, data.demand), (last, data.demand)]
    return lines(series, x="hours", y="samples/s", steps=True, title=f"{model}, 10% an hour")


def section(traces: Path | None = None) -> Section:
    single = {model: [on_single(model, at) for at in range(len(RATES))] for model in MODELS}
    data = {model: [data_parallel(model, at) for at in range(len(RATES))] for model in TABLE_6}
    groups = {model: [own_on_groups(model, at) for at in range(len(RATES))] for model in TABLE_2_M}
    published = {
        as_many: {
            model: [on_groups(model, at, as_many_nodes=as_many) for at in range(len(RATES))] for model in TABLE_2_M
        }
        for as_many in (False, True)
    }
    throughputs_2 = {model: row.throughput for model, row in TABLE_2.items()}
    values_2 = {model: row.value for model, row in TABLE_2.items()}
    throughputs_m = {model: row.throughput for model, row in TABLE_2_M.items()}
    compared = [
        Comparison(
            title="ours, redundancy (paper: Bamboo-S), samples/s", rows=_rows(throughputs_2, single, "throughput")
        ),
        Comparison(title="ours, redundancy (paper: Bamboo-S), value", rows=_rows(values_2, single, "value")),
        Comparison(
            title="ours, redundancy, Table 6 (paper: Bamboo), samples/s",
            rows=_rows({m: t["Bamboo"][0] for m, t in TABLE_6.items()}, data, "throughput"),
        ),
        Comparison(
            title="ours, redundancy, Table 6 (paper: Bamboo), value",
            rows=_rows({m: t["Bamboo"][2] for m, t in TABLE_6.items()}, data, "value"),
        ),
        *(
            Comparison(
                title=f"Bamboo-M as published, as many {'nodes' if as_many else 'GPUs'} go, samples/s",
                rows=[
                    Row(
                        what=f"{model}, {rate:.0%} an hour",
                        paper=TABLE_2_M[model].throughput[at],
                        ours=found[at].throughput,
                    )
                    for model, found in of.items()
                    for at, rate in enumerate(RATES)
                ],
            )
            for as_many, of in published.items()
        ),
        Comparison(
            title="ours, redundancy on nodes of four (paper: Bamboo-M), samples/s",
            rows=_rows(throughputs_m, groups, "throughput"),
        ),
        Comparison(
            title="ours, redundancy on nodes of four (paper: Bamboo-M), value",
            rows=_rows({m: r.value for m, r in TABLE_2_M.items()}, groups, "value", gpus=GPUS_M),
        ),
    ]
    return Section(
        key="bamboo_redundancy",
        source="Bamboo, Tables 2 and 6, Figure 11",
        title="our redundancy in all rows, and nodes of four GPUs (Bamboo-M)",
        setting=(
            "Nodes, rates and samples as in Tables 2 and 6. Our policy `redundancy` has the paper's D and P "
            "(`num_pipelines`, `nodes_per_pipeline`); compute is as fast as makes D pipelines of P / 1.5 stages, with "
            "the bytes of published systems, do what Demand-S does (in Table 6: eight workers). Steps of 1,024 "
            "samples, microbatches of 4 to 32. The paper's speeds on demand are far below what the presets' V100s "
            f"would do: times are multiplied by {factor_of('GPT'):.0f} (GPT) to {factor_of('AlexNet'):.0f} (AlexNet). "
            "Shadows compute forwards eagerly, but for GPT-2, which recomputes and has them lazy: what they would "
            "keep does not fit into 16 GB beside 24 bytes a parameter. Bamboo-M: a node is four stages, whose replicas "
            "are on the node before; P = 6 is no whole number of nodes, so there 3 pipelines of 8 stages stand in for "
            "4 of 6. How often such nodes go the paper does not say: either as many GPUs as of single ones, one node "
            "at a time, or as many nodes, four times the GPUs; how soon others come follows from what it paid. Means "
            f"of {len(SEEDS)} seeds; ours: one seed."
        ),
        comparisons=compared,
        verdict=verdict(compared),
        plots=[
            Plot(name=f"bamboo_figure11_{model.lower()}", caption=f"Figure 11: {model} over time", svg=picture(model))
            for model in ("BERT", "VGG")
        ],
    )


def verdict(compared: Sequence[Comparison]) -> str:
    def between(comparison: Comparison) -> str:
        ratios = [row.ratio for row in comparison.rows if row.ratio is not None]
        return f"{min(ratios):.2f} to {max(ratios):.2f}"

    single, _, data, _, gpus, nodes, groups, _ = compared
    return (
        f"Our redundancy does {between(single)} times what the paper's Bamboo-S does, and {between(data)} times in "
        "Table 6, where it runs the neighbour's microbatches one after the other (a batch of twice the size, as the "
        "paper has it, would change bits). At 10% an hour they are close; the more often nodes go, the further the "
        "paper's falls behind: ours takes seconds for a takeover and for new pipelines, and state moves beside "
        f"steps. Bamboo-M by its description does {between(gpus)} times what the paper reports where as many "
        f"GPUs go, {between(nodes)} times where as many nodes do: what else held its runs up, the paper does not say "
        "but that new nodes of four came late. With four workers on a node nothing of ours is "
        f"computed eagerly, so steps are as long as without shadows: {between(groups)} times the paper's."
    )


if __name__ == "__main__":
    run(section)
