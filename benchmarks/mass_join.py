"""What the coordinator's machine computes while thousands of nodes are started and join at once, without sockets.

Each node is asked for (`no_room`), tells its links and joins, in one of four zones. plain: so many nodes as the run
begins on. range: a run of two nodes that grows to as many, with prices.

join.cpu: processor time of all of them; join.node: of one of the last tenth, beside one of the first.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

from figures import Figures
from made_up import uniform_profile

from planaria.job.sections.budget import BudgetSection
from planaria.job.sections.train import TrainSection
from planaria.plan.plan import NodeId, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.messages.events import LinksMeasured, WorkerJoined
from planaria.protocol.messages.run_measurements import HostLink
from planaria.protocol.run.settings import RunSettings

LEAST = 2


def coordinator(nodes: int, *, has_range: bool) -> Coordinator:
    """Makes a machine that waits for one node more than so many, or that has begun on its least."""
    profile = uniform_profile(1, 1e-3, parameter_bytes=1 << 20, output_bytes=1)
    planned = PlannerSettings(num_microbatches=4, fault_tolerance=1, num_nodes=LEAST, devices_per_node=1)
    settings = RunSettings(
        train=TrainSection(steps=10_000, global_batch=4, microbatch=1, sequence_length=8),
        policy_name="templates",
        fault_tolerance=1,
        num_nodes=LEAST if has_range else nodes + 1,
        most_nodes=2 * nodes if has_range else None,
        devices_per_node=1,
        num_groups=1,
        checkpoint_root="checkpoints",
        checkpoint_every=0,
        resume=None,
        budget=BudgetSection(price=1.0, per_hour=1e9) if has_range else BudgetSection(),
    )
    return Coordinator(settings, TemplatesPolicy.of(Planner(profile, planned)))


def measure(nodes: int, *, has_range: bool) -> list[float]:
    """Returns the processor seconds of each join, in order."""
    machine = coordinator(nodes, has_range=has_range)
    took_s = []
    for number in range(nodes):
        host, zone = f"10.0.{number >> 8}.{number & 255}", f"zone {number % 4}"
        link = HostLink(one=host, other=f"10.0.0.{number % 251}", latency_s=1e-4, bytes_per_s=1e9)
        began = time.process_time()
        assert machine.no_room(Counter({zone: 3}), Counter({zone: 1})) is None
        machine.handle(LinksMeasured(NodeId(number), host, (link,)), 0.0)
        machine.handle(WorkerJoined(WorkerId(number), f"{host}:1", zone), 0.0)
        took_s.append(time.process_time() - began)
    return took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="*", default=[256, 1024, 4096], help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    given = parser.parse_args()
    figures = Figures("nodes that join a coordinator's machine")
    for nodes in given.nodes:
        for kind in ("plain", "range"):
            took_s = measure(nodes, has_range=kind == "range")
            tenth = max(1, nodes // 10)
            figures.add(f"joins.{nodes}.{kind}.cpu", 1e3 * sum(took_s), "ms")
            figures.add(f"joins.{nodes}.{kind}.last-tenth", sum(took_s[-tenth:]) / sum(took_s[:tenth]), "ratio")
    figures.finish(given.json)


if __name__ == "__main__":
    main()
