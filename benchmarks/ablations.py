"""Odyssey's ablations with real bytes: matched transfers against rank order, coloured sums against index order.

    PYTHONPATH=src python benchmarks/ablations.py [--quick]

The setting is the paper's (Figures 10 and 11, section V-C): Llama-2 7B cut to 4, 8 or 16 blocks on 8 devices, DP = 4
and PP = 2, one device lost, pipelines of 2, 2 and 3 stages after it; see `ablation_cases.py`. Three answers:

counts: bytes that move, and how many sums follow one another, at the paper's sizes; the mean over all eight losses.
bytes: eight worker processes of this machine move real replicas and sum real gradients over the project's transport,
    at 1/64 of the size. The way from one device to the next is this machine's memory and its two cores, which all
    share; so what counts is all the bytes, and sums side by side save nothing.
links: the same processes on the emulated device, with the links of the paper's machine, at full size (a few bytes
    travel, and arrive when all would have).

Sums, one after another: a worker begins a group's sum when its sum before is done, as collective operations do; that
is what the paper orders. Sums begun together: what this project's workers do, in which order matters least.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from ablation_cases import NUM_DEVICES, ROUNDS, Load, Loss, Moves, Ranks, turns
from figures import Figures, note
from torch import nn

from planaria.job.sections.train import Numerics, TrainSection
from planaria.model.model import GroupSpec, ParameterSpec
from planaria.plan.plan import Plan, WorkerId
from planaria.protocol.messages.to_worker import PlanMessage, StateSource
from planaria.protocol.worker.machine import WorkerMachine
from planaria.runtime.worker.compute.device.device import HostDevice
from planaria.runtime.worker.compute.device_clock import DeviceClock, OwnPace
from planaria.runtime.worker.compute.holdings import Holdings
from planaria.runtime.worker.emulated.time import EmulatedMailbox, EmulatedPace, EmulatedTransport
from planaria.runtime.worker.faults import FaultInjector
from planaria.runtime.worker.heartbeat import Heartbeat
from planaria.runtime.worker.transport.mailbox import Mailbox
from planaria.runtime.worker.transport.outbox import Outbox
from planaria.runtime.worker.transport.state_transfer import StateTransfer
from planaria.runtime.worker.transport.sync import Sync
from planaria.runtime.worker.transport.transport import Transport

SCALE = 64
"""By which real bytes are fewer than the paper's."""

EMULATED_FLOATS = 16
BLOCKS = (4, 8, 16)
LOSSES = (0, 1, 4, 7)
"""Of the eight devices, those whose loss is played out; counts are over all."""

LINKS, BYTES = "links", "bytes"

# Odyssey, section V-C: with 16 layers the transfer takes 32.35% less, and the recovery 8.2 s instead of 11.2 s.
PAPER_TRANSFER_CUT = 0.3235
PAPER_RECOVERY_S = (11.2, 8.2)
PAPER_TRANSFER_S = (PAPER_RECOVERY_S[0] - PAPER_RECOVERY_S[1]) / PAPER_TRANSFER_CUT
# Figure 11: sums take 35.35% less, and the step at batch sizes 16, 32 and 64 so much less.
PAPER_SYNC_CUT = 0.3535
PAPER_STEP_CUT = {16: 0.1144, 32: 0.1544, 64: 0.0552}


class FlatModel:
    """A model whose groups are one parameter each; see `planaria.model.model.Model`. Nothing of it is ever run."""

    masked_lm = False
    inputs = ("number",)

    def __init__(self, floats: Sequence[int]) -> None:
        self.layer_names = tuple(f"layer.{layer}" for layer in range(len(floats)))
        self.groups = tuple(
            GroupSpec(
                layers=(layer,),
                parameters=(ParameterSpec(name="w", shape=(count,), decays=True, uses=((layer, "w"),)),),
            )
            for layer, count in enumerate(floats)
        )

    def build_layer(self, index: int) -> nn.Module:
        return nn.Identity()

    def initial_state(self, group: int, seed: int) -> Mapping[str, torch.Tensor]:
        return {"w": torch.full(self.groups[group].parameters[0].shape, float(group + 1))}

    def loss(self, outputs: tuple[torch.Tensor, ...], batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        raise NotImplementedError("nothing is computed here")


class NoLayers:
    """What holds no modules; see `planaria.runtime.worker.compute.layers.LayerCompute`."""

    layers: tuple[int, ...] = ()

    def add_layer(self, layer: int, module: nn.Module, parameters: Mapping[str, torch.Tensor]) -> None:
        pass


class OverWire(Transport):
    """As between nodes, which have no memory in common."""

    def host_of(self, worker: WorkerId) -> WorkerId:
        return worker

    def memory_of(self, worker: WorkerId) -> WorkerId:
        return worker


class Member:
    """One of eight devices, in one medium.

    Args:
        rank: which one.
        medium: LINKS or BYTES.
        num_blocks: of the model.
    """

    def __init__(self, rank: int, medium: str, num_blocks: int) -> None:
        self.worker = WorkerId(rank)
        self.medium = medium
        example = Loss(num_blocks, Ranks.BY_PIPELINE, 0, SCALE)
        floats = [group.size_bytes // 4 if medium == BYTES else EMULATED_FLOATS for group in example.groups]
        self.model = FlatModel(floats)
        self.pace: DeviceClock = OwnPace()
        self.mailbox = Mailbox()
        if medium == LINKS:
            self.mailbox = mailbox = EmulatedMailbox()
            self.pace = mailbox.pace = EmulatedPace(self.worker, example.profile(), mailbox.wait_until_moment)
            self.transport: Transport = EmulatedTransport(self.worker, "token", mailbox, mailbox.pace)
        else:
            self.transport = OverWire(self.worker, "token", self.mailbox)
        self.outbox = Outbox(self.worker, self.transport, HostDevice())
        addresses: list[str] = [""] * NUM_DEVICES
        dist.all_gather_object(addresses, self.transport.start())
        self.addresses = {WorkerId(rank): address for rank, address in enumerate(addresses)}
        self.transport.set_peers({w: address for w, address in self.addresses.items() if w != self.worker})
        train = TrainSection(steps=1, global_batch=1, microbatch=1, sequence_length=1, numerics=Numerics.FAST)
        self.holdings = Holdings(self.model, train, HostDevice(), lambda count: NoLayers())  # type: ignore[arg-type, return-value]

    def hold(self, groups: Sequence[int]) -> None:
        """Have up-to-date replicas of exactly these."""
        self.holdings.keep_only(groups)
        for group in groups:
            if group not in self.holdings.replicas:
                replica = self.holdings.new_replica(group)
                replica.initialise(self.model.initial_state(group, 0))
                self.holdings.put(group, replica)

    def move(self, plan: Plan) -> float:
        """Carry out the plan's transfers; returns when this worker has all of its state."""
        machine = WorkerMachine()
        message = PlanMessage(
            plan=plan, step=1, addresses=self.addresses, exponents=(0,) * len(plan.groups), source=StateSource.LIVE
        )
        machine.handle(message)
        heartbeat = Heartbeat(lambda message: None)
        faults = FaultInjector((), lambda at: None, lambda grace_s: None)
        movement = StateTransfer(
            self.worker,
            machine,
            self.holdings,
            self.outbox,
            self.mailbox,
            heartbeat,
            faults,
            self.pace,
            lambda message: None,
        )
        self.pace.adopt(plan)
        movement.begin(message, forgets=False)
        movement.bring_in(None, lambda: False)
        return time.monotonic()

    def check_state(self, plan: Plan) -> None:
        for group in plan.groups_of.get(self.worker, ()):
            found = self.holdings.replicas[group].parameters
            assert bool((found[: self.model.groups[group].parameters[0].shape[0]] == group + 1).all()), group

    def sum(self, plan: Plan, rounds: Sequence[int], step: int, *, together: bool) -> float:
        """Sum all gradients in this order; returns when this worker's are done."""
        sync = Sync(self.worker, self.holdings, self.outbox, self.mailbox, self.pace)
        self.pace.adopt(plan)
        sync.begin_step(plan, step)
        mine = sorted(plan.groups_of[self.worker], key=lambda group: (rounds[group], group))
        for group in mine:
            sync.start(group, plan.sync_epochs[group], rounds[group])
            if not together:
                self.mailbox.wait_until(partial(sync.is_summed, group), sync.progress)
        self.mailbox.wait_until(sync.is_whole, sync.progress)
        self.pace.drain()
        return time.monotonic()

    def fill_gradients(self, plan: Plan) -> None:
        self.holdings.begin_step((0,) * len(plan.groups))
        for group in plan.groups_of[self.worker]:
            accumulator = self.holdings.accumulator(group)
            accumulator.total.fill_(float(self.worker + 1))
            accumulator.is_empty = False

    def check_sums(self, plan: Plan) -> None:
        for group in plan.groups_of[self.worker]:
            expected = sum(owner + 1 for owner in plan.owners_of[group])
            assert bool((self.holdings.replicas[group].gradient == expected).all()), group


def together_s(act: Callable[[], float]) -> float:
    """Seconds from the last process's beginning to the last one's end; every process calls this."""
    dist.barrier()
    times: list[tuple[float, float]] = [(0.0, 0.0)] * NUM_DEVICES
    own = time.monotonic()
    dist.all_gather_object(times, (own, act()))
    return max(end for _, end in times) - max(began for began, _ in times)


class Runs:
    """All of one process's measurements in one medium, for one number of blocks."""

    def __init__(self, rank: int, medium: str, num_blocks: int, generations: Iterator[int]) -> None:
        self._member = Member(rank, medium, num_blocks)
        self._num_blocks = num_blocks
        self._generations = generations
        self._scale = SCALE if medium == BYTES else 1

    def transfer_s(self, ranks: Ranks, moves: Moves, losses: Sequence[int], repeats: int) -> float:
        """The mean over the losses of the median over the repeats, after one that does not count."""
        medians = []
        for lost in losses:
            loss = Loss(self._num_blocks, ranks, lost, self._scale)
            samples = []
            for _ in range(repeats + 1):
                plan = loss.plan(moves, next(self._generations))
                self._member.hold(loss.holders.get(self._member.worker, ()))
                samples.append(together_s(lambda plan=plan: self._member.move(plan)))  # type: ignore[misc]
                self._member.check_state(plan)
            medians.append(statistics.median(samples[1:]))
        return statistics.mean(medians)

    def sum_s(self, order: str, *, together: bool, repeats: int) -> float:
        loss = Loss(self._num_blocks, Ranks.BY_PIPELINE, 1, self._scale)
        plan = loss.plan(Moves.BALANCED, next(self._generations))
        member = self._member
        takes_part = member.worker in plan.groups_of
        member.hold(plan.groups_of.get(member.worker, ()))
        samples = []
        for _ in range(repeats + 1):
            step = next(self._generations)
            if takes_part:
                member.fill_gradients(plan)
            act = lambda step=step: member.sum(plan, ROUNDS[order](plan), step, together=together)  # noqa: E731
            samples.append(together_s(act if takes_part else time.monotonic))
            if takes_part:
                member.check_sums(plan)
        return statistics.median(samples[1:])

    def close(self) -> None:
        dist.barrier()
        self._member.transport.close()


def member(rank: int, arguments: argparse.Namespace) -> None:
    """One of the eight processes; rank 0 reports."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    figures = Figures("Odyssey's ablations") if rank == 0 else None
    if figures is not None:
        counts(figures)
    generations = iter(range(1, 1 << 30))
    blocks = (16,) if arguments.quick else BLOCKS
    losses = LOSSES[1:2] if arguments.quick else LOSSES
    for medium in (LINKS, BYTES):
        for num_blocks in blocks:
            runs = Runs(rank, medium, num_blocks, generations)
            taken = {
                (ranks, moves): runs.transfer_s(ranks, moves, losses, arguments.repeats)
                for ranks in Ranks
                for moves in Moves
            }
            sums = {
                (order, together): runs.sum_s(order, together=together, repeats=arguments.repeats)
                for order in ROUNDS
                for together in (False, True)
            }
            runs.close()
            if figures is not None:
                tell_transfers(figures, medium, num_blocks, taken)
                tell_sums(figures, medium, num_blocks, sums)
    if figures is not None:
        figures.finish(arguments.output)
    dist.barrier()
    os._exit(0)  # the transports' threads wait for peers that are gone


def counts(figures: Figures) -> None:
    """What moves and what waits, at the paper's sizes."""
    for num_blocks in BLOCKS:
        for ranks in Ranks:
            for moves in Moves:
                loads = [Load.of(Loss(num_blocks, ranks, lost).plan(moves, 2)) for lost in range(NUM_DEVICES)]
                name = f"ablations.counts.{num_blocks}_blocks.{ranks.value}.{moves.value}"
                for what in ("moved", "sent", "received", "link"):
                    mean = statistics.mean(getattr(load, f"{what}_bytes") for load in loads)
                    figures.add(f"{name}.{what}", mean / 1e9, "GB", samples=NUM_DEVICES)
        plan = Loss(num_blocks, Ranks.BY_PIPELINE, 1).plan(Moves.MATCHED, 2)
        for order, rounds in ROUNDS.items():
            figures.add(
                f"ablations.counts.{num_blocks}_blocks.sums_in_a_row.{order}", turns(plan, rounds(plan)), "count"
            )


def tell_transfers(figures: Figures, medium: str, num_blocks: int, taken: Mapping[tuple[Ranks, Moves], float]) -> None:
    for ranks in Ranks:
        name = f"ablations.transfers.{medium}.{num_blocks}_blocks.{ranks.value}"
        before = taken[ranks, Moves.RANK_ORDER]
        for moves in Moves:
            figures.add(f"{name}.{moves.value}", 1e3 * taken[ranks, moves], "ms")
        for moves in (Moves.MATCHED, Moves.BALANCED):
            saved = 1 - taken[ranks, moves] / before
            figures.add(f"{name}.{moves.value}.less", 100 * saved, "%")
            if num_blocks == BLOCKS[-1]:
                # What else a recovery takes in the paper's system does not change.
                recovery = saved * PAPER_TRANSFER_S / PAPER_RECOVERY_S[0]
                figures.add(f"{name}.{moves.value}.paper_recovery_less", 100 * recovery, "%")
        if num_blocks == BLOCKS[-1]:
            note(
                f"  paper, Figure 10: the transfer takes {PAPER_TRANSFER_CUT:.2%} less, the recovery "
                f"{1 - PAPER_RECOVERY_S[1] / PAPER_RECOVERY_S[0]:.2%}; ours, {medium}, ranks {ranks.value}: "
                f"{1 - taken[ranks, Moves.MATCHED] / before:.2%} matched, "
                f"{1 - taken[ranks, Moves.BALANCED] / before:.2%} with balanced sources"
            )


def tell_sums(figures: Figures, medium: str, num_blocks: int, sums: Mapping[tuple[str, bool], float]) -> None:
    name = f"ablations.sums.{medium}.{num_blocks}_blocks"
    for (order, together), seconds in sums.items():
        figures.add(f"{name}.{order}.{'together' if together else 'in_a_row'}", 1e3 * seconds, "ms")
    saved = {together: 1 - sums["coloured", together] / sums["index", together] for together in (False, True)}
    ours = 1 - sums["coloured", True] / sums["index", False]
    figures.add(f"{name}.coloured.in_a_row.less", 100 * saved[False], "%")
    figures.add(f"{name}.coloured.together.less", 100 * saved[True], "%")
    figures.add(f"{name}.ours_against_index_in_a_row.less", 100 * ours, "%")
    if num_blocks == BLOCKS[-1]:
        # The share of its step that sums take follows from what the paper says of both.
        steps = {batch: saved[False] * cut / PAPER_SYNC_CUT for batch, cut in PAPER_STEP_CUT.items()}
        for batch, cut in steps.items():
            figures.add(f"{name}.coloured.in_a_row.paper_step_less.batch_{batch}", 100 * cut, "%")
        note(
            f"  paper, Figure 11: sums take {PAPER_SYNC_CUT:.2%} less, steps "
            f"{', '.join(f'{cut:.2%}' for cut in PAPER_STEP_CUT.values())}; ours, {medium}: {saved[False]:.2%} one "
            f"after another (steps {', '.join(f'{cut:.2%}' for cut in steps.values())} with the paper's share), "
            f"{saved[True]:.2%} begun together, {ours:.2%} from the one to the other"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="of each measurement (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="16 blocks and one loss only")
    parser.add_argument("--output", type=Path, help="a file for the figures (JSON)")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        member(int(os.environ["RANK"]), arguments)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    meet["WORLD_SIZE"] = str(NUM_DEVICES)
    members = [
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **meet, "RANK": str(rank)})
        for rank in range(NUM_DEVICES)
    ]
    for _ in members:
        _, status = os.wait()
        if status:
            for process in members:
                process.kill()
            sys.exit(1)


if __name__ == "__main__":
    main()
