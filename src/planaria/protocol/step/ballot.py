"""The votes of the step in progress, and when they are enough to commit it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from planaria.plan.ledger import combine, mask_of
from planaria.plan.plan import Plan, WorkerId
from planaria.protocol.messages.from_worker import Computed, Digest, Flow, Score, Vote


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteCount:
    """What the votes for a step say together.

    Attributes:
        norms: group -> squared norm of its summed gradient.
        losses: microbatch -> loss.
        scores: of an evaluation, microbatch -> what was made of it.
        missing: contributions (layer, microbatch) that no vote has; 0 when a worker died after all had its own.
        twice: contributions that more than one vote has, or of microbatches that the plan leaves out.
        compute_s: how long each worker computed.
        flows: what each worker that tells it has sent to its peers on other hosts.
    """

    norms: dict[int, float]
    losses: dict[int, float]
    scores: dict[int, Score]
    missing: int
    twice: int
    compute_s: dict[WorkerId, float]
    flows: dict[WorkerId, dict[WorkerId, Flow]]


class Ballot:
    """Votes of the workers for one plan and step."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan.of_pass
        self._votes: dict[WorkerId, Vote] = {}
        self._withdrawn: set[WorkerId] = set()

    def cast(self, worker: WorkerId, vote: Vote) -> None:
        self._votes[worker] = vote

    def withdraw(self, worker: WorkerId) -> None:
        """Withdraws the vote of a lost worker."""
        self._votes.pop(worker, None)
        self._withdrawn.add(worker)

    @property
    def voters(self) -> tuple[WorkerId, ...]:
        return tuple(sorted(self._votes))

    @property
    def digests(self) -> dict[int, dict[WorkerId, Digest]]:
        """Returns what the owners of each group told of it, where they told anything."""
        told: dict[int, dict[WorkerId, Digest]] = {}
        for worker in self.voters:
            for group, digest in self._votes[worker].digests.items():
                told.setdefault(group, {})[worker] = digest
        return told

    @property
    def computed(self) -> dict[WorkerId, tuple[Computed, ...]]:
        """Returns what each worker told of computations that are audited, where it told anything."""
        return {worker: self._votes[worker].computed for worker in self.voters if self._votes[worker].computed}

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
        if self._plan.evaluation is not None:
            return len({m for vote in self._votes.values() for m in vote.scores}) == self._plan.num_counted
        norms = {group for vote in self._votes.values() for group in vote.norms}
        losses = {microbatch for vote in self._votes.values() for microbatch in vote.losses}
        return len(norms) == len(self._plan.groups) and len(losses) == self._plan.num_counted

    def tally(self) -> VoteCount:
        norms: dict[int, float] = {}
        losses: dict[int, float] = {}
        scores: dict[int, Score] = {}
        votes = list(map(self._votes.__getitem__, self.voters))
        for vote in votes:
            if vote.norms:
                norms.update(vote.norms)
            if vote.losses:
                losses.update(vote.losses)
            scores.update(vote.scores)
        took = dict(zip(self.voters, [vote.compute_s for vote in votes], strict=True))
        missing = twice = 0
        if len(self._votes) == len(self._plan.workers):
            ledgers = [vote.ledger for vote in votes if vote.ledger.masks]
            union, twice = combine(ledgers, self._plan.num_layers)
            left_out = mask_of(self._plan.dropped)
            full = ((1 << self._plan.num_microbatches) - 1) & ~left_out
            counted = union.bits()[self._plan.counting_layers.start :]
            missing = sum((full & ~mask).bit_count() for mask in counted)
            twice += sum((left_out & mask).bit_count() for mask in counted)
        flows = {worker: vote.flows for worker, vote in self._votes.items() if vote.flows}
        return VoteCount(
            norms=norms,
            losses=losses,
            scores=scores,
            missing=missing,
            twice=twice,
            compute_s=took,
            flows=flows,
        )
