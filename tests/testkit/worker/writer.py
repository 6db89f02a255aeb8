"""A simulated worker's part of checkpoints: copied at once, written beside training, one after the other."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from planaria.protocol.messages.from_worker import NotSaved, Saved
from planaria.protocol.messages.to_worker import Save
from tests.testkit.cluster.disk import DiskFull, SavedState

if TYPE_CHECKING:
    from tests.testkit.cluster.cluster import Cluster
    from tests.testkit.worker.worker import Worker

_Order = tuple[Save, dict[int, SavedState]]


class Writer:
    """The writer of one worker's part of checkpoints."""

    def __init__(self, worker: Worker, cluster: Cluster) -> None:
        self._worker = worker
        self._cluster = cluster
        self._orders: deque[_Order] = deque()

    @property
    def is_done(self) -> bool:
        return not self._orders

    def write(self, save: Save) -> None:
        copies = {}
        for group in save.groups:
            replica = self._worker.holdings.replicas[group]
            assert replica.is_whole, f"group {group} is written by a worker that does not keep it"
            assert replica.step == save.step, f"group {group} is as of step {replica.step}, not {save.step}"
            copies[group] = SavedState(group, replica.step, replica.state)
        self._orders.append((save, copies))
        if len(self._orders) == 1:
            self.go_on()

    def go_on(self) -> None:
        if self._orders:
            clock = self._cluster.clock
            clock.after(clock.vary(3 * self._cluster.weather.compute_s), partial(self._written, self._orders[0]))

    def _written(self, order: _Order) -> None:
        worker, disk = self._worker, self._cluster.disk
        if worker.is_over or worker.is_stopped or not self._orders or self._orders[0] is not order:
            return
        save, copies = self._orders.popleft()
        self._cluster.happened("write", worker.node)
        if not worker.lives:
            return
        name = f"{worker.number}-{save.serial}"
        try:
            groups = tuple(disk.write(save.folder, name, copies[group]) for group in save.groups)
        except DiskFull:
            text = f"{save.folder}: no space left"
            worker.control.send(NotSaved(step=save.step, serial=save.serial, text=text))
        else:
            worker.control.send(Saved(step=save.step, serial=save.serial, groups=groups))
        self.go_on()
        if worker.end is not None:
            worker.run()
