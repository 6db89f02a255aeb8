"""Names of candidates: two that differ are not called the same."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from planaria.plan.plan import NodeId, Plan, Route
from planaria.policy.adaptive.candidates import told_apart
from planaria.policy.interface import Candidate, Policy
from tests.policy.adaptive.test_adaptive import SMALL, settings, started


def named(policy: Policy, plan: Plan, name: str) -> Candidate:
    return replace(policy.estimated(plan), name=name)


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
        named(policy, plan, "search (3+3+3)"),
        named(policy, other, "grid (2 x 4)"),
        named(policy, other_shares(plan), "search (3+3+3)"),
        named(policy, plan, "reroute"),
        named(policy, plan, "reroute"),
    ]
    assert [one.name for one in told_apart(given)] == [
        "search (3+3+3, microbatches 8+8+8)",
        "grid (2 x 4)",
        "search (3+3+3, microbatches 7+9+8)",
        "reroute",
        "reroute (no. 2)",
    ]
    assert [one.plan for one in told_apart(given)] == [one.plan for one in given]
