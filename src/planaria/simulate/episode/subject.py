"""The subject of a simulation, what may happen in an episode, and what came of it.

Values alone. What happens is `planaria.simulate.episode.episode`'s.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import NodeId
from planaria.policy.interface import Policy
from planaria.protocol.planning.failure_rate import Failures
from planaria.simulate.episode.situation import State
from planaria.simulate.timings import Timings


class Cause(enum.IntEnum):
    """Causes on which a second of a run is spent."""

    TRAINING = 0
    REDONE = 1
    """Work that was lost and done again, and a struck step's surplus over an undisturbed one."""
    DETECTION = 2
    DECISION = 3
    """The decision, and the change of plans."""
    TRANSFER = 4
    RESTART = 5
    """The way back to a checkpoint, or the start of the first processes."""
    CHECKPOINT = 6
    IDLE = 7
    """The wait for nodes."""


NUM_CAUSES = len(Cause)


class Disturbance(enum.IntEnum):
    """Events that may happen to a node, or to a device of it alone."""

    LOST = 0
    CAME = 1
    NOTICED = 2
    DEVICE_LOST = 3
    DEVICE_CAME = 4

    @property
    def is_of_device(self) -> bool:
        return self >= Disturbance.DEVICE_LOST


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    """The job that is the same in all episodes of a simulation.

    Attributes:
        profile: of the model on the devices.
        policy: the policy that makes the plans.
        policy_name: for the records.
        fault_tolerance: f: how many nodes may be lost at once.
        devices_per_node: workers on each node.
        num_microbatches: microbatches in a step.
        timings: of what is not modelled.
        checkpoint_every: steps between checkpoints, as policies are told; 0: none.
        by_number: see `planaria.simulate.episode.situation.canonical`.
    """

    profile: ModelProfile
    policy: Policy
    policy_name: str
    fault_tolerance: int
    devices_per_node: int
    num_microbatches: int
    timings: Timings
    checkpoint_every: int = 0
    by_number: bool = False


@dataclass(frozen=True, kw_only=True)
class RunOutlook:
    """The outlook at the beginning of an episode; see `planaria.policy.forecast`.

    Attributes:
        looks_again: after the step in which it begins the plan is weighed again, as the next loss is thought to be
            further away; see `planaria.protocol.planning.plan_validity`.
    """

    time_to_failure_s: float
    steps_left: int
    steps_at_stake: int
    nodes_together: float = 1.0
    looks_again: bool = False
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        told = self.time_to_failure_s, self.steps_left, self.steps_at_stake, self.nodes_together, self.looks_again
        object.__setattr__(self, "_hash", hash(told))

    def __hash__(self) -> int:
        return self._hash


@dataclass(slots=True)
class EpisodeTally:
    """The tally of a part of an episode.

    Attributes:
        steps: how many steps were committed.
        microbatches: how many microbatches these steps counted.
        causes: seconds by cause.
        restored: the job went back to its checkpoint; steps before count no more.
        survived: of recoveries that the stretch ends, their kinds (`planaria.simulate.traces.tally.RecoveryKinds`).
        plans: purposes of the plans that were taken.
        moved_bytes: state that moved between nodes or devices.
        ended: why the run is over; None: it is not.
        has_completed: it is, because no step is left.
        released: nodes that are done without, by their names in the episode.
        was_weighed: the plan in force was chosen among several; None: no other was taken.
    """

    steps: int = 0
    microbatches: int = 0
    causes: list[float] = field(default_factory=lambda: [0.0] * NUM_CAUSES)
    restored: bool = False
    survived: list[str] = field(default_factory=list)
    plans: list[str] = field(default_factory=list)
    moved_bytes: int = 0
    ended: str | None = None
    released: list[NodeId] = field(default_factory=list)
    was_weighed: bool | None = None
    has_completed: bool = False


class Spending:
    """Seconds spent since the time was last attributed: some are known to be a cause's as it acts, the rest follows at
    the end."""

    def __init__(self) -> None:
        self._from = 0.0
        self._parts: list[tuple[Cause, float]] = []

    def add(self, cause: Cause, seconds: float) -> None:
        """Adds seconds of a cause, unless training goes on meanwhile."""
        if seconds > 0:
            self._parts.append((cause, seconds))

    def attribute(self, now: float, nominal_s: float, tally: EpisodeTally) -> None:
        """Attributes the time since the last call: of it, at most an undisturbed step's (`nominal_s`) is training."""
        span = now - self._from
        causes = tally.causes
        surplus = max(0.0, span - nominal_s)
        causes[Cause.TRAINING] += span - surplus
        for cause, seconds in self._parts:
            part = min(seconds, surplus)
            causes[cause] += part
            surplus -= part
        causes[Cause.REDONE] += surplus
        self._parts.clear()
        self._from = now


@dataclass(frozen=True, slots=True, kw_only=True)
class RestAfterEpisode:
    """The state in which the job trains undisturbed after an episode.

    Attributes:
        state: the state in which the job trains on.
        order: for each of the state's nodes, its name in the episode.
        step_s: seconds of each step.
    """

    state: State
    order: tuple[NodeId, ...]
    step_s: float


class Foreseen(Failures):
    """A forecast in which the next loss comes after a given time, of so many nodes."""

    def __init__(self, time_to_next_s: float, nodes_together: float) -> None:
        super().__init__(time_to_next_s)
        self._time_to_next_s = time_to_next_s
        self._nodes_together = nodes_together

    @property
    def nodes_together(self) -> float:
        return self._nodes_together

    def time_to_next_s(self, now: float) -> float:
        return self._time_to_next_s
