"""A raylet is killed under a job: from there to the next step, with Planaria's agents and with Ray Train's restart.

One Ray cluster of this machine, with a raylet to spare, for both, one attempt of each after the other. Needs
`pip install "ray[train]"`. `python ray_restart.py [ATTEMPTS]`
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figures import SCRATCH, Figures, note
from ray.cluster_utils import Cluster
from sides import BASELINES

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.engines.watched_run import small_job

NODES = 3
STEPS_BEFORE = 40
EVERY = 25
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}
HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 2,
}
"""Ray sees a dead raylet after less than two seconds, in place of 14."""
DEADLINE_S = 180.0


def main(attempts: int) -> None:
    head = {**NODE, "num_cpus": 0, "include_dashboard": False, "_system_config": HEALTH_CHECKS}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    planaria: list[dict[str, float]] = []
    train: list[dict[str, float]] = []
    try:
        for _ in range(NODES + 1):
            cluster.add_node(**NODE)
        for _ in range(attempts):
            for side, found in ((planaria_once, planaria), (ray_train_once, train)):
                folder = SCRATCH / "ray"
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                found.append(side(cluster, folder))
                note(f"{side.__name__}: {found[-1]}")
                cluster.add_node(**NODE)
    finally:
        cluster.shutdown()
    figures = Figures("a raylet is killed")
    for name, found in (("planaria", planaria), ("ray_train", train)):
        for key in found[0]:
            unit = "s" if key.endswith("_s") else "count"
            samples = sorted(one[key] for one in found)
            for which, value in (("median", statistics.median(samples)), ("longest", samples[-1])):
                figures.add(f"ray_restart.{name}.{key.removesuffix('_s')}.{which}", value, unit, samples=len(samples))
    figures.finish(None)


def planaria_once(cluster: Cluster, folder: Path) -> dict[str, float]:
    """Seconds until a step was committed after the loss, and until as many nodes as before train again."""
    (folder / "job.toml").write_text(small_job(run=f"checkpoint_every = {EVERY}"))
    options = ["--nodes", str(NODES), "--spares", "1", "--address", cluster.address]
    command = [sys.executable, "-m", "planaria.ui.cli.main", "launch", "ray", "job.toml", *options]
    events = folder / "runs" / "job" / "events.jsonl"
    with _running(command, folder) as driver:
        _wait(driver, lambda: any(_is_step(line) and line["step"] >= STEPS_BEFORE for line in _lines(events)))
        agents = [pid for pid in _processes() if f"file:{events.parent}/address" in _command(pid)]
        killed_s = _kill(cluster, agents[-1])

        def after() -> list[dict[str, Any]]:
            lines = _lines(events)
            lost = next((at for at, line in enumerate(lines) if line["event"] == "node_lost"), len(lines))
            return [line for line in lines[lost:] if _is_step(line)]

        _wait(driver, lambda: any(line["live_nodes"] == NODES for line in after()))
        whole = next(line["time"] for line in after() if line["live_nodes"] == NODES)
        steps = [line["step"] for line in _lines(events) if _is_step(line)]
        again = float(len(steps) - len(set(steps)))
        return {"next_step_s": after()[0]["time"] - killed_s, "all_nodes_s": whole - killed_s, "steps_again": again}


def ray_train_once(cluster: Cluster, folder: Path) -> dict[str, float]:
    """Seconds until rank 0 has done a step in its next life, and how many steps were done again."""
    log = folder / "steps.jsonl"
    arguments = [cluster.address, str(folder), str(NODES), "100000", str(EVERY)]
    with _running([sys.executable, str(BASELINES / "ray_ddp.py"), *arguments], folder) as driver:
        _wait(driver, lambda: any(line.get("step", 0) >= STEPS_BEFORE for line in _lines(log)))
        workers = [line for line in _lines(log) if "pid" in line]
        killed_s = _kill(cluster, next(line["pid"] for line in workers if line["rank"] == NODES - 1))
        first = next(line["life"] for line in workers if line["rank"] == 0)

        def again() -> list[dict[str, Any]]:
            return [line for line in _lines(log) if "step" in line and line["life"] != first]

        _wait(driver, lambda: bool(again()))
        done = max(line["step"] for line in _lines(log) if "step" in line and line["life"] == first)
        took_s = again()[0]["time_s"] - killed_s
        return {"next_step_s": took_s, "all_nodes_s": took_s, "steps_again": float(done + 1 - again()[0]["step"])}


class _running:  # noqa: N801
    """A driver, until the context ends; then it is killed, and Ray ends what it had."""

    def __init__(self, command: list[str], folder: Path) -> None:
        with (folder / "driver.log").open("wb") as log:
            self._driver = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self._driver

    def __exit__(self, *error: object) -> None:
        self._driver.terminate()
        try:
            self._driver.wait(30)
        except subprocess.TimeoutExpired:
            self._driver.kill()
            self._driver.wait()


def _wait(driver: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert driver.poll() is None, "the driver has ended: see driver.log"
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _kill(cluster: Cluster, process: int) -> float:
    """Kills the raylet under which a process runs. Returns when, in seconds since 1970."""
    ancestors = [process]
    while ancestors[-1] > 1:
        ancestors.append(int(Path(f"/proc/{ancestors[-1]}/stat").read_text().rpartition(")")[2].split()[1]))
    (node,) = (node for node in cluster.worker_nodes if node.all_processes["raylet"][0].process.pid in ancestors)
    killed_s = time.time()
    cluster.remove_node(node, allow_graceful=False)
    return killed_s


def _is_step(line: dict[str, Any]) -> bool:
    return line.get("event") == "step_committed"


def _lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _command(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().split("\0")
    except OSError:
        return []


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
