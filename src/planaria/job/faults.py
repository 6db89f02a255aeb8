"""Faults that a user asks for (`--fail`): what befalls which node, in which step, at which kind of instruction."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Sequence

import msgspec

from planaria.job.checks import shown
from planaria.job.errors import UserError
from planaria.job.settings import Job

FAULT_POINTS = ("load", "forward", "backward", "weight", "send", "recv", "sync", "vote", "apply", "transfer")
"""Where a fault may strike. `send` and `recv` stand for activations and gradients alike; `weight` is the second half of
a backward in two passes (cluster.schedule = "zb-h1")."""

_EXAMPLE = "Write for instance kill:node=2,step=20,at=backward."


class FaultKind(enum.StrEnum):
    """What happens to the node.

    `kill`: SIGKILL of every process. `hang`: SIGSTOP of every process, as on a machine that froze. `freeze`: its main
    threads go no further, while its processes still answer. `notice`: it is told that it will be killed in `grace`
    seconds, as a spot instance is, and then it is. `memory`: it gets no more memory.
    """

    KILL = "kill"
    HANG = "hang"
    FREEZE = "freeze"
    NOTICE = "notice"
    MEMORY = "memory"


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Strikes a node when it is about to run, or is inside, an instruction.

    Attributes:
        node: number of the node, from 0.
        step: counts from 1.
        at: one of `FAULT_POINTS`.
        kind: of fault.
        grace_s: of a notice, seconds until the node is killed.
    """

    node: int
    step: int
    at: str
    kind: FaultKind = FaultKind.KILL
    grace_s: float = 0.0

    def __str__(self) -> str:
        grace = f",grace={self.grace_s:g}" if self.kind is FaultKind.NOTICE else ""
        return f"{self.kind.value}:node={self.node},step={self.step},at={self.at}{grace}"


def parse_fault(spec: str) -> Fault:
    """Reads "kill:node=2,step=20,at=backward", or another kind in place of kill (with grace=SECONDS for a notice).

    Raises:
        UserError: one line with what is wrong, and an example.
    """
    name, colon, rest = spec.partition(":")
    kinds = [kind.value for kind in FaultKind]
    if not colon or name.strip() not in kinds:
        raise UserError(f"--fail {shown(spec)}: the kinds of fault are {', '.join(kinds)}. {_EXAMPLE}")
    kind = FaultKind(name.strip())
    keys = ("node", "step", "at", "grace") if kind is FaultKind.NOTICE else ("node", "step", "at")
    given: dict[str, str] = {}
    for part in rest.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in keys:
            expected = f"{'=, '.join(keys[:-1])}= or {keys[-1]}="
            raise UserError(f"--fail {shown(spec)}: {shown(part)} is not {expected}. {_EXAMPLE}")
        if key in given:
            raise UserError(f"--fail {shown(spec)}: {key} is given twice. {_EXAMPLE}")
        given[key] = value
    for key in keys:
        if key not in given:
            raise UserError(f"--fail {shown(spec)}: {key} is missing. {_EXAMPLE}")
    return Fault(
        node=_number(spec, "node", given["node"], least=0),
        step=_number(spec, "step", given["step"], least=1),
        at=_point(spec, given["at"]),
        kind=kind,
        grace_s=_number(spec, "grace", given.get("grace", "0"), least=0),
    )


def check_faults(faults: Sequence[Fault], job: Job) -> None:
    """Refuses faults that would never strike.

    Raises:
        UserError: a node or step that the job does not have, or a node that is to be struck twice.
    """
    nodes: set[int] = set()
    for fault in faults:
        spec = str(fault)
        if not 0 <= fault.node < job.cluster.nodes:
            raise UserError(
                f"--fail {spec}: the job has no node {fault.node}. "
                f"Its {job.cluster.nodes} nodes are numbered 0 to {job.cluster.nodes - 1}."
            )
        if not 1 <= fault.step <= job.train.steps:
            raise UserError(
                f"--fail {spec}: the job has no step {fault.step}. Steps count from 1 to {job.train.steps}."
            )
        _point(spec, fault.at)
        if fault.node in nodes:
            raise UserError(f"--fail {spec}: node {fault.node} is struck by another --fail already. Drop one.")
        nodes.add(fault.node)


def _number(spec: str, key: str, text: str, *, least: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19) or int(text) < least:
        raise UserError(
            f"--fail {shown(spec)}: {key} = {shown(text)} is not a whole number from {least} on. {_EXAMPLE}"
        )
    return int(text)


def _point(spec: str, point: str) -> str:
    if point not in FAULT_POINTS:
        close = difflib.get_close_matches(point, FAULT_POINTS, n=1)
        remedy = f"Did you mean {close[0]}?" if close else f"Use one of {', '.join(FAULT_POINTS)}."
        raise UserError(f"--fail {shown(spec)}: at = {shown(point)} is no kind of instruction. {remedy}")
    return point
