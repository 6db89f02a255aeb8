"""The witness: reads a history once, entry by entry, and says which rules it breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tests.testkit.witness.applied import AppliedSteps
from tests.testkit.witness.audited import Audited
from tests.testkit.witness.checkpoints import Checkpoints
from tests.testkit.witness.decisions import Decisions
from tests.testkit.witness.founded import Founded
from tests.testkit.witness.history import Entry, Job
from tests.testkit.witness.rules import Finding, Rule
from tests.testkit.witness.sums import ContributedSums
from tests.testkit.witness.told import Told

KINDS = (
    "journal", "cut", "heard", "adopted", "applied", "counted", "summed", "manifest", "told", "befell", "over",
)  # fmt: skip
"""Kinds of entries beside the first."""


class Witness:
    """Judges one history.

    Args:
        job: whose it is.
        knows_faults: the history has what befell nodes.

    Attributes:
        findings: what was found so far.
        told: what users know.
    """

    def __init__(self, job: Job, *, knows_faults: bool) -> None:
        self.findings: list[Finding] = []
        self.decisions = Decisions(job, self._find)
        applied = AppliedSteps(self.decisions, self._find)
        self.told = Told(job, self.decisions, self._find)
        checkers: list[Any] = [ContributedSums(self.decisions, self._find), applied, self.told]
        checkers += [Checkpoints(self.decisions, applied, self._find), Audited(self.decisions, self._find)]
        if knows_faults:
            checkers.append(Founded(self.decisions, self._find))
        # What the journal says is known before the others judge by it.
        self._takers: dict[str, list[Callable[..., None]]] = {
            kind: [getattr(checker, kind) for checker in (self.decisions, *checkers) if hasattr(checker, kind)]
            for kind in KINDS
        }

    def _find(self, rule: Rule, text: str) -> None:
        self.findings.append(Finding(rule, text))

    def take(self, entry: Entry) -> None:
        """Takes an entry of the history."""
        for take in self._takers[entry[0]]:
            take(*entry[1:])


def judge(history: Iterable[Entry], *, knows_faults: bool = True) -> list[Finding]:
    """Returns what a history breaks."""
    entries = iter(history)
    kind, facts = next(entries)
    assert kind == "job", f"a history begins with its job, not with {kind}"
    witness = Witness(Job(**facts), knows_faults=knows_faults)
    for entry in entries:
        witness.take(entry)
    witness.told.ended()
    return witness.findings
