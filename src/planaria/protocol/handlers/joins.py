"""Arrivals: workers that join, until there is a first plan and after it. Departures: nodes that give notice, or are
given back because they bring too little or cost too much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from planaria.job.sections.train import Numerics
from planaria.plan.plan import NodeId, PlanError, WorkerId
from planaria.protocol.handlers import boundary, end
from planaria.protocol.handlers.adopt_plan import take
from planaria.protocol.messages.events import (
    Command,
    LinksMeasured,
    NodeNotice,
    PriceChanged,
    Publish,
    Received,
    Send,
    WorkerJoined,
)
from planaria.protocol.messages.from_worker import Notice
from planaria.protocol.messages.journal import Fate, JournalNode
from planaria.protocol.messages.records import DeviceJoined, NodeJoined, NodeLeaving, Note, RunStatus, Waiting
from planaria.protocol.messages.to_worker import StateSource, Stop
from planaria.protocol.phases import Phase, Purpose
from planaria.protocol.planning.node_count import least_useful, too_little
from planaria.protocol.run.run import Run


def links_measured(run: Run, event: LinksMeasured) -> list[Command]:
    """Records the links that a node's host measured. The node joins next, and that is reason for another plan."""
    run.plan_selector.links_measured(event.node, event.host, event.links)
    return []


def joined(run: Run, event: WorkerJoined) -> list[Command]:
    """Handles a worker that joins before there is a plan."""
    return join(run, event) + start_when_gathered(run)


def join(run: Run, event: WorkerJoined) -> list[Command]:
    """Adds a worker; its node has joined when all of its workers have. A device that was lost comes back alone."""
    node = run.members.node_of(event.worker)
    comes_back = event.worker in run.members.lost_devices
    is_complete = run.members.join(event.worker, event.data_address)
    if event.zone and run.members.zones.get(node) != event.zone:
        run.members.locate(node, event.zone)
        run.plan_selector.locate(run.members.zones)
    if event.label:
        run.members.labels[node] = event.label
    if comes_back:
        run.kept.lose(event.worker)
        run.plan_selector.lack(run.members.lost_devices)
        device = event.worker % run.settings.devices_per_node
        back = DeviceJoined(node=node, device=device, live_devices=run.members.live_devices(node))
        return [JournalNode(node=node, fate=Fate.JOINED, device=device, records=(back,)), Publish(back)]
    if not is_complete or node in run.past.joined:
        return []
    if run.settings.train.numerics is Numerics.EXACT:
        run.members.try_out(node)
    run.spending.count(run.members.in_zones, run.now)
    zone, label = run.members.zones.get(node, ""), run.members.labels.get(node, "")
    record = NodeJoined(node=node, live_nodes=run.num_live, zone=zone, label=label)
    learnt = run.to_write_of_join()
    host = run.members.host_of(node)
    entry = JournalNode(
        node=node, fate=Fate.JOINED, zone=zone, label=label, host=host, records=(record,), learnt=learnt
    )
    return [entry, Publish(record)]


def joined_running(run: Run, event: WorkerJoined) -> list[Command]:
    """Handles a worker that joins while the job runs: its node is considered at the next step boundary."""
    commands = join(run, event)
    node = run.members.node_of(event.worker)
    if not run.members.is_live(node):
        return commands
    run.plan_validity.newcomers.add(node)
    return commands + (boundary.try_again(run) if run.phase is Phase.WAITING else [])


def joined_too_late(run: Run, event: WorkerJoined) -> list[Command]:
    """Stops a worker that joins after the run has ended."""
    run.members.join(event.worker, event.data_address)
    return [Send(event.worker, Stop(reason="the run is over"))]


def start_when_gathered(run: Run) -> list[Command]:
    """Takes the first plan, once there are as many nodes as the run starts on."""
    if not run.members.is_gathered:
        return []
    resume = run.settings.resume
    try:
        proposal = run.plan_selector.first(run.members.nodes, run.forecast)
    except PlanError as error:
        if run.members.gone and (run.settings.waits or run.settings.nodes_come):
            live = len(run.members.nodes)
            return [Publish(Waiting(step=run.step, live_nodes=live, reason=str(error)))]
        return end.end(run, RunStatus.EXHAUSTED if run.members.gone else RunStatus.FAILED, str(error))
    source = StateSource.CHECKPOINT if resume else StateSource.INITIAL
    return take(run, proposal, Purpose.START, source, resume.folder if resume else "")


def notice(run: Run, event: Received) -> list[Command]:
    """Handles a worker's notice that its node will go away."""
    assert isinstance(event.message, Notice)
    node = run.members.node_of(event.worker)
    return node_notice(run, NodeNotice(node, event.message.grace_s, event.message.cause))


def node_notice(run: Run, event: NodeNotice) -> list[Command]:
    """Marks a node as leaving: from the next step boundary on the job does without it, if possible."""
    is_here = run.members.is_live(event.node) or (run.phase is Phase.RETURNING and run.is_known(event.node))
    if not is_here or event.node in run.members.leaving:
        return []
    run.members.leaving[event.node] = run.now
    run.plan_validity.newcomers.discard(event.node)
    leaving = NodeLeaving(node=event.node, step=run.step, grace_s=event.grace_s, cause=event.cause)
    return [JournalNode(node=event.node, fate=Fate.LEAVING, records=(leaving,)), Publish(leaving)]


# How many nodes there are to be


def no_room(run: Run, coming: Counter[str], zones: Counter[str]) -> str | None:
    """Returns why nodes are not started now; None if they may be.

    The nodes that a run starts on are, whatever they cost. It is asked for each of thousands that join at once: it
    looks at none of the others.

    Args:
        run: the run.
        coming: how many were started in each zone, and have neither joined nor gone.
        zones: how many would be started in each.
    """
    members, away = run.members, run.away
    there = members.in_zones + _in_zones(run, away) + coming + zones
    leaving = sum(1 for node in members.leaving if members.is_live(node) or node in away)
    number = there.total() - leaving
    if number <= run.node_count.least:
        return None
    return run.node_count.refusal(run.step, number) or run.spending.over_hourly(there)


def is_coming(run: Run, node: NodeId) -> bool:
    """Returns whether a node that runs somewhere has neither joined nor gone, so that it counts as one that comes."""
    return not (run.members.is_live(node) or node in run.members.gone or node in run.past.joined)


def device_refusal(run: Run, node: NodeId, device: int) -> str | None:
    """Returns why a device of a node is not started again now; None if it may be.

    While a plan has it still, that plan takes it to hold what it lost.
    """
    if not run.members.is_live(node):
        live = ", ".join(map(str, run.members.nodes))
        return f"node {node} is not there. The nodes are {live}"
    per_node = run.settings.devices_per_node
    worker = WorkerId(node * per_node + device)
    if not 0 <= device < per_node:
        return f"node {node} has no device {device}. Its devices are numbered 0 to {per_node - 1}"
    if worker not in run.members.lost_devices:
        return f"device {device} of node {node} is there"
    if run.current is not None and worker in run.plan.workers:
        return f"device {device} of node {node} is in the plan of step {run.step} still. Ask again after that"
    return None


def wanted(run: Run) -> int:
    """Returns how many nodes the run would have if they came, within its budget; 0: as many as come."""
    wanted = run.node_count.wanted(run.step)
    if wanted is None:
        return 0
    return max(run.node_count.least, int(min(wanted, run.spending.affordable(_staying(run)))))


def _in_zones(run: Run, nodes: Iterable[NodeId]) -> Counter[str]:
    """Returns how many of these nodes are in each zone."""
    return Counter(run.members.zones.get(node, "") for node in nodes)


def _staying(run: Run) -> Counter[str]:
    """Returns how many nodes that stay are in each zone."""
    return _in_zones(run, run.members.staying)


def give_back(run: Run) -> list[Command]:
    """Gives a node back after the step in progress: one too many for the budget, or one that brings too little."""
    staying = run.members.staying
    is_ending = run.step == run.settings.train.steps or run.intent.is_stopping or run.fatal is not None
    if run.members.leaving or run.recovery is not None or is_ending or len(staying) <= run.node_count.least:
        return []
    why = run.spending.over_hourly(_staying(run)) or run.node_count.refusal(run.step, len(staying))
    is_asked = why is None and run.stands and not run.is_degraded and run.node_count.is_due(run.step, staying)
    if why is None and not is_asked:
        return []
    node = least_useful(
        staying,
        frozenset(run.plan.nodes),
        run.plan_selector.measured.speeds.known,
        lambda node: run.spending.hourly_of(_in_zones(run, [node])),
    )
    if is_asked and (why := _too_little(run, node)) is not None:
        run.node_count.gave_back(run.step, len(staying) - 1)
    return [] if why is None else node_notice(run, NodeNotice(node, 0.0, f"given back: {why}"))


def _too_little(run: Run, node: NodeId) -> str | None:
    """Returns why a node brings too little; None: it does not, or the others cannot do without it."""
    hourly = run.spending.hourly_of(_staying(run))
    share = run.spending.hourly_of(_in_zones(run, [node])) / hourly if hourly else 0.0
    at_rest = run.plan_selector.straggler_policy.resting | {node}
    try:
        without = run.plan_selector.placement(run.situation(run.holders()), at_once=False, at_rest=at_rest)
    except PlanError:
        return None
    return too_little(run.plan_selector.policy.estimated(run.plan), without, share)


def price_changed(run: Run, event: PriceChanged) -> list[Command]:
    """Counts nodes at another price from now on, and warns where the fewest that there may be cost too much."""
    if event.price == run.spending.price:
        return []
    run.spending.count(run.members.in_zones, run.now)
    run.spending.change_price(event.price)
    run.spending.count(run.members.in_zones, run.now)
    run.node_count.look_again()
    told = [Note(level="info", text=f"a node costs {event.price:g} dollars an hour from now on")]
    over = run.spending.over_hourly(Counter({"": run.node_count.least}))
    if over is not None:
        text = f"{run.node_count.least} nodes, the fewest of cluster.nodes, are kept all the same: {over}"
        told.append(Note(level="warning", text=text))
    return [Publish(note) for note in told]
