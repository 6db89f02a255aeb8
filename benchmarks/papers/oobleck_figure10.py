"""Oobleck, Figure 10: throughput on spot traces."""

from __future__ import annotations

from pathlib import Path

from oobleck_data import CHECKPOINT_STEPS, MODELS, NUM_NODES, TRACE_HOURS, TRACE_INTERVALS_S
from oobleck_models import best_varuna, oobleck, own_terms, varuna
from ours import Ours
from pictures import lines
from replay import Outcome, replay
from section import Comparison, Plot, Row, Section, run
from traces import at_most, described, recorded_p3, with_interval

from planaria.simulate.traces.trace import HOUR_S, Trace

LARGEST_GAIN = 9.1
"""Section 7.3: Oobleck outperforms the rest "by up to 9.1x on average"."""
NOTICE_S = {"EC2": 120.0, "GCP": 30.0}
"""How long before a preemption the clouds warn; section 7.1: all systems use it."""
SHOWN = "GPT-3 2.7b"
OURS = ("BERT-Large", SHOWN)
"""Models for which this project's templates are run too."""
GOES_BACK = "and it goes back for new nodes, too"
SMALLEST = "BERT-Large"
HUNG = "GPT-3 6.7b"
"""Where the paper's Varuna made no progress."""


def used_traces(folder: Path | None) -> dict[str, Trace]:
    found = {
        name: at_most(with_interval(NUM_NODES, interval_s, TRACE_HOURS, f"made up like {name}"), NUM_NODES)
        for name, interval_s in TRACE_INTERVALS_S.items()
    }
    recorded = recorded_p3(folder)
    if recorded is not None:
        found["EC2 P3, recorded"] = at_most(recorded, NUM_NODES)
    return found


def over_time(outcome: Outcome) -> list[tuple[float, float]]:
    """Hours, and thousands of samples trained by then and not lost."""
    return [(0.0, 0.0), *((at_s / HOUR_S, samples / 1000) for at_s, samples in outcome.trained)]


def section(traces: Path | None = None) -> Section:
    found = used_traces(traces)
    rows = []
    plots = []
    smallest = []
    similar = []
    gains: dict[str, list[float]] = {"as described": [], "with the best interval": [], GOES_BACK: []}
    for name, trace in found.items():
        for model in MODELS:
            templates = replay(oobleck(model), trace)
            notice_s = NOTICE_S[name.split()[0]]
            morphing = replay(varuna(model, CHECKPOINT_STEPS, notice_s=notice_s), trace)
            better = best_varuna(model, trace, notice_s=notice_s)
            rows.append(Row(what=f"{name}, {model}, Oobleck", paper=None, ours=templates.samples_per_s))
            rows.append(Row(what=f"{name}, {model}, Varuna", paper=None, ours=morphing.samples_per_s))
            rows.append(Row(what=f"{name}, {model}, Varuna, best interval", paper=None, ours=better.samples_per_s))
            if model != HUNG:
                gains["as described"].append(templates.samples / morphing.samples)
                gains["with the best interval"].append(templates.samples / better.samples)
                goes_back = varuna(model, CHECKPOINT_STEPS, notice_s=notice_s)
                goes_back.saves_for_joins = False
                gains[GOES_BACK].append(templates.samples / replay(goes_back, trace).samples)
            if model == SMALLEST:
                smallest.append(morphing.samples / templates.samples)
            elif model not in (SHOWN, HUNG):
                similar.append(morphing.samples / templates.samples)
            if model in OURS:
                own = Ours.run("templates", *own_terms(model), [trace])
                rows.append(Row(what=f"{name}, {model}, ours, templates", paper=None, ours=own.throughput))
            if model == SHOWN:
                series = {
                    "Oobleck": over_time(templates),
                    "Varuna": over_time(morphing),
                    "Varuna, best interval": over_time(better),
                }
                picture = lines(series, x="hours", y="samples trained, thousands", title=f"{model}, {name}")
                plot = "oobleck_figure10_" + name.lower().replace(" ", "_").replace(",", "")
                plots.append(Plot(name=plot, caption=f"Training of {model} on a trace like {name}", svg=picture))
    return Section(
        key="oobleck_figure10",
        source="Oobleck, Figure 10",
        title="throughput on spot traces",
        setting=(
            f"30 nodes at most. {'; '.join(described(trace) for trace in found.values())}. Made-up nodes come two by "
            "two, as they do on average in the recorded P3 trace. Systems as in Table 2; "
            "joins are changes like losses. Varuna saves when it is warned, where saving takes no longer than the "
            "warning (two minutes on EC2, 30 s on GCP); joins wait for that. The figure's values are not in the "
            "paper's text; what the text says is compared."
        ),
        comparisons=[
            Comparison(title="samples/s", rows=rows),
            Comparison(
                title="Oobleck over Varuna",
                rows=[
                    Row(what=f"largest gain where Varuna gets on, {how}", paper=LARGEST_GAIN, ours=max(over))
                    for how, over in gains.items()
                ],
            ),
        ],
        verdict=(
            "As in the paper the gap grows with the model: saving GPT-3 2.7b takes longer than the warning, so every "
            "preemption throws Varuna back, and GPT-3 6.7b makes next to no progress. Varuna checkpoints every ten "
            "steps, as described, and a second time at the interval that turns out best (see Table 2); the paper's "
            "9.1 times lie between a Varuna that saves before it takes new nodes, as here, and one that goes back to "
            "its last checkpoint for them, too; which it was is not said. The paper calls the two similar for "
            "BERT-Large and for models that it does not show. Here Varuna has "
            f"{min(smallest):.0%} to {max(smallest):.0%} of Oobleck's throughput for BERT-Large and "
            f"{min(similar):.0%} to {max(similar):.0%} for GPT-2 and GPT-3 Medium, because nodes come or go 11 to 16 "
            "times an hour, and each time is a restart of half a minute, before it a checkpoint, and the loss of the "
            "step in progress, which lasts one to seven minutes for these two."
        ),
        plots=plots,
    )


if __name__ == "__main__":
    run(section)
