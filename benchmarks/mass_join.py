"""What the coordinator's machine computes while thousands of nodes are started and join at once, without sockets.

Each node is asked for (`no_room`), tells its links and joins, in one of four zones. plain: so many nodes as the run
begins on. range: a run of two nodes that grows to as many, with prices.

joins.cpu: processor time of all of them; last-tenth: of one of the last tenth, beside one of the first.
losses: nodes that go one after the other in one step of pipelines of 16, each once the plan without the one before is
told, with half of what was theirs done: processor time from a loss to its plan, of the first and of the last, and how
many workers are told that plan at once.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path

from crowd_members import Shares
from figures import Figures
from made_up import uniform_profile

from planaria.job.sections.budget import BudgetSection
from planaria.job.sections.train import TrainSection
from planaria.plan.ledger import Ledger, combine, mask_of, members_of
from planaria.plan.plan import NodeId, WorkerId
from planaria.plan.settings import PlannerSettings
from planaria.policy.planner import Planner
from planaria.policy.templates import TemplatesPolicy
from planaria.protocol.coordinator import Coordinator
from planaria.protocol.messages.events import Command, Event, LinksMeasured, NodeGone, Received, Send, WorkerJoined
from planaria.protocol.messages.from_worker import Ready, Report
from planaria.protocol.messages.run_measurements import HostLink
from planaria.protocol.messages.to_worker import Halt, PlanMessage
from planaria.protocol.run.settings import RunSettings

LEAST = 2
LAYERS, DEPTH, MICROBATCHES = 24, 16, 16
"""Of the model that nodes are lost of; of a pipeline, and of each."""


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


def lose(nodes: int, losses: int) -> tuple[list[float], list[int]]:
    """Returns of each of so many losses the processor seconds to the plan that finishes the step, and how many workers
    are told that at once, in order."""
    pipelines = nodes // DEPTH
    profile = uniform_profile(LAYERS, 1e-3, parameter_bytes=1 << 20, output_bytes=1)
    planned = PlannerSettings(
        num_microbatches=pipelines * MICROBATCHES,
        fault_tolerance=1,
        num_nodes=nodes,
        devices_per_node=1,
        min_nodes=DEPTH,
    )
    settings = RunSettings(
        train=TrainSection(steps=10_000, global_batch=pipelines * MICROBATCHES, microbatch=1, sequence_length=8),
        policy_name="templates",
        fault_tolerance=1,
        num_nodes=nodes,
        devices_per_node=1,
        num_groups=LAYERS,
        checkpoint_root="checkpoints",
        checkpoint_every=0,
        resume=None,
    )
    machine = Coordinator(settings, TemplatesPolicy.of(Planner(profile, planned)))
    commands: Sequence[Command] = ()
    for number in range(nodes):
        commands = machine.handle(WorkerJoined(WorkerId(number), f"10.0.0.1:{number + 1}", ""), 0.0)
    message = _plan_of(commands)
    assert message is not None
    for worker in message.plan.workers:
        machine.handle(Received(worker, Ready(generation=message.plan.generation)), 0.0)
    carried: dict[WorkerId, Ledger] = {}
    took_s, acting = [], []
    for number, lost in enumerate(random.Random(1).sample(message.plan.workers, losses)):
        now, plan, took = 0.001 * number, message.plan, 0.0
        counted = Shares.of(plan).counted
        events: deque[Event] = deque([NodeGone(NodeId(lost), "connection closed")])
        while events:
            event = events.popleft()
            began = time.process_time()
            commands = machine.handle(event, now)
            took += time.process_time() - began
            for told in commands:
                if isinstance(told, Send) and isinstance(told.message, Halt):
                    half = {layer: _lower_half(mask) for layer, mask in counted.get(told.worker, {}).items()}
                    own = Ledger.from_bits(half.get(layer, 0) for layer in range(LAYERS))
                    own = combine((own, carried.get(told.worker, own)), LAYERS)[0]
                    carried[told.worker] = own
                    report = Report(generation=plan.generation, step=1, ledger=own, held=plan.groups_of[told.worker])
                    events.append(Received(told.worker, report))
            message = _plan_of(commands) or message
        assert message.plan.generation > plan.generation
        if message.afresh:
            carried.clear()
        took_s.append(took)
        acting.append(sum(isinstance(told, Send) and not told.may_wait for told in commands))
    return took_s, acting


def _plan_of(commands: Sequence[Command]) -> PlanMessage | None:
    sent = (command.message for command in commands if isinstance(command, Send))
    return next((message for message in sent if isinstance(message, PlanMessage)), None)


def _lower_half(mask: int) -> int:
    bits = members_of(mask)
    return mask_of(bits[: len(bits) // 2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="*", default=[256, 1024, 4096], help="(default: %(default)s)")
    parser.add_argument("--losses", type=int, default=30, help="in one step (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    given = parser.parse_args()
    figures = Figures("nodes that join a coordinator's machine, and that it loses")
    for nodes in given.nodes:
        for kind in ("plain", "range"):
            took_s = measure(nodes, has_range=kind == "range")
            tenth = max(1, nodes // 10)
            figures.add(f"joins.{nodes}.{kind}.cpu", 1e3 * sum(took_s), "ms")
            figures.add(f"joins.{nodes}.{kind}.last-tenth", sum(took_s[-tenth:]) / sum(took_s[:tenth]), "ratio")
        took_s, acting = lose(nodes, given.losses)
        for name, at in (("first", 0), ("last", -1)):
            figures.add(f"losses.{nodes}.{name}", 1e3 * took_s[at], "ms")
            figures.add(f"losses.{nodes}.{name}.act", acting[at], "workers")
        figures.add_samples(f"losses.{nodes}", [1e3 * took for took in took_s], "ms")
    figures.finish(given.json)


if __name__ == "__main__":
    main()
