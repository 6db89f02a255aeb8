"""The coordinator's state machine: `handle(event, now) -> commands` is the only thing that changes its state.

It knows no socket, no clock, no file and no policy of its own: plans come from the policy that it is given. What it
knows is a `Run`; what an event leads to is a function of `planaria.protocol.handlers`, which the table of transitions
names. Here is shown what others may know of the run.
"""

from __future__ import annotations

from collections import Counter

from planaria.plan.plan import NodeId, Plan, WorkerId
from planaria.planner.reroute.plans import shares
from planaria.policy.interface import Policy
from planaria.protocol.handlers import joins, precompute
from planaria.protocol.handlers.policy import refusal
from planaria.protocol.messages.events import Command, Event
from planaria.protocol.messages.run_measurements import RunMeasurements
from planaria.protocol.messages.user import EVALUATING, RunState
from planaria.protocol.phases import Phase
from planaria.protocol.planning.memory_limits import Shortages
from planaria.protocol.planning.policy_switch import MakePolicy
from planaria.protocol.planning.step_times import StepTimes
from planaria.protocol.run.announcements import shapes
from planaria.protocol.run.replay import JournalState
from planaria.protocol.run.run import Run
from planaria.protocol.run.settings import RunSettings
from planaria.protocol.step.checkpoint import Checkpoints
from planaria.protocol.transitions import handle


class Coordinator:
    """The coordinator's state machine: feed it events, and carry out the commands that it returns in order.

    Args:
        settings: the run's settings.
        policy: the policy that makes the plans.
        past: what the journal of a coordinator that died says; then the first event must be `Restarted`.
        shortages: of memory, and what they say of the next plan.
        make: makes other policies, if the user wants one; None: there are none.
    """

    def __init__(
        self,
        settings: RunSettings,
        policy: Policy,
        past: JournalState | None = None,
        shortages: Shortages | None = None,
        make: MakePolicy | None = None,
    ) -> None:
        self._run = Run(settings, policy, past, shortages, make)

    def handle(self, event: Event, now: float) -> tuple[Command, ...]:
        """Takes one event at monotonic time `now` (seconds); returns commands to carry out in order.

        Raises:
            ProtocolError: the transition table has no entry for this phase and event.
        """
        return tuple(handle(self._run, event, now))

    def thinks(self, now: float) -> bool:
        """Returns whether `Idle` leads to anything at this moment."""
        return precompute.thinks(self._run, now)

    @property
    def hurries(self) -> bool:
        """Whether what `Idle` leads to will be asked for after the step."""
        return self._run.precomputed.hurries

    @property
    def settings(self) -> RunSettings:
        return self._run.settings

    @property
    def policy(self) -> Policy:
        """Policy in force, for the nodes' speeds as they are known by now."""
        return self._run.plan_selector.policy

    def refusal(self, policy: str) -> str | None:
        """Returns why the user cannot have the policy of this name now; None if `PolicyRequested` would take effect."""
        return refusal(self._run, policy)

    @property
    def phase(self) -> Phase:
        return self._run.phase

    @property
    def step(self) -> int:
        """Step in progress; every earlier one is committed."""
        return self._run.step

    @property
    def plan(self) -> Plan:
        """Plan in force. There is none before the workers have joined."""
        return self._run.plan

    @property
    def checkpoints(self) -> Checkpoints:
        """The last whole checkpoint, and the one under way."""
        return self._run.checkpoints

    @property
    def step_times(self) -> StepTimes:
        """Measured step times of the plan in force, beside their estimates."""
        return self._run.step_times

    @property
    def shortages(self) -> Shortages:
        """What is known of nodes that ran out of memory."""
        return self._run.shortages

    def goes_on_without(self, worker: WorkerId) -> bool:
        """Returns whether a worker's node goes on when it alone is lost: then `DeviceGone` is told of it."""
        return self._run.members.goes_on_without(worker)

    def device_refusal(self, node: int, device: int) -> str | None:
        """Returns why a device of a node is not started again now; None if it may be."""
        return joins.device_refusal(self._run, NodeId(node), device)

    def no_room(self, coming: Counter[str], zones: Counter[str]) -> str | None:
        """Returns why nodes in these zones are not started now; None if they may be. See `handlers.joins`."""
        return joins.no_room(self._run, coming, zones)

    def is_coming(self, node: NodeId) -> bool:
        """Returns whether a node that runs somewhere has neither joined nor gone."""
        return joins.is_coming(self._run, node)

    def times_wrong(self, host: str) -> int:
        """Returns how many nodes of a host computed wrong so far."""
        return self._run.members.wrong_hosts[host]

    @property
    def learnt(self) -> RunMeasurements:
        """Measurements of the running job, as the next coordinator would read them."""
        return self._run.learnt

    @property
    def state(self) -> RunState:
        """State of the running job, as `status` shows it."""
        run = self._run
        plan = run.current
        return RunState(
            phase=EVALUATING if run.is_evaluating else run.phase.value,
            step=run.step - run.is_evaluating,
            steps=run.settings.train.steps,
            nodes=run.members.nodes,
            wanted=joins.wanted(run),
            leaving=tuple(sorted(run.members.leaving)),
            lost_devices=tuple(sorted(run.members.lost_devices)),
            pipelines=shapes(plan) if plan is not None else (),
            microbatches=shares(plan) if plan is not None else (),
            generation=plan.generation if plan is not None else 0,
            devices_per_node=run.settings.devices_per_node,
            speeds={int(node): speed for node, speed in sorted(run.plan_selector.measured.speeds.known.items())},
            resting=tuple(sorted(run.plan_selector.straggler_policy.resting)),
            zones={int(node): run.members.zones[node] for node in run.members.nodes if node in run.members.zones},
            labels={int(node): run.members.labels[node] for node in run.members.nodes if node in run.members.labels},
            links=run.plan_selector.measured.links.figures,
            policy=run.plan_selector.policy_switch.name,
            cost=run.spending.dollars if run.spending.is_counted else None,
            cost_per_hour=run.spending.hourly,
            num_dropped=run.counts.dropped,
            decision=run.decision,
            evaluated=run.evaluations.last,
            unsaved=run.intent.unsaved or "",
        )

    @property
    def awaited(self) -> frozenset[WorkerId]:
        """Workers of an earlier coordinator that have not come back; none unless the phase is `RETURNING`.

        Whoever drives the machine tells it `NodeGone` of those that do not come in time.
        """
        return self._run.awaited
