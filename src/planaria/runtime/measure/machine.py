"""Measures what a step costs beside its layers: messages, votes, sums and the optimizer."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import torch

from planaria.job.sections.train import Numerics, TrainSection
from planaria.model.model import GroupSpec, ParameterSpec
from planaria.plan.costs.model_profile import LinkCost, StepCosts
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.journal import JournalCommit
from planaria.protocol.messages.to_worker import Commit
from planaria.runtime.journal.sqlite_journal import SqliteJournal
from planaria.runtime.measure.clock import compute_now
from planaria.runtime.thresholds import LARGE_MESSAGE_BYTES, MEASURE_REPEATS, MEASURED_PARAMETERS
from planaria.runtime.worker.compute.accumulator import add_up, squared_norm
from planaria.runtime.worker.compute.device.opening import device_at
from planaria.runtime.worker.compute.replica import Replica, apply_optimizer, digest_of
from planaria.runtime.worker.transport.mailbox import Key, Kind, Mailbox
from planaria.runtime.worker.transport.transport import Transport


def measure_link() -> LinkCost:
    """Measures loopback with the workers' transport: latency of 64 bytes, bandwidth of 4 MB."""
    mailboxes = [Mailbox(), Mailbox()]
    ends = [Transport(WorkerId(number), "", mailbox) for number, mailbox in enumerate(mailboxes)]
    addresses = [end.start() for end in ends]
    for number, end in enumerate(ends):
        end.set_peers({WorkerId(1 - number): addresses[1 - number]})
    small, large = torch.zeros(64, dtype=torch.uint8), torch.zeros(LARGE_MESSAGE_BYTES, dtype=torch.uint8)
    messages = [small] * 24 + [large] * 6

    def send(number: int, turn: int, tensor: torch.Tensor) -> None:
        ends[number].send(WorkerId(1 - number), Key(Kind.ACTIVATION, number, turn, 0, 0, 0), (tensor,))

    def take(number: int, turn: int) -> None:
        mailboxes[number].take(Key(Kind.ACTIVATION, 1 - number, turn, 0, 0, 0), lambda: False)

    def answer() -> None:
        for turn in range(len(messages)):
            take(1, turn)
            send(1, turn, small)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    times: dict[int, list[float]] = {}
    for turn, message in enumerate(messages):
        began = time.perf_counter()
        send(0, turn, message)
        take(0, turn)
        times.setdefault(message.nbytes, []).append(time.perf_counter() - began)
    thread.join()
    for end in ends:
        end.close()
    # The first connects. What other programs of the machine take must not count, so the lower quartile.
    there_and_back = statistics.quantiles(times[small.nbytes][1:], n=4)[0]
    took = statistics.quantiles(times[large.nbytes], n=4)[0]
    bandwidth = large.nbytes / max(took - there_and_back, 1e-6)
    return LinkCost(latency_s=there_and_back / 2, bandwidth_bytes_per_s=bandwidth)


def measure_step(update: Update, link: LinkCost) -> StepCosts:
    """Measures a step's costs, with the worker's own sum, digests and optimizer, and the coordinator's journal."""
    sums, applies = [], []
    for _ in range(MEASURE_REPEATS + 1):  # in turn, as in a step: neither finds in caches what it left there
        began = update.now()
        update.sum_up()
        summed = update.now()
        update.apply()
        sums.append(summed - began)
        applies.append(update.now() - summed)
    return StepCosts(
        # A vote goes in, the journal is written, the commit comes out.
        vote_s=2 * link.time_s(256) + _journal_s(),
        apply_s_per_byte=statistics.median(applies[1:]) / update.size_bytes,
        sum_s_per_byte=statistics.median(sums[1:]) / update.size_bytes,
    )


class Update:
    """The end of a step of one group of parameters: the sum of two owners' gradients, digests, the optimizer's step.

    Args:
        train: the optimizer and its settings.
        device: where the parameters are.
        size: number of parameters; above `MEASURED_PARAMETERS`, so many.
        compares: digests are made of replicas and sums.

    Attributes:
        size_bytes: of the parameters.
    """

    def __init__(self, train: TrainSection, device: torch.device, size: int, *, compares: bool) -> None:
        size = max(1, min(size, MEASURED_PARAMETERS))
        spec = ParameterSpec(name="weight", shape=(size,), decays=True, uses=((0, "weight"),))
        self._train = msgspec.structs.replace(train, parameters=())
        self._replica = Replica(GroupSpec(layers=(0,), parameters=(spec,)), self._train, device_at(device))
        dtype = torch.float64 if train.numerics is Numerics.EXACT else torch.float32
        self._parts = [torch.zeros(self._replica.layout.size, dtype=dtype, device=device) for _ in range(2)]
        self._compares = compares
        self.size_bytes = self._replica.parameters.nbytes
        self.now = partial(compute_now, device)

    def __call__(self) -> None:
        self.sum_up()
        self.apply()

    def sum_up(self) -> None:
        add_up(self._parts, self._replica.gradient)
        squared_norm(self._replica.gradient)

    def apply(self) -> None:
        """Makes the vote's digests, the step, and the digest of what it wrote."""
        self._digest(self._replica.gradient, *self._replica.state)
        apply_optimizer([self._replica], self._train, 1, 1.0, self._train.learning_rate)
        self._digest(*self._replica.state)

    def _digest(self, *vectors: torch.Tensor) -> None:
        if self._compares:
            digest_of(vectors, is_on_host=vectors[0].device.type == "cpu")


def _journal_s() -> float:
    with tempfile.TemporaryDirectory() as folder:
        journal = SqliteJournal(Path(folder) / "journal.sqlite")
        journal.start()
        commit = JournalCommit(
            commit=Commit(generation=1, step=1, clip_factor=1.0, exponents=(0,) * 16, hold=False, loss=1.0, norm=1.0)
        )
        seconds = _median_s(lambda: journal.write(commit), time.perf_counter)
        journal.close()
    return seconds


def _median_s(work: Callable[[], object], clock: Callable[[], float]) -> float:
    times = []
    for _ in range(MEASURE_REPEATS + 1):
        began = clock()
        work()
        times.append(clock() - began)
    return statistics.median(times[1:])
