"""What workers told of computations that were run again: that it agreed where it was committed, and who was accused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.testkit.witness.decisions import Decisions
from tests.testkit.witness.history import Plain
from tests.testkit.witness.rules import Find, Rule

_NO_SUM = (1 << 64) - 1
"""What is told of something that does not add up."""

Told = dict[tuple[Any, ...], dict[int, Any]]
"""What is told of -> worker -> what it told of that."""


class Audited:
    """Judges commits and accusations by the votes before them."""

    def __init__(self, decisions: Decisions, find: Find) -> None:
        self._decisions = decisions
        self._find = find

    def journal(self, entry: Plain) -> None:
        if not self._decisions.job.has_votes or self._decisions.is_cut:
            return
        if entry["type"] == "commit":
            commit = entry["commit"]
            votes = self._decisions.votes.get((commit["generation"], commit["step"]), {})
            for item, told in _computed(votes, self._together).items():
                if len(set(told.values())) > 1:
                    text = f"step {commit['step']} is committed, and of {item} workers told {told}"
                    self._find(Rule.AUDITED, text[:300])
        for record in entry.get("records", ()) if entry["type"] == "node" else ():
            if record["event"] == "computed_wrong" and not self._differed(record["node"], record["step"]):
                text = f"node {record['node']} is said to be wrong in step {record['step']}, and nothing differed"
                self._find(Rule.ACCUSED, text)

    @property
    def _together(self) -> int:
        """Number of devices that share each microbatch, where any do."""
        plan = self._decisions.known.plan
        return 1 if plan is None else int(plan["message"]["plan"]["devices_per_stage"])

    def _differed(self, node: int, step: int) -> bool:
        """Whether one told something else than another, both in votes for a step, and one of the two is of the node."""
        for (_, voted), votes in self._decisions.votes.items():
            for told in [*_computed(votes, self._together).values(), *_held(votes).values()] if voted == step else ():
                nodes = {self._decisions.known.node_of(worker) for worker in told}
                if node in nodes and len({each for one in told.values() for each in one}) > 1:
                    return True
        return False


def _computed(votes: Mapping[int, Plain], together: int) -> Told:
    """Returns what is told of computations on the same inputs, and of what was sent from one worker to another. Devices
    of a stage that share microbatches, so many, tell what each adds to sums: where all do, they tell what one does."""
    found: Told = {}
    parts: dict[tuple[Any, ...], dict[int, int]] = {}
    for worker, vote in votes.items():
        for item, digest in _items(vote):
            if item[-1][0] == "p":
                parts.setdefault((*item[:-1], f"w{item[-1][1:]}"), {})[worker] = digest
            else:
                found.setdefault(item, {})[worker] = (digest,)
    for item, told in parts.items():
        if len(told) == together:
            whole = -1 if _NO_SUM in told.values() else sum(told.values())
            found.setdefault(item, {})[min(told)] = (whole % (1 << 64),)
    return found


def _items(vote: Plain) -> Iterator[tuple[tuple[Any, ...], int]]:
    for microbatch, first, end, given, made in vote.get("computed", ()):
        for name, digest in made.items():
            # An activation and the loss come of the forward alone, which knows no gradient.
            inputs = [] if first == end else given[:1] if name[0] in "al" else given
            yield (microbatch, first, end, tuple(inputs), name), digest
        for name, digest in zip(("activation", "gradient"), given if first < end else (), strict=False):
            yield (microbatch, first, end, (), name), digest


def _held(votes: Mapping[int, Plain]) -> Told:
    """Returns what owners of a group told of its replica, what they wrote of that among it, and of its sum."""
    found: Told = {}
    for worker, vote in votes.items():
        for group, (state, total, written) in vote["digests"].items():
            found.setdefault((group, "replica"), {})[worker] = (state,) if written is None else (state, written)
            found.setdefault((group, "sum"), {})[worker] = (total,)
    return found
