"""What must hold after any run, whatever happened in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from planaria.job.registry import PolicyName
from planaria.protocol.messages.records import (
    CoordinatorRestarted,
    NodeJoined,
    NodeLost,
    NodeReleased,
    Note,
    PlanTaken,
    Recovered,
    Restored,
    RunEnded,
    RunStatus,
    StepCommitted,
    StepSkipped,
    Waiting,
)
from planaria.protocol.messages.to_worker import Commit
from planaria.runtime.component_settings import planner_settings
from tests.plan.profiles import uniform_profile
from tests.runtime.worker.cluster import Outcome
from tests.runtime.worker.schedules import Schedule


@dataclass(frozen=True)
class Reference:
    """One process training alone."""

    losses: Mapping[int, float | None]
    skipped: frozenset[int]
    weights: str


COMMITTED = (StepCommitted, StepSkipped)


def check(schedule: Schedule, outcome: Outcome, reference: Reference) -> None:
    """Raises AssertionError for a broken promise."""
    _check_numbers(outcome, reference)
    is_dark = any(crash.cut for crash in schedule.crashes)
    _check_commits(outcome, is_dark=is_dark)
    _check_restarts(schedule, outcome)
    _check_end(schedule, outcome)
    if not is_dark:  # the account of a recovery is not worth a word to every worker
        _check_recoveries(outcome, schedule.job.cluster.devices_per_node)


def _check_numbers(outcome: Outcome, reference: Reference) -> None:
    """The reference leaves out what was left out of each step the last time that it was done."""
    for record in _lasting(outcome) if outcome.drops else outcome.of(COMMITTED):
        assert record.loss == reference.losses[record.step], f"loss of step {record.step}"
        assert isinstance(record, StepSkipped) == (record.step in reference.skipped)
    (ended,) = outcome.of(RunEnded)
    assert ended.dropped_microbatches == sum(map(len, outcome.drops.values()))
    assert ended.skipped_steps == len({step for step in reference.skipped if step <= ended.steps})
    if outcome.finish.status is RunStatus.COMPLETED:
        assert outcome.weights == reference.weights


def _lasting(outcome: Outcome) -> list[StepCommitted | StepSkipped]:
    """Commits that no restore undid."""
    lasting: list[StepCommitted | StepSkipped] = []
    for record in outcome.records:
        if isinstance(record, Restored):
            lasting = [committed for committed in lasting if committed.step <= record.to_step]
        elif isinstance(record, COMMITTED):
            lasting.append(record)
    return lasting


def _check_commits(outcome: Outcome, *, is_dark: bool) -> None:
    """Each step once, in order; a restore goes back, and says so.

    Where the journal's end is lost, a commit that nobody was told of may be made once more: with the same numbers.
    """
    step = 0
    for record in outcome.records:
        if isinstance(record, COMMITTED):
            assert record.step == step + 1
            step = record.step
        elif isinstance(record, Restored):
            assert step - is_dark <= record.from_step <= step
            step = record.to_step
    check_that_commits_agree([entry.commit for entry in outcome.commits], outcome.of(Restored))
    if not is_dark:
        assert [entry.step for entry in outcome.commits] == [r.step for r in outcome.of(COMMITTED)]
        generations = [record.generation for record in outcome.of(PlanTaken)]
        assert generations == sorted(set(generations))


def check_that_commits_agree(commits: Sequence[Commit], restored: Sequence[Restored]) -> None:
    """A step is committed in one way, however often. Done again with other samples left out, it and all that follow it
    begin a history of their own."""
    decided: dict[int, tuple[object, ...]] = {}
    for commit in commits:
        step, numbers = commit.step, _numbers(commit)
        before = decided.get(step)
        if before is not None and before[0] != commit.dropped and any(back.to_step < step for back in restored):
            decided = {earlier: told for earlier, told in decided.items() if earlier < step}
        assert decided.setdefault(step, numbers) == numbers, f"step {step} is committed in two ways"


def _numbers(commit: Commit) -> tuple[object, ...]:
    loss = commit.loss if math.isfinite(commit.loss) else None
    return commit.dropped, commit.clip_factor, commit.scale, commit.exponents, loss


def _check_restarts(schedule: Schedule, outcome: Outcome) -> None:
    """A coordinator's death alone disturbs nobody."""
    is_dark = any(crash.cut for crash in schedule.crashes)
    restarted = outcome.of(CoordinatorRestarted)
    assert len(restarted) <= outcome.restarts
    if is_dark:
        return
    assert all(record.lag == 0 for record in restarted)
    lost = [record.node for record in outcome.of(NodeLost)]
    assert len(lost) == len(set(lost)), "a node is lost once"
    weather = schedule.weather
    is_quiet = not (schedule.kills or schedule.visits or schedule.switches or schedule.shortages)
    if is_quiet and not (weather.slow_nodes or weather.damage):
        assert len(outcome.of(PlanTaken)) <= 1


def _check_end(schedule: Schedule, outcome: Outcome) -> None:
    (ended,) = outcome.of(RunEnded)
    assert (ended.skipped_microbatches, ended.duplicated_microbatches) == (0, 0)
    tolerance = schedule.job.resilience.fault_tolerance
    losses = outcome.of(NodeLost)
    status = outcome.finish.status
    if schedule.shortages and "ran out of memory" in outcome.finish.message:
        assert status is RunStatus.FAILED
        assert "--resume" in outcome.finish.message
        return
    if len(losses) <= tolerance:
        may_restore = planner_settings(schedule.job, uniform_profile(1)).may_restore
        policies = {schedule.job.resilience.policy, *(PolicyName(switch.policy) for switch in schedule.switches)}
        goes_back = PolicyName.MORPH in policies or (may_restore and PolicyName.ADAPTIVE in policies)
        assert goes_back or not outcome.of(Restored), "no f losses can take the last replica"
        assert status is not RunStatus.FAILED, outcome.finish.message
    left = set(range(schedule.job.cluster.nodes)) | {record.node for record in outcome.of(NodeJoined)}
    left -= {record.node for record in (*losses, *outcome.of(NodeReleased))}
    if status is RunStatus.EXHAUSTED:
        assert len(left) < schedule.needed_nodes, outcome.finish.message
    if status is RunStatus.FAILED:
        assert "there is no checkpoint" in outcome.finish.message or "could not be saved" in outcome.finish.message
    # With the journal's end, what was to be told may be lost, and a commit of before a loss told after it.
    if not any(crash.cut for crash in schedule.crashes):
        if schedule.job.resilience.policy is PolicyName.TEMPLATES and not schedule.switches:
            _check_that_too_few_nodes_end_it(schedule, outcome)
        _check_that_lacking_replicas_are_told(schedule, outcome)


def _check_that_too_few_nodes_end_it(schedule: Schedule, outcome: Outcome) -> None:
    """Below (f + 1) n0 nodes, the step in progress is finished and saved, and no other is begun."""
    commits_since: int | None = None
    left = set(range(schedule.job.cluster.nodes))
    for record in outcome.records:
        if isinstance(record, NodeJoined):
            left.add(record.node)
            commits_since = commits_since if len(left) < schedule.needed_nodes else None
        elif isinstance(record, NodeReleased):
            left.discard(record.node)
            assert len(left) >= schedule.needed_nodes
        elif isinstance(record, NodeLost):
            left.discard(record.node)
            if len(left) < schedule.needed_nodes and commits_since is None:
                commits_since = 0
        elif isinstance(record, COMMITTED) and commits_since is not None:
            commits_since += 1
            assert commits_since == 1, "training goes on with too few replicas"
        elif isinstance(record, PlanTaken) and record.purpose == "reconfigure":
            assert commits_since is None


def _check_that_lacking_replicas_are_told(schedule: Schedule, outcome: Outcome) -> None:
    """A placement with fewer than f + 1 replicas of some layer is only a policy's that means it, and the user knows."""
    job = schedule.job
    if job.resilience.policy is PolicyName.REDUNDANCY:  # records do not show shadows; it never means it
        assert schedule.switches or not any("the plan is degraded" in note.text for note in outcome.of(Note))
        return
    for record, following in pairwise(outcome.records):
        if not isinstance(record, PlanTaken) or record.purpose not in ("start", "reconfigure", "restore"):
            continue
        if record.policy == PolicyName.REDUNDANCY:  # as above, after a change of policy
            assert not (isinstance(following, Note) and "the plan is degraded" in following.text)
            continue
        stages = [stage for stages in record.pipelines for stage in stages]
        layers = max(end for _, _, end in stages)
        replicas = min(
            len({worker // job.cluster.devices_per_node for worker, first, end in stages if first <= layer < end})
            for layer in range(layers)
        )
        told = isinstance(following, Note) and "the plan is degraded" in following.text
        # Of tied layers one may be held through the other, which the record does not show.
        enough = replicas > job.resilience.fault_tolerance
        assert not (told and enough)
        assert told or enough or job.model.config["tied"]
        assert not told or schedule.switches or job.resilience.policy is not PolicyName.TEMPLATES


def _check_recoveries(outcome: Outcome, per_node: int) -> None:
    """Every loss that a later step survived is told of once."""
    told = [node for record in outcome.of(Recovered) for node in record.recovery.lost_nodes]
    assert len(told) == len(set(told))
    seen: list[int] = []
    gathering = True
    for record in outcome.records:
        gathering = gathering and not isinstance(record, PlanTaken)
        if isinstance(record, NodeLost) and not gathering:
            seen.append(record.node)
        elif isinstance(record, Recovered):
            recovery = record.recovery
            assert set(recovery.lost_nodes) <= set(seen)
            assert recovery.microbatches_rerun <= recovery.microbatches_per_step
            assert recovery.resume_ms >= 0
    last_commit = _last_commit(outcome)
    started = next((at for at, r in enumerate(outcome.records) if isinstance(r, PlanTaken)), 0)
    used: set[int] = set()
    for record in outcome.records[started:last_commit]:
        if isinstance(record, PlanTaken):
            used = {worker // per_node for stages in record.pipelines for worker, _, _ in stages}
        elif isinstance(record, Waiting):
            used = set()  # who dies now struck no step
        if isinstance(record, NodeLost) and record.node in used:
            assert record.node in told, f"node {record.node} was lost and survived, and no recovery tells of it"


def _last_commit(outcome: Outcome) -> int:
    """The place among the records of the last commit that no restore undid."""
    stands = math.inf
    for at, record in reversed(list(enumerate(outcome.records))):
        if isinstance(record, Restored):
            stands = min(stands, record.to_step)
        elif isinstance(record, COMMITTED) and record.step <= stands:
            return at
    return 0
