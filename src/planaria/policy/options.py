"""Options: candidates as far as they depend on nothing but the question. What an outlook makes of them is judged later.

So they can be found long before they are asked for, see `AdaptivePolicy.ponder`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from planaria.estimate.memory import fullest_device_bytes
from planaria.estimate.restore import RestoreTime, Storage, restore_time
from planaria.estimate.transition import transfer_time
from planaria.plan.plan import PlanError, ScheduleKind
from planaria.plan.replicas import lacking
from planaria.policy.detour_search import CLOSE
from planaria.policy.exposure import Exposure, exposure
from planaria.policy.fewer import Fewer
from planaria.policy.naming import told_apart
from planaria.policy.next_loss import next_loss_s
from planaria.policy.pieces import Pieces
from planaria.policy.proposal import Proposal
from planaria.policy.question import Question
from planaria.policy.redundancy import TAKEOVER
from planaria.policy.reroute import REROUTE, ReroutePolicy
from planaria.policy.rerouting import Rerouting
from planaria.policy.source import Offer, Source

WORTH_A_STEP_BESIDE = 1.25
"""A plan whose step takes so much longer than another's is not also tried with its state moved beside a step."""

AT_ONCE = {REROUTE: "rerouted", TAKEOVER: "taken over"}
"""How plans are made for which no state moves, and what that is called: one step of the first that there is goes before
a plan for which some does."""


SPLIT = {ScheduleKind.ZERO_BUBBLE_H1: 1 - CLOSE, ScheduleKind.ZERO_BUBBLE_H2: 1 - CLOSE}
"""Schedules with split backwards, from what keeps fewer activations on, each with the part of the best step before it
that one must be shorter than."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A candidate before it is judged.

    Attributes:
        name: see `Candidate`.
        offer: the plan that lasts.
        moves_s: seconds for which its state is under way, by the profile's links.
        wait_s: by how much longer the plan's first step then takes, if it moves first: who gets state late may have
            had nothing to do before.
        beside_s: of the step beside which its state moves; None: it moves first.
        is_degraded: some layer has fewer than f + 1 replicas under the plan that lasts.
        is_late: it has as many only when its shadows have the state that is under way to them.
        memory_bytes: of the fullest device under that plan.
        restored: that its workers read, where they begin at the last checkpoint; None: their state is of now.
        loss_s: see `Course`.
        exposure: of the nodes under that plan.
    """

    name: str
    offer: Offer
    moves_s: float
    wait_s: float
    beside_s: float | None
    is_degraded: bool
    memory_bytes: int
    exposure: Exposure
    loss_s: float
    restored: RestoreTime | None = None
    is_late: bool = False

    @property
    def step_time_s(self) -> float:
        return self.offer.proposal.step_time_s


def options_in_pieces(planner: ReroutePolicy, sources: Sequence[Source], question: Question) -> Pieces[list[Option]]:
    """All, in the order in which equally good ones are preferred.

    Raises:
        PlanError: there is none.
    """
    offers: list[Offer] = []
    error: PlanError | None = None
    for source in sources:
        found = _collected(source, question)
        while True:
            try:
                offer = next(found)
            except StopIteration:
                break
            except PlanError as refused:
                error = refused
                break
            if offer is None:
                yield
            elif not any(_same(offer, other) for other in offers):
                offers.append(offer)
    if not any(_is_plain(offer.proposal) for offer in offers):
        offers += _last_resorts(planner, question, offers)
        if not offers:
            assert error is not None, "a source that has no offer says why"
            raise error
    options: list[Option] = []
    for offer in told_apart(offers):
        yield
        options.append(option_of(planner, offer))
        yield
        split = split_of(planner, offer)
        if split is not None:
            options.append(option_of(planner, split))
    least_s = min(option.step_time_s for option in options)
    at_once = next((found for how in AT_ONCE for found in options if _is_at_once(found, how)), None)
    result: list[Option] = []
    for option in options:
        if at_once is not None and option.moves_s and option.step_time_s <= WORTH_A_STEP_BESIDE * least_s:
            yield
            result += _beside(planner, at_once.offer, option)
        result.append(option)
    return result


def _is_plain(proposal: Proposal) -> bool:
    """Nothing is trained twice or left out for it."""
    return not (proposal.restores or proposal.dropped)


def _last_resorts(planner: ReroutePolicy, question: Question, offers: Sequence[Offer]) -> list[Offer]:
    """What is left as it is; and new pipelines of one replica."""
    rerouted = Rerouting(planner).last_resort(question)
    found = [] if rerouted is None else [rerouted]
    for offer in Fewer(planner).last_resort(question):
        if not any(_same(offer, other) for other in (*offers, *found)):
            found.append(offer)
    return found


def _is_at_once(option: Option, how: str) -> bool:
    return option.offer.proposal.how == how and not option.offer.proposal.plan.transfers


def _collected(source: Source, question: Question) -> Iterator[Offer | None]:
    yield from source.offers(question)


def _same(one: Offer, other: Offer) -> bool:
    a, b = one.proposal.plan, other.proposal.plan
    return (
        (a.pipelines, a.routes, a.redundancy) == (b.pipelines, b.routes, b.redundancy)
        and (a.redundancy is None or a.shadows == b.shadows)
        and one.proposal.restores == other.proposal.restores
    )


def option_of(planner: ReroutePolicy, offer: Offer) -> Option:
    plan = offer.proposal.plan
    moved = transfer_time(plan, planner.profile.links)
    moves_s = moved.time_s
    most_lost = planner.settings.fault_tolerance
    is_degraded = bool(lacking(plan, most_lost, arrived=plan.redundancy is not None))
    return Option(
        name=offer.name,
        offer=dataclasses.replace(offer, proposal=dataclasses.replace(offer.proposal, transfer_s=moves_s)),
        moves_s=moves_s,
        wait_s=planner.wait_s(plan, moved.come_s),
        beside_s=None,
        is_degraded=is_degraded,
        is_late=not is_degraded and bool(lacking(plan, most_lost)),
        memory_bytes=fullest_device_bytes(plan, planner.profile),
        loss_s=next_loss_s(plan, planner.profile, offer.proposal.step_time_s),
        exposure=exposure(
            ((plan.node_of(w), groups) for w, groups in plan.groups_of.items()), len(plan.groups), planner.zones
        ),
        restored=restore_time(plan, Storage()) if offer.proposal.restores else None,
    )


def split_of(planner: ReroutePolicy, offer: Offer) -> Offer | None:
    """The same plan with split backwards, where its steps are shorter and the memory allows for it: what plans may use,
    or else what the profile says that a device has. Of schedules that split them, one that keeps more only where it is
    clearly quicker.
    """
    best = offer.proposal
    if best.plan.schedule is ScheduleKind.ZERO_BUBBLE_H2:
        return None
    limit = planner.settings.memory_bytes or planner.profile.device.memory_bytes
    for kind, most in SPLIT.items():
        if kind is offer.proposal.plan.schedule:
            continue
        plan = msgspec.structs.replace(offer.proposal.plan, schedule=kind)
        estimated = planner.estimated(plan)
        if estimated.step_time_s >= most * best.step_time_s:
            continue
        if limit and fullest_device_bytes(plan, planner.profile) > limit:
            break
        best = dataclasses.replace(
            best,
            plan=plan,
            step_time_s=estimated.step_time_s,
            longest_s=estimated.longest_s,
            compute_s=estimated.compute_s,
        )
    if best is offer.proposal:
        return None
    return dataclasses.replace(offer, name=f"{offer.name}, {best.plan.schedule.value}", proposal=best)


def _beside(planner: ReroutePolicy, first: Offer, option: Option) -> Iterator[Option]:
    """A step rerouted or taken over, beside which the state moves for the option. None where that cannot be."""
    target = option.offer.proposal
    step = planner.warm_up(first.proposal.plan, target, target.plan.generation)
    if step is None or not {move.source for move in target.plan.transfers} <= set(step.plan.workers):
        return
    degraded = " It is degraded until then." if step.is_degraded else ""
    how = AT_ONCE[first.proposal.how]
    step = dataclasses.replace(
        step, reason=f"The lost nodes' work is {how} for one step, beside which state moves.{degraded}"
    )
    both = dataclasses.replace(option.offer, proposal=dataclasses.replace(target, beside=step))
    yield dataclasses.replace(
        option,
        name=f"one step {how}, then {option.name}",
        offer=both,
        beside_s=step.step_time_s,
    )
