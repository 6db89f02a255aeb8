"""Makes the policy of a name. The names are in `planaria.job.registry`.

Where nodes have several devices, the policy is asked of stages' places, and its plans are given by device. Where the
number of a stage's devices is left open, there is a policy for each, and one is taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Self

import msgspec

from planaria.estimate.evaluation_time import evaluation_time
from planaria.estimate.step_remainder import PlanInterval
from planaria.job.registry import PolicyName
from planaria.plan.errors import NeedsMoreNodes, NoReplica
from planaria.plan.plan import NodeId, Pipeline, Plan, PlanError, WorkerId, runs_of
from planaria.plan.settings import PlannerSettings
from planaria.plan.thresholds import OTHER_SET_CLEARLY
from planaria.plan.validate import lacking
from planaria.planner.finish_step.salvage import with_other_owners
from planaria.planner.placement.transfers import shadows_holding
from planaria.planner.stage_devices import (
    Devices,
    Held,
    by_device,
    by_stage,
    has_every_device,
    is_carried_well,
    places_held,
    places_holding,
    places_of,
    with_state,
)
from planaria.policy.forecast import FailureForecast
from planaria.policy.interface import Candidate, FinishRequest, Policy, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.sentences import devices, finished, time


def make_policy(name: PolicyName, planner: Planner) -> Policy:
    """Returns the policy of that name.

    Raises:
        PlanError: the model or f + 1 replicas of it do not fit; or plans are to be Oobleck's, and this policy makes
            others.
    """
    if planner.settings.is_oobleck and name is not PolicyName.TEMPLATES:
        raise PlanError(
            f"The policy {name} makes no plans of Oobleck's, which the objective asks for. Use the policy templates, "
            "or the objective steptime."
        )
    policy: type[Policy] = name.load()
    if planner.settings.devices_per_stage:
        return _placing(policy.of, planner)
    from planaria.policy.adaptive.chosen_devices import choosing  # and with it all other policies

    templates: type[Policy] = PolicyName.TEMPLATES.load()
    return choosing(
        planner,
        partial(_placing, policy.of),
        partial(_placing, templates),
        weighs=name is PolicyName.ADAPTIVE,
    )


def _placing(made: Callable[[Planner], Policy], planner: Planner) -> Policy:
    """Returns the policy that is so made, with each stage on as many devices as the planner's settings say."""
    if planner.settings.devices_per_node == 1:
        return made(planner)
    with _naming_places(planner.settings):
        return StageDevicesPolicy(planner, made(planner.of_places()))


@contextmanager
def _naming_places(settings: PlannerSettings) -> Iterator[None]:
    """Makes errors of a first plan's places say what counts as a device there, and what else there is against a lack
    of memory."""
    try:
        yield
    except PlanError as error:
        if settings.devices_per_stage == 1 or type(error) not in (PlanError, NeedsMoreNodes):
            raise
        text = f"With stages on {settings.devices_per_stage} devices each, which count as one here: {error}"
        if settings.memory_bytes and isinstance(error, NeedsMoreNodes):
            less = "" if settings.spreads_optimizer else ' or cluster.optimizer_state = "spread"'
            text += f" Each device holds all of its stage: set fewer cluster.devices_per_stage{less}."
        raise PlanError(text) from None


@dataclass(frozen=True, eq=False)
class StageDevicesPolicy(Policy):
    """A policy's plans with each stage on `devices_per_stage` devices of a node, or on those of them that are left
    (`planaria.planner.stage_devices`).

    Attributes:
        planner: of plans by device: its estimates count.
        places: the policy, with the planner of the stages' places.
    """

    places: Policy

    @property
    def _on(self) -> Devices:
        return self.planner.devices

    def with_planner(self, planner: Planner) -> Self:
        of_places = planner.of_places().variant(schedule=self.places.planner.settings.schedule)
        return dataclasses.replace(self, planner=planner, places=self.places.with_planner(of_places))

    def with_forecast(self, forecast: FailureForecast) -> Self:
        return dataclasses.replace(self, places=self.places.with_forecast(forecast))

    def initial(self, nodes: Sequence[NodeId], generation: int) -> Candidate:
        with _naming_places(self.planner.settings):
            places = self.places.initial(nodes, generation)
        found = self._by_device(places)
        if not self._is_sound(found, places):
            places = self._initial_without(places, nodes, generation)
            found = self._by_device(places)
        if not self._is_sound(found, places):
            raise PlanError(f"The other devices of a node cannot run the stages of {self._lost}.")
        if self._on.spreads_optimizer and not self.planner.fits(found.plan):
            raise PlanError(
                "A device of a stage has no room for its part of the optimizer's state: a layer's is with one device. "
                "Set fewer cluster.devices_per_stage, or use devices with more memory."
            )
        return found

    def _initial_without(self, places: Candidate, nodes: Sequence[NodeId], generation: int) -> Candidate:
        """Returns a first candidate on nodes that have all of their devices, or else this one without shadows, where
        they are not needed; the same where neither is possible."""
        carrying = set(map(self._on.node_of, self._on.carried()))
        try:
            return self.places.initial([node for node in nodes if node not in carrying], generation)
        except PlanError:
            bare = _without_shadows(places)
            return places if lacking(bare.plan, self.planner.settings.fault_tolerance) else bare

    def reconfigure(self, request: ReplanRequest) -> Candidate:
        asked, on = self._by_place(request), self._on
        places = self.places.reconfigure(asked)
        found = self._by_device(places, request.plan, request.holders)
        if not self._is_sound(found, places):
            idle = tuple(sorted({*map(on.node_of, on.carried())} - {*asked.lost, *asked.leaving}))
            try:
                places = self._without(asked, idle)
                found = self._by_device(places, request.plan, request.holders)
            except PlanError:
                places = _shadowing_nobody(places, asked)
                found = self._by_device(places, request.plan, request.holders)
                if not self._is_sound(found, places):
                    raise
        if not on.lost:
            return found
        return dataclasses.replace(found, reason=f"{found.reason} It does without {self._lost}.")

    def _without(self, asked: ReplanRequest, idle: tuple[NodeId, ...]) -> Candidate:
        """Returns a candidate on other nodes than these. Whoever is not in a plan sends nothing for it, so those that
        have the only replica of a group are in it as shadows."""
        try:
            return self.places.reconfigure(dataclasses.replace(asked, lost=(*asked.lost, *idle)))
        except NoReplica:
            found = self.places.reconfigure(dataclasses.replace(asked, leaving=(*asked.leaving, *idle)))
        plan, on = found.plan, self._on
        sent: dict[WorkerId, list[int]] = {}
        for move in plan.transfers:
            if on.node_of(move.source) in idle:
                sent.setdefault(move.source, []).append(move.group)
        shadows = [s for one in sorted(sent) for s in shadows_holding(plan, one, asked.holders[one], sent[one])]
        plan = msgspec.structs.replace(plan, shadows=(*plan.shadows, *shadows))
        short = lacking(plan, self.planner.settings.fault_tolerance, arrived=plan.redundancy is not None)
        return dataclasses.replace(found, plan=plan, beside=None, is_degraded=bool(short))

    def _is_sound(self, found: Candidate, places: Candidate) -> bool:
        """Returns whether devices can hold and run the stages of places without any beside their own."""
        on = self._on
        if not on.carried():
            return True
        if found.beside is not None and places.beside is not None and not self._is_sound(found.beside, places.beside):
            return False
        return is_carried_well(found.plan, places.plan, on) and self.planner.fits(found.plan)

    @property
    def _lost(self) -> str:
        return devices(self._on.lost, self._on.per_node)

    def precompute(self, request: ReplanRequest, *, at_once: bool = True) -> Iterator[None]:
        return self.places.precompute(self._by_place(request), at_once=at_once)

    def finishes(self, request: ReplanRequest) -> bool:
        return self.places.finishes(self._by_place(request))

    def _is_whole(self, request: FinishRequest) -> bool:
        """Returns whether each of the plan's stages has all of its devices, which all live, or none does."""
        live, on = set(request.live), self._on
        mates = request.plan.stage_mates
        return not on.lost and all(
            len(own) == on.per_stage and (live.issuperset(own) or live.isdisjoint(own)) for own in mates
        )

    def finish_step(self, request: FinishRequest) -> Candidate:
        is_whole, redundancy = self._is_whole(request), request.plan.redundancy
        if redundancy is not None and (not is_whole or request.parts_differ):
            # Nobody goes on in the place of a device alone: what its stage's devices hold would differ. Nor where what
            # devices have counted that share microbatches is void.
            request = dataclasses.replace(request, plan=msgspec.structs.replace(request.plan, redundancy=None))
        if is_whole or request.plan.shares_microbatches:
            found = self._finished(self.places.finish_step, request)
        else:
            found = super().finish_step(request)
        if found.plan.redundancy is redundancy:
            return found
        plan = msgspec.structs.replace(found.plan, redundancy=redundancy)
        return self._timed(dataclasses.replace(found, plan=plan))

    def finish_evaluation(self, request: FinishRequest) -> Candidate:
        if self._is_whole(request) or request.plan.shares_microbatches:
            return self._finished(self.places.finish_evaluation, request)
        return super().finish_evaluation(request)

    def _finished(self, finish: Callable[[FinishRequest], Candidate], request: FinishRequest) -> Candidate:
        """Returns the candidate of places by device. Devices that shared microbatches with one that is lost keep up to
        date what they hold, and compute no more in this step."""
        found = self._by_device(finish(self._struck(request)), request.plan, finishes=True)
        live = set(request.live)
        short = [m for m in request.plan.stage_mates if len(m) < self._on.per_stage or not live.issuperset(m)]
        held = [runs_of(w, request.holders.get(w, ())) for mates in short for w in mates if w in live]
        owning = tuple(Pipeline(stages=tuple(stages)) for stages in held if stages)
        if not owning:
            return found
        plan = msgspec.structs.replace(found.plan, pipelines=(*found.plan.pipelines, *owning))
        changed = with_other_owners(request.plan, plan)  # one may hold more than the plan before gave to it
        epochs = (plan.generation if g in changed else epoch for g, epoch in enumerate(plan.sync_epochs))
        plan = plan.renewed(sync_epochs=tuple(epochs))
        reason = finished(request.plan.of_pass, plan.of_pass, live, crosses=False)
        return self._timed(dataclasses.replace(found, plan=plan, reason=reason))

    def warm_up(self, plan: Plan, target: Candidate, generation: int, *, in_parts: bool = False) -> Candidate | None:
        on, moves = self._on, target.plan.transfers
        if on.are_plain:
            return self.places.warm_up(plan, target, generation, in_parts=in_parts)
        if not has_every_device(plan, on):
            return None  # one that came back has nothing yet, and gets it at once
        come = {(move.target, move.group) for move in moves}
        within = [m for m in moves if m.with_optimizer and on.place(m.source) == on.place(m.target)]
        if any((m.source, m.group) not in come for m in within):
            return None  # devices of a stage that lack what others of it have get that at once
        by_place = dataclasses.replace(target, plan=by_stage(target.plan, on))
        places = self.places.warm_up(by_stage(plan, on), by_place, generation, in_parts=in_parts)
        found = None if places is None else self._by_device(places, plan, plan.kept_of, plan.groups_of)
        return found if found is None or places is None or self._is_sound(found, places) else None

    def _by_place(self, request: ReplanRequest) -> ReplanRequest:
        on = self._on
        holders = request.holders if on.are_plain else places_held(request.holders, on)
        return dataclasses.replace(request, plan=by_stage(request.plan, on), holders=holders)

    def _as_in(self, plan: Plan) -> Devices:
        """Returns the devices as the plan has them: where they share microbatches, no place runs with fewer."""
        shares = plan.shares_microbatches
        return dataclasses.replace(self._on, share_microbatches=shares, lost=frozenset() if shares else self._on.lost)

    def _struck(self, request: FinishRequest) -> FinishRequest:
        """Returns the request by place: what goes on or was halted is, with all of its devices. Where they share
        microbatches, a place that has lost one of them is not there."""
        on = self._as_in(request.plan)
        if on.are_plain:
            return request
        return dataclasses.replace(
            request,
            plan=by_stage(request.plan),
            live=places_of(request.live, on),
            halted=places_of(request.halted, on),
            holders=places_holding(request.holders, on),
            so_far=[PlanInterval(plan=by_stage(part.plan), seconds=part.seconds) for part in request.so_far],
        )

    def _by_device(
        self,
        found: Candidate,
        before: Plan | None = None,
        holders: Held | None = None,
        computing: Held | None = None,
        *,
        finishes: bool = False,
    ) -> Candidate:
        """Returns a candidate with its plan by device, and what that is thought to take. In one that `finishes` what a
        plan began, devices go on as in that: they share each microbatch, or take turns."""
        if finishes:
            return self._dealt(found, self._on if before is None else self._as_in(before), before)
        dealt = self._dealt(found, self._on, before, holders, computing)
        if not self.planner.settings.may_share:
            return dealt
        sharing = dataclasses.replace(self._on, share_microbatches=True)
        shared = self._dealt(found, sharing, before, holders, computing)
        is_quicker = shared.step_time_s < OTHER_SET_CLEARLY * dealt.step_time_s
        if not (shared.plan.shares_microbatches and is_quicker and self.planner.fits(shared.plan)):
            return dealt
        told = f"takes {time(shared.step_time_s)}, and {time(dealt.step_time_s)} where they take turns."
        return dataclasses.replace(
            shared, reason=f"{found.reason} A step in which a stage's devices share each microbatch {told}"
        )

    def _dealt(
        self,
        found: Candidate,
        on: Devices,
        before: Plan | None = None,
        holders: Held | None = None,
        computing: Held | None = None,
    ) -> Candidate:
        """Returns a candidate as `_by_device` does, whose devices share microbatches or take turns as `on` says."""
        planner = self.planner
        plan = by_device(found.plan, on, before, holders, computing)
        if on.are_plain and holders and not found.restores:
            plan = with_state(plan, holders)
        if plan is found.plan:
            return found
        if found.restores and plan.transfers:
            plan = plan.renewed(transfers=())
        changed = dataclasses.replace(
            found,
            plan=plan,
            beside=None if found.beside is None else self._by_device(found.beside, before, holders, computing),
            transfer_bytes=found.transfer_bytes * on.per_stage,
            left_bytes=found.left_bytes * on.per_stage,
            transfer_s=planner.transfer_time(plan).time_s if plan.transfers else found.transfer_s,
        )
        return self._timed(changed)

    def _timed(self, found: Candidate) -> Candidate:
        """Returns a candidate with what its plan is thought to take."""
        planner, plan = self.planner, found.plan
        if plan.evaluation is not None:
            took = evaluation_time(plan, planner.profile, planner.conditions)
            return dataclasses.replace(found, step_time_s=took.total_s, longest_s=took.longest_s)
        step = planner.estimate(plan)
        return dataclasses.replace(
            found,
            step_time_s=step.step_time_s,
            longest_s=step.longest_instruction_s,
            compute_s=planner.as_profiled(plan, step.compute_s),
        )


def _shadowing_nobody(found: Candidate, asked: ReplanRequest) -> Candidate:
    """Returns a candidate without shadows, which devices that carry others' places cannot have; the same where some
    shadow sends what nobody else has."""
    bare = _without_shadows(found)
    hearing = {*bare.plan.groups_of, *(w for w in asked.holders if bare.plan.node_of(w) in asked.leaving)}
    if not found.plan.shadows or not hearing.issuperset(move.source for move in bare.plan.transfers):
        return found
    return bare


def _without_shadows(found: Candidate) -> Candidate:
    plan = msgspec.structs.replace(found.plan, shadows=(), redundancy=None)
    reason = f"{found.reason} Workers shadow nobody until their devices are back."
    return dataclasses.replace(found, plan=plan, beside=None, reason=reason)
