"""How many workers one machine is meant to run. More are a slip of the pen, and would take the machine down.

It refuses before anything is started or recorded, and starts nothing itself.
"""

from __future__ import annotations

import os

from planaria.job.errors import UserError
from planaria.job.settings import Job, Launcher

WORKERS_A_PROCESSOR = 64
"""Emulated workers wait most of the time: some tens of them to a processor still keep to their profile's times."""

ON_ANY_MACHINE = 256
"""Workers that are let start however few processors there are, as far as there is memory for them."""

WORKER_BYTES = 16 << 20
"""Of memory: no worker takes less, whatever it trains."""


def check_crowding(job: Job) -> None:
    """Refuse a job whose nodes cannot all be meant to be processes of this machine.

    Raises:
        UserError: they are too many.
    """
    most, cluster = most_workers(job), job.cluster
    workers = cluster.nodes * cluster.devices_per_node
    if most is not None and workers > most:
        fewer = f"cluster.nodes = {most // cluster.devices_per_node} or fewer"
        if cluster.devices_per_node > most:
            fewer = "fewer cluster.devices_per_node"
        raise UserError(
            f"cluster.nodes = {cluster.nodes} would start {workers} workers on this machine, which is for {most} at "
            f"most ({_why(job)}). Set {fewer}, "
            f'cluster.launcher = "agents" for other hosts, or cluster.most_workers = {workers} if that is meant.'
        )


def most_nodes(job: Job) -> int | None:
    """That may be processes of this machine at a time; None: the job's nodes are hosts."""
    most = most_workers(job)
    return None if most is None else max(1, most // job.cluster.devices_per_node)


def most_workers(job: Job) -> int | None:
    """That may be processes of this machine at a time; None: the job's nodes are hosts."""
    if job.cluster.launcher is Launcher.AGENTS:
        return None
    return job.cluster.most_workers or min(max(ON_ANY_MACHINE, WORKERS_A_PROCESSOR * _processors()), _in_memory())


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def _in_memory() -> int:
    return max(1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // WORKER_BYTES)


def _why(job: Job) -> str:
    if job.cluster.most_workers:
        return "cluster.most_workers"
    number = _processors()
    return f"{number} processor{'s' if number > 1 else ''}, {_in_memory() * WORKER_BYTES / 1e9:.3g} GB of memory"
