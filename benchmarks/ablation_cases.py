"""Odyssey's two ablations as plans: who moves what after a loss, and in which order gradients are summed.

The paper (sections V-C and V-D, Figures 10, 11 and 12): Llama-2 7B on the 8 devices of one node, DP = 4 and PP = 2;
one device is lost, and three pipelines of 2, 2 and 3 stages go on. It does not say how devices are numbered, so both
common ways are here: pipeline by pipeline, and stage by stage (Megatron's). Nor does it say who sends what is
missing; without its optimisation, here the first rank that has it does.

What is without an optimisation is a plan as well, made here and executed by the same workers.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from planaria.plan.costs.model_profile import DeviceKind, LayerCost, LayerTimes, LinkCost, Links, ModelProfile
from planaria.plan.costs.pipeline_time import Template, TemplateStage
from planaria.plan.costs.stage_costs import PipelineCost
from planaria.plan.plan import Group, NodeId, Pipeline, Plan, Stage, Transfer, WorkerId
from planaria.plan.sums.rounds import colour
from planaria.planner.placement.placement import assign
from planaria.planner.placement.transfers import transfers

NUM_DEVICES = 8
STAGES_BEFORE = 2
STAGES_AFTER = (2, 2, 3)

HIDDEN, INNER, VOCABULARY = 4096, 11008, 32000
BLOCK_PARAMETERS = 4 * HIDDEN**2 + 3 * HIDDEN * INNER + 2 * HIDDEN
"""Of a block of Llama-2 7B; embedding and head have VOCABULARY * HIDDEN each."""

HCCS = LinkCost(latency_s=2e-5, bandwidth_bytes_per_s=28e9)
"""Ascend 910B: each pair of a node's eight devices has a link of 56 GB/s, so 28 GB/s a direction."""


class Ranks(enum.Enum):
    """How devices are numbered."""

    BY_PIPELINE = "by_pipeline"
    BY_STAGE = "by_stage"


class Moves(enum.Enum):
    """Who takes which role of the new plan, and who sends."""

    RANK_ORDER = "rank_order"
    MATCHED = "matched"
    """Odyssey's: the fewest bytes, from the first rank that has them."""
    BALANCED = "matched_and_balanced"
    """Ours: the fewest bytes, from sources that share the work."""


def cut(num_blocks: int, num_stages: int) -> list[tuple[int, int]]:
    """First layer and end of each stage: blocks evenly, the embedding with the first, the head with the last."""
    ends = [1 + round(num_blocks * at / num_stages) for at in range(1, num_stages)]
    return list(zip([0, *ends], [*ends, num_blocks + 2], strict=True))


@dataclass(frozen=True)
class Loss:
    """One device of eight is lost.

    Attributes:
        num_blocks: the model's, beside embedding and head.
        ranks: how devices are numbered.
        lost: which one is.
        scale: parameters are divided by this.
    """

    num_blocks: int
    ranks: Ranks
    lost: int
    scale: int = 1

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Each layer is one: float32 parameters, and AdamW's moments."""
        parameters = [VOCABULARY * HIDDEN, *[BLOCK_PARAMETERS] * self.num_blocks, VOCABULARY * HIDDEN]
        return tuple(
            Group(layers=(layer,), size_bytes=4 * (count // self.scale)) for layer, count in enumerate(parameters)
        )

    @cached_property
    def holders(self) -> dict[WorkerId, tuple[int, ...]]:
        held = {}
        stages = cut(self.num_blocks, STAGES_BEFORE)
        num_pipelines = NUM_DEVICES // STAGES_BEFORE
        for rank in range(NUM_DEVICES):
            at = rank % STAGES_BEFORE if self.ranks is Ranks.BY_PIPELINE else rank // num_pipelines
            if rank != self.lost:
                held[WorkerId(rank)] = tuple(range(*stages[at]))
        return held

    def plan(self, moves: Moves, generation: int) -> Plan:
        """The plan after the loss."""
        pipelines = self._in_rank_order() if moves is Moves.RANK_ORDER else self._matched()
        plan = Plan(
            generation=generation,
            num_layers=self.num_blocks + 2,
            num_microbatches=1,
            devices_per_node=NUM_DEVICES,
            groups=self.groups,
            pipelines=tuple(pipelines),
            routes=(),
            sync_epochs=(generation,) * len(self.groups),
        )
        found = self._balanced(plan) if moves is Moves.BALANCED else self._from_first(plan)
        return msgspec.structs.replace(plan, transfers=found)

    def _in_rank_order(self) -> Sequence[Pipeline]:
        """Whoever is left takes the new plan's roles in the order in which ranks are numbered."""
        roles = [(at, stage) for at, num_stages in enumerate(STAGES_AFTER) for stage in range(num_stages)]
        if self.ranks is Ranks.BY_STAGE:
            roles.sort(key=lambda role: (role[1], role[0]))
        worker_of = dict(zip(roles, sorted(self.holders), strict=True))
        return [
            Pipeline(
                stages=tuple(
                    Stage(worker=worker_of[at, stage], first_layer=first, end_layer=end)
                    for stage, (first, end) in enumerate(cut(self.num_blocks, num_stages))
                )
            )
            for at, num_stages in enumerate(STAGES_AFTER)
        ]

    def _matched(self) -> Sequence[Pipeline]:
        """Each device counts as a node for the matching: the links join devices."""
        return assign(
            [self._template(num_stages) for num_stages in STAGES_AFTER],
            [NodeId(worker) for worker in sorted(self.holders)],
            1,
            self.groups,
            self.holders,
        )

    def _template(self, num_stages: int) -> Template:
        stages = tuple(
            TemplateStage(first_layer=first, end_layer=end, node=node)
            for node, (first, end) in enumerate(cut(self.num_blocks, num_stages))
        )
        return Template(
            num_nodes=num_stages, stages=stages, step_time_s=1.0, cost=PipelineCost(path_s=1.0, period_s=1.0)
        )

    def _from_first(self, plan: Plan) -> tuple[Transfer, ...]:
        return tuple(
            Transfer(group=group, source=min(w for w, held in self.holders.items() if group in held), target=worker)
            for worker, groups in plan.groups_of.items()
            for group in groups
            if group not in self.holders[worker]
        )

    def _balanced(self, plan: Plan) -> tuple[Transfer, ...]:
        return transfers(msgspec.structs.replace(plan, devices_per_node=1), self.holders)

    def profile(self) -> ModelProfile:
        """Costs for the emulated device: links and sizes at full scale; nothing is computed."""
        groups = Loss(self.num_blocks, self.ranks, self.lost).groups
        times = LayerTimes(forward_s=0.0, backward_input_s=0.0, backward_weight_s=0.0)
        return ModelProfile(
            name="llama-2-7b",
            layers=tuple(_layer(number, group, times) for number, group in enumerate(groups)),
            groups=groups,
            links=Links(within_node=HCCS, between_nodes=HCCS),
            device=DeviceKind(name="ascend-910b"),
        )


def _layer(number: int, group: Group, times: LayerTimes) -> LayerCost:
    return LayerCost(
        name=f"layer.{number}",
        times=(times,),
        parameter_bytes=group.size_bytes,
        gradient_bytes=group.size_bytes,
        optimizer_bytes=2 * group.size_bytes,
        activation_bytes=0,
        recompute_activation_bytes=0,
        output_bytes=0,
    )


@dataclass(frozen=True)
class Load:
    """Bytes of state that move, and the most that one device sends, that one receives, that go over one link."""

    moved_bytes: int
    sent_bytes: int
    received_bytes: int
    link_bytes: int

    @classmethod
    def of(cls, plan: Plan) -> Load:
        sent: Counter[WorkerId] = Counter()
        received: Counter[WorkerId] = Counter()
        link: Counter[tuple[WorkerId, WorkerId]] = Counter()
        for move in plan.transfers:
            size = move.moved_bytes(plan.groups[move.group])
            sent[move.source] += size
            received[move.target] += size
            link[move.source, move.target] += size
        most = [max(counter.values(), default=0) for counter in (sent, received, link)]
        return cls(sent.total(), *most)


def turns(plan: Plan, rounds: Sequence[int]) -> int:
    """How many sums follow one another, where every owner must be free for a group's sum to begin, and takes its
    groups in this order: what the last one waits for, all sums taking one turn."""
    free = dict.fromkeys(plan.workers, 0)
    for group in sorted(range(len(plan.groups)), key=lambda group: (rounds[group], group)):
        end = 1 + max(free[owner] for owner in plan.owners_of[group])
        for owner in plan.owners_of[group]:
            free[owner] = end
    return max(free.values())


def index_order(plan: Plan) -> tuple[int, ...]:
    return tuple(range(len(plan.groups)))


ROUNDS: Mapping[str, Callable[[Plan], tuple[int, ...]]] = {"index": index_order, "coloured": colour}
"""Ways to order the groups' sums: for each group its turn."""
