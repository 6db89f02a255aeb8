"""The policy of checkpoint and morph (Varuna): symmetric grids, and a loss takes the job back to the last checkpoint.

Nobody finishes a step that a loss struck: all workers begin at the last checkpoint again, under the best grid of the
nodes that are left; those that live keep their processes. Where nobody is lost (nodes come, give notice or are slow)
state moves from live workers, as under the other policies, and nothing is trained twice.

Varuna knows no f: the checkpoint is what it relies on. Here grids of f + 1 pipelines or more come first; where the
nodes are too few for any, one with fewer is taken, and it says that it is degraded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Self

import msgspec

from planaria.estimate.memory import fullest_device_bytes
from planaria.estimate.restore import morph_time
from planaria.estimate.transition import transfer_time
from planaria.plan.aftermath import Aftermath, Change
from planaria.plan.errors import TooFewNodes
from planaria.plan.grid import Grid, grids, is_grid, shape
from planaria.plan.placement import Holders
from planaria.plan.plan import NodeId, Pipeline, Plan, PlanError, WorkerId
from planaria.plan.profile import ModelProfile
from planaria.plan.replicas import lacking
from planaria.plan.settings import PlannerSettings
from planaria.policy.candidate import Candidate
from planaria.policy.outlook import Outlook
from planaria.policy.proposal import Proposal
from planaria.policy.templates import TemplatesPolicy
from planaria.policy.wording import count, join, size, time
from planaria.policy.worth import horizon_s

MORPH = "morph"
"""How a plan was made."""

CLOSE = 1.25
"""Where split backwards fill the bubbles, a step is shorter than its template's time: not by so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """A grid before it is judged.

    Attributes:
        plan: the grid.
        step_time_s: estimated.
        transition_s: that passes without gain until it runs.
        is_degraded: some layer has fewer than f + 1 replicas.
    """

    plan: Plan
    step_time_s: float
    transition_s: float
    is_degraded: bool


class MorphPolicy(TemplatesPolicy):
    """Proposes grids. Their pipelines are cut as the templates of that many nodes."""

    def __init__(self, profile: ModelProfile, settings: PlannerSettings) -> None:
        """Make the templates.

        Raises:
            PlanError: the model or f + 1 replicas of it do not fit.
        """
        super().__init__(profile, settings)
        self._outlook = Outlook()

    def with_outlook(self, outlook: Outlook) -> Self:
        """The same templates, for decisions at such a time."""
        policy = copy.copy(self)
        policy._outlook = outlook
        return policy

    def initial(self, nodes: Sequence[NodeId], generation: int) -> Proposal:
        """A job's first plan, or the first after a restore: the fastest grid.

        Raises:
            PlanError: too few nodes for one pipeline.
        """
        ranked, told = self._ranked(
            self._options(self._grids(sorted(set(nodes)), generation), lambda plan, step_s: 0.0)
        )
        best = ranked[0]
        idle = len(set(nodes)) - len(best.plan.nodes)
        reason = f"{_count_of(nodes)} {_makes(nodes)} a grid of {_rows(best.plan)}{_idle(idle)}, the fastest."
        return self._chosen(best, told, f"{reason}{self._degraded(best)}", "initial")

    def reconfigure(
        self,
        plan: Plan,
        lost: Collection[NodeId],
        holders: Holders,
        generation: int,
        leaving: Collection[NodeId] = (),
    ) -> Proposal:
        """The best grid of the live nodes: from the last checkpoint if an owner of layers was lost, else by live moves.

        Raises:
            TooFewNodes: fewer than n0 nodes are left.
            NoReplica: nobody was lost, and a group has no live holder.
        """
        dead = {plan.node_of(worker) for worker in plan.layers_of} - {plan.node_of(worker) for worker in holders}
        nodes = _live(plan, holders, {*lost, *leaving})
        if dead:
            return self._back(plan, sorted(dead), nodes, generation)
        return self._moved(plan, lost, holders, nodes, generation, leaving)

    def finishes(self, plan: Plan, lost: Collection[NodeId], holders: Holders) -> bool:
        """Not where an owner of layers was lost. Who was about to get its first state is no loss to the step."""
        return set(plan.layers_of) <= set(holders)

    def warm_up(self, plan: Plan, target: Proposal, generation: int) -> Proposal | None:
        """As for templates; the step that goes on may be one with too few replicas. What was weighed is told."""
        proposal = super().warm_up(plan, target, generation)
        if proposal is None:
            return None
        short = lacking(proposal.plan, self._settings.fault_tolerance)
        return replace(proposal, is_degraded=bool(short), candidates=target.candidates)

    # After a loss

    def _back(self, plan: Plan, dead: Sequence[NodeId], nodes: Sequence[NodeId], generation: int) -> Proposal:
        lost_steps = self._outlook.steps_at_stake

        def transition(new: Plan, step_time_s: float) -> float:
            return morph_time(
                new,
                self._outlook.storage,
                lost_steps=lost_steps,
                step_time_s=step_time_s,
                change_s=self._outlook.change_s,
            ).transition_s

        ranked, told = self._ranked(self._options(self._grids(nodes, generation), transition))
        best = ranked[0]
        again = "no step is trained again"
        if lost_steps:
            again = f"{count(lost_steps, 'step')} {'is' if lost_steps == 1 else 'are'} trained again"
        reason = (
            f"{'Nodes' if len(dead) > 1 else 'Node'} {join(dead)} {'are' if len(dead) > 1 else 'is'} lost: back to the "
            f"last checkpoint on a grid of {_rows(best.plan)}{_idle(len(nodes) - len(best.plan.nodes))}; {again}, and "
            f"{time(best.transition_s)} pass without gain."
        )
        return replace(self._chosen(best, told, f"{reason}{self._degraded(best)}", MORPH), restores=True)

    # While nobody is lost

    def _moved(
        self,
        plan: Plan,
        lost: Collection[NodeId],
        holders: Holders,
        nodes: Sequence[NodeId],
        generation: int,
        leaving: Collection[NodeId],
    ) -> Proposal:
        change = Change(
            profile=self._profile,
            templates=self.templates,
            settings=replace(self._settings, fault_tolerance=0),
            plan=plan,
            lost=lost,
            holders=holders,
            generation=generation,
            leaving=leaving,
            speeds=self._speeds or {},
        )

        left = Aftermath(change)

        def with_state(pipelines: Sequence[Pipeline]) -> Plan | None:
            found = left.build_from(pipelines)
            return None if found is None or not self.fits(found.plan) else found.plan

        kept = with_state(plan.pipelines) if is_grid(plan) else None  # else it was made by another policy
        made = self._options(
            self._grids(nodes, generation, holders),
            self._moving_s,
            lambda grid: with_state(grid.plan.pipelines),
            kept=None if kept is None else _dealt_as(plan, kept),
        )
        ranked, told = self._ranked(made)
        best = ranked[0]
        moved = sum(move.moved_bytes(best.plan.groups[move.group]) for move in best.plan.transfers)
        state = f"{size(moved)} of state move from live workers" if moved else "no state moves"
        idle = _idle(len(nodes) - len(best.plan.nodes))
        reason = f"Nobody is lost; the best grid has {_rows(best.plan)}{idle}; {state}."
        return self._chosen(best, told, f"{reason}{self._degraded(best)}", MORPH)

    def _moving_s(self, plan: Plan, step_time_s: float) -> float:
        """Of a plan whose state moves from live workers: before its first step, or beside the step before that."""
        if not plan.transfers:
            return 0.0
        outlook = self._outlook
        moved = transfer_time(plan, self._profile.links)
        moves_s = moved.time_s * outlook.transfer_stretch
        if outlook.at_once:
            return outlook.change_s + max(0.0, self.wait_s(plan, moved.come_s) + moves_s - moved.time_s)
        return 2 * outlook.change_s + outlook.decision_s + max(0.0, moves_s - step_time_s)

    # Grids, and which is best

    def _grids(self, nodes: Sequence[NodeId], generation: int, holders: Holders | None = None) -> list[Grid]:
        """Those that fit, fastest by their templates' times first: with f + 1 pipelines, or else all that there are.

        Raises:
            TooFewNodes: not even one pipeline.
            PlanError: no grid fits the memory.
        """
        needed = self.templates[0].num_nodes
        if len(nodes) < needed:
            raise TooFewNodes(needed, len(nodes), 1)
        made = [
            grid
            for grid in grids(
                self._profile, self.templates, self._settings, nodes, generation, speeds=self._speeds, holders=holders
            )
            if self.fits(grid.plan)
        ]
        if not made:
            raise PlanError(f"No grid of {count(len(nodes), 'node')} fits the devices' memory. Add nodes.")
        full = [grid for grid in made if len(grid.plan.pipelines) > self._settings.fault_tolerance]
        return sorted(full or made, key=lambda grid: grid.step_time_s)

    def _options(
        self,
        grids: Sequence[Grid],
        transition: Callable[[Plan, float], float],
        build: Callable[[Grid], Plan | None] = lambda grid: grid.plan,
        kept: Plan | None = None,
    ) -> list[_Option]:
        """Each with its estimate. Where a grid's pipelines alone take much longer than the best step, sums of gradients
        included, neither it nor those after it are built."""
        found = [] if kept is None else [self._option(kept, transition)]
        for grid in grids:
            is_short = len(grid.plan.pipelines) <= self._settings.fault_tolerance
            rivals = [option.step_time_s for option in found if is_short or not option.is_degraded]
            if grid.step_time_s > CLOSE * min(rivals, default=float("inf")):
                break
            plan = build(grid)
            if plan is not None:
                found.append(self._option(plan, transition))
        return found

    def _option(self, plan: Plan, transition: Callable[[Plan, float], float]) -> _Option:
        seconds = self._outline(plan).step_time_s
        return _Option(
            plan=plan,
            step_time_s=seconds,
            transition_s=transition(plan, seconds),
            is_degraded=bool(lacking(plan, self._settings.fault_tolerance)),
        )

    def _ranked(self, options: Sequence[_Option]) -> tuple[Sequence[_Option], tuple[Candidate, ...]]:
        """Those with f + 1 replicas first, then those that train most until the next loss or the end; of equals the
        faster, then the one with the shorter transition, then the first."""
        if not options:
            raise PlanError("No grid of the live nodes fits the devices' memory. Add nodes.")
        horizon = horizon_s(self._outlook, min(option.step_time_s for option in options))
        judged = [self._candidate(option, horizon) for option in options]

        def rank(at: int) -> tuple[bool, float, float, float]:
            told = judged[at]
            return told.is_degraded, -told.samples_per_s, told.step_time_s, told.transition_s

        order = sorted(range(len(options)), key=rank)
        return [options[at] for at in order], tuple(judged[at] for at in order)

    def _candidate(self, option: _Option, horizon: float) -> Candidate:
        plan = option.plan
        samples = self._settings.num_microbatches * self._profile.microbatch_size
        gained = max(0.0, 1 - option.transition_s / horizon)
        return Candidate(
            name=f"grid {shape(plan)}",
            step_time_s=option.step_time_s,
            transition_s=option.transition_s,
            transfer_bytes=sum(move.moved_bytes(plan.groups[move.group]) for move in plan.transfers),
            memory_bytes=fullest_device_bytes(plan, self._profile),
            is_degraded=option.is_degraded,
            risk_s=0.0,
            samples_per_s=gained * samples / option.step_time_s,
        )

    def _chosen(self, option: _Option, told: tuple[Candidate, ...], reason: str, how: str) -> Proposal:
        proposal = self._proposal(option.plan, reason, told[0].transfer_bytes, how)
        return replace(proposal, is_degraded=option.is_degraded, candidates=told)

    def _degraded(self, option: _Option) -> str:
        if not option.is_degraded:
            return ""
        return f" Degraded: it has {len(option.plan.pipelines)} of {self._settings.fault_tolerance + 1} replicas."


def _live(plan: Plan, holders: Holders, absent: Collection[NodeId]) -> list[NodeId]:
    """Nodes of which all workers are there: all that drive stages of a node of the plan, else all that it has."""
    there: dict[NodeId, set[WorkerId]] = {}
    for worker in holders:
        there.setdefault(plan.node_of(worker), set()).add(worker)
    drivers: dict[NodeId, set[WorkerId]] = {}
    for worker in plan.workers:
        drivers.setdefault(plan.node_of(worker), set()).add(worker)
    return sorted(
        node
        for node, workers in there.items()
        if node not in absent
        and (drivers[node] <= workers if node in drivers else len(workers) == plan.devices_per_node)
    )


def _dealt_as(before: Plan, plan: Plan) -> Plan:
    """The same pipelines with the shares that they had, where these were whole."""
    if any(len(route.counted) < plan.num_layers for route in before.routes):
        return plan
    routes = tuple(msgspec.structs.replace(route, born=plan.generation) for route in before.routes)
    is_whole = sum(len(route.microbatches) for route in routes) == plan.num_microbatches
    return msgspec.structs.replace(plan, routes=routes) if is_whole else plan


def _rows(plan: Plan) -> str:
    depth = len({plan.node_of(worker) for worker in plan.pipelines[0].workers})
    return f"{count(len(plan.pipelines), 'pipeline')} of {count(depth, 'node')}"


def _idle(number: int) -> str:
    return f" ({count(number, 'node')} idle)" if number else ""


def _count_of(nodes: Collection[NodeId]) -> str:
    return count(len(set(nodes)), "node")


def _makes(nodes: Collection[NodeId]) -> str:
    return "make" if len(set(nodes)) != 1 else "makes"
