"""How long an evaluation takes, and what share of a run: forwards alone, worker by worker in their programs' order."""

from __future__ import annotations

from dataclasses import dataclass

from planaria.estimate.conditions import Conditions
from planaria.plan.costs.byte_counts import message_bytes
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.network import Network
from planaria.plan.plan import Plan, WorkerId
from planaria.plan.program.routes import merge_hops, travellers


@dataclass(frozen=True, slots=True)
class EvaluationTime:
    """Estimated seconds of an evaluation, and of its longest forward."""

    total_s: float
    longest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationShare:
    """Estimated time of a run's evaluations.

    Attributes:
        seconds: of one.
        microbatches: of one.
        evaluations: in the run.
        steps: of the run.
        step_time_s: of one of them.
    """

    seconds: float
    microbatches: int
    evaluations: int
    steps: int
    step_time_s: float

    @property
    def run_s(self) -> float:
        """Seconds of all steps and evaluations of the run."""
        return self.steps * self.step_time_s + self.evaluations * self.seconds

    @property
    def share(self) -> float:
        """Share of the evaluations in that."""
        return self.evaluations * self.seconds / self.run_s if self.run_s else 0.0


def evaluation_time(plan: Plan, profile: ModelProfile, conditions: Conditions) -> EvaluationTime:
    """Returns what the plan's evaluation takes: each worker does its forwards in turn, each when its input is there.

    Where workers share a machine's cores, these must do all of it (see `planaria.estimate.cores`).
    """
    assert plan.evaluation is not None
    routes = plan.evaluation.routes
    hops = [merge_hops(route.hops) for route in routes]
    network = conditions.network or Network()
    free_at: dict[WorkerId, float] = {}
    longest_s = end_s = busy_s = 0.0
    for _, _, at in travellers(routes):
        here_s = 0.0
        for place, hop in enumerate(hops[at]):
            if place > 0:
                link = network.link(profile.links, plan.node_of(hops[at][place - 1].worker), plan.node_of(hop.worker))
                message_s = link.time_s(message_bytes(profile, hop.first_layer))
                here_s += message_s
                busy_s += message_s
            took_s = sum(profile.layers[layer].on(hop.num_devices).forward_s for layer in hop.layers)
            took_s /= conditions.speed(plan.node_of(hop.worker))
            here_s = free_at[hop.worker] = max(here_s, free_at.get(hop.worker, 0.0)) + took_s
            longest_s = max(longest_s, took_s)
            busy_s += took_s
        end_s = max(end_s, here_s)
    if conditions.num_cores is not None:
        end_s = max(end_s, busy_s / conditions.num_cores)
    return EvaluationTime(total_s=end_s * conditions.stretch, longest_s=longest_s * conditions.stretch)
