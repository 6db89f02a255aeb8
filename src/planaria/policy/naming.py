"""Names of candidates, for people: two that differ are not called the same."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence

from planaria.plan.plan import Plan
from planaria.plan.reroute import shares
from planaria.policy.source import Offer
from planaria.policy.wording import size


def _microbatches(offer: Offer) -> str:
    return f"microbatches {'+'.join(map(str, shares(offer.proposal.plan)))}"


def _layers(offer: Offer) -> str:
    return f"layers {'+'.join(map(_cut, _pipelines(offer.proposal.plan)))}"


def _moved(offer: Offer) -> str:
    return f"{size(offer.proposal.transfer_bytes)} move"


def _pipelines(plan: Plan) -> list[list[int]]:
    return [[len(stage.layers) for stage in pipeline.stages] for pipeline in plan.pipelines]


def _cut(stages: Sequence[int]) -> str:
    return "-".join(map(str, stages))


DETAILS: tuple[Callable[[Offer], str], ...] = (_microbatches, _layers, _moved)
"""By which plans of one name are told apart, what people see at a glance first."""


def told_apart(offers: Sequence[Offer]) -> list[Offer]:
    """The same, in the same order; those of one name with a detail in which they differ, else with a number."""
    named = list(offers)
    for detail in DETAILS:
        for places in _of_one_name(named):
            details = [detail(named[at]) for at in places]
            if len(set(details)) > 1:
                for at, what in zip(places, details, strict=True):
                    named[at] = _with(named[at], what)
    for places in _of_one_name(named):
        for number, at in enumerate(places[1:], 2):
            named[at] = _with(named[at], f"no. {number}")
    return named


def _of_one_name(offers: Sequence[Offer]) -> list[list[int]]:
    """Places of offers that others are called like."""
    times = Counter(offer.name for offer in offers)
    return [
        [at for at, offer in enumerate(offers) if offer.name == name] for name, number in times.items() if number > 1
    ]


def _with(offer: Offer, detail: str) -> Offer:
    name = f"{offer.name[:-1]}, {detail})" if offer.name.endswith(")") else f"{offer.name} ({detail})"
    return dataclasses.replace(offer, name=name)
