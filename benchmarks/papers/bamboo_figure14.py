"""Bamboo, Figure 14: the bubble of each stage beside the forwards that its worker computes for its successor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from bamboo_data import DEPTH_ON_DEMAND, FIGURE_14_COVERED, MODELS
from bamboo_models import STEP_SAMPLES, bert_profile
from ours import PUBLISHED
from pictures import bars
from section import Comparison, Plot, Row, Section, run

from planaria.plan.costs.pipeline_time import Chain
from planaria.plan.costs.stage_costs import StageCosts

MICROBATCH = 8


@cache
def even_memory(num_stages: int) -> tuple[tuple[int, int], ...]:
    """The cut of BERT-Large whose fullest stage under 1F1B holds least, as the paper partitions: (first, end)."""
    costs = StageCosts(bert_profile(PUBLISHED))
    num_layers = bert_profile(PUBLISHED).num_layers

    @cache
    def best(end: int, stages: int) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Of the first `end` layers on the first `stages` stages."""
        if stages == 0:
            return (0 if end == 0 else 1 << 62), ()
        found = []
        for first in range(stages - 1, end):
            fullest, cut = best(first, stages - 1)
            own = costs.memory_bytes(first, end, num_stages - stages + 1)
            found.append((max(fullest, own), (*cut, (first, end))))
        return min(found)

    return best(num_layers, num_stages)[1]


def chain(cut: tuple[tuple[int, int], ...]) -> Chain:
    costs = StageCosts(bert_profile(PUBLISHED))
    return Chain(
        forward_s=tuple(costs.forward_s(first, end, 1) for first, end in cut),
        backward_s=tuple(costs.backward_s(first, end, 1) for first, end in cut),
        link_s=tuple(costs.link_s(first) for first, _ in cut[1:]),
    )


def held(bubbles: Sequence[float], forwards: Sequence[float]) -> float:
    """Share of all these forwards that the bubbles hold."""
    return sum(min(pair) for pair in zip(bubbles, forwards, strict=True)) / sum(forwards)


def section(traces: Path | None = None) -> Section:
    cut = even_memory(DEPTH_ON_DEMAND)
    stages = chain(cut)
    number = STEP_SAMPLES // MICROBATCH // MODELS["BERT"].num_pipelines
    busy = [f + b for f, b in zip(stages.forward_s, stages.backward_s, strict=True)]
    steady = [max(busy) - own for own in busy]
    whole = [stages.time_s(number) / number - own for own in busy]
    forwards = [*stages.forward_s[1:], stages.forward_s[0]]
    half = DEPTH_ON_DEMAND // 2
    parts = {"first": slice(half), "last": slice(half, None)}
    rows = [
        Row(
            what=f"the {name} {half} stages, {what}",
            paper=100 * FIGURE_14_COVERED[name],
            ours=100 * held(bubbles[part], forwards[part]),
        )
        for what, bubbles in (("steady phase", steady), ("whole step", whole))
        for name, part in parts.items()
    ]
    picture = bars(
        {
            f"stage {at}": {"bubble": 1e3 * bubble, "forward": 1e3 * own, "successor's forward": 1e3 * forward}
            for at, (bubble, own, forward) in enumerate(zip(steady, stages.forward_s, forwards, strict=True), 1)
        },
        y="ms a microbatch",
    )
    return Section(
        key="bamboo_figure14",
        source="Bamboo, Figure 14",
        title="bubbles beside forwards",
        setting=(
            f"BERT-Large on V100s, a pipeline of {DEPTH_ON_DEMAND} stages under 1F1B with {number} microbatches of "
            f"{MICROBATCH}, cut so that memory is even, as the paper says that it partitions: "
            f"{', '.join(str(end - first) for first, end in cut)} layers from first to last. A bubble is what a worker "
            "waits for each microbatch: in the steady phase, or in a whole step with its filling and draining. What it "
            "is to hold is the forward of the worker's successor (of the last: the first's). The paper has no numbers "
            "but that the first four bubbles hold it all, and the last four about 60% of it."
        ),
        comparisons=[
            Comparison(title="% of the successors' forwards that bubbles hold", rows=rows),
            Comparison(
                title="ms a microbatch",
                rows=[
                    Row(what=f"stage {at}, {what}", paper=None, ours=1e3 * seconds)
                    for at, three in enumerate(zip(steady, whole, stages.forward_s, strict=True), 1)
                    for what, seconds in zip(("bubble, steady", "bubble, whole step", "forward"), three, strict=True)
                ],
            ),
        ],
        verdict=(
            "Forwards grow towards the end and bubbles shrink, as in the paper, but for the last stage, whose head "
            f"keeps so much that few layers go with it. In the steady phase the first {half} stages' bubbles hold "
            f"{held(steady[:half], forwards[:half]):.0%} of what their workers compute for others, the last {half} "
            f"stages' {held(steady[half:], forwards[half:]):.0%}. With filling and draining bubbles hold all of it. "
            "The paper counts the time in which a worker waits in its sends and receives with a barrier before each, "
            "so that its bubbles have what messages take, too. Our planner would not cut so: where stages take the "
            "same time there is no bubble but of filling and draining."
        ),
        plots=[Plot(name="bamboo_figure14", caption="Bubbles beside forwards, BERT-Large", svg=picture)],
    )


if __name__ == "__main__":
    run(section)
