"""Small tables of text: a plan, and what a decision weighed. The same on terminals, in lines and in answers."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Collection, Iterable, Sequence

from planaria.plan.quantities import ranges, size
from planaria.policy.candidate_record import CandidateRecord
from planaria.protocol.messages.records import PlanTaken
from planaria.protocol.messages.user import LinkFigures
from planaria.runtime.run_folder.sentences import bit_rate, duration, layer_range, link_class, plan_headline

WIDTH = 100
"""Characters in a line, where nothing says how wide the screen is."""

MOST_ROWS = 6
"""Pipelines with a row each; where they are more, equal ones share a row."""

_GAP = "  "
_LEAST_WRAPPED = 20


def plan_news(plan: PlanTaken, devices_per_node: int | None, width: int = WIDTH) -> list[str]:
    """Returns a plan's figures, its table and its reason, in lines; `devices_per_node` None: without the table."""
    shown: list[str] = []
    if devices_per_node is not None and plan.purpose not in ("finish step", "warm up"):
        shown = plan_table(plan.pipelines, plan.microbatches, devices_per_node, width - len(_GAP))
    reason = textwrap.wrap(plan.reason, width - len(_GAP), break_long_words=False, break_on_hyphens=False)
    return [plan_headline(plan), *(_GAP + line for line in (*shown, *reason))]


def plan_table(
    pipelines: Sequence[Sequence[tuple[int, int, int]]],
    microbatches: Sequence[int],
    devices_per_node: int,
    width: int = WIDTH,
) -> list[str]:
    """Returns a plan as a table: for each pipeline its microbatches, its nodes and their layers, in the same order.

    Where stages are on several devices of a node, the pipelines of these are one, and their number is told.

    Args:
        pipelines: for each, its stages as (worker, first layer, end layer).
        microbatches: of each pipeline.
        devices_per_node: each has a worker.
        width: characters in a line.
    """
    lanes = num_lanes(pipelines, devices_per_node)
    pipelines, microbatches = pipelines[::lanes], by_lanes(microbatches, lanes)
    cuts = [_cuts(stages, devices_per_node) for stages in pipelines]
    alike: dict[object, list[int]] = {}
    for number, (cut, share) in enumerate(zip(cuts, microbatches, strict=True)):
        alike.setdefault((cut, share) if len(cuts) > MOST_ROWS else number, []).append(number)
    rows = []
    for first, *more in alike.values():
        nodes = [worker // devices_per_node for number in (first, *more) for worker, _, _ in pipelines[number]]
        each = f"{microbatches[first]} each" if more else str(microbatches[first])
        devices = (str(lanes),) if lanes > 1 else ()
        rows.append((listed((first, *more)), each, listed(dict.fromkeys(nodes)), *devices, cuts[first]))
    headings = ("pipeline", "microbatches", "nodes", *(("devices a stage",) if lanes > 1 else ()), "layers")
    return text_table(headings, rows, left=(2, len(headings) - 1), width=width)


def candidate_table(candidates: Sequence[CandidateRecord], width: int = WIDTH) -> list[str]:
    """Returns what a decision weighed as a table, the best first."""
    rows = [
        (
            f"{candidate.name}{' (degraded)' if candidate.is_degraded else ''}",
            f"{candidate.samples_per_s:.4g}",
            duration(candidate.step_time_s),
            duration(candidate.transition_s),
            size(candidate.transfer_bytes) if candidate.transfer_bytes else "",
            size(candidate.memory_bytes),
            duration(candidate.risk_s) if candidate.risk_s else "",
        )
        for candidate in candidates
    ]
    headings = ("candidate", "samples/s", "a step", "transition", "moves", "memory", "risk")
    return text_table(headings, rows, left=(0,), width=width)


def link_table(links: Sequence[LinkFigures]) -> list[str]:
    """Returns measured links as a table: by class, then the pairs that are far off."""
    rows = [
        (link_class(link.name), str(link.pairs), f"{1e3 * link.latency_s:.2f} ms", bit_rate(link.bytes_per_s))
        for link in links
    ]
    return text_table(("links", "pairs", "latency", "bandwidth"), rows, left=(0,))


def listed(numbers: Iterable[int]) -> str:
    """Formats numbers in their order, three or more that follow each other by their ends: "0, 1, 4-7"."""
    parts: list[str] = []
    for first, end in ranges(numbers):
        parts += [f"{first}-{end - 1}"] if end - first > 2 else map(str, range(first, end))
    return ", ".join(parts)


def text_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[int], width: int = WIDTH
) -> list[str]:
    """Returns rows below their headings, aligned to the right but for the columns `left`.

    A last column that is one of them is folded where lines would be too long.
    """
    sizes = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    last = len(headings) - 1
    room = max(_LEAST_WRAPPED, width - sum(sizes[:-1]) - len(_GAP) * last)
    lines = []
    for row in (headings, *rows):
        cells = [
            cell.ljust(wide) if at in left else cell.rjust(wide)
            for at, (cell, wide) in enumerate(zip(row, sizes, strict=True))
        ]
        margin = len(_GAP.join([*cells[:-1], ""]))
        folded = textwrap.wrap(row[-1], room, break_on_hyphens=False) if last in left else []
        lines.append((_GAP.join(cells[:-1] + (folded[:1] or cells[-1:]))).rstrip())
        lines += [" " * margin + line for line in folded[1:]]
    return lines


def num_lanes(pipelines: Sequence[Sequence[tuple[int, int, int]]], devices_per_node: int) -> int:
    """Returns on how many devices of a node each stage is: so many pipelines that follow each other differ in their
    workers' places on these nodes alone, and are told as one.

    Args:
        pipelines: for each, its stages as (worker, first layer, end layer).
        devices_per_node: each has a worker.
    """

    def placed(stages: Sequence[tuple[int, int, int]], lane: int) -> list[tuple[int, int, int, int]]:
        return [
            (worker // devices_per_node, worker % devices_per_node - lane, first, end) for worker, first, end in stages
        ]

    for devices in range(min(devices_per_node, len(pipelines)), 1, -1):
        groups = [pipelines[at : at + devices] for at in range(0, len(pipelines), devices)]
        if all(
            len(group) == devices
            and all(placed(stages, lane) == placed(group[0], 0) for lane, stages in enumerate(group))
            for group in groups
        ):
            return devices
    return 1


def by_lanes(microbatches: Sequence[int], lanes: int) -> list[int]:
    """Returns how many microbatches pipelines run that are told as one, so many each."""
    return [sum(microbatches[at : at + lanes]) for at in range(0, len(microbatches), lanes)]


def _cuts(stages: Sequence[tuple[int, int, int]], devices_per_node: int) -> str:
    """Formats a pipeline's layers, those of a node's devices with commas between: "0-3, 4-7 | 8-11"."""
    nodes = itertools.groupby(stages, key=lambda stage: stage[0] // devices_per_node)
    return " | ".join(", ".join(layer_range(first, end) for _, first, end in held) for _, held in nodes)
