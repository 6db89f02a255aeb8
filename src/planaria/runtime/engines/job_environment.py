"""Tells a node's place in a job from the environment, as torchrun, Kubeflow Trainer, SkyPilot or SLURM set it.

Reads what it is given. What options say goes before; whoever calls sees to that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from planaria.job.errors import UserError

DEFAULT_PORT: Final = 29400
"""Port of the coordinator where nothing says another: torchrun's."""

NAMES: Final = "PET_MASTER_ADDR, SKYPILOT_NODE_RANK or SLURM_PROCID"
"""The variables by which an environment is known."""

_UNKNOWN: Final = frozenset({"", "auto", "gpu", "cpu"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """The place of this node in a job.

    Attributes:
        rank: of this node, from 0; None: not said.
        address: "host:port" at which rank 0 is to be found.
        nodes: of the job, the fewest and the most; None: not said.
        devices: of each node; 0: not said.
    """

    rank: int | None
    address: str
    nodes: tuple[int, int] | None = None
    devices: int = 0

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


def place_of(environment: Mapping[str, str]) -> NodePlace | None:
    """Returns the place that an environment says; None: it is no launcher's.

    Of several launchers' variables, those count that are nearest to the process: torchrun's, SkyPilot's, SLURM's.

    Raises:
        UserError: a variable is no number.
    """
    if environment.get("PET_MASTER_ADDR"):
        port = _number(environment, "PET_MASTER_PORT") or DEFAULT_PORT
        return NodePlace(
            rank=_number(environment, "PET_NODE_RANK") if environment.get("PET_NODE_RANK") else None,
            address=f"{environment['PET_MASTER_ADDR']}:{port}",
            nodes=_nodes(environment, "PET_NNODES"),
            devices=_number(environment, "PET_NPROC_PER_NODE"),
        )
    if environment.get("SKYPILOT_NODE_RANK"):
        first = environment.get("SKYPILOT_NODE_IPS", "").split()[:1] or ["127.0.0.1"]
        return NodePlace(
            rank=_number(environment, "SKYPILOT_NODE_RANK"),
            address=f"{first[0]}:{DEFAULT_PORT}",
            nodes=_nodes(environment, "SKYPILOT_NUM_NODES"),
            devices=_number(environment, "SKYPILOT_NUM_GPUS_PER_NODE"),
        )
    if environment.get("SLURM_PROCID"):
        hosts = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
        return NodePlace(
            rank=_number(environment, "SLURM_PROCID"),
            address=f"{first_host(hosts) or '127.0.0.1'}:{DEFAULT_PORT}",
            nodes=_nodes(environment, "SLURM_STEP_NUM_TASKS") or _nodes(environment, "SLURM_NTASKS"),
            devices=_number(environment, "SLURM_GPUS_ON_NODE"),
        )
    return None


def label_of(environment: Mapping[str, str], host: str) -> str:
    """Returns what the launcher calls this node: SLURM's name of the task, as squeue shows it, else the host's name."""
    array, job = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_JOB_ID")
    if array:
        return f"{array}_{environment.get('SLURM_ARRAY_TASK_ID', '')}"
    return f"{job}.{environment['SLURM_PROCID']}" if job and environment.get("SLURM_PROCID") else host


def first_host(hosts: str) -> str:
    """Returns the first host of a list as SLURM writes it: "rack[3-4]n[01-16,20],other" begins with rack3n01."""
    return re.sub(r"\[([^],-]*)[^]]*]", r"\1", hosts).partition(",")[0]


def _nodes(environment: Mapping[str, str], name: str) -> tuple[int, int] | None:
    """Returns a variable's fewest and most nodes: of a range ("2:4"), or twice its number; None: it says none."""
    text = environment.get(name, "")
    least, _, most = text.partition(":")
    fewest = _number(environment, name, least)
    return (fewest, max(fewest, _number(environment, name, most))) if fewest else None


def _number(environment: Mapping[str, str], name: str, text: str | None = None) -> int:
    """Returns the number that a variable says, or a part of its text; 0: it says none."""
    said = environment.get(name, "") if text is None else text
    if said in _UNKNOWN:
        return 0
    if not (said.isascii() and said.isdecimal()):
        raise UserError(
            f"environment variable {name} = {environment[name]!r} is not a number. Correct it, or unset it."
        )
    return int(said)
