"""[resilience]: how many losses are survived, by which policy, and when a node counts as lost."""

from __future__ import annotations

import enum

from planaria.job.registry import PolicyName
from planaria.job.sections.section import Section
from planaria.job.values import at_least, is_reference, path, positive, refuse
from planaria.plan.plan import Redundancy
from planaria.plan.thresholds import MEAN_TIME_BETWEEN_FAILURES_S

NO_PREEMPTION = "none"
AWS = "aws"
GOOGLE = "google"
PREEMPTION_SOURCES = (NO_PREEMPTION, AWS, GOOGLE)
"""Sources of preemption notices that need no function of the user's."""


class WhenExhausted(enum.StrEnum):
    """What to do when fewer than (f + 1) n0 nodes are left, and the policy does not go on with fewer replicas.

    `exit` saves a checkpoint and ends with exit code 3; `wait` saves one, keeps the survivors' state, and goes on as
    soon as enough nodes have joined.
    """

    EXIT = "exit"
    WAIT = "wait"


class ResilienceSection(Section, frozen=True):
    """[resilience]

    Attributes:
        fault_tolerance: f. At least f + 1 pipelines are kept, so any f nodes may be lost at once.
        policy: how plans are made after a change: templates (new pipelines from templates; state moves), reroute
            (peers that own the same layers run what lost nodes did; no state moves, replicas become fewer), redundancy
            (each worker shadows its successor in the pipeline and takes over when that is lost), morph (all go back to
            the last checkpoint, on the best symmetric grid; not with run.checkpoint_every = 0), drop (the samples of a
            pipeline that lost a node are left out until it is complete again; they are counted, and the learning rate
            is scaled by what is left of the batch), or adaptive (at each change, any of
            these, or one after the other, whichever trains most until the next loss; drop only with allow_drop, morph
            not with run.checkpoint_every = 0).
        redundancy: under the policy redundancy, what each worker computes of its successor's layers beside its own:
            eager-lazy (forwards in every step, backwards once the successor is lost), lazy-lazy or eager-eager.
        allow_drop: whether samples may be left out on a live job, by `planaria policy RUN drop`, or by the policy
            adaptive where that trains more. With policy = "drop" it is a matter of course.
        mean_time_between_failures_s: seconds between losses of nodes, over the whole job, as expected before it runs;
            what is then observed counts more and more. Only the adaptive policy asks.
        failure_trace: path of a trace of nodes of the kind that the job runs on (`planaria trace describe`); "": none.
            How often nodes go in it, and how many at a time, counts as if this job had seen it.
        when_exhausted: what to do when fewer than (f + 1) n0 nodes are left and the policy has no plan for them.
        min_nodes_per_pipeline: n0; 0: the fewest that the memory allows.
        nodes_per_pipeline: P, the nodes of every pipeline (Bamboo's depth); 0: whatever is best. Kept while there are
            nodes enough for all pipelines, and never exceeded.
        num_pipelines: D, the number of pipelines. Goes with nodes_per_pipeline; 0: as many as cluster.nodes make.
        heartbeat_timeout_s: seconds without a sign of life after which a node counts as lost. A process that is seen to
            be gone is lost at once; one that is seen to be runnable has ten times as long. More than a thousand workers
            beat less often, and five heartbeats have to be missing.
        coordinator_timeout_s: seconds for which a worker whose coordinator is gone tries to reach the next one, before
            it ends itself. It goes on computing meanwhile.
        preemption: where notices come from that a node will be taken away, so that it hands over its work before: none,
            aws (EC2 Spot, IMDSv2), google (Compute Engine Spot VMs), or "module:function", which the first worker of
            each node calls about once a second and which returns None or the seconds that the node has left.
        compare_replicas: whether workers tell digests of their replicas and sums with each step, so that a node whose
            bits differ is found before the step is committed, with train.numerics = "exact"; with "fast" bits say
            nothing, and none are compared. See docs/howto/wrong-nodes.md.
        audit: the share of all forwards and backwards that a worker of another node runs again, from 0 to 1, so that a
            node that computes wrong is found before the step is committed; only with train.numerics = "exact". What is
            run again is drawn for each step. See docs/howto/wrong-nodes.md.
    """

    fault_tolerance: int = 1
    policy: PolicyName = PolicyName.ADAPTIVE
    redundancy: Redundancy = Redundancy.EAGER_LAZY
    allow_drop: bool = False
    mean_time_between_failures_s: float = MEAN_TIME_BETWEEN_FAILURES_S
    failure_trace: str = ""
    when_exhausted: WhenExhausted = WhenExhausted.EXIT
    min_nodes_per_pipeline: int = 0
    nodes_per_pipeline: int = 0
    num_pipelines: int = 0
    heartbeat_timeout_s: float = 1.0
    coordinator_timeout_s: float = 60.0
    preemption: str = NO_PREEMPTION
    compare_replicas: bool = True
    audit: float = 0.0

    @property
    def may_drop(self) -> bool:
        """Whether samples may be left out at all."""
        return self.allow_drop or self.policy is PolicyName.DROP


def check_resilience(resilience: ResilienceSection) -> None:
    """Refuses a [resilience] that cannot be. Raises UserError."""
    at_least("resilience.fault_tolerance", resilience.fault_tolerance, 0)
    for name in ("min_nodes_per_pipeline", "nodes_per_pipeline", "num_pipelines"):
        at_least(f"resilience.{name}", getattr(resilience, name), 0)
    positive("resilience.coordinator_timeout_s", resilience.coordinator_timeout_s)
    positive("resilience.mean_time_between_failures_s", resilience.mean_time_between_failures_s)
    if resilience.failure_trace:
        path("resilience.failure_trace", resilience.failure_trace)
    if not 0.0 <= resilience.audit <= 1.0:
        refuse("resilience.audit", resilience.audit, "is not a share from 0 to 1", "Write for instance 0.01, or 0.")
    source = resilience.preemption
    if source not in PREEMPTION_SOURCES and not is_reference(source):
        refuse(
            "resilience.preemption", source, f"is not {', '.join(PREEMPTION_SOURCES)} or module:function",
            'Write for instance "aws", or "notices:seconds_left".',
        )  # fmt: skip
