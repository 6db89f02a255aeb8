"""What the coordinator's machine needs to know of the job."""

from __future__ import annotations

from dataclasses import dataclass, field

from planaria.estimate.restore_time import Storage
from planaria.job.sections.budget import BudgetSection
from planaria.job.sections.eval import EvalSection
from planaria.job.sections.train import TrainSection
from planaria.plan.thresholds import MEAN_TIME_BETWEEN_FAILURES_S
from planaria.protocol.messages.checkpoint_ref import CheckpointRef
from planaria.protocol.messages.records import Evaluated
from planaria.protocol.planning.failure_rate import Watched
from planaria.protocol.planning.straggler_detection import SpeedEvidence
from planaria.protocol.step.schedule import Ends


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What one run is set to do, and on which nodes.

    Attributes:
        train: steps, batch, clip, schedule.
        policy_name: of the policy that the run begins with.
        fault_tolerance: f: how many nodes may be lost at once.
        num_nodes: nodes that the run begins on.
        most_nodes: that it grows to, and gives back what brings too little; None: it takes all that come.
        devices_per_node: workers on each node.
        num_groups: parameter groups of the model.
        checkpoint_root: folder under which checkpoints are written.
        checkpoint_every: steps between checkpoints, see `Cadence`; None: not by steps.
        checkpoint_every_s: seconds between them; None: not by time. With both None the run chooses.
        keep_checkpoints: how many of the newest stay.
        resume: checkpoint to start from.
        mean_time_between_failures_s: as expected before any is seen.
        watched: what earlier runs of this job saw of that.
        storage: that checkpoints are read from, as expected before a restore was measured.
        nodes_come: agents offer nodes, also in place of lost ones: a run that waits for its first ones goes on waiting.
        waits: with too few nodes, save and wait for others to join; else save and end.
        may_drop: samples may be left out, if a policy is chosen that does so.
        shares_cores: workers have less than a core each: a step takes as long as all work in it, whoever does it.
        evidence: of nodes' speeds, how much is needed for a plan that follows them.
        ends: where the learning rate's schedule ends, since which step; empty: at train.steps.
        rate_factors: of a schedule that is a function: what it gives for each step.
        evaluation: when the model is evaluated, and what for.
        evaluated: evaluations of earlier runs up to `resume`.
        saved: steps of the whole checkpoints that there are up to `resume`.
        budget: what nodes cost, and may.
        spent: dollars that earlier parts of the run cost.
        memory_bytes: that a plan may use of one device; 0: no limit is known.
        clock: of the host that it runs on: where this is the same, monotonic seconds are. "": there is one host.
        audit: share of all computation that another worker runs again.
        hashes_plans: records of plans bear their hash, which takes milliseconds for thousands of nodes.
    """

    train: TrainSection
    policy_name: str
    fault_tolerance: int
    num_nodes: int
    devices_per_node: int
    num_groups: int
    checkpoint_root: str
    checkpoint_every: int | None
    resume: CheckpointRef | None
    mean_time_between_failures_s: float = MEAN_TIME_BETWEEN_FAILURES_S
    watched: Watched = field(default_factory=Watched)
    storage: Storage = field(default_factory=Storage)
    checkpoint_every_s: float | None = None
    keep_checkpoints: int = 2
    nodes_come: bool = False
    waits: bool = False
    may_drop: bool = False
    shares_cores: bool = False
    evidence: SpeedEvidence = field(default_factory=SpeedEvidence)
    ends: Ends = ()
    rate_factors: tuple[float, ...] = ()
    evaluation: EvalSection = field(default_factory=EvalSection)
    evaluated: tuple[Evaluated, ...] = ()
    saved: tuple[int, ...] = ()
    budget: BudgetSection = field(default_factory=BudgetSection)
    spent: float = 0.0
    memory_bytes: int = 0
    clock: str = ""
    audit: float = 0.0
    hashes_plans: bool = True
    most_nodes: int | None = None

    @property
    def first_step(self) -> int:
        return 1 + (self.resume.step if self.resume else 0)
