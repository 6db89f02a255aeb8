"""A published system through a trace: how long it trains, waits, restarts and redoes, as its paper describes it.

A system is asked what it does after each change of nodes, and answers with how it runs from then on and what the change
cost. It has no messages and no protocol: those of this project are simulated by `planaria.simulate`; here are the
systems that it is compared with, by the costs that their papers give.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import floor, inf
from typing import Protocol

from planaria.simulate.traces.trace import Change, Trace


@dataclass(frozen=True, slots=True)
class Node:
    """A machine, and the zone where it is."""

    name: str
    zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What happens at one moment."""

    at_s: float
    lost: tuple[Node, ...] = ()
    joined: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How a system runs until something changes: a step takes so long and does so many samples."""

    step_s: float
    samples: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a system does after a change.

    Attributes:
        mode: from then on; None: it waits for nodes.
        pause_s: before it goes on.
        how: by which mechanism, for counting.
        disturbs: the step in progress is begun anew. (What its system's paper does not count is not counted here.)
        rolls_back: to the last checkpoint.
        saves: what was done is saved at once; saving is part of the pause.
    """

    mode: Mode | None
    pause_s: float = 0.0
    how: str = "none"
    disturbs: bool = False
    rolls_back: bool = False
    saves: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """How state is saved.

    Attributes:
        write_s: what writing takes.
        every: steps between two, which training waits for; 0: one after another, beside training.
    """

    write_s: float
    every: int = 0


class System(Protocol):
    """A published system. `name` is for people; `checkpoints` None: it has none to go back to."""

    name: str
    checkpoints: Checkpoints | None

    def start(self, nodes: Sequence[Node]) -> Mode | None: ...

    def change(self, changes: Changes) -> Answer: ...


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of it.

    Attributes:
        samples: trained and not lost.
        seconds: by cause: training, redone (or lost), checkpoint, restart, idle.
        node_s: seconds of live nodes, which are paid for.
        end_s: when it ended.
        hows: number of changes by mechanism.
        series: (time in s, samples a second) from each change on.
        trained: (time in s, samples trained and not lost) at each change and at the end.
    """

    samples: float = 0.0
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    node_s: float = 0.0
    end_s: float = 0.0
    hows: Counter[str] = field(default_factory=Counter)
    series: list[tuple[float, float]] = field(default_factory=list)
    trained: list[tuple[float, float]] = field(default_factory=list)

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.end_s

    @property
    def mean_nodes(self) -> float:
        return self.node_s / self.end_s

    def share(self, cause: str) -> float:
        return self.seconds[cause] / self.end_s


def changes_of(trace: Trace) -> tuple[list[Node], list[Changes]]:
    """The nodes at the trace's beginning, and what happens after it."""
    there: dict[str, Node] = {}
    result: list[Changes] = []
    first: list[Node] = []
    for at_s, events in groupby(trace.events, key=lambda event: event.at_s):
        lost: list[Node] = []
        joined: list[Node] = []
        for event in events:
            if event.change is Change.ADD:
                there[event.node] = Node(event.node, event.zone)
                joined.append(there[event.node])
            else:
                lost.append(there.pop(event.node))
        if at_s == 0:
            first = [node for node in joined if node.name in there]
        else:
            result.append(Changes(at_s=at_s, lost=tuple(lost), joined=tuple(joined)))
    return first, result


class Replay:
    """One run of one system."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._outcome = Outcome()
        self._now = 0.0
        self._resume_s = 0.0
        self._mode: Mode | None = None
        self._progress_s = 0.0
        self._unsaved: list[tuple[float, float, float]] = []
        """Of steps that no checkpoint has yet: when done, seconds, samples (several steps may be one entry)."""
        self._steps_since = 0
        self._saving_since = 0.0

    def run(self, nodes: Sequence[Node], changes: Sequence[Changes], horizon_s: float, samples: float = inf) -> Outcome:
        """Until the horizon, or until so many samples are trained."""
        self._mode = self._system.start(nodes)
        self._note_series()
        count = len(nodes)
        for change in [*changes, Changes(at_s=horizon_s)]:
            until_s = min(change.at_s, horizon_s)
            self._outcome.node_s += count * (until_s - self._now)
            self._train(until_s)
            if self._outcome.samples >= samples:
                self._end_early(samples, count)
                break
            if change.at_s >= horizon_s:
                break
            count += len(change.joined) - len(change.lost)
            self._take(self._system.change(change))
        self._outcome.end_s = self._now
        self._outcome.trained.append((self._now, self._outcome.samples))
        return self._outcome

    def _end_early(self, samples: float, count: int) -> None:
        """The last stretch of training was longer than needed."""
        assert self._mode is not None
        too_long_s = (self._outcome.samples - samples) / self._mode.samples * self._mode.step_s
        self._outcome.samples = samples
        self._outcome.seconds["training"] -= too_long_s
        self._outcome.node_s -= count * too_long_s
        self._now -= too_long_s

    def _take(self, answer: Answer) -> None:
        outcome = self._outcome
        outcome.hows[answer.how] += 1
        outcome.trained.append((self._now, outcome.samples))
        if answer.disturbs or answer.rolls_back:
            outcome.seconds["training"] -= self._progress_s
            outcome.seconds["redone"] += self._progress_s
            self._progress_s = 0.0
        elif self._mode is not None and answer.mode is not None:
            # What is done of the step stays done.
            self._progress_s *= answer.mode.step_s / self._mode.step_s
        if answer.rolls_back:
            self._roll_back()
        elif answer.saves:
            self._unsaved.clear()
            self._steps_since = 0
        self._mode = answer.mode
        if answer.pause_s:
            self._resume_s = max(self._resume_s, self._now + answer.pause_s)
        if answer.rolls_back:
            self._saving_since = self._resume_s
        self._note_series()

    def _note_series(self) -> None:
        rate = 0.0 if self._mode is None else self._mode.samples / self._mode.step_s
        if self._resume_s > self._now:
            self._outcome.series.append((self._now, 0.0))
        self._outcome.series.append((max(self._now, self._resume_s), rate))

    def _roll_back(self) -> None:
        """To what the last whole checkpoint has."""
        checkpoints = self._system.checkpoints
        covered_s = -inf
        if checkpoints is not None and not checkpoints.every:
            # The last that was written whole has what was done when it was begun.
            whole = floor(max(0.0, self._now - self._saving_since) / checkpoints.write_s)
            covered_s = self._saving_since + (whole - 1) * checkpoints.write_s if whole else self._saving_since
        for done_s, seconds, samples in self._unsaved:
            if done_s > covered_s:
                self._outcome.samples -= samples
                self._outcome.seconds["training"] -= seconds
                self._outcome.seconds["redone"] += seconds
        self._unsaved.clear()
        self._steps_since = 0

    def _train(self, until_s: float) -> None:
        """Pause, then steps and what is saved between them."""
        outcome = self._outcome
        if self._resume_s > self._now:
            end = min(self._resume_s, until_s)
            outcome.seconds["restart"] += end - self._now
            self._now = end
        if self._mode is None:
            outcome.seconds["idle"] += until_s - self._now
            self._now = until_s
        checkpoints = self._system.checkpoints
        while self._now < until_s:
            assert self._mode is not None
            mode = self._mode
            num_steps = 1
            if checkpoints is None:
                num_steps = max(1, floor((until_s - self._now) / mode.step_s))
            left_s = num_steps * mode.step_s - self._progress_s
            taken_s = min(left_s, until_s - self._now)
            outcome.seconds["training"] += taken_s
            self._now += taken_s
            if taken_s < left_s:
                # Whole steps of the last stretch are done all the same.
                done = floor((self._progress_s + taken_s) / mode.step_s)
                self._count(done, mode)
                self._progress_s += taken_s - done * mode.step_s
                return
            self._progress_s = 0.0
            self._count(num_steps, mode)
            if checkpoints is not None and checkpoints.every and self._steps_since >= checkpoints.every:
                self._save(checkpoints.write_s, until_s)

    def _count(self, num_steps: int, mode: Mode) -> None:
        self._outcome.samples += num_steps * mode.samples
        if self._system.checkpoints is not None and num_steps:
            self._unsaved.append((self._now, num_steps * mode.step_s, num_steps * mode.samples))
            self._steps_since += num_steps

    def _save(self, write_s: float, until_s: float) -> None:
        """Training waits. What is interrupted is worth nothing."""
        end = min(self._now + write_s, until_s)
        self._outcome.seconds["checkpoint"] += end - self._now
        if self._now + write_s <= until_s:
            self._unsaved.clear()
            self._steps_since = 0
        self._now = end


def replay(system: System, trace: Trace, *, samples: float = inf) -> Outcome:
    """Run a system through a trace, to its end or until so many samples are trained."""
    nodes, changes = changes_of(trace)
    return Replay(system).run(nodes, changes, trace.horizon_s, samples)
