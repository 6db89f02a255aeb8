"""The sentences of policies, for people: numbers, sizes and lists as words, and what happened to which pipeline.

They tell of a plan; they choose none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from planaria.plan.costs.pipeline_time import NodeSpeeds
from planaria.plan.plan import NodeId, Pipeline, Plan, WorkerId
from planaria.plan.quantities import count, size
from planaria.planner.reconfigure.reconfigure import How, Reconfiguration


def join(items: Sequence[object]) -> str:
    """Returns a list with an "and"."""
    words = [str(item) for item in items]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1] if words else ""


def nodes_are(nodes: Sequence[NodeId], what: str) -> str:
    """Returns what some nodes are, as a part of a sentence."""
    one = len(nodes) == 1
    return f"{'node' if one else 'nodes'} {join(nodes)} {'is' if one else 'are'} {what}"


def capital(text: str) -> str:
    """Returns the text as a sentence begins."""
    return text[:1].upper() + text[1:]


def told(*parts: str) -> str:
    """Returns what is not empty of some parts as a sentence each."""
    return " ".join(f"{capital(part)}." for part in parts if part)


def time(seconds: float) -> str:
    """Returns seconds in the largest unit of which there are two at least, or one second."""
    for unit, scale in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= 2 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"


def shape(plan: Plan) -> str:
    """Returns the pipelines' numbers of nodes."""
    return "+".join(str(len({plan.node_of(worker) for worker in pipeline.workers})) for pipeline in plan.pipelines)


# What is done, and why


def begun(plan: Plan, num_nodes: int, num_replicas: int) -> str:
    """Returns the sentence for a first plan, of so many nodes."""
    sizes = Counter(len(_nodes(plan, pipeline)) for pipeline in plan.pipelines)
    shapes = join([f"{number} of {count(nodes, 'node')}" for nodes, number in sorted(sizes.items())])
    verb = "make" if num_nodes != 1 else "makes"
    return told(
        f"{count(num_nodes, 'node')} {verb} {count(len(plan.pipelines), 'pipeline')}: {shapes}",
        f"of templates that is the fastest way to keep {count(num_replicas, 'replica')}",
    )


def who_changes(before: Plan, after: Plan) -> str:
    """Returns which nodes come and go, as the beginning of a sentence."""
    parts = []
    working = set(map(before.node_of, before.layers_of))  # others have state on its way to them
    come, go = set(after.nodes) - working, working - set(after.nodes)
    for verb, nodes in (("join", come), ("leave", go)):
        if nodes:
            one = len(nodes) == 1
            parts.append(f"node{'' if one else 's'} {join(sorted(nodes))} {verb}{'s' if one else ''}")
    text = join(parts) or "the pipelines change"
    return capital(text)


def warms(before: Plan, after: Plan, moved_bytes: int, left_bytes: int) -> str:
    """Returns the sentence for a step beside which so much state moves, and so much is left for later ones."""
    if not left_bytes:
        return f"{who_changes(before, after)} after this step. State moves beside it."
    moved, whole = size(moved_bytes), size(moved_bytes + left_bytes)
    return f"{who_changes(before, after)} once state is there. {moved} of {whole} move beside this step."


def _nodes(plan: Plan, pipeline: Pipeline) -> list[NodeId]:
    return sorted(pipeline.nodes(plan.devices_per_node))


def _lost(plan: Plan, live: Collection[WorkerId]) -> list[NodeId]:
    """Returns the plan's nodes of which no worker lives."""
    left = {plan.node_of(worker) for worker in live}
    return sorted({plan.node_of(worker) for worker in set(plan.workers) - set(live)} - left)


def _lost_alone(plan: Plan, live: Collection[WorkerId]) -> list[WorkerId]:
    """Returns the plan's workers that do not live, though others of their node do."""
    left = {plan.node_of(worker) for worker in live}
    return sorted(worker for worker in set(plan.workers) - set(live) if plan.node_of(worker) in left)


def devices(workers: Collection[WorkerId], per_node: int) -> str:
    """Names devices by their nodes: "device 1 of node 2"."""
    return join([f"device {worker % per_node} of node {worker // per_node}" for worker in sorted(workers)])


def losses(plan: Plan, lost: Collection[NodeId]) -> str:
    """Returns which pipeline lost which nodes, as the beginning of a sentence; empty when none did."""
    parts: list[str] = []
    away = set(lost)
    for at, pipeline in enumerate(plan.pipelines):
        nodes = pipeline.nodes(plan.devices_per_node)
        if not away.isdisjoint(nodes):
            gone = sorted(away.intersection(nodes))
            parts.append(f"pipeline {at} lost node{'s' if len(gone) > 1 else ''} {join(gone)}")
        elif not pipeline.is_whole(plan.num_layers):
            parts.append(f"pipeline {at} is not whole")
    text = join(parts)
    return capital(text)


def finished(plan: Plan, new: Plan, live: Collection[WorkerId], *, crosses: bool) -> str:
    """Returns the sentence for a plan that finishes a step: what runs again, and where."""
    added = [route for route in new.routes if route.born == new.generation]
    again = {microbatch for route in added for microbatch in route.microbatches}
    carriers = {hop.worker for route in added for hop in route.hops}
    alone = devices(_lost_alone(plan, live), plan.devices_per_node)
    happened = losses(plan, _lost(plan, live)) or ("" if alone else "The live nodes changed")
    if alone:
        happened = f"{happened}, {alone} is gone" if happened else f"{capital(alone)} is gone"
    if again:
        run = "runs" if len(again) == 1 else "run"
        what = (
            f"{len(again)} of {count(plan.num_microbatches, 'microbatch')} {run} again, where lost, "
            f"on {count(len(carriers) * new.num_sharing, 'live worker')}"
        )
    else:
        what = "nothing runs again: every microbatch is in a live accumulator or under way"
    return told(happened, what, "survivors of broken pipelines are among them" if again and crosses else "")


def taken_over(plan: Plan, resumed: Plan, live: Collection[WorkerId]) -> str:
    """Returns the sentence for a step in which shadows go on."""
    lost = _lost(plan, live)
    left = {m for route in resumed.routes if route.reached is not None for m in route.microbatches}
    who = "their predecessors take" if len(lost) > 1 else "its predecessor takes"
    microbatches = count(plan.num_microbatches, "microbatch")
    return told(
        nodes_are(lost, "gone"),
        f"{who} over where {len(left)} of {microbatches} {'was' if len(left) == 1 else 'were'}",
        "all that survives of these is used",
    )


def why(plan: Plan, lost: Collection[NodeId], result: Reconfiguration) -> str:
    """Returns the sentence for a reconfiguration."""
    return told(losses(plan, lost) or "the nodes changed", *_remedy(result), _moved(result))


def why_at_speeds(plan: Plan, lost: Collection[NodeId], result: Reconfiguration, speeds: NodeSpeeds) -> str:
    """Returns the sentence for a plan that knows of speeds. Slow nodes that it does without live, and rest."""
    slow = {node: speed for node, speed in speeds.items() if speed != 1}
    slowed = [
        f"node{'s' if len(nodes) > 1 else ''} {join(nodes)} at {speed:g}"
        for speed in sorted(set(slow.values()))
        if (nodes := sorted(node for node in slow if slow[node] == speed and node in result.plan.nodes))
    ]
    parts = [losses(plan, [node for node in lost if node not in slow]) or "The nodes or their speeds changed"]
    if resting := sorted(node for node in slow if node not in result.plan.nodes):
        parts.append(f"slow node{'s' if len(resting) > 1 else ''} {join(resting)} can be done without")
    if slowed:
        parts.append(f"the plan is for {join(slowed)} of the others' speed")
    else:
        parts.append("the plan is for nodes of one speed")
    shares = Counter[tuple[tuple[int, int, int], ...]]()
    for route in result.plan.routes:
        shares[route.key] += len(route.microbatches)
    dealt = join(list(shares.values()))
    return told(*parts, f"the pipelines run {dealt} microbatches", _moved(result))


def _remedy(result: Reconfiguration) -> Sequence[str]:
    plan = result.plan
    sizes = join(sorted({len(_nodes(plan, plan.pipelines[at])) for at in result.rebuilt}))
    number = len(result.rebuilt)
    template = f"the {sizes}-node template" if "and" not in sizes else f"the {sizes}-node templates"
    if not number:
        return ["the other pipelines go on as they are"]
    made = f"{count(number, 'pipeline')} {'are' if number > 1 else 'is'} made again from {template}"
    match result.how:
        case How.SIMPLE:
            return [made]
        case How.BORROW:
            return ["nodes are borrowed from larger pipelines", made]
        case How.MERGE:
            return ["too few of its nodes are left and none can be borrowed, so it is merged", made]
        case How.INSTANTIATE:
            return ["the nodes are dealt out anew", made]


def _moved(result: Reconfiguration) -> str:
    if not result.plan.transfers:
        return "no state has to move"
    layers = {layer for move in result.plan.transfers for layer in result.plan.groups[move.group].layers}
    moves = "move" if len(layers) > 1 else "moves"
    return f"{count(len(layers), 'layer')} ({size(result.transfer_bytes)}) {moves} from surviving replicas"
