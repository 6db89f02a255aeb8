"""How long an evaluation takes: forwards alone, worker by worker in the order of their programs."""

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


def evaluation_time(plan: Plan, profile: ModelProfile, conditions: Conditions) -> EvaluationTime:
    """Returns what the plan's evaluation takes: each worker does its forwards in turn, each when its input is there."""
    assert plan.evaluation is not None
    routes = plan.evaluation.routes
    hops = [merge_hops(route.hops) for route in routes]
    network = conditions.network or Network()
    free_at: dict[WorkerId, float] = {}
    longest_s = end_s = 0.0
    for _, _, at in travellers(routes):
        here_s = 0.0
        for place, hop in enumerate(hops[at]):
            if place > 0:
                link = network.link(profile.links, plan.node_of(hops[at][place - 1].worker), plan.node_of(hop.worker))
                here_s += link.time_s(message_bytes(profile, hop.first_layer))
            took_s = sum(profile.layers[layer].on(hop.num_devices).forward_s for layer in hop.layers)
            took_s /= conditions.speed(plan.node_of(hop.worker))
            here_s = free_at[hop.worker] = max(here_s, free_at.get(hop.worker, 0.0)) + took_s
            longest_s = max(longest_s, took_s)
        end_s = max(end_s, here_s)
    return EvaluationTime(total_s=end_s * conditions.stretch, longest_s=longest_s * conditions.stretch)
