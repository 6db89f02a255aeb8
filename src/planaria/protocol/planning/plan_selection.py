"""Plan selection: which plan is the next one. Asked, it answers with a proposal; it puts no plan in force.

It owns what the answer depends on beside the situation of the job: the policy, the shortages of memory, the cluster as
measured and which nodes rest. Every proposal that it gives is checked: each layer is covered, there are f + 1
replicas unless the policy means to go on with fewer, and no device gets more than is known to fit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from planaria.estimate.step_remainder import PlanInterval
from planaria.job.registry import PolicyName
from planaria.plan.errors import NoReplica
from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, Plan, PlanError, WorkerId
from planaria.plan.validate import validate
from planaria.planner.placement.senders import distinct
from planaria.planner.placement.zones import Zones
from planaria.planner.stage_devices import hold_alike
from planaria.policy.forecast import FailureForecast
from planaria.policy.interface import Candidate, FinishRequest, Policy, ReplanRequest
from planaria.protocol.messages.records import EstimateCorrected, LinkChanged, NodeSpeed
from planaria.protocol.messages.run_measurements import HostLink, RunMeasurements
from planaria.protocol.phases import Purpose
from planaria.protocol.planning.link_flows import Flows
from planaria.protocol.planning.measured_cluster import MeasuredCluster
from planaria.protocol.planning.memory_limits import Shortages
from planaria.protocol.planning.policy_switch import PolicySwitch, why_change
from planaria.protocol.planning.straggler_detection import SpeedEvidence
from planaria.protocol.planning.straggler_policy import StragglerPolicy, same_work
from planaria.protocol.step.retained_replicas import Holders


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The state of the job for which a placement is made.

    Attributes:
        plan: the plan in force.
        step: the step that is about to begin.
        holders: the live workers, each with the groups that it holds.
        gone: nodes that were lost or released.
        leaving: live nodes that gave notice.
        forecast: what is known of the time to come.
        now: monotonic seconds.
    """

    plan: Plan
    step: int
    holders: Holders
    gone: frozenset[NodeId]
    leaving: frozenset[NodeId]
    forecast: FailureForecast = field(default_factory=FailureForecast)
    now: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What to do at a step boundary when no node is lost.

    Attributes:
        purpose: `GO_ON` with the plan in force, `WARM_UP` for another one, or `RECONFIGURE` at once.
        proposal: of a warm-up; the others are made when they are taken.
        told: what a new policy thinks of the plan in force; "": it was not asked.
        is_second_look: the plan was looked at because of the nodes' speeds.
    """

    purpose: Purpose
    is_second_look: bool
    proposal: Candidate | None = None
    told: str = ""


class PlanSelector:
    """Selects the plans of one run.

    Args:
        policy: the policy that makes the plans.
        shortages: the shortages of memory that were seen.
        fault_tolerance: f: how many nodes may be lost at once.
        switching: which policy that is, and which others there are.
        evidence: of nodes' speeds, how much is needed.

    Attributes:
        policy_switch: which policy that is, and which others there are.
        shortages: of memory that were seen.
        measured: the cluster, as far as it is known.
        straggler_policy: who rests, and whether the plan in force is to be looked at again.
        generation: of the last plan that was asked for.
    """

    def __init__(
        self,
        policy: Policy,
        shortages: Shortages,
        fault_tolerance: int,
        switching: PolicySwitch | None = None,
        evidence: SpeedEvidence | None = None,
    ) -> None:
        self._policy = policy
        self._is_news = False
        """Zones or links are known that the policy has not been told."""
        self.policy_switch = switching or PolicySwitch(PolicyName.TEMPLATES, None, may_drop=False)
        self.shortages = shortages
        self.measured = MeasuredCluster(policy.planner.profile, evidence)
        self.straggler_policy = StragglerPolicy(evidence)
        self.generation = 0
        self._fault_tolerance = fault_tolerance

    def is_due(self, step: int, now: float) -> bool:
        """Returns whether the plan is to be reviewed before this step, though no node came or went."""
        return self.policy_switch.is_new or self.straggler_policy.is_due(step, now)

    def recall(self, learnt: RunMeasurements, live: Collection[NodeId]) -> None:
        """Takes over what the last coordinator knew of the nodes that live."""
        self.measured.recall(learnt, live)
        self.policy = self._for_now(self.policy)

    def next_generation(self) -> int:
        """Returns a new generation. Every proposed plan uses one up, whether it is taken or not."""
        self.generation += 1
        return self.generation

    def locate(self, zones: Zones) -> None:
        """Records the zones of the nodes. What changes in the mapping later is told by another call."""
        self.measured.zones, self._is_news = zones, True

    def lack(self, devices: Collection[WorkerId]) -> None:
        """Records which devices of nodes that live are lost."""
        if (lost := frozenset(devices)) != self.measured.lost_devices:
            self.measured.lost_devices, self._is_news = lost, True

    def links_measured(self, node: NodeId, host: str, links: Sequence[HostLink]) -> None:
        """Records what a node's host measured of its links to others."""
        self.measured.links.measured(node, host, links)
        self._is_news = True

    @property
    def policy(self) -> Policy:
        """The policy, for the nodes' speeds, zones and links as they are known by now: told when it is asked for, as
        thousands of nodes may join before it is."""
        if self._is_news:
            self._is_news, self.measured.zones = False, dict(self.measured.zones)
            self._policy = self._for_now(self._policy)
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self._policy = policy

    # Plans that need no other

    def first(self, nodes: Sequence[NodeId], forecast: FailureForecast) -> Candidate:
        """Returns a first placement onto these nodes. Raises PlanError."""
        return self.policy.with_forecast(forecast).initial(nodes, self.next_generation())

    def again(self, nodes: Sequence[NodeId], forecast: FailureForecast) -> Candidate:
        """Returns a first placement onto these nodes within the known memory limits. Raises PlanError."""
        proposal = self.first(nodes, forecast)
        if not self.shortages.allows(proposal.plan):
            raise self.shortages.refuse(proposal.plan)
        return proposal

    def unchanged(self, plan: Plan) -> Candidate:
        """Returns the plan in force under a new generation, for workers that were held and go on."""
        again = msgspec.structs.replace(plan.of_step, generation=self.next_generation(), transfers=())
        return Candidate(
            plan=again, reason="The plan stays.", step_time_s=0.0, transfer_bytes=0, how="unchanged", longest_s=0.0
        )

    # The rest of a step

    def finishes(self, situation: Situation) -> bool:
        """Returns whether the policy finishes a struck step; else the step is begun anew under another placement."""
        policy = self.policy.with_forecast(situation.forecast)
        lost = (*sorted(situation.gone), *sorted(situation.leaving | self.straggler_policy.resting))
        return policy.finishes(ReplanRequest(plan=situation.plan, lost=lost, holders=situation.holders))

    def finish_step(
        self,
        plan: Plan,
        *,
        live: Collection[WorkerId],
        halted: Collection[WorkerId],
        counted: Ledger,
        holders: Holders,
        forecast: FailureForecast,
        so_far: Sequence[PlanInterval],
        parts_differ: bool,
    ) -> Candidate | None:
        """Returns a plan for what a loss left undone of the step in progress, or of the evaluation before it; None:
        some device has no room for it; or a layer's groups are with different workers, or a stage's devices hold
        different ones; or a lost device kept optimizer's state for others; or only others of its stage have a layer.
        """
        whole = holders
        if plan.spreads_optimizer:
            holders = _of_stages(plan, whole)
            if not holders:
                return None
        layers = {id(groups): plan.layers_held(groups) for groups in distinct(holders.values())}
        if not hold_alike(plan, holders) or len(set().union(*layers.values())) < plan.num_layers:
            return None
        policy = self.policy.with_forecast(forecast)
        finish = policy.finish_step if plan.evaluation is None else policy.finish_evaluation
        request = FinishRequest(
            plan=plan,
            live=live,
            halted=tuple(sorted(halted)),
            counted=counted,
            holders={worker: layers[id(groups)] for worker, groups in holders.items()},
            generation=self.next_generation(),
            so_far=so_far,
            parts_differ=parts_differ,
        )
        try:
            proposal = finish(request)
        except NoReplica:
            return None
        validate(proposal.plan, already=counted, dropped=proposal.dropped)
        is_kept = not plan.spreads_optimizer or _is_kept(proposal.plan, whole)
        return proposal if is_kept and self.shortages.allows(proposal.plan) else None

    # Another placement

    def placement(self, situation: Situation, *, at_once: bool, at_rest: frozenset[NodeId] | None = None) -> Candidate:
        """Returns a placement within the known memory limits, see `_any_placement`. Raises PlanError."""
        if at_once:
            self.policy_switch.is_new = False  # whoever asks takes what there is
        proposal = self._any_placement(situation, at_once=at_once, at_rest=at_rest)
        if self.shortages.allows(proposal.plan):
            return proposal
        refused = proposal.plan
        try:
            self.policy = self._for_now(self.shortages.policy())
            proposal = self._any_placement(situation, at_once=at_once, at_rest=at_rest)
        except PlanError as error:
            raise self.shortages.refuse(refused) from error
        if not self.shortages.allows(proposal.plan):
            raise self.shortages.refuse(proposal.plan)
        return proposal

    def _any_placement(self, situation: Situation, *, at_once: bool, at_rest: frozenset[NodeId] | None) -> Candidate:
        """Returns a placement without the nodes that leave or rest if possible, else with them while they live.

        No node rests so that replicas lack: speed is not worth f.

        Args:
            situation: of the job.
            at_once: the plan is for the next step, so a node that it does without can send nothing any more.
            at_rest: the nodes that are to rest; None: those that do, unless they are needed.
        """
        gone, leaving = tuple(sorted(situation.gone)), situation.leaving
        resting = self.straggler_policy.resting if at_rest is None else at_rest
        attempts = [leaving | resting, leaving, frozenset()] if at_rest is None else [leaving | resting, resting]
        policy = self.policy.with_forecast(replace(situation.forecast, at_once=at_once))
        for number, without in enumerate(dict.fromkeys(attempts), start=1):
            absent = tuple(sorted(without))
            try:
                proposal = policy.reconfigure(
                    ReplanRequest(
                        plan=situation.plan,
                        lost=(*gone, *absent) if at_once else gone,
                        holders=situation.holders,
                        generation=self.next_generation(),
                        leaving=() if at_once else absent,
                    )
                )
                if proposal.is_degraded and not resting.isdisjoint(without):
                    raise PlanError("Without the slow nodes some layer has too few replicas: they are needed.")
            except PlanError:
                if number == len(set(attempts)):
                    raise
            else:
                break
        if not resting <= without:
            self.wake_all(situation.step)
        # A ring's shadows count as new owners do, whose state is under way as well.
        self._check(proposal, arrived=proposal.plan.redundancy is not None)
        return proposal

    def step_beside(self, proposal: Candidate) -> Candidate | None:
        """Returns the plan to run while state for the proposal moves; None where the state moves first."""
        beside = proposal.beside
        if beside is None or not self.shortages.allows(beside.plan):
            return None
        self._check(beside)
        return beside

    def _check(self, proposal: Candidate, *, arrived: bool = False) -> None:
        """Raises for too few replicas of a layer or for microbatches left out, unless the policy says it means that."""
        needed = None if proposal.is_degraded else self._fault_tolerance
        validate(proposal.plan, fault_tolerance=needed, dropped=proposal.dropped, arrived=arrived)

    def beside(self, situation: Situation, *, stands: bool, steps_left: int, most_bytes: int | None = None) -> Choice:
        """Chooses the next placement when no node is lost but nodes came, will leave or changed speed.

        Args:
            situation: of the job.
            stands: the placement in force could go on.
            steps_left: of the job.
            most_bytes: as much state may move beside steps from now on; None: any.
        """
        was_switched, self.policy_switch.is_new = self.policy_switch.is_new, False
        is_due = self.straggler_policy.is_due(situation.step, situation.now) and not was_switched
        told = ""
        try:
            if is_due:
                target = self._paced(situation, stands=stands, steps_left=steps_left)
            else:
                target = self.placement(situation, at_once=False)
        except PlanError:
            target = None  # more nodes than the job can use
        if was_switched and stands:
            target, told = self._worth_changing(situation, target, steps_left)
        if target is None or same_work(target.plan, situation.plan):
            return Choice(purpose=Purpose.GO_ON, is_second_look=is_due, told=told)
        moved_bytes, warming = target.plan.moved_bytes, None
        if moved_bytes and (most_bytes is None or moved_bytes <= most_bytes):
            warming = self.policy.warm_up(situation.plan, target, self.next_generation(), in_parts=True)
        if warming is None or not self.shortages.allows(warming.plan):
            return Choice(purpose=Purpose.RECONFIGURE, is_second_look=is_due, told=told)
        self._check(warming)
        return Choice(purpose=Purpose.WARM_UP, is_second_look=is_due, proposal=warming, told=told)

    # Another policy

    def first_of(self, name: str, num_nodes: int) -> None:
        """Checks that the policy has a plan for a job that has not begun. Raises PlanError if not."""
        policy = self.policy_switch.candidate(PolicyName(name), self.shortages.bound_bytes)
        policy.initial([NodeId(node) for node in range(num_nodes)], self.generation + 1)

    def next_of(self, name: str, situation: Situation) -> None:
        """Checks that the policy has a plan for the nodes of now. Raises PlanError if not."""
        policy = self._for_now(self.policy_switch.candidate(PolicyName(name), self.shortages.bound_bytes))
        gone = tuple(sorted(situation.gone))
        policy.with_forecast(situation.forecast).reconfigure(
            ReplanRequest(plan=situation.plan, lost=gone, holders=situation.holders, generation=self.generation + 1)
        )

    def switch(self, name: PolicyName) -> None:
        """Lets another policy make the plans from now on. Raises PlanError if it has none for this job."""
        policy = self._for_now(self.policy_switch.candidate(name, self.shortages.bound_bytes))
        self.policy_switch.switch(name, self.policy)
        self.policy = policy
        self.shortages.plan_by(lambda most_bytes: self.policy_switch.made(name, most_bytes))

    def _for_now(self, policy: Policy) -> Policy:
        """Returns the policy for the cluster as it is known by now."""
        return policy.with_planner(self.measured.corrected(policy.planner))

    def _worth_changing(
        self, situation: Situation, target: Candidate | None, steps_left: int
    ) -> tuple[Candidate | None, str]:
        """Returns what the new policy would do, if that is better than the plan in force; and what to tell of it."""
        name, why = self.policy_switch.name, None
        if target is not None and not same_work(target.plan, situation.plan):
            why = why_change(self.policy.estimated(situation.plan), target, self._fault_tolerance, steps_left)
        if why is None:
            return None, f"policy {name}: the plan in force goes on, nothing that it has for now is better"
        return target, f"policy {name}: another plan is taken, since {why}"

    # Speeds

    def _paced(self, situation: Situation, *, stands: bool, steps_left: int) -> Candidate | None:
        """Returns a placement for the speeds known now; None where the plan in force is as good."""
        return self.straggler_policy.choose(
            situation.step,
            self.measured.speeds.known,
            lambda resting: self.placement(situation, at_once=False, at_rest=resting),
            self.policy.estimated(situation.plan) if stands else None,
            steps_left,
            now=situation.now,
            lasts_steps=self.measured.speeds.lasts_steps(situation.step),
            change_s=situation.forecast.change_s,
        )

    def calibrate(self, stretch: float) -> None:
        """Corrects all estimates: steps take this many times longer than estimated."""
        self.measured.stretch = stretch
        self.policy = self.policy.with_planner(self.policy.planner.with_stretch(stretch))

    def _know_speeds(self) -> None:
        self.policy = self.policy.with_planner(self.policy.planner.with_speeds(self.measured.speeds.known))

    def judge(self, step: int, compute_s: Mapping[WorkerId, float]) -> list[NodeSpeed]:
        """Learns the nodes' speeds from a step in which no node was lost; changed speeds may be worth another plan."""
        news = self.measured.speeds.committed(step, compute_s)
        if news:
            self._know_speeds()
            self.straggler_policy.look_again(step + 1)
        return news

    def correct_estimates(
        self, plan: Plan, step: int, took_s: float, compute_s: Mapping[WorkerId, float]
    ) -> EstimateCorrected | None:
        """Corrects estimates by the first steps of the plan in force, where its own is off. Where links count far
        otherwise than before, the plan is reviewed after this step. See `MeasuredCluster.explain`."""
        corrected = self.measured.explain(self.policy.planner, plan, step, took_s, compute_s)
        if corrected is not None:
            self.policy = self._for_now(self.policy)
            if corrected.is_reviewed:
                self.straggler_policy.look_again(step + 1)
        return corrected

    def correct_flows(self, plan: Plan, step: int, flows: Flows) -> list[LinkChanged]:
        """Corrects links between which bytes begin to pass faster or slower; the plan is then reviewed."""
        news = self.measured.flowed(plan, step, flows)
        if news:
            self.policy = self._for_now(self.policy)
            self.straggler_policy.look_again(step + 1)
        return news

    def forget(self, node: NodeId, step: int) -> None:
        """Forgets a lost node. The plan made of the others was not chosen for speed: it is reviewed after the step."""
        self.measured.links.forget(node)
        self.straggler_policy.forget(node)
        if self.measured.speeds.forget(node):
            self._know_speeds()
        if self.measured.speeds.known:
            self.straggler_policy.look_again(step + 1)

    def wake_all(self, step: int) -> None:
        """Reactivates all idled slow nodes; they are judged again after this step."""
        if self.straggler_policy.resting:
            self.straggler_policy.wake_all()
            self.straggler_policy.look_again(step + 1)


def _of_stages(plan: Plan, holders: Holders) -> Holders:
    """Returns the groups with which workers compute whose stages spread the optimizer's state: those of the plan that
    the devices of a stage keep together; nothing at all, where one of them was lost and others live."""
    found = dict(holders)
    for mates in plan.stage_mates:
        there = [worker for worker in mates if worker in holders]
        if 0 < len(there) < len(mates):
            return {}
        kept = {group for worker in there for group in holders[worker]}
        together = tuple(group for group in plan.groups_of[mates[0]] if group in kept)
        found.update(dict.fromkeys(there, together))
    return found


def _is_kept(plan: Plan, holders: Holders) -> bool:
    """Returns whether each worker of a plan that moves nothing keeps what it holds whole."""
    return all(set(groups) <= set(holders.get(worker, ())) for worker, groups in plan.kept_of.items())
