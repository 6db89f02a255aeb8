"""The canonical form of a request: what was found out for the loss of one node holds for the loss of any node like it.

Requests that differ only in the numbers of nodes and in the order of pipelines have one canonical form, so they have
one answer. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass

import msgspec

from planaria.plan.pipeline import renamed, renamed_stages
from planaria.plan.plan import NodeId, Pipeline, Plan, Route, Stage, WorkerId
from planaria.planner.finish_step.shadow_takeover import filled
from planaria.planner.placement.placement import Holders
from planaria.policy.interface import Candidate, ReplanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Canonical:
    """A request in its canonical form.

    Attributes:
        request: nobody is lost any more: the dead have no place in its plan.
        node_of: the real number of each node; None: they are the real ones.
        asked: the request as it was.
    """

    request: ReplanRequest
    node_of: Mapping[NodeId, NodeId] | None
    asked: ReplanRequest

    @property
    def key(self) -> Hashable:
        """The key of the answer: all that it depends on, beside the planner."""
        return (
            self.request.plan.pipelines,
            self.request.plan.redundancy,
            tuple(sorted(self.request.holders.items())),
            tuple(sorted(self.request.leaving)),
        )

    def answered(self, candidate: Candidate) -> Candidate:
        """Returns a candidate for the canonical request as one for the request as it was made."""
        beside = candidate.beside
        return dataclasses.replace(
            candidate,
            plan=self._real(candidate.plan),
            compute_s={self._worker(worker): seconds for worker, seconds in candidate.compute_s.items()},
            beside=None if beside is None else self.answered(beside),
        )

    def _worker(self, worker: WorkerId) -> WorkerId:
        if self.node_of is None:
            return worker
        return renamed(worker, self.node_of, self.asked.plan.devices_per_node)

    def _real(self, plan: Plan) -> Plan:
        """Returns the plan with real numbers of workers, of the generation asked for, its pipelines in their former
        order."""
        generation = self.asked.generation
        old = {stage.worker: at for at, p in enumerate(self.asked.plan.pipelines) for stage in p.stages}
        stages: dict[Stage, Stage] = {}
        ways: dict[tuple[Stage, ...], tuple[Stage, ...]] = {}

        def real(stage: Stage) -> Stage:
            if stage not in stages:
                stages[stage] = msgspec.structs.replace(stage, worker=self._worker(stage.worker))
            return stages[stage]

        def way(hops: tuple[Stage, ...]) -> tuple[Stage, ...]:
            if hops not in ways:
                ways[hops] = tuple(map(real, hops)) if self.node_of is not None else hops
            return ways[hops]

        pipelines = [Pipeline(stages=_in_order(way(pipeline.stages))) for pipeline in plan.pipelines]
        if self.node_of is not None:
            pipelines.sort(key=lambda pipeline: min(old.get(stage.worker, len(old)) for stage in pipeline.stages))
        return msgspec.structs.replace(
            plan,
            generation=generation,
            pipelines=tuple(pipelines),
            routes=tuple(
                Route(hops=way(r.hops), microbatches=r.microbatches, born=generation, counted=r.counted)
                for r in plan.routes
            ),
            sync_epochs=(generation,) * len(plan.groups),
            shadows=way(plan.shadows),
            transfers=tuple(
                msgspec.structs.replace(move, source=self._worker(move.source), target=self._worker(move.target))
                for move in plan.transfers
            ),
        )


def canonical(asked: ReplanRequest, *, may_rename: bool) -> Canonical:
    """Returns the canonical form of a request. Where shadows compute they are in the places of the lost already: so
    they are after the step that the loss struck, and the request then is the one that was made before.

    Args:
        asked: the request.
        may_rename: nodes are as good as each other. Not where somebody compares what is proposed with what is.
    """
    plan, lost = asked.plan, set(asked.lost)
    live = {worker: groups for worker, groups in asked.holders.items() if plan.node_of(worker) not in lost}
    left = [
        Pipeline(stages=tuple(stage for stage in pipeline.stages if stage.worker in live))
        for pipeline in plan.pipelines
    ]
    left = [pipeline for pipeline in left if pipeline.stages]
    if plan.redundancy is not None:
        held = {worker: plan.layers_held(groups) for worker, groups in live.items()}
        left = [filled(pipeline, held, plan.num_layers) for pipeline in left]
    names = _names(left, live, plan.devices_per_node) if may_rename and not asked.leaving else None
    if names is not None:
        number_of = {node: NodeId(number) for number, node in enumerate(names)}
        live = {renamed(worker, number_of, plan.devices_per_node): groups for worker, groups in live.items()}
        left = [
            Pipeline(stages=renamed_stages(pipeline.stages, number_of, plan.devices_per_node))
            for pipeline in _in_rank(left, live_shapes(left, asked.holders, plan.devices_per_node))
        ]
    stripped = msgspec.structs.replace(
        plan, generation=0, pipelines=tuple(left), routes=(), sync_epochs=(), shadows=(), transfers=(), dropped=()
    )
    request = ReplanRequest(
        plan=stripped, lost=(), holders=dict(sorted(live.items())), leaving=tuple(sorted(asked.leaving))
    )
    node_of = None if names is None else {NodeId(number): node for number, node in enumerate(names)}
    return Canonical(request=request, node_of=node_of, asked=asked)


_Shape = tuple[tuple[int, int, int, int, int, tuple[int, ...]], ...]
"""The shape of a pipeline: for each stage its layers, its devices, which node of the pipeline's and which device, and
what the worker holds."""


def live_shapes(pipelines: Collection[Pipeline], holders: Holders, devices_per_node: int) -> list[_Shape]:
    """Returns the shape of each pipeline. Those of one shape differ in the numbers of their nodes alone."""
    return [
        tuple(
            (*stage, tuple(holders[worker]))
            for stage, worker in zip(pipeline.form(devices_per_node).stages, pipeline.workers, strict=True)
        )
        for pipeline in pipelines
    ]


def _in_rank(pipelines: Collection[Pipeline], shapes: Collection[_Shape]) -> list[Pipeline]:
    """Returns the pipelines with fewest layers first, so that those with gaps are dealt to first; of one shape as they
    were."""
    listed = list(pipelines)
    order = sorted(zip(map(_num_layers, listed), shapes, range(len(listed)), strict=True))
    return [listed[at] for _, _, at in order]


def _num_layers(pipeline: Pipeline) -> int:
    return len({layer for stage in pipeline.stages for layer in stage.layers})


def _names(left: Collection[Pipeline], live: Holders, devices_per_node: int) -> list[NodeId] | None:
    """Returns the nodes in canonical order: those of the pipelines, then those without a place. None: a node is in two
    pipelines."""
    names: dict[NodeId, None] = {}
    for pipeline in _in_rank(left, live_shapes(left, live, devices_per_node)):
        nodes = dict.fromkeys(pipeline.nodes(devices_per_node))
        if not nodes.keys().isdisjoint(names):
            return None
        names |= nodes
    spare: dict[NodeId, list[tuple[int, tuple[int, ...]]]] = {}
    for worker, groups in live.items():
        node, device = divmod(worker, devices_per_node)
        if NodeId(node) not in names:
            spare.setdefault(NodeId(node), []).append((device, tuple(groups)))
    names |= dict.fromkeys(sorted(spare, key=lambda node: (sorted(spare[node]), node)))
    return list(names)


def _in_order(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    return tuple(sorted(stages, key=lambda stage: (stage.first_layer, stage.worker)))
