"""Oobleck, Table 4: Varuna with and without the cost of checkpoints."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from oobleck_data import CHECKPOINT_STEPS, CHECKPOINT_STEPS_FREE, FREQUENCIES_S, NUM_NODES, TABLE_2, TABLE_4_FREE
from oobleck_models import is_fitted, monotonic, oobleck, varuna
from replay import replay
from section import Comparison, Row, Section, run


def is_free(model: str, frequency: str) -> bool:
    """Whether a cell without the cost of checkpoints went into `storage_bytes_per_s` or INITIALISATION_S."""
    return frequency == "6h" or model == "BERT-Large"


def section(traces: Path | None = None) -> Section:
    comparisons = []
    for title, paper, make, fitted in (
        ("Varuna", TABLE_2["Varuna"], lambda model: varuna(model, CHECKPOINT_STEPS), partial(is_fitted, "Varuna")),
        ("Varuna (no ckpt)", TABLE_4_FREE, lambda model: varuna(model, CHECKPOINT_STEPS_FREE, is_free=True), is_free),
        ("Oobleck", TABLE_2["Oobleck"], oobleck, partial(is_fitted, "Oobleck")),
    ):
        rows = [
            Row(
                what=f"{model}, a loss every {frequency}",
                paper=paper[model][at],
                ours=replay(make(model), monotonic(frequency)).samples_per_s,
                is_fitted=fitted(model, frequency),
            )
            for model in TABLE_4_FREE
            for at, frequency in enumerate(FREQUENCIES_S)
        ]
        comparisons.append(Comparison(title=f"{title}, samples/s", rows=rows))
    system = varuna("GPT-3 6.7b", CHECKPOINT_STEPS_FREE, is_free=True)
    shortest = system.grids.symmetric(NUM_NODES)
    assert shortest is not None
    shortest_s = shortest[2]
    free = next(comparison for comparison in comparisons if "no ckpt" in comparison.title)
    worst = max(abs(row.ratio - 1) for row in free.rows if row.ratio is not None and row.what.startswith("BERT"))
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
            f"BERT-Large comes within {worst:.0%} in all cells without checkpoint costs. GPT-3 6.7b loses more than "
            "nine tenths of its speed at a loss every 10 minutes, there as here: a restart takes "
            f"{system.restart_s / 60:.1f} minutes and a step {shortest_s / 60:.1f} or more, so that between two losses "
            "it gets through one step and not through the two that are saved together. Such small figures are a "
            "matter of single steps: the paper's 0.36 samples/s are 3.4 steps in all, ours the 2 before the first "
            "loss; its 0.12 with checkpoints are 1.1 steps, and ours none."
        ),
    )


if __name__ == "__main__":
    run(section)
