"""What an agent is told: whose node it offers, where the coordinator is, and how long it waits for it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from planaria.job.errors import UserError
from planaria.job.sections.cluster import check_label, check_zone
from planaria.job.values import etcd_members
from planaria.protocol.messages.agent import Farewell
from planaria.runtime.journal.coordinator_place import CoordinatorPlace

EXIT_CODES: Final = {Farewell.OVER: 0, Farewell.DRAINED: 4, Farewell.SUSPENDED: os.EX_TEMPFAIL}
"""Exit codes of `planaria agent`, by why it ends."""


LED: Final = "led"
"""Folder, in that of the host's own run folders, of those of runs that are led from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The settings of an agent.

    Attributes:
        coordinator: see `CoordinatorPlace`.
        token: the job's token.
        host: address at which other nodes reach this one; "": the one from which it reaches the coordinator.
        zone: where this node is: whatever fails as one; "": not known.
        label: what whoever started this agent calls it; "": not known.
        import_path: where a model given as "module:function" is looked for.
        give_up_s: without a word from the coordinator, after which the agent ends.
        may_lead: whether a standby runs beside the node, to lead a run whose journal is in etcd; with `folder`, its own
            run folder is in `LED` there.
        folder: of run folders of the host's own; None: it sees the coordinator's.
        tls: folder with the run's certificates; "": connections are plain.
    """

    coordinator: str
    token: str
    host: str = ""
    zone: str = ""
    label: str = ""
    import_path: Path | None = None
    give_up_s: float = 600.0
    tls: str = ""
    may_lead: bool = False
    folder: Path | None = None

    def __post_init__(self) -> None:
        CoordinatorPlace(self.coordinator, tls=self.tls)
        if self.may_lead and self.folder is not None and not etcd_members(self.coordinator.rpartition("/")[0]):
            raise UserError(
                f"--may-lead on a host with --folder asks etcd for the run, and --coordinator {self.coordinator!r} "
                "is not etcd://HOST:PORT,.../RUN."
            )
        if self.zone:
            check_zone("--zone", self.zone)
        if self.label:
            check_label("--label", self.label)
