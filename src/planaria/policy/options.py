"""Options: candidates as far as they depend on nothing but the question. What an outlook makes of them is judged later.

So they can be found long before they are asked for, see `AdaptivePolicy.ponder`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from planaria.estimate.transition import transfer_time
from planaria.plan.plan import PlanError, ScheduleKind
from planaria.plan.replicas import lacking
from planaria.policy.next_loss import next_loss_s
from planaria.policy.pieces import Pieces
from planaria.policy.question import Question
from planaria.policy.reroute import REROUTE, ReroutePolicy
from planaria.policy.rerouting import Rerouting
from planaria.policy.source import Offer, Source
from planaria.policy.worth import peril

WORTH_A_STEP_BESIDE = 1.25
"""A plan whose step takes so much longer than another's is not also tried with its state moved beside a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A candidate before it is judged.

    Attributes:
        name: see `Candidate`.
        offer: the plan that lasts.
        moves_s: seconds for which its state is under way, by the profile's links.
        beside_s: of the step beside which its state moves; None: it moves first.
        is_awaited: somebody who has other work waits for the state first.
        is_degraded: some layer has fewer than f + 1 replicas under the plan that lasts.
        memory_bytes: of the fullest device under that plan.
        loss_s: see `Course`.
        peril: of the nodes under that plan, the share of which each has a last replica.
    """

    name: str
    offer: Offer
    moves_s: float
    beside_s: float | None
    is_awaited: bool
    is_degraded: bool
    memory_bytes: int
    peril: float
    loss_s: float

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
    if not offers:
        resort = Rerouting(planner).last_resort(question)
        if resort is None:
            assert error is not None, "a source that has no offer says why"
            raise error
        offers.append(resort)
    options: list[Option] = []
    for offer in offers:
        yield
        options.append(option_of(planner, offer))
        yield
        split = split_of(planner, offer)
        if split is not None:
            options.append(option_of(planner, split))
    least_s = min(option.step_time_s for option in options)
    rerouted = next((o.offer for o in options if o.name == REROUTE and not o.offer.proposal.plan.transfers), None)
    result: list[Option] = []
    for option in options:
        if rerouted is not None and option.moves_s and option.step_time_s <= WORTH_A_STEP_BESIDE * least_s:
            yield
            result += _beside(planner, rerouted, option)
        result.append(option)
    return result


def _collected(source: Source, question: Question) -> Iterator[Offer | None]:
    yield from source.offers(question)


def _same(one: Offer, other: Offer) -> bool:
    a, b = one.proposal.plan, other.proposal.plan
    return a.pipelines == b.pipelines and a.routes == b.routes


def option_of(planner: ReroutePolicy, offer: Offer) -> Option:
    plan = offer.proposal.plan
    moves_s = transfer_time(plan, planner.profile.links).time_s
    return Option(
        name=offer.name,
        offer=dataclasses.replace(offer, proposal=dataclasses.replace(offer.proposal, transfer_s=moves_s)),
        moves_s=moves_s,
        beside_s=None,
        is_awaited=True,
        is_degraded=bool(lacking(plan, planner.settings.fault_tolerance)),
        memory_bytes=planner.fullest_device_bytes(plan),
        loss_s=next_loss_s(plan, planner.profile, offer.proposal.step_time_s),
        peril=peril(((plan.node_of(w), groups) for w, groups in plan.groups_of.items()), len(plan.groups)),
    )


def split_of(planner: ReroutePolicy, offer: Offer) -> Offer | None:
    """The same plan with split backwards, where its steps are shorter and the memory allows for it: what plans may use,
    or else what the profile says that a device has.
    """
    proposal = offer.proposal
    if proposal.plan.schedule is ScheduleKind.ZERO_BUBBLE_H1:
        return None
    plan = msgspec.structs.replace(proposal.plan, schedule=ScheduleKind.ZERO_BUBBLE_H1)
    estimated = planner.estimated(plan)
    if estimated.step_time_s >= proposal.step_time_s:
        return None
    limit = planner.settings.memory_bytes or planner.profile.device.memory_bytes
    if limit and planner.fullest_device_bytes(plan) > limit:
        return None
    shorter = dataclasses.replace(
        proposal,
        plan=plan,
        step_time_s=estimated.step_time_s,
        longest_s=estimated.longest_s,
        compute_s=estimated.compute_s,
    )
    return dataclasses.replace(offer, name=f"{offer.name}, split backwards", proposal=shorter)


def _beside(planner: ReroutePolicy, rerouted: Offer, option: Option) -> Iterator[Option]:
    """A rerouted step, beside which the state moves for the option. None where that cannot be."""
    target = option.offer.proposal
    step = planner.warm_up(rerouted.proposal.plan, target, target.plan.generation)
    if step is None or not {move.source for move in target.plan.transfers} <= set(step.plan.workers):
        return
    degraded = " It is degraded until then." if step.is_degraded else ""
    step = dataclasses.replace(
        step, reason=f"The lost nodes' work is rerouted for one step, beside which state moves.{degraded}"
    )
    working = {move.target for move in target.plan.transfers} & set(rerouted.proposal.plan.workers)
    both = dataclasses.replace(option.offer, proposal=dataclasses.replace(target, beside=step))
    yield dataclasses.replace(
        option,
        name=f"one step rerouted, then {option.name}",
        offer=both,
        beside_s=step.step_time_s,
        is_awaited=bool(working),
    )
