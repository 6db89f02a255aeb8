"""Replays a journal: what its entries, in the order in which they were written, say of the run."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

import msgspec

from planaria.job.registry import PolicyName
from planaria.plan.plan import NodeId, Plan
from planaria.protocol.messages.checkpoint_ref import CheckpointRef
from planaria.protocol.messages.journal import (
    AnyEntry,
    Fate,
    JournalCheckpoint,
    JournalCommit,
    JournalDisputes,
    JournalDistrust,
    JournalEnd,
    JournalEvaluation,
    JournalNode,
    JournalPast,
    JournalPlan,
    JournalPolicy,
    JournalRecovery,
    JournalRestart,
    JournalStop,
    JournalVoid,
    OpenDispute,
)
from planaria.protocol.messages.records import (
    AnyRecord,
    ComputedWrong,
    Evaluated,
    PlanTaken,
    Restored,
    StepCommitted,
    StepSkipped,
)
from planaria.protocol.messages.run_measurements import RunMeasurements
from planaria.protocol.messages.to_worker import NOT_APPLIED, StateSource
from planaria.protocol.phases import Purpose
from planaria.protocol.thresholds import PLANS_CARRIED, PROBATION_STEPS


def decision_of(records: Iterable[AnyRecord]) -> PlanTaken | None:
    """Returns the last plan among these records that was a decision on a placement, not the finish of a step."""
    plans = [r for r in records if isinstance(r, PlanTaken) and r.purpose != Purpose.FINISH_STEP]
    return plans[-1] if plans else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalState:
    """What the journal tells a coordinator that is started again, before any worker has come back.

    Attributes:
        plan: the last plan.
        commit: the last one; None after the job went back to a checkpoint.
        joined: nodes that did, and are not gone.
        lost: nodes that are fenced.
        released: nodes that were let go.
        lost_devices: of nodes that live, each as its node and its number there.
        leaving: live nodes that gave notice.
        newcomers: nodes that came since the placement in force was made, or tried in vain.
        zones: of the nodes that joined, where they said so.
        labels: likewise.
        checkpoint: the last whole one of this run; None: there is none.
        earlier: the whole one before it.
        is_void: what there is of the step in progress is of no use.
        wrong_hosts: how many nodes of a host computed wrong.
        probation: live nodes on such hosts that joined since, and how many more steps of theirs are audited wholly.
        disputes: that are open.
        suspects: nodes of which one or another had a wrong sum.
        saved: steps of which there was one, and the job has not gone back before them.
        evaluated: the evaluations of this run, of which the same is true.
        skipped_steps: that were committed without being applied.
        num_dropped: microbatches that were left out up to the last commit.
        policy: in force, if the user changed it.
        decision: the last one on a placement, as it was told.
        learnt: of the running job.
        carried: the last plans under which a step was committed.
        is_stopping: the user wants it to end.
        end: how the run ended, if it has.
        losses: in the order in which they happened, those that no recovery has been told of.
        steps_redone: by which the job went back because of them.
        has_resumed: a step was committed after the first of them.
        records: that the last entries made public: the last commit's and all since.
        is_disturbed: nodes were lost in the last committed step, or since the one before it.
        restarts: how often a coordinator began on this journal.
    """

    plan: JournalPlan | None = None
    commit: JournalCommit | None = None
    joined: frozenset[NodeId] = frozenset()
    lost: frozenset[NodeId] = frozenset()
    released: frozenset[NodeId] = frozenset()
    lost_devices: frozenset[tuple[NodeId, int]] = frozenset()
    leaving: frozenset[NodeId] = frozenset()
    newcomers: frozenset[NodeId] = frozenset()
    zones: Mapping[NodeId, str] = field(default_factory=dict)
    labels: Mapping[NodeId, str] = field(default_factory=dict)
    checkpoint: CheckpointRef | None = None
    earlier: CheckpointRef | None = None
    is_void: bool = False
    wrong_hosts: Mapping[str, int] = field(default_factory=dict)
    probation: Mapping[NodeId, int] = field(default_factory=dict)
    disputes: tuple[OpenDispute, ...] = ()
    suspects: frozenset[NodeId] = frozenset()
    saved: frozenset[int] = frozenset()
    evaluated: tuple[Evaluated, ...] = ()
    skipped_steps: frozenset[int] = frozenset()
    num_dropped: int = 0
    policy: PolicyName | None = None
    decision: PlanTaken | None = None
    learnt: RunMeasurements = field(default_factory=RunMeasurements)
    carried: tuple[Plan, ...] = ()
    is_stopping: bool = False
    end: JournalEnd | None = None
    losses: tuple[JournalNode, ...] = ()
    steps_redone: int = 0
    has_resumed: bool = False
    records: tuple[AnyRecord, ...] = ()
    is_disturbed: bool = False
    restarts: int = 0

    @classmethod
    def of(cls, entries: Iterable[AnyEntry]) -> JournalState:
        """Returns the state after a journal, whole or cut off anywhere."""
        past = cls()
        for entry in entries:
            past = past.after(entry)
        return past

    @property
    def gone(self) -> frozenset[NodeId]:
        """Nodes that were lost or released; they never come back under the same number."""
        return self.lost | self.released

    @property
    def last_step_s(self) -> float | None:
        """Seconds that the last committed step took; None if unknown, or if they say nothing of the next."""
        records = () if self.commit is None or self.is_disturbed else self.commit.records
        return next((record.duration_s for record in records if isinstance(record, StepCommitted | StepSkipped)), None)

    @property
    def step(self) -> int | None:
        """Step in progress, as far as the journal knows; None before the first plan."""
        if self.commit is not None and (self.plan is None or self.commit.step >= self.plan.message.step):
            return self.commit.step + 1
        return None if self.plan is None else self.plan.message.step

    @property
    def unproven(self) -> int | None:
        """Step of the last checkpoint, if no vote may have compared what it was made of, and none began with it."""
        last, plan = self.checkpoint, self.plan
        if last is None or plan is None or self.step != last.step + 1:
            return None
        begins = plan.message.source is not StateSource.LIVE and plan.message.step == self.step
        return None if begins else last.step

    def after(self, entry: AnyEntry) -> JournalState:
        """Returns the state after one more entry."""
        match entry:
            case JournalCommit():
                past = replace(self._committed(entry), is_disturbed=bool(self.losses), is_void=False)
            case JournalEvaluation():
                told = (*self.evaluated, entry.evaluated)
                past = replace(self, evaluated=told, has_resumed=bool(self.losses))
            case JournalPlan():
                decision = decision_of(entry.records) or self.decision
                past = replace(self._planned(entry), decision=decision, is_void=False)
            case JournalNode():
                past = self._with_node(entry)
            case JournalRecovery():
                past = replace(self, losses=(), steps_redone=0, has_resumed=False)
            case JournalCheckpoint():
                saved = self.saved | {entry.checkpoint.step}
                past = replace(self, checkpoint=entry.checkpoint, earlier=self.checkpoint, saved=saved)
            case JournalDistrust():
                past = replace(self, checkpoint=self.earlier, earlier=None, saved=self.saved - {entry.step})
            case JournalVoid():
                past = replace(self, is_void=True)
            case JournalDisputes():
                past = replace(self, disputes=entry.disputes)
            case JournalPolicy():
                past = replace(self, policy=entry.policy)
            case JournalStop():
                past = replace(self, is_stopping=True)
            case JournalRestart():
                past = replace(self, restarts=self.restarts + 1)
            case JournalEnd():
                past = replace(self, end=entry)
            case JournalPast():
                return _read(entry)
            case _:
                assert_never(entry)
        if entry.learnt is not None:
            past = replace(past, learnt=entry.learnt)
        if isinstance(entry, JournalCommit):
            return replace(past, records=entry.records)
        records = self.records
        if isinstance(entry, JournalPlan) and entry.message.source is not StateSource.LIVE:
            # A commit that was undone is not told after what undid it.
            records = tuple(record for record in records if not isinstance(record, StepCommitted | StepSkipped))
        return replace(past, records=records + entry.records)

    def _committed(self, entry: JournalCommit) -> JournalState:
        skipped = self.skipped_steps | {entry.step} if entry.commit.clip_factor == NOT_APPLIED else self.skipped_steps
        return replace(
            self,
            commit=entry,
            probation=entry.probation,
            suspects=frozenset(entry.suspects),
            disputes=tuple(dispute for dispute in self.disputes if dispute.step != entry.step),
            skipped_steps=skipped,
            num_dropped=entry.commit.num_dropped,
            carried=self._with_carried(entry),
            has_resumed=bool(self.losses),
        )

    def _with_carried(self, entry: JournalCommit) -> tuple[Plan, ...]:
        plan = None if self.plan is None else self.plan.message.plan
        last = self.carried[-1].generation if self.carried else None
        if plan is None or plan.generation != entry.commit.generation or plan.generation == last:
            return self.carried
        return (*self.carried, plan)[-PLANS_CARRIED:]

    def _planned(self, entry: JournalPlan) -> JournalState:
        newcomers = frozenset(entry.stand.newcomers)
        if entry.message.source is StateSource.LIVE:
            return replace(self, plan=entry, newcomers=newcomers)
        skipped = frozenset(step for step in self.skipped_steps if step < entry.message.step)
        back = sum(record.from_step - record.to_step for record in entry.records if isinstance(record, Restored))
        redone = self.steps_redone + back if self.losses else 0
        last = self.checkpoint
        return replace(
            self,
            plan=entry,
            newcomers=newcomers,
            commit=None,
            saved=frozenset(step for step in self.saved if step < entry.message.step),
            evaluated=tuple(record for record in self.evaluated if record.step < entry.message.step),
            skipped_steps=skipped,
            steps_redone=redone,
            num_dropped=last.num_dropped if last is not None and last.step < entry.message.step else 0,
            has_resumed=False,
        )

    def _with_device(self, entry: JournalNode, device: int) -> JournalState:
        """Returns the state after a device was lost alone, or came back."""
        one = frozenset({(entry.node, device)})
        if entry.fate is Fate.JOINED:
            newcomers = self.newcomers | {entry.node}
            return replace(self, lost_devices=self.lost_devices - one, newcomers=newcomers)
        losses = (*self.losses, entry) if self.losses or entry.strikes else self.losses
        return replace(self, lost_devices=self.lost_devices | one, losses=losses)

    def _with_node(self, entry: JournalNode) -> JournalState:
        if entry.device is not None:
            return self._with_device(entry, entry.device)
        node = frozenset({entry.node})
        match entry.fate:
            case Fate.JOINED:
                zones = {**self.zones, entry.node: entry.zone} if entry.zone else self.zones
                labels = {**self.labels, entry.node: entry.label} if entry.label else self.labels
                is_doubted = entry.host in self.wrong_hosts
                probation = {**self.probation, entry.node: PROBATION_STEPS} if is_doubted else self.probation
                came = replace(self, joined=self.joined | node, newcomers=self.newcomers | node)
                return replace(came, zones=zones, labels=labels, probation=probation)
            case Fate.LEAVING:
                return replace(self, leaving=self.leaving | node, newcomers=self.newcomers - node)
            case Fate.RELEASED:
                return replace(self._without(node), released=self.released | node)
            case Fate.LOST:
                losses = (*self.losses, entry) if self.losses or entry.strikes else self.losses
                wrong = Counter(record.host for record in entry.records if isinstance(record, ComputedWrong))
                wrong.update(self.wrong_hosts)
                return replace(self._without(node), lost=self.lost | node, losses=losses, wrong_hosts=dict(wrong))

    def _without(self, node: frozenset[NodeId]) -> JournalState:
        zones = {other: zone for other, zone in self.zones.items() if other not in node}
        labels = {other: label for other, label in self.labels.items() if other not in node}
        return replace(
            self,
            joined=self.joined - node,
            leaving=self.leaving - node,
            newcomers=self.newcomers - node,
            lost_devices=frozenset(lost for lost in self.lost_devices if lost[0] not in node),
            probation={other: steps for other, steps in self.probation.items() if other not in node},
            zones=zones,
            labels=labels,
        )

    def written(self) -> JournalPast:
        """Returns the entry that says all this."""
        rest = replace(self, plan=None, learnt=RunMeasurements())
        return JournalPast(plan=self.plan, learnt=self.learnt, rest=zlib.compress(msgspec.msgpack.encode(rest)))


_rest: Final = msgspec.msgpack.Decoder(JournalState)


def _read(entry: JournalPast) -> JournalState:
    """Returns what an entry stands for. Raises ValueError: another version wrote it otherwise."""
    try:
        past = _rest.decode(zlib.decompress(entry.rest))
    except zlib.error as error:
        raise ValueError(str(error)) from None
    return replace(past, plan=entry.plan, learnt=entry.learnt or RunMeasurements())
