"""Faults that a user asks for (`--fail`): which node dies, in which step, at which kind of instruction."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import msgspec

from planaria.job.checks import shown
from planaria.job.errors import UserError
from planaria.job.settings import Job

FAULT_POINTS = ("load", "forward", "backward", "send", "recv", "sync", "vote", "apply", "transfer")
"""Where a fault may strike. `send` and `recv` stand for activations and gradients alike."""

_EXAMPLE = "Write for instance kill:node=2,step=20,at=backward."


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """SIGKILL of every process of a node, when it is about to run, or is inside, an instruction.

    Attributes:
        node: number of the node, from 0.
        step: counts from 1.
        at: one of `FAULT_POINTS`.
        kind: always "kill".
    """

    node: int
    step: int
    at: str
    kind: str = "kill"


def parse_fault(spec: str) -> Fault:
    """Reads "kill:node=2,step=20,at=backward".

    Raises:
        UserError: one line with what is wrong, and an example.
    """
    kind, colon, rest = spec.partition(":")
    if not colon or kind.strip() != "kill":
        raise UserError(f"--fail {shown(spec)}: the only kind of fault is kill. {_EXAMPLE}")
    given: dict[str, str] = {}
    for part in rest.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in ("node", "step", "at"):
            raise UserError(f"--fail {shown(spec)}: {shown(part)} is not node=, step= or at=. {_EXAMPLE}")
        if key in given:
            raise UserError(f"--fail {shown(spec)}: {key} is given twice. {_EXAMPLE}")
        given[key] = value
    for key in ("node", "step", "at"):
        if key not in given:
            raise UserError(f"--fail {shown(spec)}: {key} is missing. {_EXAMPLE}")
    return Fault(
        node=_number(spec, "node", given["node"], least=0),
        step=_number(spec, "step", given["step"], least=1),
        at=_point(spec, given["at"]),
    )


def check_faults(faults: Sequence[Fault], job: Job) -> None:
    """Refuses faults that would never strike.

    Raises:
        UserError: a node or step that the job does not have, or a node that is to die twice.
    """
    nodes: set[int] = set()
    for fault in faults:
        spec = f"kill:node={fault.node},step={fault.step},at={fault.at}"
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
            raise UserError(f"--fail {spec}: node {fault.node} is killed by another --fail already. Drop one.")
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
