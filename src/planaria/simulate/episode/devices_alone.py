"""The devices that are lost alone within an episode, and those that are to join again. What follows of it is the
machine's to say.
"""

from __future__ import annotations

from collections.abc import Iterator

from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.handlers.joins import device_refusal
from planaria.protocol.run.run import Run


class DevicesAlone:
    """The devices of one episode.

    Attributes:
        dead: those that are lost, and when that becomes known.
        coming: those that join as soon as they may.
    """

    def __init__(self) -> None:
        self.dead: dict[WorkerId, float] = {}
        self.coming: list[WorkerId] = []

    @property
    def are_quiet(self) -> bool:
        """Whether nothing is to happen to any."""
        return not (self.dead or self.coming)

    def known(self, now: float) -> list[WorkerId]:
        """Returns, once, the devices whose loss is known by now."""
        found = sorted(worker for worker, at in self.dead.items() if at <= now)
        for worker in found:
            del self.dead[worker]
        return found

    def joining(self, run: Run) -> Iterator[WorkerId]:
        """Yields, once, the devices that may join now: no plan has them any more."""
        for worker in tuple(self.coming):
            node, device = divmod(worker, run.settings.devices_per_node)
            if worker in run.members.lost_devices:
                if device_refusal(run, NodeId(node), device) is None:
                    self.coming.remove(worker)
                    yield worker
            elif worker not in self.dead:
                self.coming.remove(worker)  # it is there, or went with its node

    def clear(self) -> None:
        """Forgets all: the run is over."""
        self.dead.clear()
        self.coming.clear()
