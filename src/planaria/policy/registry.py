"""Makes the policy of a name. The names are in `planaria.job.registry`.

Where stages are on several devices each, the policy is asked of stages' places, and its plans are given by device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from planaria.estimate.evaluation_time import evaluation_time
from planaria.estimate.step_remainder import PlanInterval
from planaria.job.registry import PolicyName
from planaria.plan.plan import NodeId, Plan, PlanError
from planaria.planner.stage_devices import (
    Held,
    by_device,
    by_stage,
    has_every_device,
    places_held,
    places_holding,
    places_of,
)
from planaria.policy.forecast import FailureForecast
from planaria.policy.interface import Candidate, FinishRequest, Policy, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.sentences import devices


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
    if planner.settings.devices_per_stage == 1:
        return policy.of(planner)
    return StageDevicesPolicy(planner, policy.of(planner.of_places()))


@dataclass(frozen=True, eq=False)
class StageDevicesPolicy(Policy):
    """A policy's plans with each stage on `devices_per_stage` devices of a node (`planaria.planner.stage_devices`).

    Attributes:
        planner: of plans by device: its estimates count.
        places: the policy, with the planner of the stages' places.
    """

    places: Policy

    @property
    def _devices(self) -> int:
        return self.planner.settings.devices_per_stage

    def with_planner(self, planner: Planner) -> Self:
        return dataclasses.replace(self, planner=planner, places=self.places.with_planner(planner.of_places()))

    def with_forecast(self, forecast: FailureForecast) -> Self:
        return dataclasses.replace(self, places=self.places.with_forecast(forecast))

    def initial(self, nodes: Sequence[NodeId], generation: int) -> Candidate:
        return self._by_device(self.places.initial(nodes, generation))

    def reconfigure(self, request: ReplanRequest) -> Candidate:
        found = self._by_device(self.places.reconfigure(self._by_place(request)), request.plan, request.holders)
        lost = self.planner.lost_devices
        if not lost:
            return found
        without = f"It does without {devices(lost, request.plan.devices_per_node)}."
        return dataclasses.replace(found, reason=f"{found.reason} {without}")

    def precompute(self, request: ReplanRequest, *, at_once: bool = True) -> Iterator[None]:
        return self.places.precompute(self._by_place(request), at_once=at_once)

    def finishes(self, request: ReplanRequest) -> bool:
        return self.places.finishes(self._by_place(request))

    def finish_step(self, request: FinishRequest) -> Candidate:
        if _is_whole(request):
            return self._by_device(self.places.finish_step(self._struck(request)), request.plan)
        # Nobody goes on in the place of a device alone: what its stage's devices hold would differ.
        plan = msgspec.structs.replace(request.plan, redundancy=None)
        found = super().finish_step(dataclasses.replace(request, plan=plan))
        return dataclasses.replace(found, plan=msgspec.structs.replace(found.plan, redundancy=request.plan.redundancy))

    def finish_evaluation(self, request: FinishRequest) -> Candidate:
        if _is_whole(request):
            return self._by_device(self.places.finish_evaluation(self._struck(request)), request.plan)
        return super().finish_evaluation(request)

    def warm_up(self, plan: Plan, target: Candidate, generation: int, *, in_parts: bool = False) -> Candidate | None:
        devices, moves = target.plan.devices_per_stage, target.plan.transfers
        come = {(move.target, move.group) for move in moves}
        if not has_every_device(plan, self.planner.lost_devices):
            return None  # one that came back has nothing yet, and gets it at once
        if any(m.source // devices == m.target // devices and (m.source, m.group) not in come for m in moves):
            return None  # devices of a stage that lack what others of it have get that at once
        by_place = dataclasses.replace(target, plan=by_stage(target.plan))
        found = self.places.warm_up(by_stage(plan), by_place, generation, in_parts=in_parts)
        return None if found is None else self._by_device(found, plan, plan.groups_of)

    def _by_place(self, request: ReplanRequest) -> ReplanRequest:
        holders = places_held(request.holders, self._devices, self.planner.lost_devices)
        return dataclasses.replace(request, plan=by_stage(request.plan), holders=holders)

    def _struck(self, request: FinishRequest) -> FinishRequest:
        """Returns the request by place: what goes on or was halted is, with all of its devices."""
        devices, lost = self._devices, self.planner.lost_devices
        plan = by_stage(request.plan)
        if lost:
            plan = msgspec.structs.replace(plan, redundancy=None)  # shadows of uneven stages did not compute
        return dataclasses.replace(
            request,
            plan=plan,
            live=places_of(request.live, devices, lost),
            halted=places_of(request.halted, devices, lost),
            holders=places_holding(request.holders, devices, lost),
            so_far=[PlanInterval(plan=by_stage(part.plan), seconds=part.seconds) for part in request.so_far],
        )

    def _by_device(self, found: Candidate, before: Plan | None = None, holders: Held | None = None) -> Candidate:
        """Returns a candidate with its plan by device, and what that is thought to take."""
        planner = self.planner
        plan = by_device(found.plan, self._devices, before, holders, planner.lost_devices)
        if found.how == "finish step" and before is not None:
            plan = msgspec.structs.replace(plan, redundancy=before.redundancy)
        if found.restores and plan.transfers:
            plan = plan.renewed(transfers=())
        changed = dataclasses.replace(
            found,
            plan=plan,
            beside=None if found.beside is None else self._by_device(found.beside, before, holders),
            transfer_bytes=found.transfer_bytes * self._devices,
            left_bytes=found.left_bytes * self._devices,
            transfer_s=planner.transfer_time(plan).time_s if plan.transfers else found.transfer_s,
        )
        if plan.evaluation is not None:
            took = evaluation_time(plan, planner.profile, planner.conditions)
            return dataclasses.replace(changed, step_time_s=took.total_s, longest_s=took.longest_s)
        step = planner.estimate(plan)
        return dataclasses.replace(
            changed,
            step_time_s=step.step_time_s,
            longest_s=step.longest_instruction_s,
            compute_s=planner.as_profiled(plan, step.compute_s),
        )


def _is_whole(request: FinishRequest) -> bool:
    """Returns whether of each of the plan's stages all devices live, or none."""
    live, plan = set(request.live), request.plan
    return all(live.issuperset(mates) or live.isdisjoint(mates) for mates in plan.stage_mates)
