"""Placement: which node takes which part of which template, so that little state moves and nobody waits long for it.

Odyssey, section IV-B, matches nodes to roles by Kuhn-Munkres. Here the matching is over classes of equal nodes and
equal roles, and among the matchings of fewest bytes one is chosen whose busiest node has little to receive and to send.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from planaria.plan.costs.pipeline_time import Template, TemplateStage
from planaria.plan.plan import Group, NodeId, Pipeline, PlanError, Stage, WorkerId
from planaria.plan.thresholds import SENDER_ATTEMPTS, STAGES_SEARCHED
from planaria.planner.placement.matching import Bools, Ints, Matching, cheapest, fill
from planaria.planner.placement.senders import Busiest, Sources
from planaria.planner.placement.senders import Holders as Holders
from planaria.planner.placement.zones import Role, Zones, differ, replicas_by_zone, zone_of, zones_of_roles


def assign(
    templates: Sequence[Template],
    nodes: Sequence[NodeId],
    devices_per_node: int,
    groups: Sequence[Group],
    holders: Holders,
    zones: Zones | None = None,
    standing: Sequence[Pipeline] = (),
    sources: Sources | None = None,
) -> list[Pipeline]:
    """Places one pipeline for each template on these nodes; nodes that are left over stay idle.

    Exactly the fewest bytes move in all; of those placements, one of those that move the fewest between nodes; of
    those, one whose busiest node, receiver or sender, has little to do (`_balanced` says how little). Where nodes
    or roles are equal, the lowest template, part and node go together.

    Where nodes are of several zones, replicas are first spread over these (`planaria.planner.placement.zones`); what is
    said above then holds within each zone.

    Args:
        templates: one for each pipeline.
        nodes: that may be used; those of other pipelines are not among them.
        devices_per_node: M: the devices, and so workers, of each node.
        groups: the model's groups.
        holders: every live worker, nodes of other pipelines included: they send.
        zones: where the nodes are.
        standing: pipelines that stay as they are, on other nodes.
        sources: made of the holders, if they are known.

    Raises:
        PlanError: the templates need more nodes.
    """
    roles = [template.stages_of(part) for template in templates for part in range(template.num_nodes)]
    if len(roles) > len(nodes):
        raise PlanError(f"The templates need {len(roles)} nodes, and there are {len(nodes)}. Use smaller templates.")
    if not roles:
        return []
    sources = sources or Sources(holders, devices_per_node, len(groups))
    found = _placed(roles, nodes, devices_per_node, groups, holders, sources)
    if zones and differ(zones, nodes):
        found = _spread(found, roles, nodes, devices_per_node, groups, holders, sources, zones, standing)
    placed = iter(found)
    return [
        Pipeline(stages=tuple(stage for _ in range(template.num_nodes) for stage in next(placed)))
        for template in templates
    ]


_Roles = Sequence[tuple[TemplateStage, ...]]


def _placed(
    roles: _Roles,
    nodes: Sequence[NodeId],
    devices_per_node: int,
    groups: Sequence[Group],
    holders: Holders,
    sources: Sources,
) -> list[tuple[Stage, ...]]:
    """Returns each role's stages on a node, so that little state moves."""
    table = _Table(roles, nodes, devices_per_node, groups, holders)
    flow = _balanced(table, sources)
    return table.stages_of_roles(flow)


def _spread(
    placed: list[tuple[Stage, ...]],
    roles: _Roles,
    nodes: Sequence[NodeId],
    devices_per_node: int,
    groups: Sequence[Group],
    holders: Holders,
    sources: Sources,
    zones: Zones,
    standing: Sequence[Pipeline],
) -> list[tuple[Stage, ...]]:
    """Returns the same roles spread over zones; unchanged where the placement is as good as can be."""
    num_layers = max(stage.end_layer for role in roles for stage in role)
    used = [NodeId(stages[0].worker // devices_per_node) for stages in placed]
    taken = set(used)
    by_zone: dict[str, list[NodeId]] = {}
    for node in nodes:
        by_zone.setdefault(zone_of(zones, node), []).append(node)
    table = _Table(roles, nodes, devices_per_node, groups, holders)
    wanted = zones_of_roles(
        [Role(first_layer=role[0].first_layer, end_layer=role[-1].end_layer) for role in roles],
        used,
        [(node, 1.0) for node in nodes if node not in taken],
        zones,
        replicas_by_zone(standing, num_layers, zones, devices_per_node),
        {zone: table.least_moved(members) for zone, members in by_zone.items()},
    )
    if wanted == [zone_of(zones, node) for node in used]:
        return placed
    for zone, members in by_zone.items():
        own = [at for at, its in enumerate(wanted) if its == zone]
        if own:
            found = _placed([roles[at] for at in own], members, devices_per_node, groups, holders, sources)
            for at, stages in zip(own, found, strict=True):
                placed[at] = stages
    return placed


_Held = tuple[frozenset[int], ...]
"""The groups held by each device of a node."""


class _Table:
    """Classes of nodes (rows) and of roles (columns), and what a node of the row lacks in a role of the column.

    The last column is the role of being idle, for the nodes that are left over.

    Attributes:
        supply: nodes in each row.
        demand: roles in each column.
        moved: bytes of parameters that its devices lack.
        received: bytes of parameters that come from other nodes.
        lacks: for each group, how many of the stages lack it and no device of the node has it.
    """

    def __init__(
        self,
        roles: Sequence[tuple[TemplateStage, ...]],
        nodes: Sequence[NodeId],
        devices_per_node: int,
        groups: Sequence[Group],
        holders: Holders,
    ) -> None:
        self._roles = roles
        self._per_node = devices_per_node
        self._nodes: dict[_Held, list[NodeId]] = {}
        for node in sorted(nodes):
            devices = range(node * devices_per_node, (node + 1) * devices_per_node)
            held = tuple(frozenset(holders.get(WorkerId(worker), ())) for worker in devices)
            self._nodes.setdefault(held, []).append(node)
        self._shapes: dict[tuple[tuple[int, int, int], ...], int] = {}
        self._shape_of = [self._shapes.setdefault(_shape(role), len(self._shapes)) for role in roles]
        self.supply = np.array([len(members) for members in self._nodes.values()], np.int64)
        idle = len(nodes) - len(roles)
        self.demand = np.append(np.bincount(self._shape_of, minlength=len(self._shapes)), idle).astype(np.int64)
        self._fill_in(groups)

    def _fill_in(self, groups: Sequence[Group]) -> None:
        self.sizes = np.array([group.size_bytes for group in groups], np.int64)
        held = np.zeros((len(self._nodes), self._per_node, len(groups)), np.int64)
        for row, devices in enumerate(self._nodes):
            for device, own in enumerate(devices):
                held[row, device, list(own)] = 1
        somewhere = np.asarray(held.any(axis=1))
        self.lacks = np.zeros((len(self._nodes), len(self._shapes) + 1, len(groups)), np.int64)
        self.moved = np.zeros(self.lacks.shape[:2], np.int64)
        self._orders: dict[int, tuple[DeviceOrders, int]] = {}
        by_counts: dict[tuple[int, ...], list[int]] = {}
        for column, shape in enumerate(self._shapes):
            by_counts.setdefault(tuple(num_devices for _, _, num_devices in shape), []).append(column)
        for counts, columns in by_counts.items():
            needs = _needs(groups, [shape for shape in self._shapes if self._shapes[shape] in set(columns)])
            overlap = np.tensordot(needs, held * self.sizes, (2, 2)).transpose(0, 2, 3, 1)
            orders = DeviceOrders(overlap.reshape(-1, *overlap.shape[2:]), counts)
            kept = orders.kept.reshape(len(columns), -1)
            self.moved[:, columns] = ((needs @ self.sizes).sum(axis=1)[:, None] - kept).T
            self.lacks[:, columns] = needs.sum(axis=1) * ~somewhere[:, None, :]
            for at, column in enumerate(columns):
                self._orders[column] = orders, at * len(self._nodes)
        self.received = self.lacks @ self.sizes

    def least_moved(self, nodes: Collection[NodeId]) -> list[int]:
        """Returns the bytes that the fittest of these nodes lacks, for each role."""
        rows = [row for row, members in enumerate(self._nodes.values()) if not set(nodes).isdisjoint(members)]
        least = self.moved[rows].min(axis=0)
        return [int(least[shape]) for shape in self._shape_of]

    def needed(self, flow: Ints) -> Ints:
        """Returns the bytes of each group that must come from other nodes."""
        needed: Ints = np.tensordot(flow, self.lacks, 2) * self.sizes
        return needed

    def most_received(self, flow: Ints) -> int:
        return int(self.received[flow > 0].max(initial=0))

    def stages_of_roles(self, flow: Ints) -> list[tuple[Stage, ...]]:
        """Returns each role's stages on a node: roles in order, each on the lowest node that the flow assigns to it."""
        waiting = [members[::-1] for members in self._nodes.values()]
        left: list[dict[int, int]] = [
            {row: int(column[row]) for row in np.flatnonzero(column).tolist()} for column in flow.T
        ]
        starts: dict[tuple[int, int], list[int]] = {}
        placed: list[tuple[Stage, ...]] = []
        for role, column in zip(self._roles, self._shape_of, strict=True):
            row = min(left[column], key=lambda row: waiting[row][-1])
            left[column][row] -= 1
            if not left[column][row]:
                del left[column][row]
            if (row, column) not in starts:
                orders, first_row = self._orders[column]
                starts[row, column] = orders.starts(first_row + row)
            first = waiting[row].pop() * self._per_node
            placed.append(
                tuple(_stage(stage, WorkerId(first + at)) for stage, at in zip(role, starts[row, column], strict=True))
            )
        return placed


def _shape(role: tuple[TemplateStage, ...]) -> tuple[tuple[int, int, int], ...]:
    return tuple((stage.first_layer, stage.end_layer, stage.num_devices) for stage in role)


def _needs(groups: Sequence[Group], shapes: Sequence[tuple[tuple[int, int, int], ...]]) -> Ints:
    """Returns, for each shape, stage and group, 1 where the stage needs the group, else 0."""
    uses = np.zeros((1 + max(end for shape in shapes for _, end, _ in shape), len(groups)), np.int64)
    for number, group in enumerate(groups):
        for layer in group.layers:
            if layer + 1 < len(uses):
                uses[layer + 1, number] = 1
    below = uses.cumsum(axis=0)
    stages = np.array(shapes, np.int64)
    return (below[stages[:, :, 1]] > below[stages[:, :, 0]]).astype(np.int64)


def _stage(stage: TemplateStage, worker: WorkerId) -> Stage:
    return Stage(worker=worker, first_layer=stage.first_layer, end_layer=stage.end_layer, num_devices=stage.num_devices)


@dataclass(frozen=True, slots=True)
class _Choice:
    """A placement, with what its busiest node receives or sends."""

    flow: Ints
    busiest: Busiest
    busiest_bytes: int


def _balanced(table: _Table, sources: Sources) -> Ints:
    """Returns, of the matchings that move the fewest bytes, one that keeps receivers and senders little busy.

    It begins with one whose busiest receiver receives exactly the least. What the busiest then sends, given that
    everything may be split over its holders, is lowered step by step: the groups whose holders are busiest are needed
    as seldom as can be. Each step is exact for its set of groups, and so bounds what any matching can reach. It ends
    when the bound is met, which is the rule, or after a few steps: then a better one is possible, though in 12,000
    random small clusters there was none.
    """
    matching = cheapest(table.moved, table.supply, table.demand)
    assert matching is not None, "every node may take every role"
    # Within the cells that are tight (twice), every full matching is one of fewest bytes (in all and between nodes).
    second = matching
    if (table.received != table.moved)[matching.tight].any():
        between = cheapest(table.received, table.supply, table.demand, matching.tight)
        assert between is not None, "a matching is within its own tight cells"
        second = between
    flow = _least_received(table, second)
    bound = table.most_received(flow)
    if sources.most_bytes(table.needed(flow)) <= bound:
        return flow  # of a large cluster, hardly any sender is as busy as a receiver
    best = _choice(table, sources, flow)
    tried: list[Bools] = []
    while best.busiest_bytes > bound and len(tried) < SENDER_ATTEMPTS:
        culprits = best.busiest.groups
        # All groups together are needed equally often in all these matchings.
        if culprits.all() or any((culprits == other).all() for other in tried):
            break
        tried.append(culprits)
        allowed = second.tight & (table.received < best.busiest_bytes)
        needed = table.lacks @ np.where(culprits, table.sizes, 0)
        less = cheapest(needed, table.supply, table.demand, allowed)
        if less is None:
            break
        bound = max(bound, -(-int((less.flow * needed).sum()) // max(sources.num_holders(culprits), 1)))
        choice = _choice(table, sources, less.flow)
        if choice.busiest_bytes < best.busiest_bytes:
            best = choice
    return best.flow


def _choice(table: _Table, sources: Sources, flow: Ints) -> _Choice:
    # What nobody holds is not for a placement to complain about.
    busiest = sources.busiest(np.where(sources.holds.any(axis=0), table.needed(flow), 0))
    return _Choice(flow, busiest, max(busiest.size_bytes, table.most_received(flow)))


def _least_received(table: _Table, matching: Matching) -> Ints:
    """Returns the matching within the tight cells whose busiest receiver receives the least, by bisection."""
    flow = matching.flow
    limits = np.array(sorted(set(table.received[matching.tight].tolist())), np.int64)
    low, high = 0, int(np.searchsorted(limits, table.most_received(flow)))
    while low < high:
        middle = (low + high) // 2
        filling = fill(table.supply, table.demand, matching.tight & (table.received <= limits[middle]), flow)
        if filling.stuck is None:
            flow, high = filling.flow, middle
        else:
            low = middle + 1
    return flow


_TABLE_ENTRIES = 1 << 22
"""Most table entries kept in memory; a larger table is made in pieces, and rows asked for later are made again."""


class DeviceOrders:
    """The best order of a role's stages on each of several nodes.

    A stage of d devices takes d neighbouring ones, and its state is with the first of them. Exact: a dynamic program
    over the sets of stages that lie on the first devices, for all nodes at once; or, where all stages have equally
    many devices, a matching.

    Args:
        overlap: for each node, device and stage, what the device holds of the stage.
        num_devices: each stage's number of devices.

    Attributes:
        kept: for each node, the most that stays where it is.

    Raises:
        PlanError: the stages need more devices than a node has.
    """

    def __init__(self, overlap: Ints, num_devices: Sequence[int]) -> None:
        nodes, devices, stages = overlap.shape
        idle = devices - sum(num_devices)
        if idle < 0:
            raise PlanError(
                f"Stages of {', '.join(map(str, num_devices))} devices need {sum(num_devices)}, and a node has "
                f"{devices}. Use templates that were made for devices_per_node = {devices}."
            )
        # What is left idle is a stage that keeps nothing.
        self._overlap = np.concatenate([overlap, np.zeros((nodes, devices, idle), np.int64)], axis=2)
        self._counts = [*num_devices, *[1] * idle]
        self._num_stages = stages
        self._best: Ints | None = None
        self._matched: list[list[int]] = []
        if len(self._counts) > STAGES_SEARCHED and len(set(self._counts)) == 1:
            self._matched = [self._match(table) for table in self._overlap]
            places = np.arange(len(self._counts))
            self.kept: Ints = np.array(
                [table[starts, places].sum() for table, starts in zip(self._overlap, self._matched, strict=True)]
            )
        else:
            at_once = max(_TABLE_ENTRIES >> len(self._counts), 1)
            if nodes <= at_once:
                self._best = self._solve(self._overlap)
                self.kept = self._best[:, -1]
            else:
                pieces = [self._overlap[at : at + at_once] for at in range(0, nodes, at_once)]
                self.kept = np.concatenate([self._solve(piece)[:, -1] for piece in pieces])

    def _match(self, overlap: Ints) -> list[int]:
        """Returns each stage's first device on a node whose stages are all equally large."""
        size = self._counts[0]
        ones = np.ones(len(self._counts), np.int64)
        matching = cheapest(overlap.max() - overlap[::size].T, ones, ones)
        assert matching is not None, "every stage may take every place"
        return [size * int(place) for place in matching.flow.argmax(axis=1)]

    def _solve(self, overlap: Ints) -> Ints:
        """Returns, for each node and set of stages, the most that is kept when these lie on the first devices."""
        masks = np.arange(1 << len(self._counts))
        bits = [masks >> at & 1 for at in range(len(self._counts))]
        self._start = sum((bit * count for bit, count in zip(bits, self._counts, strict=True)), np.zeros_like(masks))
        sizes = sum(bits, np.zeros_like(masks))
        best = np.full((len(masks), len(overlap)), -1, np.int64)
        best[0] = 0
        by_stage = np.ascontiguousarray(overlap.transpose(2, 1, 0))
        for size in range(len(self._counts)):
            level = masks[sizes == size]
            for at, kept in enumerate(by_stage):
                before = level[level >> at & 1 == 0]
                after = before | 1 << at
                best[after] = np.maximum(best[after], best[before] + kept[self._start[before]])
        return best.T

    def starts(self, node: int) -> list[int]:
        """Returns each stage's first device on the node; where nothing depends on it, stages keep their order."""
        if self._matched:
            return self._matched[node][: self._num_stages]
        row = self._solve(self._overlap[node : node + 1])[0] if self._best is None else self._best[node]
        best, overlap = row.tolist(), self._overlap[node].tolist()
        starts = [0] * len(self._counts)
        mask = len(best) - 1
        while mask:
            for at in reversed(range(len(self._counts))):
                before = mask & ~(1 << at)
                start = int(self._start[before])
                if mask >> at & 1 and best[mask] == best[before] + overlap[start][at]:
                    starts[at] = start
                    mask = before
                    break
        return starts[: self._num_stages]
