"""A sweep: the scenarios that a scenario's [sweep] asks for, and the pieces of work that they are simulated in.

A piece is as large as it is, whatever the number of processes: results are the same, and can be kept piece by piece.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from planaria.simulate.scenario import Scenario, SweepPart, scenario_from_table

RUNS_PER_PIECE = 25

_PLACES: Mapping[str, tuple[str, str]] = {
    "nodes": ("cluster", "nodes"),
    "fault_tolerance": ("job", "fault_tolerance"),
    "hourly": ("failures", "hourly"),
    "mean_bulk": ("failures", "mean_bulk"),
}
"""The scenario's field that each field of [sweep] stands for, beside the policies."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario of a sweep.

    Attributes:
        varied: what differs from the others, by the fields of [sweep].
        scenario: without a sweep of its own.
    """

    varied: dict[str, float]
    scenario: Scenario

    @property
    def label(self) -> str:
        """The label for people and for file names."""
        return "_".join(f"{name}={value:.12g}" for name, value in self.varied.items()) or "scenario"


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of work: runs of one policy in one scenario.

    Attributes:
        label: the scenario's name, for people.
        scenario: the scenario.
        policy: the policy, or the reference, that is simulated.
        first_seed: the seed of the first run.
        runs: how many runs.
        wants_timeline: results tell nodes and throughput over time.
    """

    label: str
    scenario: Scenario
    policy: str
    first_seed: int
    runs: int
    wants_timeline: bool = False

    @property
    def name(self) -> str:
        """The name of its result's file."""
        return f"{self.label}-{self.policy}-{self.first_seed}"

    def fingerprint(self, inputs: bytes) -> str:
        """Returns a hash of all that the result depends on. `inputs`: contents of the files that the scenario names."""
        mine = msgspec.json.encode([self.scenario, self.policy, self.first_seed, self.runs, self.wants_timeline])
        return hashlib.sha256(mine + inputs).hexdigest()


def points(scenario: Scenario, *, swept: bool) -> list[Point]:
    """Returns the scenarios of a sweep in order; only the one where none is wanted.

    Raises:
        UserError: some combination is no valid scenario.
    """
    table = msgspec.to_builtins(scenario)
    table.pop("sweep")
    if not swept:
        return [Point(varied={}, scenario=msgspec.structs.replace(scenario, sweep=SweepPart()))]
    lists = {name: list(getattr(scenario.sweep, name)) for name in _PLACES if getattr(scenario.sweep, name)}
    found = []
    for values in itertools.product(*lists.values()):
        varied = dict(zip(lists, values, strict=True))
        found.append(Point(varied=varied, scenario=_with(table, scenario, varied)))
    return found


def _with(table: Mapping[str, Any], scenario: Scenario, varied: Mapping[str, float]) -> Scenario:
    changed = {name: dict(section) for name, section in table.items()}
    if scenario.sweep.policies:
        changed["job"]["policies"] = list(scenario.sweep.policies)
    for name, value in varied.items():
        section, field = _PLACES[name]
        changed[section][field] = value
    return scenario_from_table(changed)


def pieces(point: Point, *, wants_timeline: bool) -> Iterator[Piece]:
    """Yields a scenario's pieces of work. Timelines are wanted of its first piece only."""
    failures = point.scenario.failures
    for policy in point.scenario.job.policies:
        for first in range(0, failures.runs, RUNS_PER_PIECE):
            yield Piece(
                label=point.label,
                scenario=point.scenario,
                policy=policy,
                first_seed=failures.seed + first,
                runs=min(RUNS_PER_PIECE, failures.runs - first),
                wants_timeline=wants_timeline and not first,
            )
