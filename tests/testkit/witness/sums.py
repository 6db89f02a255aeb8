"""Each microbatch's contribution to each group's sum: what workers computed, and what was committed."""

from __future__ import annotations

from tests.testkit.witness.decisions import Decisions
from tests.testkit.witness.history import Plain
from tests.testkit.witness.rules import Find, Rule

MOST_DOUBTFUL = 12
"""Contributions of more than one value of which all choices are tried."""

Place = tuple[int, int]
"""Layer and microbatch."""


class ContributedSums:
    """Judges the sums of committed steps by what each microbatch contributed.

    A node that computes wrong may contribute something else than others; the committed sum is of one value of each.
    """

    def __init__(self, decisions: Decisions, find: Find) -> None:
        self._decisions = decisions
        self._find = find
        self._counted: dict[tuple[int, int], dict[Place, dict[int, int]]] = {}
        self._summed: dict[tuple[int, int], dict[int, Plain]] = {}

    def counted(
        self, worker: int, generation: int, step: int, group: int, layer: int, microbatch: int, value: int
    ) -> None:
        """Notes a contribution, and the last generation in which it was counted so."""
        at = self._counted.setdefault((step, group), {}).setdefault((layer, microbatch), {})
        at[value] = max(generation, at.get(value, generation))  # one that was stopped goes on in an old one

    def summed(self, worker: int, generation: int, step: int, totals: Plain) -> None:
        self._summed.setdefault((generation, step), {})[worker] = totals

    def journal(self, entry: Plain) -> None:
        if entry["type"] != "commit":
            return
        commit = entry["commit"]
        key = commit["generation"], commit["step"]
        plan = self._decisions.plans.get(commit["generation"])
        if plan is None:
            return
        for worker, totals in self._summed.pop(key, {}).items():
            for group, total in totals.items():
                self._check(commit, plan["message"], worker, int(group), total)

    def _check(self, commit: Plain, message: Plain, worker: int, group: int, total: int) -> None:
        step, plan = commit["step"], message["plan"]
        begun = message["begun"] if message["step"] == step else commit["generation"]
        found = self._counted.get((step, group), {})
        right, doubtful = 0, list[list[int]]()
        for layer in plan["groups"][group]["layers"]:
            for microbatch in range(plan["num_microbatches"]):
                if microbatch in commit["dropped"]:
                    continue
                values = [value for value, last in found.get((layer, microbatch), {}).items() if last >= begun]
                if not values:
                    text = f"step {step}, group {group}: nobody counted microbatch {microbatch} of layer {layer}"
                    self._find(Rule.SUMMED, text)
                    return
                if len(values) == 1:
                    right += values[0]
                else:
                    doubtful.append(values)
        if not _is_possible(total - right, doubtful):
            text = f"step {step}, group {group}: worker {worker}'s sum does not have each microbatch exactly once"
            self._find(Rule.SUMMED, text)


def _is_possible(rest: int, doubtful: list[list[int]]) -> bool:
    """Returns whether the rest of a sum is one value of each of the doubtful; yes, where these are too many to try."""
    if len(doubtful) > MOST_DOUBTFUL:
        return True
    sums = {0}
    for values in doubtful:
        sums = {total + value for total in sums for value in values}
    return rest in sums
