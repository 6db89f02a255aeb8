"""What a coordinator learns of the running job, as it is written down for the next one. Values only.

All of it is advice: a coordinator that finds none, or old news, decides by what the job file and the profile say, and
learns anew. It changes no bit of training. Moments are monotonic seconds of the coordinator's host. Whoever reads them
on another, or after another boot, has moments of its own made of them (`RunMeasurements.on`).
"""

from __future__ import annotations

import msgspec

from planaria.plan.plan import NodeId


class SeenLosses(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often nodes were lost, see `planaria.protocol.planning.failure_rate`.

    Attributes:
        began: when there were nodes that could be lost; None: never.
        count: how many losses.
        last_step: in which one was.
        nodes: how many nodes the losses took.
        recent: when the last few were.
    """

    began: float | None = None
    count: int = 0
    last_step: int | None = None
    nodes: int = 0
    recent: tuple[float, ...] = ()


class MeasuredMoves(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last measurements of transitions, see `planaria.protocol.planning.transition_times`."""

    changes_s: tuple[float, ...] = ()
    unmoved_s: tuple[float, ...] = ()
    stretches: tuple[float, ...] = ()
    restores_s: tuple[float, ...] = ()


class MeasuredSaves(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Measured costs of checkpoints, see `planaria.protocol.step.cadence`.

    Attributes:
        costs_s: by which the last ones made training longer.
        count: how many checkpoints were written.
        began: when the last was ordered; before the first, when training began.
        took_s: from then until it was whole on disk.
    """

    costs_s: tuple[float, ...] = ()
    count: int = 0
    began: float | None = None
    took_s: float = 0.0


class KnownSpeeds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Known speeds of nodes, see `planaria.protocol.planning.straggler_detection`.

    Attributes:
        slow: nodes that are slower than the others, each with its speed.
        changed: steps after which a node's speed was another one.
    """

    slow: dict[NodeId, float] = {}
    changed: dict[NodeId, tuple[int, ...]] = {}


class Rest(msgspec.Struct, frozen=True, kw_only=True):
    """How long a slow node is left out: for `num_steps` steps, until step `until`."""

    until: int
    num_steps: int


class Rests(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Slow nodes that are left out, see `planaria.protocol.planning.straggler_policy`.

    Attributes:
        resting: nodes that the placement does without.
        rests: of each node that ever rested, the last.
        look_at: the step before which the plan in force is to be looked at again.
        quiet_until: monotonic seconds, before which it is not.
    """

    resting: tuple[NodeId, ...] = ()
    rests: dict[NodeId, Rest] = {}
    look_at: int | None = None
    quiet_until: float | None = None


class MemoryShortage(msgspec.Struct, frozen=True, kw_only=True):
    """One node that ran out of memory.

    Attributes:
        node: the node.
        step: the step that was in progress.
        text: what happened there, for people.
    """

    node: NodeId
    step: int
    text: str


class KnownShortages(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Known memory shortages, see `planaria.protocol.planning.memory_limits`.

    Attributes:
        bound_bytes: the most that a plan may put on a device by estimate; None: nothing is known.
        nodes: that ran out, in the order in which they did.
    """

    bound_bytes: int | None = None
    nodes: tuple[MemoryShortage, ...] = ()


class HostLink(msgspec.Struct, frozen=True, kw_only=True):
    """The wire between two hosts, as a probe found it: seconds of a small message one way, and bytes a second.

    `across_zones`: they were in different zones.
    """

    one: str
    other: str
    latency_s: float
    bytes_per_s: float
    across_zones: bool = False


class KnownLinks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Known links between hosts, see `planaria.protocol.planning.measured_links`.

    Attributes:
        hosts: of nodes.
        probed: pairs of hosts.
        slowdown: how many times slower than probed they count, as steps show.
    """

    hosts: dict[NodeId, str] = {}
    probed: tuple[HostLink, ...] = ()
    slowdown: float = 1.0


class Spent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The cost of the run so far, see `planaria.protocol.run.spending`.

    Attributes:
        dollars: until `since`.
        hourly: dollars an hour from then on.
        since: monotonic seconds; None: nothing is counted.
        price: dollars for a node and an hour, where they are asked for; None: not known yet.
    """

    dollars: float = 0.0
    hourly: float = 0.0
    since: float | None = None
    price: float | None = None


class GivenBack(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of nodes that brought too little, see `planaria.protocol.planning.node_count`.

    Attributes:
        most: nodes that are wanted for now; None: as many as the job says.
        until: step from which as many are wanted as the job says.
        pause_steps: from the last node that was given back until then; 0: none was.
    """

    most: int | None = None
    until: int = 0
    pause_steps: int = 0


class RunMeasurements(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that a coordinator measured of the running job, at one moment.

    Attributes:
        losses: the losses that were seen.
        moves: of plans and state, as they were measured.
        read_bytes_per_s: at which nodes read checkpoints.
        decision_s: that the last weighed decision took.
        chosen_for_s: for how far a next loss the plan in force was chosen; None: it was not weighed.
        speeds: how fast the nodes are, as far as that is known.
        rests: of those that are slow.
        shortages: the shortages of memory that were seen.
        saves: what writing checkpoints took.
        links: what hosts measured of the links between them.
        stretch: how many times longer steps take than the profile says, where that was measured for estimates to come.
        spent: what the run has cost.
        given_back: nodes that brought too little.
        clock: whose moments these are; see `RunSettings.clock`.
        at: the moment at which it was written down; None: it was not, or by an earlier version.
    """

    losses: SeenLosses = SeenLosses()
    moves: MeasuredMoves = MeasuredMoves()
    read_bytes_per_s: tuple[float, ...] = ()
    decision_s: float | None = None
    chosen_for_s: float | None = None
    speeds: KnownSpeeds = KnownSpeeds()
    rests: Rests = Rests()
    shortages: KnownShortages = KnownShortages()
    saves: MeasuredSaves = MeasuredSaves()
    links: KnownLinks = KnownLinks()
    stretch: float | None = None
    spent: Spent = Spent()
    given_back: GivenBack = GivenBack()
    clock: str = ""
    at: float | None = None

    def on(self, clock: str, now: float) -> RunMeasurements:
        """Returns the same with moments of this clock, which shows `now`.

        How long there was no coordinator is not known where the clock is another one, and counts as no time.
        """
        if self.at is None or clock == self.clock:
            return self
        replace, moved = msgspec.structs.replace, now - self.at
        losses, rests, saves, spent = self.losses, self.rests, self.saves, self.spent
        recent = tuple(moment + moved for moment in losses.recent)
        return replace(
            self,
            losses=replace(losses, began=_moved(losses.began, moved), recent=recent),
            rests=replace(rests, quiet_until=_moved(rests.quiet_until, moved)),
            saves=replace(saves, began=_moved(saves.began, moved)),
            spent=replace(spent, since=_moved(spent.since, moved)),
            clock=clock,
            at=now,
        )


def _moved(moment: float | None, by_s: float) -> float | None:
    return None if moment is None else moment + by_s
