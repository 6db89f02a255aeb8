"""Oobleck, Figure 11: where the time goes."""

from __future__ import annotations

from pathlib import Path

from oobleck_data import CHECKPOINT_STEPS, FREQUENCIES_S
from oobleck_models import monotonic, oobleck, varuna
from pictures import shares
from replay import Outcome, replay
from section import Comparison, Plot, Row, Section, run

MODELS = ("BERT-Large", "GPT-3 6.7b")
CAUSES = {"training": "progress", "redone": "fallback", "checkpoint": "checkpoints", "restart": "restart or copying"}

OOBLECK_LEAST = 0.75
VARUNA_WASTE = 0.95
"""Section 7.4.2: Oobleck's throughput is at least 75% of that without failures, Varuna wastes up to 95%."""


def section(traces: Path | None = None) -> Section:
    outcomes: dict[tuple[str, str, str], Outcome] = {}
    for model in MODELS:
        for frequency in FREQUENCIES_S:
            outcomes["Oobleck", model, frequency] = replay(oobleck(model), monotonic(frequency))
            outcomes["Varuna", model, frequency] = replay(varuna(model, CHECKPOINT_STEPS), monotonic(frequency))
    rows = {
        f"{system}, {model}, {frequency}": {label: outcome.share(cause) for cause, label in CAUSES.items()}
        for (system, model, frequency), outcome in outcomes.items()
    }
    least = min(o.share("training") for (system, *_), o in outcomes.items() if system == "Oobleck")
    waste = max(1 - o.share("training") for (system, *_), o in outcomes.items() if system == "Varuna")
    return Section(
        key="oobleck_figure11",
        source="Oobleck, Figure 11",
        title="where the time goes",
        setting=(
            "As Table 2, by cause. The figure's bars are not in the paper's text; what its text says of them is "
            "compared. Bamboo is left out: more than half of its bar is redundant computation and what the paper "
            "cannot separate from it."
        ),
        comparisons=[
            Comparison(
                title="shares of the time",
                rows=[
                    Row(what="Oobleck, least share of progress", paper=OOBLECK_LEAST, ours=least),
                    Row(what="Varuna, largest waste", paper=VARUNA_WASTE, ours=waste),
                ],
            )
        ],
        verdict="Both of the text's statements hold here.",
        plots=[Plot(name="oobleck_figure11", caption="Where the time goes", svg=shares(rows, x="share of the time"))],
    )


if __name__ == "__main__":
    run(section)
