"""The cluster as a run measured it: how fast nodes and links are, and how far estimates are off.

Planners are corrected by it, so that plans are made for the cluster as it is known by now. It decides nothing. Pure: no
clock.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import NodeId, Plan, WorkerId
from planaria.planner.placement.zones import Zones
from planaria.policy.planner import Planner
from planaria.protocol.messages.records import EstimateCorrected, LinkChanged
from planaria.protocol.messages.run_measurements import RunMeasurements
from planaria.protocol.planning.link_flows import Flows, LinkFlows
from planaria.protocol.planning.measured_links import MeasuredLinks
from planaria.protocol.planning.straggler_detection import NodeSpeeds, SpeedEvidence
from planaria.protocol.thresholds import ESTIMATE_HOLDS, LINK_MATTERS


class MeasuredCluster:
    """Known speeds, links and zones of a run's nodes.

    Args:
        given: the profile that the run began with.
        evidence: of nodes' speeds, how much is needed.

    Attributes:
        speeds: how fast the nodes are, as far as that is known.
        links: between hosts, as they were measured.
        zones: where the nodes are.
        lost_devices: of nodes that live.
        stretch: how many times longer than the profile says steps are measured to take; None: they were not yet.
    """

    def __init__(self, given: ModelProfile, evidence: SpeedEvidence | None = None) -> None:
        self.speeds = NodeSpeeds(evidence)
        self.links = MeasuredLinks(given)
        self.zones: Zones = {}
        self.lost_devices: frozenset[WorkerId] = frozenset()
        self.stretch: float | None = None
        self._flows = LinkFlows()

    def recall(self, learnt: RunMeasurements, live: Collection[NodeId]) -> None:
        """Takes over what the last coordinator knew of the nodes that live."""
        self.speeds.recall(learnt.speeds, live)
        self.stretch = learnt.stretch
        self.links.recall(learnt.links)
        for node in learnt.links.hosts.keys() - set(live):
            self.links.forget(node)

    def corrected(self, planner: Planner) -> Planner:
        """Returns the planner with the known links, zones, stretch, speeds and lost devices."""
        if self.links.hosts:
            planner = planner.with_links(self.links.profile, self.links.hosts, self.links.far_pairs)
        if self.zones:
            planner = planner.with_zones(self.zones)
        if self.stretch is not None:
            planner = planner.with_stretch(self.stretch)
        if self.speeds.known:
            planner = planner.with_speeds(self.speeds.known)
        if self.lost_devices != planner.lost_devices:
            planner = planner.with_lost_devices(self.lost_devices)
        return planner

    def explain(
        self, planner: Planner, plan: Plan, step: int, took_s: float, compute_s: Mapping[WorkerId, float]
    ) -> EstimateCorrected | None:
        """Explains steps whose estimate is off: by what compute takes, then by links, and by a stretch of everything
        for what neither explains. None: the estimate holds, or cannot be explained.

        Args:
            planner: that made the estimate.
            plan: in force.
            step: about to be committed.
            took_s: by the plan's steps.
            compute_s: of each worker in one of them.
        """
        if not self.links.hosts or not plan.is_apart:
            return None
        estimate = planner.estimate(plan)
        if abs(estimate.step_time_s / took_s - 1) < ESTIMATE_HOLDS:
            return None
        estimated_s = estimate.compute_s
        longer = [seconds / estimated_s[worker] for worker, seconds in compute_s.items() if estimated_s.get(worker)]
        if any(longer):
            self.stretch = statistics.median(longer)
        before = self.links.slowdown
        self.links.explain(took_s, lambda links: self.corrected(planner).step_s(plan))
        self.stretch = (self.stretch or 1.0) * took_s / self.corrected(planner).step_s(plan)
        return EstimateCorrected(
            step=step,
            before_s=estimate.step_time_s,
            step_s=took_s,
            stretch=self.stretch,
            link_slowdown=self.links.slowdown,
            is_reviewed=not 1 / LINK_MATTERS < self.links.slowdown / before < LINK_MATTERS,
        )

    def flowed(self, plan: Plan, step: int, flows: Flows) -> list[LinkChanged]:
        """Has links count otherwise between which bytes begin to pass faster or slower; returns which."""
        if not self.links.hosts or not flows:
            return []
        hosts = self.links.hosts
        zones = {host: self.zones.get(node, "") for node, host in hosts.items()}
        changed = self._flows.measured(plan.generation, flows, lambda worker: hosts.get(plan.node_of(worker)))
        news = []
        for pair, factor in changed.items():
            link = self.links.change(pair, factor, across_zones=zones[pair[0]] != zones[pair[1]])
            news.append(LinkChanged(step=step, hosts=pair, bytes_per_s=link.bytes_per_s, factor=factor))
        return news
