"""Measures how long devices that share microbatches are at exchanging parts: so many processes compute one layer, and
exchange as workers do. Each waits for the slowest at every sum, which no link's time says."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from planaria.plan.plan import WorkerId
from planaria.protocol.worker.progress import Work
from planaria.runtime.measure.at_once import Meet, at_once
from planaria.runtime.thresholds import CONTENTION_S, MEASURE_REPEATS
from planaria.runtime.worker.compute.layers import Compute
from planaria.runtime.worker.transport.mailbox import Key, Mailbox
from planaria.runtime.worker.transport.stage_mates import StageMates
from planaria.runtime.worker.transport.transport import Transport


def measure_exchanges(
    compute: Compute, number: int, forward: Callable[[], None], backward: Callable[[], None], alone_s: float
) -> tuple[float, float] | None:
    """Measures the exchanges of one layer's forward, and of its backward, among so many devices.

    Args:
        compute: whose layers those run.
        number: of devices, for each of which there is a core.
        forward: runs the layer forwards, on this device's shards.
        backward: likewise, after each forward.
        alone_s: what both take one device for its shards.

    Returns:
        Seconds; None: a process died.
    """
    rounds = max(MEASURE_REPEATS, math.ceil(CONTENTION_S / max(alone_s, CONTENTION_S / 1000)))
    found = at_once(number, partial(_share, compute, number, (forward, backward), rounds))
    if found is None:
        return None
    forwards, backwards = zip(*found, strict=True)
    return statistics.mean(forwards), statistics.mean(backwards)


class _TimedMates(StageMates):
    exchanged_s = 0.0

    def add_up(self, work: Work, name: int, part: torch.Tensor, among: int) -> torch.Tensor:
        began = time.perf_counter()
        whole = super().add_up(work, name, part, among)
        self.exchanged_s += time.perf_counter() - began
        return whole


def _share(
    compute: Compute, number: int, halves: tuple[Callable[[], None], ...], rounds: int, place: int, meet: Meet
) -> tuple[float, ...]:
    """Runs the layer as one of the devices; returns the mean seconds of the exchanges of each half: a step has many,
    the longest among them."""
    mailbox = Mailbox()
    own, *_ = everyone = [WorkerId((place + other) % number) for other in range(number)]
    transport = Transport(own, "", mailbox)
    addresses = meet(transport.start())
    transport.set_peers({worker: addresses[worker] for worker in everyone[1:]})

    def exchange(peer: WorkerId, key: Key, part: torch.Tensor | None) -> torch.Tensor:
        if part is not None:
            transport.send(peer, key, (part,))
        came = mailbox.take(key._replace(sender=peer), lambda: False)
        assert isinstance(came, tuple)
        return came[0]

    mates = _TimedMates(own, exchange)
    mates.share_with(sorted(everyone))
    compute.mates = mates
    took: tuple[list[float], ...] = tuple([] for _ in halves)
    for _ in range(rounds + 1):  # the first connects
        for half, seconds in zip(halves, took, strict=True):
            mates.exchanged_s = 0.0
            half()
            seconds.append(mates.exchanged_s)
    return tuple(statistics.mean(seconds[1:]) for seconds in took)
