"""Odyssey, Table I: what each kind of system pays without failures, while it handles one, and after it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from grids import state_bytes
from odyssey_data import NUM_DEVICES, TABLE_1
from odyssey_models import PAUSE_S, grids
from oobleck_models import INITIALISATION_S, storage_bytes_per_s
from replay import Changes, Node, System
from section import Comparison, Row, Section, run
from systems import Oobleck, ReCycle, Varuna

from planaria.plan.plan import PlanError
from planaria.plan.settings import Objective
from planaria.planner.templates.templates import make_templates

REDUNDANCY = {"Bamboo": 0.1977}
"""Bamboo's Table 4: eager FRC and lazy BRC, BERT."""
LOST = (5, 10, 15, 20, 25, 30)
"""Devices, one after the other."""


def shadow_memory() -> float:
    """How many times the memory of the fullest device Bamboo needs in the same pipelines: nodes of the smallest
    pipeline with shadows, over those without."""
    settings = grids(Objective.STEP_TIME).settings
    profile = grids(Objective.STEP_TIME).profile
    plain = make_templates(profile, dataclasses.replace(settings, fault_tolerance=0))[0].num_nodes
    try:
        shadowed = make_templates(profile, dataclasses.replace(settings, fault_tolerance=0, shadows=True))[0].num_nodes
    except PlanError:
        return float("inf")
    return shadowed / plain


def section(traces: Path | None = None) -> Section:
    grid = grids(Objective.OOBLECK)
    restart_s = INITIALISATION_S + state_bytes(grid.profile) / storage_bytes_per_s()
    systems: dict[str, System] = {
        "Varuna": Varuna(grids=grid, restart_s=restart_s, checkpoints=None),
        "Oobleck": Oobleck(grids=grid, pause_s=PAUSE_S),
        "ReCycle": ReCycle(grids=grid, restart_s=PAUSE_S),
    }
    nodes = [Node(f"node{at}") for at in range(NUM_DEVICES)]
    free: dict[str, float] = {"Bamboo": REDUNDANCY["Bamboo"]}
    pause: dict[str, float] = {}
    after: dict[str, float] = {"Bamboo": 1 + REDUNDANCY["Bamboo"]}
    later: dict[str, float] = {"Bamboo": 1 + REDUNDANCY["Bamboo"]}
    best_s = min(found.step_s for system in systems.values() if (found := system.start(nodes)) is not None)
    pause["Bamboo"] = best_s * (1 + REDUNDANCY["Bamboo"])
    for name, system in systems.items():
        before = system.start(nodes)
        answers = [system.change(Changes(at_s=0.0, lost=(nodes[at],))) for at in LOST]
        first, last = answers[0].mode, answers[-1].mode
        assert before is not None
        assert first is not None
        assert last is not None
        free[name] = before.step_s / best_s - 1
        pause[name] = answers[0].pause_s
        after[name] = first.step_s / best_s
        later[name] = last.step_s / best_s

    def rows(values: dict[str, float], word: int) -> list[Row]:
        return [Row(what=f"{name} (paper: {TABLE_1[name][word]})", paper=None, ours=values[name]) for name in TABLE_1]

    memory = {"Bamboo": shadow_memory(), "Varuna": 1.0, "Oobleck": 1.0, "ReCycle": 1.0}
    return Section(
        key="odyssey_table1",
        source="Odyssey, Table I",
        title="what each kind of system pays",
        setting=(
            "The table has words; these are numbers for them, for Llama-2 7B on 32 devices of which one is lost, "
            f"systems as in Figure 9 and Oobleck's Table 2 (Varuna loads at {storage_bytes_per_s() / 1e9:.2f} GB/s; "
            "the steps that it does again come on top). Bamboo's overhead is its own Table 4's; its pause is a step."
        ),
        comparisons=[
            Comparison(title="overhead of the step without failures", rows=rows(free, 0)),
            Comparison(title="pause at a failure, s", rows=rows(pause, 1)),
            Comparison(title="step after it, over the step without failures", rows=rows(after, 2)),
            Comparison(title=f"step after {len(LOST)} of them", rows=rows(later, 2)),
            Comparison(title="nodes of the smallest pipeline, over the fewest", rows=rows(memory, 3)),
        ],
        verdict=(
            "The ordering is the paper's. Without failures only redundant computation costs anything to speak of "
            f"(ReCycle's {free['ReCycle']:.1%} is its closed form's, in which every stage takes as long as the "
            "slowest). A failure "
            "costs rerouting nothing, a shadow a step, templates a transfer, and checkpoints a restart. After it "
            "rerouting is as good as new pipelines for one loss (its batch fits the bubbles, and new pipelines are "
            "of uneven sizes) and falls behind with each further one, which is why Odyssey chooses each time. "
            "Bamboo's row after losses is its paper's: that a worker with two stages' work slows its pipeline down "
            "is not in it. The table's columns of memory while a failure is handled and after it name no amounts."
        ),
    )


if __name__ == "__main__":
    run(section)
