"""How many devices of a node each stage is on, where that is left open: each number has a policy, and one is taken.

A job begins with the number whose first plan is worth most until the next loss. After a loss the number stays, unless
it has no plan any more or, under a policy that weighs candidates, another one's plan is clearly worth more. That plan
is made anew from templates: of the plan in force another number can use nothing but the state that workers hold. Its
state moves before its first step: no step of one number has shadows for another. While nobody is lost, and state can
move beside steps, the number stays.

Makes no plan of its own. A step, or an evaluation, is finished under the number under which it began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import msgspec

from planaria.job.registry import PolicyName
from planaria.plan.plan import NodeId, Plan, PlanError
from planaria.plan.quantities import count, size
from planaria.plan.thresholds import OTHER_SET_CLEARLY
from planaria.policy.adaptive.candidates import completed, with_split_backwards
from planaria.policy.adaptive.objective import Course, judged, peril_now, transition_s
from planaria.policy.candidate_record import CandidateRecord
from planaria.policy.forecast import FailureForecast
from planaria.policy.interface import Candidate, FinishRequest, Policy, ReplanRequest
from planaria.policy.planner import Planner
from planaria.policy.sentences import join

Make = Callable[[Planner], Policy]
"""Makes a policy for a planner of stages on a number of devices that is set."""


def choosing(planner: Planner, usual: Make, anew: Make, *, weighs: bool) -> Policy:
    """Returns a policy that chooses among all numbers of devices that a stage may be on; where there is one, its own.

    Args:
        planner: of settings that leave the number open.
        usual: makes the job's policy for a number.
        anew: makes the policy of templates for a number.
        weighs: whether the job's policy weighs candidates after a loss.

    Raises:
        PlanError: the model or f + 1 replicas of it fit with no number.
    """
    policies: dict[int, Policy] = {}
    refused: PlanError | None = None
    for devices in planner.settings.stage_choices:
        try:
            policies[devices] = usual(planner.of_stages(devices))
        except PlanError as error:
            refused = refused or error
    if not policies:
        assert refused is not None, "a stage is on one device, if on no more"
        raise refused
    if planner.settings.stage_choices == (1,):
        return policies[1]
    templates = {devices: anew(planner.of_stages(devices)) for devices in planner.settings.stage_choices}
    return ChosenDevicesPolicy(planner, usual=policies, anew=templates, weighs=weighs)


@dataclass(frozen=True, eq=False)
class ChosenDevicesPolicy(Policy):
    """Proposes the plans of the number of devices that is worth most.

    Attributes:
        planner: of settings that leave the number open: its estimates count.
        usual: for each number that the job has plans for, its policy.
        anew: for each number, the policy that makes pipelines anew.
        weighs: whether numbers are compared after a loss though the one in force has a plan.
        forecast: of the time to come.
    """

    usual: Mapping[int, Policy]
    anew: Mapping[int, Policy]
    weighs: bool
    forecast: FailureForecast = field(default_factory=FailureForecast)

    def with_planner(self, planner: Planner) -> Self:
        def told(policies: Mapping[int, Policy]) -> dict[int, Policy]:
            return {
                devices: policy.with_planner(
                    planner.variant(devices_per_stage=devices, schedule=policy.planner.settings.schedule)
                )
                for devices, policy in policies.items()
            }

        return replace(self, planner=planner, usual=told(self.usual), anew=told(self.anew))

    def with_forecast(self, forecast: FailureForecast) -> Self:
        usual = {devices: policy.with_forecast(forecast) for devices, policy in self.usual.items()}
        return replace(self, usual=usual, forecast=forecast)

    def initial(self, nodes: Sequence[NodeId], generation: int) -> Candidate:
        found: list[Candidate] = []
        refused: PlanError | None = None
        for policy in self.usual.values():
            try:
                found.append(policy.initial(nodes, generation))
            except PlanError as error:
                refused = refused or error
        if not found:
            assert refused is not None, "a number without a first plan says why"
            raise refused
        weighed = self._weighed(found, None)
        best = min(weighed, key=_rank)
        return _told(best, weighed, best.candidate.reason)

    def reconfigure(self, request: ReplanRequest) -> Candidate:
        now = request.plan.devices_per_stage
        own: Candidate | None = None
        refused = PlanError(f"There are no plans any more whose stages are on {count(now, 'device')} each.")
        try:
            own = self.usual[now].reconfigure(request) if now in self.usual else None
        except PlanError as error:
            refused = error
        if own is not None and not (self.weighs and (self.forecast.after_loss or self.forecast.at_once)):
            return own
        others = [found for found in (self._made_anew(devices, request) for devices in self.usual) if found is not None]
        if own is None and not others:
            raise refused
        weighed = self._weighed(others if own is None else [own, *others], request)
        best = min(weighed, key=_rank)
        if own is None:
            return _told(best, weighed, _why(best, now, "has no plan any more"))
        kept = weighed[0]
        if best is kept or not _is_clearly_better(best.record, kept.record):
            return _told(kept, weighed, own.reason)
        return _told(best, weighed, _why(best, now, f"would give {kept.record.samples_per_s:.4g} samples/s"))

    def precompute(self, request: ReplanRequest, *, at_once: bool = True) -> Iterator[None]:
        policy = self.usual.get(request.plan.devices_per_stage)
        return iter(()) if policy is None else policy.precompute(request, at_once=at_once)

    def finishes(self, request: ReplanRequest) -> bool:
        return self._of(request.plan).finishes(request)

    def finish_step(self, request: FinishRequest) -> Candidate:
        return self._of(request.plan).finish_step(request)

    def finish_evaluation(self, request: FinishRequest) -> Candidate:
        return self._of(request.plan).finish_evaluation(request)

    def warm_up(self, plan: Plan, target: Candidate, generation: int, *, in_parts: bool = False) -> Candidate | None:
        if plan.devices_per_stage != target.plan.devices_per_stage:
            return None
        return self._of(plan).warm_up(plan, target, generation, in_parts=in_parts)

    def _of(self, plan: Plan) -> Policy:
        """Returns the policy of a plan's number: where the job has no plans for it any more, that of templates."""
        devices = plan.devices_per_stage
        return self.usual.get(devices, self.anew[devices])

    def _made_anew(self, devices: int, request: ReplanRequest) -> Candidate | None:
        """Returns a plan of another number of devices; None: there is none, or it is the number in force."""
        plan = request.plan
        if devices == plan.devices_per_stage:
            return None
        state_alone = msgspec.structs.replace(
            plan,
            devices_per_stage=devices,
            pipelines=(),
            routes=(),
            shadows=(),
            transfers=(),
            dropped=(),
            redundancy=None,
            evaluation=None,
        )
        try:
            made = self.anew[devices].reconfigure(replace(request, plan=state_alone))
        except PlanError:
            return None
        name, moved_bytes = f"{PolicyName.TEMPLATES} ({made.how})", made.plan.moved_bytes
        made = replace(made, name=name, transfer_bytes=moved_bytes)
        return (with_split_backwards(self.planner, made) if self.weighs else None) or made

    def _weighed(self, found: Sequence[Candidate], request: ReplanRequest | None) -> list[_Weighed]:
        """Returns what each candidate is worth; `request` None: they are first plans."""
        planner, forecast = self.planner, self.forecast
        peril = 0.0 if request is None else peril_now(request, planner.zones, forecast)
        before_s = 0.0 if request is None or forecast.at_once else planner.step_s(request.plan)
        horizon = forecast.horizon_s(min(candidate.step_time_s for candidate in found))
        weighed = []
        for candidate in found:
            done = completed(planner, candidate)
            waits_s = 0.0
            if request is not None:
                stays = candidate.plan.devices_per_stage == request.plan.devices_per_stage
                waits_s = transition_s(done, forecast if stays else replace(forecast, at_once=True), before_s)
            course = Course(
                step_time_s=done.step_time_s,
                transition_s=waits_s,
                peril_before=peril,
                peril=done.exposure.peril(forecast.nodes_together),
                loss_s=done.loss_s,
                is_degraded=done.is_degraded,
            )
            record = judged(done, course, forecast, horizon, planner.profile.microbatch_size)
            name = candidate.candidates[0].name if candidate.candidates else candidate.name or candidate.how
            devices = candidate.plan.devices_per_stage
            named = msgspec.structs.replace(record, name=f"{name}, stages on {count(devices, 'device')}")
            weighed.append(_Weighed(candidate=candidate, devices=devices, record=named))
        return weighed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weighed:
    """A plan of a number of devices, and what it is worth as its devices carry it out."""

    candidate: Candidate
    devices: int
    record: CandidateRecord


def _rank(one: _Weighed) -> tuple[bool, float, int]:
    return one.record.is_degraded, -one.record.samples_per_s, one.devices


def _is_clearly_better(other: CandidateRecord, own: CandidateRecord) -> bool:
    if own.is_degraded and not other.is_degraded:
        return other.samples_per_s > 0  # else its state comes too late
    return OTHER_SET_CLEARLY * other.samples_per_s > own.samples_per_s


def _told(chosen: _Weighed, weighed: Sequence[_Weighed], reason: str) -> Candidate:
    """Returns the candidate with all that was weighed, and that in its reason."""
    others = sorted((one for one in weighed if one is not chosen), key=_rank)
    if others:
        rates = join([f"on {one.devices} {one.record.samples_per_s:.4g}" for one in others])
        stages = f"stages on {count(chosen.devices, 'device')} each"
        reason = f"{reason} With {stages} {chosen.record.samples_per_s:.4g} samples/s are expected, {rates}."
    records = tuple(one.record for one in (chosen, *others))
    return replace(chosen.candidate, reason=reason, candidates=records)


def _why(chosen: _Weighed, before: int, there: str) -> str:
    """Returns the sentences for a plan of another number of devices than that in force."""
    candidate = chosen.candidate
    number = len(candidate.plan.pipelines) // chosen.devices
    moves = f"{size(candidate.transfer_bytes)} of state move" if candidate.transfer_bytes else "No state moves"
    made = f"{count(number, 'pipeline')} {'are' if number > 1 else 'is'} made anew"
    return f"{made} with {count(chosen.devices, 'device')} a stage: {count(before, 'device')} a stage {there}. {moves}."
