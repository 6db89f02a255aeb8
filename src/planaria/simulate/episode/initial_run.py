"""The run in which an episode begins, as the coordinator has it: as much of it as transitions look at."""

from __future__ import annotations

from planaria.estimate.restore_time import Storage
from planaria.job.sections.train import TrainSection
from planaria.plan.plan import NodeId
from planaria.policy.interface import Candidate
from planaria.protocol.given_run import at_work, given_run
from planaria.protocol.run.run import Run
from planaria.protocol.run.settings import RunSettings
from planaria.protocol.thresholds import FAILURES_RARER
from planaria.simulate.episode.situation import State
from planaria.simulate.episode.subject import Foreseen, RunOutlook, SimulatedJob

MANY_STEPS = 1_000_000


def run_at_start(subject: SimulatedJob, known: RunOutlook, num_nodes: int) -> Run:
    """Returns the run of a job of so many nodes, none of which has joined."""
    settings = RunSettings(
        train=TrainSection(
            steps=_middle(subject) + min(known.steps_left, MANY_STEPS),
            global_batch=subject.num_microbatches,
            microbatch=1,
            sequence_length=1,
        ),
        policy_name=subject.policy_name,
        fault_tolerance=subject.fault_tolerance,
        num_nodes=num_nodes,
        devices_per_node=subject.devices_per_node,
        num_groups=len(subject.profile.groups),
        checkpoint_root="",
        checkpoint_every=subject.checkpoint_every,
        resume=None,
        storage=Storage(node_bytes_per_s=subject.timings.storage_bytes_per_s),
        waits=True,
        may_drop=True,
        hashes_plans=False,
    )
    failures = Foreseen(known.time_to_failure_s, known.nodes_together)
    return given_run(settings, subject.policy, failures=failures, decision_s=subject.timings.decision_s)


def run_in(subject: SimulatedJob, known: RunOutlook, state: State, estimated: Candidate) -> Run:
    """Returns the run of a job that trains in this state, under its plan as estimated, at the beginning of a step."""
    step = _middle(subject)
    return at_work(
        run_at_start(subject, known, state.num_nodes),
        estimated,
        step=step,
        saved_step=step - 1 - known.steps_at_stake,
        leaving=state.leaving,
        lost_devices=state.lost_devices,
        zones={NodeId(node): zone for node, zone in enumerate(state.zones) if zone},
        chosen_for_s=known.time_to_failure_s / FAILURES_RARER if known.looks_again else None,
    )


def _middle(subject: SimulatedJob) -> int:
    """Returns a step in the middle of the training, after which no checkpoint is due soon: those between episodes are
    counted by whoever counts the steps."""
    return 1 + MANY_STEPS * max(1, subject.checkpoint_every)
