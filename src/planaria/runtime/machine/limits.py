"""The limits of one machine: how many workers it may run, how many files they open, and how many share its cores.

More workers than it is meant for are a slip of the pen, and would take the machine down: they are refused before
anything is started or recorded. Starts nothing itself.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path

from planaria.job.errors import UserError
from planaria.job.registry import Launcher
from planaria.job.sections.cluster import Device
from planaria.job.settings import Job
from planaria.runtime.thresholds import (
    FILES_BESIDE,
    MOST_FILES,
    WORKER_BYTES,
    WORKERS_A_PROCESSOR,
    WORKERS_ON_ANY_MACHINE,
)

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def check_machine_limits(job: Job) -> None:
    """Refuses a job whose nodes cannot all be meant to be processes of this machine.

    Raises:
        UserError: they are too many.
    """
    most, cluster = most_workers(job), job.cluster
    workers = cluster.least_nodes * cluster.devices_per_node
    if most is not None and workers > most:
        fewer = f"cluster.nodes = {most // cluster.devices_per_node} or fewer"
        if cluster.devices_per_node > most:
            fewer = "fewer cluster.devices_per_node"
        raise UserError(
            f"cluster.nodes = {cluster.least_nodes} would start {workers} workers on this machine, which is for {most} "
            f"at most ({_why(job)}). Set {fewer}, "
            f'cluster.launcher = "agents" for other hosts, or cluster.most_workers = {workers} if that is meant.'
        )
    _, may_open = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most is not None and may_open != resource.RLIM_INFINITY and may_open < workers + FILES_BESIDE:
        raise UserError(
            f"a process may open {may_open} files here (ulimit -n), which is too few for {workers} workers on this "
            f"machine. Raise the limit, for instance ulimit -n {MOST_FILES}, or set fewer cluster.nodes."
        )


def raise_file_limit() -> None:
    """Lets this process and what it forks open as many files as they may: shells give a tenth of that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def num_cores() -> float:
    """Returns how many cores this process and its children may use at a time: by affinity, and by the quotas of the
    control groups that they are in."""
    return min([float(_processors()), *_quotas()])


def shared_cores(job: Job) -> float | None:
    """Returns the cores of this machine that the job's workers share, if each has less than one; None: they have one
    each, or devices of their own, or are on other hosts."""
    if job.cluster.device is not Device.CPU or job.cluster.launcher is not Launcher.LOCAL:
        return None
    cores = num_cores()
    return cores if cores < job.cluster.least_nodes * job.cluster.devices_per_node else None


def _quotas() -> Iterator[float]:
    """Yields the quotas, in cores, of this process's control group and all above it: of cgroup v2, then of v1."""
    try:
        groups = [line.split(":", 2) for line in (PROC / "self/cgroup").read_text().splitlines()]
    except OSError:
        return
    for number, controllers, path in groups:
        is_old = "cpu" in controllers.split(",")
        if not is_old and number != "0":
            continue
        root = CGROUPS / "cpu" if is_old else CGROUPS
        names = ["cpu.cfs_quota_us", "cpu.cfs_period_us"] if is_old else ["cpu.max"]
        own = root / path.strip("/")
        for folder in (own, *own.parents):
            if not folder.is_relative_to(root):
                break
            yield from _quota(folder, names)


def _quota(folder: Path, names: Sequence[str]) -> Iterator[float]:
    """Yields the quota of one control group in cores; nothing where there is no limit."""
    try:
        quota, period = " ".join((folder / name).read_text() for name in names).split()
    except (OSError, ValueError):
        return
    if quota.isdecimal() and int(quota) > 0:
        yield int(quota) / int(period)


def most_nodes(job: Job) -> int | None:
    """Returns how many nodes may be processes of this machine at a time; None: the job's nodes are hosts."""
    most = most_workers(job)
    return None if most is None else max(1, most // job.cluster.devices_per_node)


def most_workers(job: Job) -> int | None:
    """Returns how many workers may be processes of this machine at a time; None: the job's nodes are hosts."""
    if job.cluster.launcher is not Launcher.LOCAL:
        return None
    usual = max(WORKERS_ON_ANY_MACHINE, WORKERS_A_PROCESSOR * _processors())
    return job.cluster.most_workers or min(usual, _in_memory())


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def memory_bytes() -> int:
    """Returns the memory of this machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _in_memory() -> int:
    return max(1, memory_bytes() // WORKER_BYTES)


def _why(job: Job) -> str:
    if job.cluster.most_workers:
        return "cluster.most_workers"
    number = _processors()
    return f"{number} processor{'s' if number > 1 else ''}, {_in_memory() * WORKER_BYTES / 1e9:.3g} GB of memory"
