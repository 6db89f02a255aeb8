"""Checkpoints: of which step they are, and what is in them."""

from __future__ import annotations

from collections.abc import Sequence

from tests.testkit.witness.applied import AppliedSteps
from tests.testkit.witness.decisions import Decisions
from tests.testkit.witness.rules import Find, Rule


class Checkpoints:
    """Judges checkpoints as they become whole."""

    def __init__(self, decisions: Decisions, applied: AppliedSteps, find: Find) -> None:
        self._decisions = decisions
        self._applied = applied
        self._find = find

    def manifest(self, step: int, folder: str, groups: Sequence[Sequence[int]], exponents: Sequence[int]) -> None:
        decisions = self._decisions
        if step == decisions.job.done:
            return
        commits = [commit for (_, done), commit in decisions.commits.items() if done == step]
        if not commits:
            self._find(Rule.SAVED, f"{folder} is of step {step}, which is not committed")
            return
        if all(list(commit["exponents"]) != list(exponents) for commit in commits):
            self._find(Rule.SAVED, f"{folder} has other exponents than step {step}")
        numbers = sorted(group for group, _ in groups)
        if numbers != list(range(len(numbers))) or len(numbers) != self._num_groups():
            self._find(Rule.SAVED, f"{folder} has groups {numbers}")
        for group, state in groups:
            held = self._applied.states.get((step, group), {})
            if held and not self._applied.is_corrupt and all(state not in states for states in held.values()):
                self._find(Rule.SAVED, f"{folder} has a state of group {group} that nobody had after step {step}")

    def _num_groups(self) -> int:
        plan = next(iter(self._decisions.plans.values()))["message"]["plan"]
        return len(plan["groups"])
