"""Agreement of replicas and audits: who is wrong when the digests in the votes of a step differ. Pure.

All owners of a group hold the same bits, so what differs is wrong somewhere. Each owner tells what it holds, and what
its own last write of that state left: who holds something else than it wrote is wrong, be it the only owner, and so is
who wrote something else than most. A sum is no witness for another, as one owner copies it from the next: it is made
again. Two that cannot be told apart are in dispute until the step has been done again, and what they claimed is held
against that.

What comes of a computation is claimed by all that ran it on the same inputs; with other inputs it is another one. What
one worker sent and another got is claimed by both; if it differs, nobody can tell who changed it, then or later.
"""

from __future__ import annotations

import enum
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from planaria.plan.pipeline import first_sharing
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import NO_SUM, PART, WEIGHTS, Computed, Digest
from planaria.protocol.messages.journal import Disputed, OpenDispute

Claims = Mapping[Any, Mapping[WorkerId, Digest]]
"""Group -> what each of its owners told of it; `Computation` -> what came of it, as the digest of a sum."""


OF_FORWARDS = ("a", "l")
"""How names of what a forward makes begin: an activation, or the loss."""


INPUTS = ("activation", "gradient")
"""Names of what went into a computation, in the order of `Computed.given`."""


class Held(enum.StrEnum):
    """What may be wrong: what owners of a group hold, or what comes of a computation."""

    REPLICA = "replica"
    SUM = "sum"
    COMPUTATION = "computation"


class Computation(NamedTuple):
    """One result of layers that ran for a microbatch on given inputs, or what these were; see `Computed`."""

    microbatch: int
    first_layer: int
    end_layer: int
    given: tuple[int, ...]
    name: str


def _is_message(item: object) -> bool:
    """Returns whether this is what one worker sent and others got: it has no inputs."""
    return isinstance(item, Computation) and not item.given


def claims_of(computed: Mapping[WorkerId, Collection[Computed]], num_sharing: int = 1) -> Claims:
    """Returns what was told of computations that are audited, and of the messages that went into and out of them. What
    a forward makes does not depend on gradients.

    Args:
        computed: what each worker told.
        num_sharing: see `Plan.num_sharing`. What these count of one microbatch is claimed by the first of them, as a
            sum.
    """
    claims: dict[Computation, dict[WorkerId, Digest]] = {}
    parts: dict[Computation, dict[WorkerId, list[int]]] = {}
    for worker, told in computed.items():
        for one in told:
            is_message = one.first_layer == one.end_layer
            piece = one.microbatch, one.first_layer, one.end_layer
            for name, digest in one.made.items():
                given = () if is_message else one.given[:1] if name.startswith(OF_FORWARDS) else one.given
                if name.startswith(PART):
                    whole = Computation(*piece, given, WEIGHTS + name.removeprefix(PART))
                    parts.setdefault(whole, {}).setdefault(first_sharing(worker, num_sharing), []).append(digest)
                else:
                    claims.setdefault(Computation(*piece, given, name), {})[worker] = Digest(0, digest)
            for name, digest in zip(INPUTS, () if is_message else one.given, strict=False):
                claims.setdefault(Computation(*piece, (), name), {})[worker] = Digest(0, digest)
    for whole, stages in parts.items():
        for first, told_parts in stages.items():
            if len(told_parts) == num_sharing:
                claims.setdefault(whole, {})[first] = Digest(0, _sum_of_parts(told_parts))
    return claims


def _sum_of_parts(parts: Collection[int]) -> int:
    """Returns the digest of what devices count together: digests of counts add up."""
    return NO_SUM if NO_SUM in parts else sum(parts) % (1 << 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What differs between owners.

    Attributes:
        held: replicas, or sums alone, or computations alone.
        groups: whose owners differ, or computations.
        wrong: group -> owners known to be wrong; no owner: nobody knows who is.
        misled: of those, the ones that have it from a peer, and did not make it.
    """

    held: Held
    groups: tuple[Any, ...]
    wrong: Mapping[Any, frozenset[WorkerId]]
    misled: frozenset[WorkerId] = frozenset()

    @property
    def known(self) -> frozenset[WorkerId]:
        """All owners known to be wrong."""
        return frozenset(worker for group in self.groups for worker in self.wrong.get(group, ()))

    @property
    def is_on_the_way(self) -> bool:
        """Whether nothing differs but what one worker sent and another got."""
        return all(map(_is_message, self.groups))

    def groups_of(self, workers: Collection[WorkerId]) -> tuple[Any, ...]:
        """Returns the groups of which one of these workers is known to be wrong; all that differ, if of none."""
        of_these = tuple(group for group in self.groups if not self.wrong.get(group, frozenset()).isdisjoint(workers))
        return of_these or self.groups


def difference(claims: Claims) -> Difference | None:
    """Returns what differs; None: all owners of each group hold what was written, and the same.

    Sums are looked at where replicas agree, and computations where both do.
    """
    for held in Held:
        items = sorted(item for item in claims if isinstance(item, Computation) is (held is Held.COMPUTATION))
        groups = tuple(item for item in items if len(_told(held, claims[item])) > 1)
        if groups:
            return _difference(held, groups, claims)
    return None


def _difference(held: Held, groups: tuple[Any, ...], claims: Claims) -> Difference:
    match held:
        case Held.REPLICA:
            wrong = {group: _wrong(claims[group]) for group in groups}
            had = {worker for group in wrong for worker in wrong[group] if claims[group][worker].written is None}
            return Difference(held=held, groups=groups, wrong=wrong, misled=frozenset(had))
        case Held.SUM:
            return Difference(held=held, groups=groups, wrong={})
        case Held.COMPUTATION:
            few = {group: frozenset(_few(held, claims[group])) for group in groups if not _is_message(group)}
            return Difference(held=held, groups=groups, wrong=few)


def _told(held: Held, digests: Mapping[WorkerId, Digest]) -> set[int]:
    """Returns all that is told of what should be the same."""
    told = {_of(held, digest) for digest in digests.values()}
    if held is Held.REPLICA:
        told.update(digest.written for digest in digests.values() if digest.written is not None)
    return told


def _of(held: Held, digest: Digest) -> int:
    return digest.state if held is Held.REPLICA else digest.sum


def _wrong(digests: Mapping[WorkerId, Digest]) -> frozenset[WorkerId]:
    """Returns the owners whose replica is wrong; none: it cannot be told."""
    right = _right([digest.written for digest in digests.values() if digest.written is not None])
    if right is None:
        return frozenset()
    return frozenset(worker for worker, digest in digests.items() if digest.state != right)


def _right(told: list[int]) -> int | None:
    """Returns what more than half tell; two that differ tell nothing."""
    if not told:
        return None
    found, times = Counter(told).most_common(1)[0]
    return found if 2 * times > len(told) else None


def _few(held: Held, digests: Mapping[WorkerId, Digest]) -> list[WorkerId]:
    """Returns the owners that do not tell what more than half do, each of what it made; nobody: it cannot be told."""
    own = {w: _of(held, d) for w, d in digests.items() if held is not Held.REPLICA or d.written is not None}
    most = _right(list(own.values()))
    return [] if most is None else [worker for worker, told in own.items() if told != most]


def _item(written: Disputed) -> Any:
    return written if isinstance(written, int) else Computation(*written)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dispute:
    difference: Difference
    claims: Claims
    num_dropped: int

    @classmethod
    def of(cls, written: OpenDispute) -> _Dispute:
        """Returns a dispute of the journal."""
        found = Difference(held=Held(written.held), groups=tuple(map(_item, written.items)), wrong={})
        claims = {_item(item): told for item, told in written.claims}
        return cls(difference=found, claims=claims, num_dropped=written.num_dropped)

    def of_step(self, step: int) -> OpenDispute:
        """Returns the dispute about this step for the journal."""
        return OpenDispute(
            step=step,
            held=self.difference.held.value,
            items=self.difference.groups,
            claims=tuple((item, dict(told)) for item, told in self.claims.items()),
            num_dropped=self.num_dropped,
        )

    def denied_by(self, claims: Claims) -> Mapping[WorkerId, Difference]:
        """Returns the workers that claimed something else than all owners of now do, and in what; of a replica, which
        made it. If nobody else, those that sent and got a message that is denied."""
        held, denied, ends = self.difference.held, set[WorkerId](), set[WorkerId]()
        messages = tuple(group for group in self.difference.groups if _is_message(group))
        for group in self.difference.groups:
            truths = {_of(held, digest) for digest in claims.get(group, {}).values()}
            for worker, digest in self.claims[group].items() if len(truths) == 1 else ():
                is_its_own = held is not Held.REPLICA or digest.written is not None
                if is_its_own and _of(held, digest) not in truths:
                    ends.update(self.claims[group] if group in messages else ())
                    denied.update(() if group in messages else (worker,))
        if denied:
            return dict.fromkeys(sorted(denied), self.difference)
        return dict.fromkeys(sorted(ends), replace(self.difference, groups=messages))

    def changed_in(self, claims: Claims) -> frozenset[WorkerId]:
        """Returns the workers that claim something else of what is in dispute than they did, messages aside."""
        held, changed = self.difference.held, set[WorkerId]()
        for group in itertools.filterfalse(_is_message, self.difference.groups):
            now = claims.get(group, {})
            for worker, digest in self.claims[group].items():
                if worker in now and _of(held, now[worker]) != _of(held, digest):
                    changed.add(worker)
        return frozenset(changed)


class Disputes:
    """Differences between owners that nobody could settle, and that the step, done again, will.

    The journal has them, for the next coordinator. They tell nothing where other samples were left out than before
    (`num_dropped`, up to this step).
    """

    def __init__(self) -> None:
        self._open: dict[int, _Dispute] = {}
        self._written: tuple[OpenDispute, ...] = ()

    def recall(self, written: Iterable[OpenDispute]) -> None:
        """Takes up the disputes that the journal says are open."""
        self._written = tuple(written)
        self._open = {dispute.step: _Dispute.of(dispute) for dispute in self._written}

    def to_write(self) -> tuple[OpenDispute, ...] | None:
        """Returns all that are open, if they are others than were written down; the caller writes them down."""
        now = tuple(dispute.of_step(step) for step, dispute in sorted(self._open.items()))
        if now == self._written:
            return None
        self._written = now
        return now

    def begin(self, step: int, found: Difference, claims: Claims, num_dropped: int = 0) -> None:
        """Begins a dispute about a step: what its owners claim is held against what they will when it is done again."""
        self._open[step] = _Dispute(difference=found, claims=claims, num_dropped=num_dropped)

    def is_open(self, step: int) -> bool:
        """Returns whether there is a dispute about a step."""
        return step in self._open

    def _close(self, step: int, num_dropped: int) -> _Dispute | None:
        before = self._open.pop(step, None)
        return before if before is not None and before.num_dropped == num_dropped else None

    def again(
        self, step: int, found: Difference, claims: Claims, num_dropped: int = 0
    ) -> tuple[frozenset[WorkerId], frozenset[WorkerId]]:
        """Returns who is wrong where owners differ in the same step once more, and of whom nobody can tell; nobody at
        all: it is the first time.

        Whoever does not claim the same twice is wrong. If that does not tell them apart, what most claimed is right,
        then and now together.
        """
        before = self._close(step, num_dropped)
        if before is None:
            return frozenset(), frozenset()
        made = [group for group in found.groups if not _is_message(group)]
        differing = frozenset(worker for group in made or found.groups for worker in claims[group])
        changed = before.changed_in(claims) & differing
        if changed and changed != differing:
            return changed, frozenset()
        both = {group: {**before.claims.get(group, {}), **claims[group]} for group in made}
        few = frozenset(worker for group in both for worker in _few(found.held, both[group])) & differing
        return (few, frozenset()) if few else (few, differing)

    def settle(self, step: int, claims: Claims, num_dropped: int = 0) -> Mapping[WorkerId, Difference]:
        """Returns who was wrong in a dispute about this step, now that all owners hold the same, and in what."""
        before = self._close(step, num_dropped)
        return {} if before is None else before.denied_by(claims)
