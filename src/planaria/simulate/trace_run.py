"""One run over one trace, from event to event. Between them, undisturbed steps are counted, not run."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Sequence

from planaria.plan.thresholds import FORECAST_GRAIN
from planaria.protocol.planning.failure_rate import Failures
from planaria.protocol.thresholds import FAILURES_RARER
from planaria.simulate.episode.episode_cache import Moment, Root
from planaria.simulate.episode.situation import State
from planaria.simulate.episode.subject import NUM_CAUSES, Cause, Disturbance, EpisodeTally, RestAfterEpisode, RunOutlook
from planaria.simulate.results import RunResult
from planaria.simulate.run_model import RunBasis
from planaria.simulate.trace_events import Happening, TraceEvents
from planaria.simulate.traces.trace import HOUR_S
from planaria.simulate.trained import Trained

_NEVER = float("inf")


class TraceRun:
    """One run, as far as it has come.

    Attributes:
        now: seconds since the beginning of the trace; the end, where it is over.
        state: in which it trains; None: it does not.
        is_over: whether the run is over.
    """

    def __init__(self, basis: RunBasis, course: TraceEvents) -> None:
        self._basis = basis
        self._terms = basis.terms
        self._memory = basis.memory
        self._course = course
        self._happenings: Sequence[Happening] = course.happenings
        self.now = 0.0
        self.state: State | None = None
        self.is_over = False
        self._causes = [0.0] * NUM_CAUSES
        self._trained = Trained()
        self._survived: Counter[str] = Counter()
        self._plans: Counter[str] = Counter()
        self._fatal = self._waits = self._losses = self._device_losses = self._joins = self._moved_bytes = 0
        self._loss_times: set[float] = set()
        self._ended = ""
        self._under_way = 0.0
        self._at = 0
        """Index of the next event."""
        self._names: list[int] = []
        self._labels: dict[str, str] | None = None
        """Names in the episode of the trace's zones."""
        self._gone: set[int] = set()
        self._chosen_for_s: float | None = None
        """Expected seconds to the next loss when the plan was weighed; None: it was not."""
        self._timeline: list[tuple[float, int, float]] = []
        self._sample_size = basis.subject.profile.microbatch_size
        wanted = self._terms.samples
        self._wanted = None if wanted is None else math.ceil(wanted / self._sample_size)
        """Microbatches after which the job is complete."""
        self._failures = Failures(self._terms.mean_time_between_failures_s)

    def fork(self, basis: RunBasis) -> TraceRun:
        """Returns a copy of this run that goes on under another policy."""
        other = copy.copy(self)
        other._basis, other._memory = basis, basis.memory
        other._causes, other._names, other._trained = list(self._causes), list(self._names), self._trained.fork()
        other._survived, other._loss_times = self._survived.copy(), set(self._loss_times)
        other._plans = self._plans.copy()
        other._gone, other._timeline = set(self._gone), list(self._timeline)
        other._failures = self._failures.fork()
        return other

    def result(self) -> RunResult:
        """Returns the result of the run, which must be over."""
        now, course, prices = self.now, self._course, self._terms.prices
        cost = node_s = 0.0
        for came, went, zone in course.stays:
            if came < now:
                stayed = min(went, now) - came
                node_s += stayed
                cost += stayed / HOUR_S * prices.zones.get(zone, prices.spot)
        causes = {Cause(at).name.lower(): seconds for at, seconds in enumerate(self._causes)}
        return RunResult(
            policy=self._basis.subject.policy_name,
            trace=course.name,
            seconds=now,
            samples=float(self.microbatches * self._sample_size),
            steps=self._trained.steps,
            seconds_by=causes,
            node_hours=node_s / HOUR_S,
            cost=cost,
            losses=self._losses,
            device_losses=self._device_losses,
            loss_times=len(self._loss_times),
            joins=self._joins,
            survived=dict(sorted(self._survived.items())),
            plans=dict(sorted(self._plans.items())),
            fatal=self._fatal,
            waits=self._waits,
            moved_bytes=self._moved_bytes,
            completed=self._wanted is not None and self.microbatches >= self._wanted,
            ended=self._ended,
            under_way=self._under_way,
            timeline=tuple(self._timeline),
        )

    @property
    def microbatches(self) -> int:
        """Microbatches that are trained and not lost again."""
        return self._trained.microbatches

    # The run

    def begin(self) -> None:
        """Begins the run, up to the moment at which it trains."""
        rest, self.now = self._gather()
        self.state = None if rest is None else rest.state
        self.is_over = rest is None

    def go_on(self) -> None:
        """Continues the run until it trains again after the next disturbance, or to its end."""
        state, end_s = self.state, self._course.horizon_s
        assert state is not None
        if self.now >= end_s:
            self.is_over = True
            return
        happenings = self._happenings
        step_s, stall_s, lag = self._basis.costs(state)
        whole_s = step_s + stall_s
        due = happenings[self._at][0] if self._at < len(happenings) else _NEVER
        steps = max(0, int((min(due, end_s) - self.now) / whole_s))
        look = self._next_look(steps, whole_s)
        per_step = state.num_microbatches
        left = None if self._wanted is None else self._wanted - self._trained.microbatches
        completes = left is not None and steps * per_step >= left
        if completes and left is not None:
            steps = -(-left // per_step)
        if look is not None and look < steps:
            steps, completes, due = look, False, -_NEVER
        else:
            look = None
        self._count(steps, step_s, stall_s, per_step)
        if self._terms.wants_timeline:
            self._timeline.append((self.now, len(self._names), per_step / whole_s * self._sample_size))
        self.now += steps * whole_s
        if completes:
            self.is_over = True
            return
        if due >= end_s:
            self._causes[Cause.TRAINING] += end_s - self.now
            self._under_way = (end_s - self.now) / whole_s * per_step * self._sample_size
            self.now, self.is_over = end_s, True
            return
        if self._terms.checkpoint_every:
            passed = min(1.0, max(0.0, (due - self.now) / whole_s))
            self._trained.save(lag - passed, self._terms.checkpoint_every)
        if look is not None:
            self._chosen_for_s = self._failures.time_to_next_s(self.now + whole_s)
        found = self._disturbed(state, self.now, end_s, looks_again=look is not None)
        if found is None:
            self.is_over = True
            return
        rest, self.now = found
        self.state = rest.state

    def _gather(self) -> tuple[RestAfterEpisode | None, float]:
        """Waits until there are enough nodes for a plan."""
        course, start_s = self._course, self._basis.subject.timings.start_s
        is_trained = self._terms.begins_trained
        now = 0.0 if is_trained else min(start_s, course.horizon_s)
        names = list(range(course.num_initial))
        early: list[Happening] = []
        self._causes[Cause.RESTART] += now
        while True:
            while self._at < len(course.happenings) and course.happenings[self._at][0] <= now:
                _, what, node, _ = course.happenings[self._at]
                self._at += 1
                if what >= Disturbance.DEVICE_LOST:
                    early.append(course.happenings[self._at - 1])
                elif what == Disturbance.CAME:
                    names.append(node)
                elif what == Disturbance.LOST and node in names:
                    names.remove(node)
            self._labels = {}
            found = self._basis.start(tuple(self._label(course.stays[node][2]) for node in names))
            if found is not None:
                rest, tally = found
                seconds = 0.0 if is_trained else min(sum(tally.causes), course.horizon_s - now)
                self._causes[Cause.RESTART] += seconds
                self._names = [names[at] for at in rest.order]
                # What befell devices before there was a plan befalls them as the job begins to train.
                self._happenings = (*course.happenings[: self._at], *early, *course.happenings[self._at :])
                self._failures.begin(now)
                self._chosen(tally, now)
                return rest, now + seconds
            due = course.happenings[self._at][0] if self._at < len(course.happenings) else _NEVER
            self._causes[Cause.IDLE] += min(due, course.horizon_s) - now
            now = min(due, course.horizon_s)
            if due >= course.horizon_s:
                return None, now

    def _next_look(self, steps: int, whole_s: float) -> int | None:
        """Returns after how many undisturbed steps the plan is weighed again; None: after none of them. With every
        quiet second the next loss is thought to be further away."""
        if self._chosen_for_s is None or not self._memory.knows_forecast:
            return None
        goal_s, now, expected_s = FAILURES_RARER * self._chosen_for_s, self.now, self._failures.time_to_next_s
        least, most = 1, steps
        if not steps or expected_s(now + steps * whole_s) < goal_s:
            return None
        while least < most:
            middle = (least + most) // 2
            if expected_s(now + middle * whole_s) >= goal_s:
                most = middle
            else:
                least = middle + 1
        return least - 1

    def _disturbed(
        self, state: State, began: float, end_s: float, *, looks_again: bool = False
    ) -> tuple[RestAfterEpisode, float] | None:
        """Goes through an episode, from the step in which an event falls or after which the plan is weighed again;
        returns None where the run ends first."""
        memory, happenings = self._memory, self._happenings
        root = memory.root(state, self._known(began, looks_again=looks_again))
        moment = root.first
        assert moment is not None
        now = began
        self._gone.clear()
        self._labels = None
        if not looks_again and not self._basis.subject.by_number:
            self._bring_forward(state)
        while True:
            due = happenings[self._at][0] if self._at < len(happenings) else _NEVER
            if due < now + moment.lasts_s and due < end_s:
                now, after = self._strike(root, moment, now, due, end_s)
                if after is None:
                    self._cut_off(Cause.REDONE, end_s)
                    return None
                moment = after
            elif moment.lasts_s == _NEVER or now + moment.lasts_s >= end_s:
                self._cut_off(Cause.IDLE if moment.is_waiting else Cause.REDONE, end_s)
                return None
            else:
                now += moment.lasts_s
                was_waiting = moment.is_waiting
                moment = moment.after or memory.after(root, moment)
                self._take(moment, now)
                self._waits += moment.is_waiting and not was_waiting
            if moment.tally.has_completed:
                self._complete(state, now, end_s)
                return None
            if moment.tally.ended is not None:
                self._ended = moment.tally.ended
                self._cut_off(Cause.IDLE, end_s)
                return None
            rest = moment.rest
            if rest is not None:
                self._names = list(map(self._names.__getitem__, rest.order))
                return rest, now

    def _cut_off(self, cause: Cause, end_s: float) -> None:
        """Ends the run in the middle of an episode: time that no cause has got yet is put down to this one."""
        self._causes[cause] += max(0.0, end_s - sum(self._causes))
        self.now = end_s

    def _complete(self, state: State, now: float, end_s: float) -> None:
        """Completes the job within an episode. Steps that still lack follow: policies know only roughly how many."""
        step_s, stall_s, _ = self._basis.costs(state)
        per_step, whole_s = state.num_microbatches, step_s + stall_s
        lacking = 0 if self._wanted is None else max(0, -(-(self._wanted - self.microbatches) // per_step))
        steps = min(lacking, int((end_s - now) / whole_s))
        self._count(steps, step_s, stall_s, per_step)
        self.now = now + steps * whole_s
        if steps < lacking:
            self._cut_off(Cause.TRAINING, end_s)

    def _bring_forward(self, state: State) -> None:
        """Swaps equal pipelines so that the first one is struck: those that change places do not notice."""
        _, _, node, _ = self._happenings[self._at]
        names = self._names
        try:
            number = names.index(node)
        except ValueError:
            return
        for one, other in state.twin(number):
            names[one], names[other] = names[other], names[one]

    def _strike(self, root: Root, moment: Moment, now: float, due: float, end_s: float) -> tuple[float, Moment | None]:
        """Applies one event; of several at a time the lowest numbers come first. Returns no moment where the middle of
        this one's part is after the run's end."""
        happenings, memory = self._happenings, self._memory
        at = self._at
        while at < len(happenings) and happenings[at][0] == due:
            at += 1
        named = [self._named(root.state, happening) for happening in happenings[self._at : at]]
        struck = [one for one in named if one is not None]
        if len(struck) > 1:
            struck.sort()
        self._at = at
        if moment.is_waiting:
            self._causes[Cause.IDLE] += max(0.0, due - now)
            now = max(now, due)
        for place, (what, number, zone) in enumerate(struck):
            if place or due <= now or moment.is_waiting:  # together with the one before, or at once
                part = -1
            else:
                part = min(memory.num_parts - 1, int((due - now) / moment.lasts_s * memory.num_parts))
            was_waiting = moment.is_waiting
            passed_s = memory.part_s(moment, part)
            if now + passed_s >= end_s:
                return end_s, None
            after = memory.struck(root, moment, (part, what, number, zone))
            now += passed_s
            moment = after
            self._take(moment, now)
            self._waits += moment.is_waiting and not was_waiting
            if moment.tally.ended is not None:
                break
        return now, moment

    def _named(self, state: State, happening: Happening) -> tuple[int, int, str] | None:
        """Returns an event's disturbance, node's number and zone, of a device its worker's number; None where the job
        has no such node."""
        at_s, what, node, device = happening
        if what == Disturbance.CAME:
            self._joins += 1
            if self._labels is None:
                where = (self._course.stays[name][2] for name in self._names)
                self._labels = dict(zip(where, state.zones, strict=False))
            self._names.append(node)
            return what, len(self._names) - 1, self._label(self._course.stays[node][2])
        try:
            number = self._names.index(node)
        except ValueError:
            return None
        if number in self._gone:
            return None
        if what >= Disturbance.DEVICE_LOST:
            self._device_losses += what == Disturbance.DEVICE_LOST
            return what, number * self._basis.subject.devices_per_node + device, ""
        if what == Disturbance.LOST:
            self._losses += 1
            self._loss_times.add(at_s)
            self._gone.add(number)
            self._failures.lost(self._trained.steps, at_s)
        return what, number, ""

    def _label(self, zone: str) -> str:
        """Returns the name in the episode of a zone of the trace."""
        assert self._labels is not None
        if not zone or self._basis.subject.by_number:
            return zone
        return self._labels.setdefault(zone, str(len(self._labels)))

    # Counting

    def _count(self, steps: int, step_s: float, stall_s: float, microbatches: int) -> None:
        if not steps:
            return
        self._trained.count(steps, step_s, steps * microbatches)
        self._causes[Cause.TRAINING] += steps * step_s
        self._causes[Cause.CHECKPOINT] += steps * stall_s

    def _chosen(self, tally: EpisodeTally, now: float) -> None:
        """Notes whether the plan in force was weighed, and for what time."""
        if tally.was_weighed is not None:
            self._chosen_for_s = self._failures.time_to_next_s(now) if tally.was_weighed else None

    def _take(self, moment: Moment, now: float) -> None:
        """Accounts for what happened up to a moment."""
        causes = self._causes
        for at, seconds in moment.spent:
            causes[at] += seconds
        if moment.is_quiet:
            return
        tally = moment.tally
        if tally.was_weighed is not None:
            self._chosen(tally, now)
        if tally.restored:
            self._go_back()
        if tally.steps:
            self._trained.count(tally.steps, tally.causes[Cause.TRAINING] / tally.steps, tally.microbatches)
        for how in tally.survived:
            self._survived[how] += 1
        for purpose in tally.plans:
            self._plans[purpose] += 1
        self._moved_bytes += tally.moved_bytes

    def _go_back(self) -> None:
        """Goes back to the last checkpoint."""
        self._fatal += 1
        for seconds in self._trained.go_back():
            self._causes[Cause.TRAINING] -= seconds
            self._causes[Cause.REDONE] += seconds

    def _known(self, now: float, *, looks_again: bool) -> RunOutlook:
        """Returns the outlook, as roughly as policies ask for it; the same for those that do not ask."""
        if not self._memory.knows_forecast:
            return _UNASKED
        left = 1_000_000
        if self._wanted is not None:
            per_step = max(1, self._terms.settings.num_microbatches)
            left = -(-(self._wanted - self.microbatches) // per_step)
        return RunOutlook(
            time_to_failure_s=_rough(self._failures.time_to_next_s(now)),
            nodes_together=_rough(self._failures.nodes_together),
            steps_left=min(1_000_000, int(_rough(left))),
            steps_at_stake=int(_rough(self._trained.unsaved)),
            looks_again=looks_again,
        )


_UNASKED = RunOutlook(time_to_failure_s=HOUR_S, steps_left=1_000_000, steps_at_stake=1)


def _rough(value: float) -> float:
    """Returns the value rounded to a grid on which each number is the next's by the same factor."""
    return float(2.0 ** (round(FORECAST_GRAIN * math.log2(value)) / FORECAST_GRAIN)) if value > 0 else 0.0
