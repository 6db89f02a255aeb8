"""Histories: what happened in a run, as plain values, in order. JSON can hold them.

Each entry is a sequence, its kind first:

- "job", facts: always the first, see `Job`.
- "journal", entry: an entry became durable. "cut", number: of the journal only so many first entries are left.
- "heard", worker, message: the coordinator heard a vote, or from a worker that came back with one.
- "adopted", worker, generation, step, source. "applied", worker, commit, states: what a worker did, and by group what
  it holds since; none in a real run.
- "counted", worker, generation, step, group, layer, microbatch, value: a contribution to a worker's sum.
  "summed", worker, generation, step, totals: by group, what it voted for.
- "manifest", step, folder, groups, exponents: a checkpoint became whole; groups as (number, state).
- "told", record: users were told. "befell", kind, nodes, is_clear: a fault struck; if clear, nobody but these nodes
  may be taken for lost because of it. "over", node: a process of the node ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Plain = dict[str, Any]
"""A message, a record or an entry of the journal, field by field."""

Entry = Sequence[Any]
History = list[Entry]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is known of a job.

    Attributes:
        steps: of the job.
        done: steps of an earlier run from whose checkpoint this one begins.
        dropped: microbatches that were left out of those.
        microbatches: of a step.
        tokens: of a microbatch.
        devices_per_node: that workers are numbered by.
        fault_tolerance: f.
        may_resume: after its end a history may go on with the run's next part.
        is_whole: nothing is missing of the journal; else commits that later ones made old may be.
        has_votes: the history has what the coordinator heard.
    """

    steps: int
    microbatches: int
    tokens: int = 1
    done: int = 0
    dropped: int = 0
    devices_per_node: int = 1
    fault_tolerance: int = 1
    may_resume: bool = False
    is_whole: bool = True
    has_votes: bool = True


def as_json(history: Iterable[Entry]) -> str:
    """Returns a history as lines of JSON."""
    return "".join(json.dumps(entry) + "\n" for entry in history)


def of_json(text: str) -> History:
    """Returns the history of lines of JSON."""
    return [json.loads(line) for line in text.splitlines()]
