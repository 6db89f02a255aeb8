"""The settings of a worker process, told to it when it is started."""

from __future__ import annotations

import hmac

import msgspec

from planaria.job.faults import Fault
from planaria.job.sections.cluster import LOOPBACK
from planaria.job.settings import Job
from planaria.plan.plan import WorkerId


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of a worker process.

    Attributes:
        worker: its number.
        node: its node's number.
        coordinator: where it is, see `planaria.runtime.journal.coordinator_place`.
        token: of the job; every connection must show it.
        job: the whole job.
        data_folder: where the prepared tokens are.
        profile: file with the costs; an emulated device takes its times from it.
        faults: faults on order, of this node.
        import_path: folder to import a user's model from.
        node_leader: pid of the node's first worker, whose process group this one joins; 0: it is the first.
        metadata_url: of the cloud's metadata server; "": where it always is.
        log: file for what it prints.
        host: address on which its peers reach it.
        zone: where its node is; "": not known.
        label: of its node; "": not known.
        mark: tells this run from others with the same token.
        tls: folder with the run's certificates; "": connections are plain.
        trace: file for what it did when, for benchmarks; None: none.
    """

    worker: WorkerId
    node: int
    coordinator: str
    token: str
    job: Job
    data_folder: str
    profile: str = ""
    faults: tuple[Fault, ...] = ()
    import_path: str | None = None
    node_leader: int = 0
    metadata_url: str = ""
    log: str | None = None
    host: str = LOOPBACK
    zone: str = ""
    label: str = ""
    mark: str = ""
    tls: str = ""
    trace: str | None = None

    @property
    def peer_token(self) -> str:
        """The token that workers of this run show each other: who hears it does not know the job's."""
        return hmac.new(self.token.encode(), self.mark.encode(), "sha256").hexdigest()
