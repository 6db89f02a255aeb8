"""The votes of the step in progress, and when they are enough to commit it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from planaria.plan.ledger import combine, mask_of
from planaria.plan.plan import Plan, WorkerId
from planaria.protocol.messages.worker import Vote


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteCount:
    """What the votes for a step say together.

    Attributes:
        norms: group -> squared norm of its summed gradient.
        losses: microbatch -> loss.
        missing: contributions (layer, microbatch) that no vote has; 0 when a worker died after all had its own.
        twice: contributions that more than one vote has, or of microbatches that the plan leaves out.
        compute_s: how long each worker computed.
    """

    norms: dict[int, float]
    losses: dict[int, float]
    missing: int
    twice: int
    compute_s: dict[WorkerId, float]


class Ballot:
    """Votes of the workers for one plan and step."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._votes: dict[WorkerId, Vote] = {}
        self._withdrawn: set[WorkerId] = set()

    def cast(self, worker: WorkerId, vote: Vote) -> None:
        self._votes[worker] = vote

    def cast_alike(self, workers: Iterable[WorkerId], vote: Vote) -> None:
        """Casts the same vote for all of these workers."""
        self._votes.update(dict.fromkeys(workers, vote))

    def withdraw(self, worker: WorkerId) -> None:
        """Withdraws the vote of a lost worker."""
        self._votes.pop(worker, None)
        self._withdrawn.add(worker)

    @property
    def voters(self) -> tuple[WorkerId, ...]:
        return tuple(sorted(self._votes))

    def is_enough(self, live: Collection[WorkerId]) -> bool:
        """Returns whether every live worker of the plan voted, and nothing that the step needs was lost.

        A worker votes when its sums are whole, so with all survivors' votes in, the step is done even if one of
        its contributors is dead by now; only its norms and losses may be missing.
        """
        if len(self._votes) + len(self._withdrawn) < len(self._plan.workers):
            return False  # asked at every vote: nobody need be counted to know
        awaited = [worker for worker in self._plan.workers if worker in live]
        if not awaited or any(worker not in self._votes for worker in awaited):
            return False
        if len(awaited) == len(self._plan.workers):
            return True
        norms = {group for vote in self._votes.values() for group in vote.norms}
        losses = {microbatch for vote in self._votes.values() for microbatch in vote.losses}
        return len(norms) == len(self._plan.groups) and len(losses) == self._plan.num_counted

    def tally(self) -> VoteCount:
        norms: dict[int, float] = {}
        losses: dict[int, float] = {}
        votes = list(map(self._votes.__getitem__, self.voters))
        for vote in votes:
            if vote.norms:
                norms.update(vote.norms)
            if vote.losses:
                losses.update(vote.losses)
        took = dict(zip(self.voters, [vote.compute_s for vote in votes], strict=True))
        missing = twice = 0
        if len(self._votes) == len(self._plan.workers):
            ledgers = [vote.ledger for vote in votes if vote.ledger.masks]
            union, twice = combine(ledgers, self._plan.num_layers)
            left_out = mask_of(self._plan.dropped)
            full = ((1 << self._plan.num_microbatches) - 1) & ~left_out
            counted = union.bits()
            missing = sum((full & ~mask).bit_count() for mask in counted)
            twice += sum((left_out & mask).bit_count() for mask in counted)
        return VoteCount(norms=norms, losses=losses, missing=missing, twice=twice, compute_s=took)
