"""Faults that a user asks for (`--fail`): what befalls which node, in which step, at which kind of instruction; or when
the coordinator is killed."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Sequence

import msgspec

from planaria.job.errors import UserError
from planaria.job.settings import Job
from planaria.job.values import shown

FAULT_POINTS = (
    "load", "forward", "backward", "weight", "shadow", "exchange", "send", "recv", "sync", "vote", "apply", "transfer",
    "evaluate",
)  # fmt: skip
"""Where a fault may strike. `send` and `recv` stand for activations and gradients alike; `weight` is the second half of
a backward in two passes (cluster.schedule = "zb-h1" or "zb-h2"); `shadow` a forward or backward of what a worker
shadows (the policy redundancy); `exchange` is within a forward or backward, between devices that share a microbatch
(cluster.stage_parallelism = "tensor"). `evaluate` is a forward of the evaluation after the step; what else an
evaluation does belongs to the step that follows."""

CORRUPT_POINTS = ("rest", "apply", "sync", "forward", "backward", "send")
"""Where bits may be flipped: in a replica that lies still (`rest`), in what the optimizer's step made (`apply`), in a
whole sum (`sync`): these are found before a step is committed with them. And in activations that a `forward` made, in
what a `backward` counted, or in what is about to be sent (`send`): what follows from these is the same everywhere,
and audits (`resilience.audit`) alone find it."""

COORDINATOR_POINTS = (
    "join", "plan", "send", "vote", "commit", "evaluated", "tell", "loss", "report", "save", "manifest", "return",
    "end",
)  # fmt: skip
"""Where the coordinator may be killed. When it has just heard of something: a worker has joined (`join`), voted,
reported or returned, a node is lost (`loss`), a worker has written its part of a checkpoint (`save`), or all of it is
on disk (`manifest`). When something is in the journal and nobody knows: a `plan`, a `commit`, the run's `end`, or what
an evaluation found (`evaluated`; its step is the one before). And when
one worker has been sent a plan (`send`), or told of a commit (`tell`), and no other."""

_EXAMPLE = "Write for instance kill:node=2,step=20,at=backward."


class FaultKind(enum.StrEnum):
    """What happens to the node.

    `kill`: SIGKILL of every process, or of that of one `device`, without which the node goes on. `hang`: SIGSTOP of
    every process, as on a machine that froze, or of one device's. `freeze`: its main threads, or one device's, go no
    further, while its processes still answer. `notice`: it is told that it will be killed in `grace` seconds, as a
    spot instance is, and then it is. `memory`: it gets no more memory. `slow`: it computes `factor` times longer, from
    the step on, to the step `until` or for good. `corrupt`: `bits` of what it holds or computes, or one device of it,
    are flipped, once or, with `times` = always, in each step from then on. `coordinator`: no node, but the
    coordinator's process is killed.
    """

    KILL = "kill"
    HANG = "hang"
    FREEZE = "freeze"
    NOTICE = "notice"
    MEMORY = "memory"
    SLOW = "slow"
    CORRUPT = "corrupt"
    COORDINATOR = "coordinator"


_KEYS = {
    **dict.fromkeys((FaultKind.KILL, FaultKind.HANG, FaultKind.FREEZE), ("node", "step", "at", "device")),
    FaultKind.NOTICE: ("node", "step", "at", "grace"),
    FaultKind.SLOW: ("node", "step", "factor", "until"),
    FaultKind.CORRUPT: ("node", "step", "at", "device", "bits", "times"),
    FaultKind.COORDINATOR: ("step", "at"),
}
"""What is said of a fault, where that is not its node, step and place alone."""

_OPTIONAL = ("until", "device", "bits", "times")
_TIMES = ("once", "always")

_POINTS = {FaultKind.CORRUPT: CORRUPT_POINTS, FaultKind.COORDINATOR: COORDINATOR_POINTS}
"""Where a fault may strike that is not of `FAULT_POINTS`."""

_NOT_THERE = {
    FaultKind.CORRUPT: "no place where bits are flipped",
    FaultKind.COORDINATOR: "nothing that the coordinator does",
}


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Strikes a node when it is about to run, or is inside, an instruction.

    Attributes:
        node: number of the node, from 0; of a fault of the coordinator -1.
        step: counts from 1.
        at: one of `FAULT_POINTS`; of the coordinator, one of `COORDINATOR_POINTS`, of flipped bits one of
            `CORRUPT_POINTS`; "" where the kind strikes at none.
        kind: the kind of fault.
        grace_s: of a notice, seconds until the node is killed.
        factor: of a slow node, how many times longer it computes.
        until: of a slow node, the first step in which it is fast again; 0: none.
        device: of the node, whose process alone is struck; -1: that of each is.
        bits: how many are flipped at a time.
        repeats: bits are flipped in each step from then on.
    """

    node: int
    step: int
    at: str
    kind: FaultKind = FaultKind.KILL
    grace_s: float = 0.0
    factor: float = 1.0
    until: int = 0
    device: int = -1
    bits: int = 1
    repeats: bool = False

    def slows(self, step: int) -> bool:
        return self.step <= step and (not self.until or step < self.until)

    def __str__(self) -> str:
        if self.kind is FaultKind.COORDINATOR:
            return f"{self.kind.value}:step={self.step},at={self.at}"
        if self.kind is FaultKind.SLOW:
            until = f",until={self.until}" if self.until else ""
            return f"{self.kind.value}:node={self.node},step={self.step},factor={self.factor:g}{until}"
        if self.kind is FaultKind.CORRUPT:
            more = (f",bits={self.bits}" if self.bits > 1 else "") + (",times=always" if self.repeats else "")
        else:
            more = f",grace={self.grace_s:g}" if self.kind is FaultKind.NOTICE else ""
        device = f",device={self.device}" if self.device >= 0 else ""
        return f"{self.kind.value}:node={self.node},step={self.step},at={self.at}{device}{more}"


def parse_fault(spec: str) -> Fault:
    """Reads "kill:node=2,step=20,at=backward", with device=NUMBER for one device of the node; another kind in place of
    kill (with grace=SECONDS for a notice); "slow:node=2,step=20,factor=2", with until=STEP or for good;
    "corrupt:node=2,step=20,at=rest", with bits=NUMBER and times=always where more than one is flipped, or more than
    once; or "coordinator:step=20,at=commit".

    Raises:
        UserError: one line with what is wrong, and an example.
    """
    name, colon, rest = spec.partition(":")
    kinds = [kind.value for kind in FaultKind]
    if not colon or name.strip() not in kinds:
        raise UserError(f"--fail {shown(spec)}: the kinds of fault are {', '.join(kinds)}. {_EXAMPLE}")
    kind = FaultKind(name.strip())
    keys = _KEYS.get(kind, ("node", "step", "at"))
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
        if key not in given and key not in _OPTIONAL:
            raise UserError(f"--fail {shown(spec)}: {key} is missing. {_EXAMPLE}")
    return Fault(
        node=_number(spec, "node", given["node"], least=0) if "node" in keys else -1,
        step=_number(spec, "step", given["step"], least=1),
        at=_point(spec, given["at"], kind) if "at" in keys else "",
        kind=kind,
        grace_s=_number(spec, "grace", given.get("grace", "0"), least=0),
        factor=_factor(spec, given.get("factor", "1")),
        until=_number(spec, "until", given.get("until", "0"), least=0),
        device=_number(spec, "device", given["device"], least=0) if "device" in given else -1,
        bits=_number(spec, "bits", given.get("bits", "1"), least=1),
        repeats=_repeats(spec, given.get("times", "once")),
    )


def check_faults(faults: Sequence[Fault], job: Job) -> None:
    """Refuses faults that would never strike.

    Raises:
        UserError: a node or step that the job does not have, or a node that is to be struck twice.
    """
    nodes: set[int] = set()
    for fault in faults:
        spec = str(fault)
        is_of_node = fault.kind is not FaultKind.COORDINATOR
        if is_of_node and not 0 <= fault.node < job.cluster.least_nodes:
            raise UserError(
                f"--fail {spec}: the job has no node {fault.node}. "
                f"Its {job.cluster.least_nodes} nodes are numbered 0 to {job.cluster.least_nodes - 1}."
            )
        if fault.device >= job.cluster.devices_per_node:
            raise UserError(
                f"--fail {spec}: a node has no device {fault.device}. "
                f"Its devices are numbered 0 to {job.cluster.devices_per_node - 1}."
            )
        if not 1 <= fault.step <= job.train.steps:
            raise UserError(
                f"--fail {spec}: the job has no step {fault.step}. Steps count from 1 to {job.train.steps}."
            )
        if fault.kind is FaultKind.CORRUPT and not job.compares_replicas and not job.resilience.audit:
            raise UserError(
                f"--fail {spec}: replicas are not compared in this job, so nobody would find out. "
                'Set train.numerics = "exact" and resilience.compare_replicas = true.'
            )
        if fault.kind is not FaultKind.SLOW:
            _point(spec, fault.at, fault.kind)
        elif fault.until and fault.until <= fault.step:
            raise UserError(f"--fail {spec}: until = {fault.until} is not after step {fault.step}.")
        if is_of_node and fault.node in nodes:
            raise UserError(f"--fail {spec}: node {fault.node} is struck by another --fail already. Drop one.")
        nodes.add(fault.node)


def _number(spec: str, key: str, text: str, *, least: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19) or int(text) < least:
        raise UserError(
            f"--fail {shown(spec)}: {key} = {shown(text)} is not a whole number from {least} on. {_EXAMPLE}"
        )
    return int(text)


def _repeats(spec: str, text: str) -> bool:
    if text not in _TIMES:
        raise UserError(f"--fail {shown(spec)}: times = {shown(text)} is neither {' nor '.join(_TIMES)}. {_EXAMPLE}")
    return text == _TIMES[1]


def _factor(spec: str, text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1.0 <= factor <= 1000.0:
        raise UserError(
            f"--fail {shown(spec)}: factor = {shown(text)} is not a number from 1 to 1000. "
            "Write for instance slow:node=2,step=20,factor=2."
        )
    return factor


def _point(spec: str, point: str, kind: FaultKind) -> str:
    points = _POINTS.get(kind, FAULT_POINTS)
    if point not in points:
        what = _NOT_THERE.get(kind, "no kind of instruction")
        close = difflib.get_close_matches(point, points, n=1)
        remedy = f"Did you mean {close[0]}?" if close else f"Use one of {', '.join(points)}."
        raise UserError(f"--fail {shown(spec)}: at = {shown(point)} is {what}. {remedy}")
    return point
