"""Oobleck, Table 4: Varuna with and without the cost of checkpoints."""

from __future__ import annotations

from pathlib import Path

from oobleck_data import CHECKPOINT_STEPS, CHECKPOINT_STEPS_FREE, FREQUENCIES_S, TABLE_2, TABLE_4_FREE
from oobleck_models import monotonic, oobleck, varuna
from replay import replay
from section import Comparison, Row, Section, run


def section(traces: Path | None = None) -> Section:
    comparisons = []
    for title, paper, make in (
        ("Varuna", TABLE_2["Varuna"], lambda model: varuna(model, CHECKPOINT_STEPS)),
        ("Varuna (no ckpt)", TABLE_4_FREE, lambda model: varuna(model, CHECKPOINT_STEPS_FREE, is_free=True)),
        ("Oobleck", TABLE_2["Oobleck"], oobleck),
    ):
        rows = [
            Row(
                what=f"{model}, a loss every {frequency}",
                paper=paper[model][at],
                ours=replay(make(model), monotonic(frequency)).samples_per_s,
            )
            for model in TABLE_4_FREE
            for at, frequency in enumerate(FREQUENCIES_S)
        ]
        comparisons.append(Comparison(title=f"{title}, samples/s", rows=rows))
    return Section(
        key="oobleck_table4",
        source="Oobleck, Table 4",
        title="checkpoints that cost nothing",
        setting=(
            "As Table 2. Without the cost of checkpoints, one is taken every 2 steps for nothing; a restart still "
            "loads it, at the storage's speed."
        ),
        comparisons=comparisons,
        verdict=(
            "BERT-Large comes within 5% in all cells without checkpoint costs. GPT-3 6.7b loses half to all of its "
            "speed to restarts at a loss every 10 minutes, there as here: a step takes four minutes and loading five."
        ),
    )


if __name__ == "__main__":
    run(section)
