"""What workers did: plans that they adopted, and steps that they applied."""

from __future__ import annotations

from tests.testkit.witness.decisions import Decisions
from tests.testkit.witness.history import Plain
from tests.testkit.witness.journal import LIVE, same_commit
from tests.testkit.witness.rules import Find, Rule


class AppliedSteps:
    """Judges what workers applied by what the journal has.

    Where the journal lost its end, a step may be committed anew with other samples once all that applied it are gone.
    So nobody may go on from a commit in whose place there is another.

    Attributes:
        states: (step, group) -> (lineage, generation of the commit) -> what workers held of it after the step; lineages
            begin where the job loads a state.
        is_corrupt: some node computed wrong, so not all of that need be right.
    """

    def __init__(self, decisions: Decisions, find: Find) -> None:
        self.states: dict[tuple[int, int], dict[tuple[int, int], set[int]]] = {}
        self.is_corrupt = False
        self._decisions = decisions
        self._find = find
        self._generation: dict[int, int] = {}
        self._step: dict[int, int | None] = {}
        self._under: dict[int, int] = {}

    def befell(self, kind: str, nodes: list[int], is_clear: bool) -> None:
        self.is_corrupt |= kind == "corrupt"

    def adopted(self, worker: int, generation: int, step: int, source: str) -> None:
        before = self._generation.get(worker, -1)
        if generation <= before:
            self._find(Rule.GENERATIONS_RISE, f"worker {worker} adopts plan {generation} after {before}")
        self._generation[worker] = generation
        if source != LIVE or step != (self._step.get(worker) or 0) + 1:
            self._step[worker] = None  # it holds another state now, or was left out for a while

    def applied(self, worker: int, commit: Plain, states: Plain) -> None:
        step, decisions = commit["step"], self._decisions
        entry = decisions.commits.get((commit["generation"], step))
        if entry is None or not same_commit(entry, commit):
            self._find(Rule.APPLIED, f"worker {worker} applies step {step}, which the journal has as {entry}"[:300])
        last = self._step.get(worker)
        if last is not None and step != last + 1:
            self._find(Rule.APPLIED, f"worker {worker} applies step {step} after step {last}")
        if last is not None and self._is_done_anew(last, self._under[worker]):
            self._find(Rule.APPLIED, f"worker {worker} goes on from step {last} as it was before it was done again")
        self._step[worker], self._under[worker] = step, commit["generation"]
        plan = decisions.plans.get(commit["generation"])
        if plan is None:
            return
        for group, state in states.items():
            lineages = self.states.setdefault((step, int(group)), {})
            held = lineages.setdefault((plan["message"]["lineage"], commit["generation"]), set())
            held.add(state)
            if len(held) > 1 and not self.is_corrupt:
                self._find(Rule.APPLIED, f"after step {step}, workers hold different states of group {group}")

    def _is_done_anew(self, step: int, generation: int) -> bool:
        """Returns whether the journal has the step, in the lineage of this commit, as of another generation alone."""
        plans, commits = self._decisions.plans, self._decisions.known.commits
        if (generation, step) in commits or generation not in plans:
            return False
        lineage = plans[generation]["message"]["lineage"]
        others = (other for other, done in commits if done == step and other in plans)
        return any(plans[other]["message"]["lineage"] == lineage for other in others)
