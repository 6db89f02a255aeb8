"""Faults of a schedule: what befalls which nodes, and when."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec


class FaultKind(enum.StrEnum):
    KILL = "kill"
    """The node's processes are killed, or that of one `device`."""
    BACK = "back"
    """The user wants a `device` of the node started again, which may have been lost alone."""
    DARK = "dark"
    """The node's host is gone without a closing packet."""
    HANG = "hang"
    """The node's processes are stopped, or that of one `device`, and go on `for_s` later."""
    FREEZE = "freeze"
    """A main thread does nothing more; its heartbeat goes on."""
    STUCK = "stuck"
    """Messages of one of the node's workers to peers get stuck from now on, on the connections that it has."""
    DAMAGE = "damage"
    """The node's next messages to peers arrive damaged: `times` of them, of one kind or of any."""
    SHORT = "short"
    """The node's first worker runs out of memory in what it does next."""
    CORRUPT = "corrupt"
    """What one of the node's workers holds or makes is changed, `times` times: a replica that lies still, what its next
    optimizer's step, sum, forward or backward makes, or what it tells of its next audit."""
    RAISE = "raise"
    """The user's code fails in the node's next instruction."""
    SLOW = "slow"
    """The node computes `factor` times as long for `for_s`."""
    PARTITION = "partition"
    """The nodes reach neither the coordinator nor other nodes for `for_s`; those fenced then join as new nodes. Or
    nothing passes in one direction, or only between them and other nodes: see `Island`."""
    TWICE = "twice"
    """The node's next `times` messages to peers arrive a second time, `for_s` later, whatever plan is in force then."""
    JUMP = "jump"
    """The nodes' clocks jump ahead by `for_s`; without any nodes, the coordinator's."""
    DECAY = "decay"
    """The last `times` files that were written are torn, flipped or lost."""
    JOIN = "join"
    """A new node comes."""
    RELEASE = "release"
    """A new node comes with another release of Planaria: it speaks a version of the protocol that is later by `times`,
    or, with 0, the same one, and its messages have a field that this release does not know."""
    NOTICE = "notice"
    """The node gives notice, and is killed `for_s` later."""
    DRAIN = "drain"
    """The user wants the node to go; it is not killed."""
    FULL = "full"
    """The disk is full for `for_s`."""
    REPLAY = "replay"
    """The messages that the node's workers sent on their connections are played again."""
    EARLIER = "earlier"
    """Workers of the node, as an earlier run had it, find this run's coordinator, and show the token that both have."""
    CRASH = "crash"
    """The coordinator is killed, and begins again `for_s` later on its journal, which may have lost its end."""
    DEPOSE = "depose"
    """Another coordinator leads `for_s` later. The one that led is stopped for `pause_s`, and goes on beside it."""
    LATE = "late"
    """The answer to the journal's next append comes `for_s` later; it is carried out at once, or only then."""
    SWITCH = "switch"
    """The user wants another policy, where that is allowed."""
    STOP = "stop"
    """The user ends the run."""
    SAVE = "save"
    """The user wants the state on disk."""


DISCARD = "discard"
"""Word of `STOP` for a run that ends without being saved."""

FOR_GOOD = -1.0
"""Duration of what never ends."""

APPLIED = "applied"
"""Word of `LATE` for an append that is carried out at once."""

CLEAR = frozenset(
    {
        FaultKind.KILL,
        FaultKind.BACK,
        FaultKind.JOIN,
        FaultKind.RELEASE,
        FaultKind.NOTICE,
        FaultKind.DRAIN,
        FaultKind.FULL,
        FaultKind.REPLAY,
        FaultKind.EARLIER,
        FaultKind.CRASH,
        FaultKind.DEPOSE,
        FaultKind.LATE,
        FaultKind.SWITCH,
        FaultKind.STOP,
        FaultKind.SAVE,
        FaultKind.TWICE,
        FaultKind.JUMP,
        FaultKind.DECAY,
    }
)
"""Faults after which no live process may be taken for lost; unless a journal loses entries that tell of a node."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A fault.

    It strikes `delay_s` after the n-th time that something happens: "start" (once), "event" (anything at all), an
    event's, a command's or a record's name at the coordinator ("NodeGone", "Vote", "JournalCommit", "Send Commit",
    "StepCommitted"), or what workers do, an instruction's or a command's name ("forward", "Apply"), of one node with
    "@" and its number behind. Without a delay it strikes before anything else is done, be it in the middle of a batch
    of the coordinator's commands.

    Attributes:
        kind: what happens.
        nodes: to whom.
        group: or to all nodes that hold this parameter group under the plan then in force, but the first `spare`.
        at: name of what happens before.
        nth: how often.
        delay_s: virtual seconds.
        for_s: how long it lasts; `FOR_GOOD`.
        factor: of a slow node.
        what: kind of message that is damaged ("state", "sum", "activation", "gradient"), "": any; what is changed
            ("rest", "apply", "sync", "forward", "backward", "audit"); name of a policy;
            what a partition stops, as in `Island`; whether a worker whose code fails "holds" its state or "ends";
            folder under which the user saves; `DISCARD`; `APPLIED`.
        times: how many messages are, or how often something is changed; how many arrive twice; how many files decay;
            by how many versions of the protocol a release is later, or earlier.
        cut: entries that a journal loses.
        pause_s: for which a coordinator is stopped.
        device: of each node, whose worker alone is killed or started again; -1: all are.
    """

    kind: FaultKind
    nodes: tuple[int, ...] = ()
    group: int = -1
    spare: int = 0
    at: str = "start"
    nth: int = 1
    delay_s: float = 0.0
    for_s: float = 0.0
    factor: float = 1.0
    what: str = ""
    times: int = 1
    cut: int = 0
    pause_s: float = 0.0
    device: int = -1


def are_clear(faults: Sequence[Fault]) -> bool:
    """Returns whether no live process may be taken for lost: what a journal loses of steps and plans, workers know; and
    what arrives damaged once is sent or computed again."""
    if any(fault.cut for fault in faults):
        return all(fault.kind in (FaultKind.CRASH, FaultKind.STOP) for fault in faults)
    num_damaged = sum(fault.times for fault in faults if fault.kind is FaultKind.DAMAGE)
    return num_damaged <= 1 and all(fault.kind in CLEAR or fault.kind is FaultKind.DAMAGE for fault in faults)
