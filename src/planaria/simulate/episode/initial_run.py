"""The run in which an episode begins, as the coordinator has it: as much of it as transitions look at."""

from __future__ import annotations

import math

from planaria.estimate.restore_time import Storage
from planaria.job.settings import TrainSection
from planaria.protocol.messages.checkpoint_ref import CheckpointRef
from planaria.protocol.run.run import Run
from planaria.protocol.run.settings import RunSettings
from planaria.simulate.episode.subject import Foreseen, RunOutlook, SimulatedJob

MANY_STEPS = 1_000_000


def initial_run(subject: SimulatedJob, known: RunOutlook, *, num_nodes: int) -> Run:
    """Returns the run of a job of so many nodes, none of which has joined, in the middle of its training."""
    # So that no checkpoint is due soon: those between episodes are counted by whoever counts the steps.
    first_step = 1 + MANY_STEPS * max(1, subject.checkpoint_every)
    settings = RunSettings(
        train=TrainSection(
            steps=first_step + min(known.steps_left, MANY_STEPS),
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
    run = Run(settings, subject.policy, None, None)
    run.failures = Foreseen(known.time_to_failure_s, known.nodes_together)
    run.step_times.decision_s = subject.timings.decision_s
    run.step = first_step
    run.checkpoints.cadence.begin(math.inf)  # likewise
    run.checkpoints.last = CheckpointRef(step=first_step - 1 - known.steps_at_stake, folder="", exponents=run.exponents)
    return run
