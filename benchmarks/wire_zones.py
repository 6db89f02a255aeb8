"""Bamboo's Table 5 for real: pipelines over two zones against one zone: `wire.py zones`.

A zone is a switch, with one cable to the other at half the rate of a host's.
"""

from __future__ import annotations

import statistics

import fidelity
from figures import Figures, note
from hosts import cluster
from wire_cases import GBIT, JOB, Size, hosts
from wire_plans import alone

PLAN = ((3, 6), (3, 6))
ONE_ZONE = "one-zone"
ORDERS = {
    "spread": ("a", "b", "b", "a"),
    "pipelines-in-zones": ("a", "a", "b", "b"),
    "layers-in-zones": ("a", "b", "a", "b"),
}
"""Zones of the stages. Spread as Bamboo does: neighbours of a pipeline are in different zones, and so are replicas."""


def zones(figures: Figures, size: Size) -> None:
    """Two pipelines of two stages on four hosts, in turns."""
    job = ['train.numerics="exact"', "train.global_batch=8", *fidelity.f_n0(1, 2)]
    for gbits in size.gbits:
        title, steps_s = f"wire.zones.{gbits:g}-Gbit/s", dict[str, list[float]]()
        for _ in range(size.turns):
            for name, order in {ONE_ZONE: None, **ORDERS}.items():
                with hosts(4, gbits) as made:
                    if order is not None:
                        made.network.join_switches(gbits * GBIT / 2)
                        made.network.split_off(*made.network.hosts[-2:])
                    places = () if order is None else "aabb"
                    side = cluster(made, name, JOB, *job, plan=PLAN, zones=places, order=order)
                    run = alone(side, size)
                    steps_s.setdefault(name, []).append(run.step_s)
                    note(f"{title}.{name}: {run.step_s * 1e3:.0f} ms, estimated {run.estimated_s * 1e3:.0f} ms")
        for name in ORDERS:
            ratios = [one / other for one, other in zip(steps_s[ONE_ZONE], steps_s[name], strict=True)]
            figures.add(
                f"{title}.{name}-throughput-over-one-zone", statistics.median(ratios), "ratio", samples=len(ratios)
            )
