"""Names of candidates: two that differ are not called the same."""

from __future__ import annotations

import msgspec

from planaria.plan.plan import NodeId, Plan, Route
from planaria.policy.naming import told_apart
from planaria.policy.reroute import ReroutePolicy
from planaria.policy.source import Offer
from tests.policy.test_adaptive_policy import SMALL, settings, started


def offer(policy: ReroutePolicy, plan: Plan, name: str) -> Offer:
    return Offer(name=name, proposal=policy.estimated(plan), explain=lambda asked, plan: "")


def other_shares(plan: Plan) -> Plan:
    """The first pipeline has one microbatch less, the second one more."""
    first, second, *rest = plan.routes
    *kept, moved = first.microbatches
    routes = [(first, tuple(kept)), (second, tuple(sorted((*second.microbatches, moved))))]
    changed: list[Route] = [msgspec.structs.replace(route, microbatches=own) for route, own in routes]
    return msgspec.structs.replace(plan, routes=(*changed, *rest))


def test_candidates_of_one_name_are_told_apart_by_what_differs() -> None:
    policy, plan = started(SMALL, settings())
    deep, _ = started(SMALL, settings(nodes=8, smallest=4))
    other = deep.initial([NodeId(node) for node in range(8)], 1).plan
    given = [
        offer(policy, plan, "search (3+3+3)"),
        offer(policy, other, "grid (2 x 4)"),
        offer(policy, other_shares(plan), "search (3+3+3)"),
        offer(policy, plan, "reroute"),
        offer(policy, plan, "reroute"),
    ]
    assert [named.name for named in told_apart(given)] == [
        "search (3+3+3, microbatches 8+8+8)",
        "grid (2 x 4)",
        "search (3+3+3, microbatches 7+9+8)",
        "reroute",
        "reroute (no. 2)",
    ]
    assert [named.proposal for named in told_apart(given)] == [one.proposal for one in given]
