"""The published systems that re-plan or restart: Oobleck, Varuna, ReCycle and Odyssey, as their papers describe them.

Each has the costs that its paper gives or that its paper's tables imply; see the sections that use them. Bamboo is in
`bamboo_system`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from formulas import busiest_s, failures_s
from grids import Grids
from replay import Answer, Changes, Checkpoints, Mode, Node

from planaria.plan.plan import PlanError
from planaria.planner.reconfigure.pipeline_sizes import Situation, reinstantiate


@dataclass(slots=True, kw_only=True)
class Oobleck:
    """Pipeline templates (sections 4 and 5).

    Attributes:
        grids: the templates.
        pause_s: of a reconfiguration.
        literal: whether the batch is distributed by Eq. 6 as it stands.
        full_search: whether new pipelines are chosen anew of all sets of templates; else by reinstantiation, borrowing
            and merging (section 5.1).
        disturbs: whether the step in progress is lost.
    """

    grids: Grids
    pause_s: float
    literal: bool = False
    full_search: bool = False
    disturbs: bool = True
    name: str = "Oobleck"
    checkpoints: Checkpoints | None = None
    _pipelines: list[list[Node]] = field(default_factory=list)
    _spares: list[Node] = field(default_factory=list)

    def start(self, nodes: Sequence[Node]) -> Mode | None:
        left = list(nodes)
        try:
            sizes = self.grids.best(len(left))
        except PlanError:
            self._pipelines, self._spares = [], left
            return None
        self._pipelines = []
        for size in sizes:
            self._pipelines.append(left[:size])
            left = left[size:]
        self._spares = left
        return self._mode()

    def change(self, changes: Changes) -> Answer:
        before = [len(pipeline) for pipeline in self._pipelines]
        gone = set(changes.lost)
        self._pipelines = [[node for node in pipeline if node not in gone] for pipeline in self._pipelines]
        self._spares = [node for node in self._spares if node not in gone] + list(changes.joined)
        how = self._reinstantiate(before)
        return Answer(mode=self._mode(), pause_s=self.pause_s, how=how, disturbs=self.disturbs)

    def _reinstantiate(self, before: Sequence[int]) -> str:
        nodes = [node for pipeline in self._pipelines for node in pipeline] + self._spares
        needed = self.grids.settings.fault_tolerance + 1
        if len(nodes) < needed * self.grids.sizes[0]:
            self._pipelines, self._spares = [], nodes
            return "too few nodes"
        situation = Situation(
            before=before,
            alive=[len(pipeline) for pipeline in self._pipelines],
            num_spares=len(self._spares),
            sizes=self.grids.sizes,
            num_replicas=needed,
            most=self.grids.settings.num_microbatches,
        )
        found = None if self.full_search or not before else reinstantiate(situation)
        if found is None:
            self.start(nodes)
            return "instantiate"
        sizes, how = found
        self._deal_out(sizes)
        return str(how)

    def _deal_out(self, sizes: Sequence[int]) -> None:
        """Nodes stay in their pipelines where they can."""
        free = list(self._spares)
        pipelines = []
        for at, size in enumerate(sizes):
            own = self._pipelines[at] if at < len(self._pipelines) else []
            pipelines.append(own[:size])
            free += own[size:]
        for pipeline, size in zip(pipelines, sizes, strict=True):
            while len(pipeline) < size:
                pipeline.append(free.pop())
        self._pipelines = [pipeline for pipeline in pipelines if pipeline]
        self._spares = free

    def _mode(self) -> Mode | None:
        if not self._pipelines:
            return None
        step_s = self.grids.step_s([len(pipeline) for pipeline in self._pipelines], literal=self.literal)
        return Mode(step_s=step_s, samples=self.grids.samples)


@dataclass(slots=True, kw_only=True)
class Varuna:
    """Checkpoints, and a restart on the best grid of equal pipelines ("morphing").

    Attributes:
        grids: pipelines to choose from; f is not used.
        restart_s: framework initialisation and loading the checkpoint.
        notice_s: how long before a loss it is warned: time to save what is done, if saving takes no longer; 0: never.
        saves_for_joins: it saves before it takes new nodes, which wait for that; else it goes back for them too.
    """

    grids: Grids
    restart_s: float
    checkpoints: Checkpoints | None
    notice_s: float = 0.0
    saves_for_joins: bool = True
    name: str = "Varuna"
    _nodes: set[Node] = field(default_factory=set)

    def start(self, nodes: Sequence[Node]) -> Mode | None:
        self._nodes = set(nodes)
        found = self.grids.symmetric(len(self._nodes))
        return None if found is None else Mode(step_s=found[2], samples=self.grids.samples)

    def change(self, changes: Changes) -> Answer:
        nodes = (self._nodes - set(changes.lost)) | set(changes.joined)
        mode = self.start(sorted(nodes, key=str))
        write_s = 0.0 if self.checkpoints is None else self.checkpoints.write_s
        is_warned = self.notice_s > 0 and write_s <= self.notice_s
        if is_warned if changes.lost else self.saves_for_joins:
            pause_s = write_s + self.restart_s
            return Answer(mode=mode, pause_s=pause_s, how="restart", disturbs=True, saves=True)
        return Answer(mode=mode, pause_s=self.restart_s, how="restart", rolls_back=True)


ClosedForm = Callable[[int, Sequence[int], int, float], float]


@dataclass(slots=True, kw_only=True)
class ReCycle:
    """Data rerouting on a fixed grid: the lost worker's microbatches go to its peers (Odyssey, section IV-C).

    Where a place has nobody left, the job starts again on the best grid of equal pipelines.

    Attributes:
        grids: for the pipelines' times.
        restart_s: of starting again.
        closed_form: the step's seconds of (pipelines, losses by place, microbatches of a pipeline, T_f + T_b): the
            paper's Eq. 13, or what a good list schedule reaches.
    """

    grids: Grids
    restart_s: float
    closed_form: ClosedForm = failures_s
    name: str = "ReCycle"
    checkpoints: Checkpoints | None = None
    _nodes: list[Node] = field(default_factory=list)
    _place: dict[Node, int] = field(default_factory=dict)
    _shape: tuple[int, int] = (0, 0)

    def start(self, nodes: Sequence[Node]) -> Mode | None:
        self._nodes = list(nodes)
        found = self.grids.symmetric(len(self._nodes))
        if found is None:
            self._place = {}
            return None
        count, size, _ = found
        self._shape = (count, size)
        self._place = {node: at % size for at, node in enumerate(self._nodes[: count * size])}
        return self._mode()

    def change(self, changes: Changes) -> Answer:
        gone = set(changes.lost)
        self._nodes = [node for node in self._nodes if node not in gone] + list(changes.joined)
        self._place = {node: place for node, place in self._place.items() if node not in gone}
        mode = self._mode()
        if mode is not None and not changes.joined:
            return Answer(mode=mode, how="reroute")
        return Answer(mode=self.start(self._nodes), pause_s=self.restart_s, how="restart", disturbs=True)

    def _mode(self) -> Mode | None:
        count, size = self._shape
        alive = [sum(place == at for place in self._place.values()) for at in range(size)]
        if not self._place or not all(alive):
            return None
        share = -(-self.grids.settings.num_microbatches // count)
        # As the closed forms have it: every stage takes as long as the slowest.
        stage_s = self.grids.factor * self.grids.periods_s[size]
        step_s = self.closed_form(count, [count - left for left in alive], share, stage_s)
        step_s += self.grids.beside_s(count, size)
        return Mode(step_s=step_s, samples=self.grids.samples)


@dataclass(slots=True, kw_only=True)
class Odyssey:
    """After each change, whichever is better until the next one: rerouting, or new pipelines (Eq. 8).

    Attributes:
        grids: templates of every size: "not restricted by predefined templates".
        pause_s: of new pipelines.
        interval_s: expected time until the next change, of so many nodes.
    """

    grids: Grids
    pause_s: float
    interval_s: Callable[[int], float]
    closed_form: ClosedForm = busiest_s
    name: str = "Odyssey"
    checkpoints: Checkpoints | None = None
    _nodes: list[Node] = field(default_factory=list)
    _pipelines: list[list[Node]] = field(default_factory=list)
    _lost: list[tuple[int, int]] = field(default_factory=list)

    def start(self, nodes: Sequence[Node]) -> Mode | None:
        self._nodes = list(nodes)
        self._lost = []
        try:
            sizes = self.grids.best(len(self._nodes))
        except PlanError:
            self._pipelines = []
            return None
        left, self._pipelines = list(self._nodes), []
        for size in sizes:
            self._pipelines.append(left[:size])
            left = left[size:]
        return Mode(step_s=self.grids.step_s(sizes), samples=self.grids.samples)

    def change(self, changes: Changes) -> Answer:
        gone = set(changes.lost)
        self._lost += [
            (at, pipeline.index(node))
            for at, pipeline in enumerate(self._pipelines)
            for node in pipeline
            if node in gone
        ]
        nodes = [node for node in self._nodes if node not in gone] + list(changes.joined)
        rerouted = None if changes.joined else self._rerouted()
        kept = self._pipelines, self._lost
        renewed = self.start(nodes)
        if rerouted is not None and (
            renewed is None or self._worth(rerouted, 0.0) >= self._worth(renewed, self.pause_s)
        ):
            self._pipelines, self._lost = kept
            return Answer(mode=rerouted, how="reroute")
        return Answer(mode=renewed, pause_s=self.pause_s, how="new pipelines", disturbs=True)

    def _worth(self, mode: Mode, pause_s: float) -> float:
        """Eq. 8."""
        interval_s = self.interval_s(len(self._nodes))
        return mode.samples / mode.step_s * max(0.0, interval_s - pause_s) / interval_s

    def _rerouted(self) -> Mode | None:
        """On pipelines of equal size alone, as the closed forms have it."""
        sizes = {len(pipeline) for pipeline in self._pipelines}
        if len(sizes) != 1:
            return None
        (size,) = sizes
        count = len(self._pipelines)
        losses = [sum(place == at for _, place in self._lost) for at in range(size)]
        if max(losses) >= count:
            return None
        share = -(-self.grids.settings.num_microbatches // count)
        step_s = self.closed_form(count, losses, share, self.grids.factor * self.grids.periods_s[size])
        step_s += self.grids.beside_s(count, size)
        return Mode(step_s=step_s, samples=self.grids.samples)
