"""The rules of the witness: what must hold in each history, a sentence each."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass


class Rule(enum.Enum):
    """What is decided. The sentence says what holds; docs/explanation/guarantees.md has the table."""

    IN_ORDER = "each step is committed once, after the one before it"
    ONE_GENERATION = "by the generation of the plan in force, and the commit says what all read in the journal"
    GENERATIONS_RISE = "generations of plans rise, in the journal, at each worker and in what is told"
    ROUTED = "a plan routes each microbatch that is not left out once over all layers, on nodes that take part"
    VOTED = "every worker of the plan on a live node has voted before the commit"
    COUNTED = "each layer counts each microbatch once: ledgers of votes, together, have it exactly once"
    NUMBERS = "a commit's loss, norm and number of microbatches left out are those of the votes"
    AGREED = "all owners of a group voted for the same bits, of its replica and of its sum"
    AUDITED = "no step is committed in which workers told different results of one computation on the same inputs"
    ACCUSED = "who is said to have computed wrong told something else in that step than another worker"
    SUMMED = "a group's sum has each microbatch's contribution exactly once, and all of one value"
    APPLIED = "workers apply what the journal has, each step once, in order, and hold the same afterwards"
    NODES = "a node joins once, is lost or let go once, and takes no part afterwards"
    PROBATION = "all is audited that a node computes in its first 10 steps, where one of its host computed wrong"
    GOES_BACK = "the job goes back only to a checkpoint that is whole, or to its start, and tells from where"
    AT_END = "nothing is decided after the end"
    TOLD_STEPS = "each step is told once, in order, after the journal has it, and with its numbers"
    TOLD_NODES = "each lost node is told of once, truly lost, and as many nodes live as is told"
    FOUNDED = "no node is given up that nothing befell"
    TOLD_RECOVERY = "each recovery is of nodes told lost, once, after a step was committed since"
    TOLD_PLANS = "a plan that is told is the journal's"
    TOLERANCE = "where fewer than f + 1 nodes hold a layer, it is told, with the right number; and nowhere else"
    TOLD_END = "the end is told once, with the steps that were told"
    SAVED = "a checkpoint is of a committed step, has every group once, and the state and exponents of that step"
    FILES = "a manifest's files are there, of the size and checksum that it says"
    METRICS = "the lines of metrics.jsonl are the told steps and evaluations, number by number"
    SUMMARY = "the numbers of summary.json are those of the lines"


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that was broken, and how."""

    rule: Rule
    text: str

    def __str__(self) -> str:
        return f"{self.rule.name}: {self.text}"


Find = Callable[[Rule, str], None]
"""Called with a rule that is broken, and what breaks it."""
