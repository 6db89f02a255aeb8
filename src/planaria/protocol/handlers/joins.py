"""Arrivals: workers that join, until there is a first plan and after it; and nodes that announce their departure."""

from __future__ import annotations

from planaria.plan.plan import PlanError
from planaria.protocol.handlers import boundary, end
from planaria.protocol.handlers.adopt_plan import take
from planaria.protocol.messages.events import Command, LinksMeasured, NodeNotice, Publish, Received, Send, WorkerJoined
from planaria.protocol.messages.journal import Fate, JournalNode
from planaria.protocol.messages.records import NodeJoined, NodeLeaving, RunStatus, Waiting
from planaria.protocol.messages.worker import Notice, StateSource, Stop
from planaria.protocol.phases import Phase, Purpose
from planaria.protocol.run.run import Run


def links_measured(run: Run, event: LinksMeasured) -> list[Command]:
    """Records the links that a node's host measured. The node joins next, and that is reason for another plan."""
    run.plan_selector.links_measured(event.node, event.host, event.links)
    return []


def joined(run: Run, event: WorkerJoined) -> list[Command]:
    """Handles a worker that joins before there is a plan."""
    return join(run, event) + start_when_gathered(run)


def join(run: Run, event: WorkerJoined) -> list[Command]:
    """Adds a worker; its node has joined when all of its workers have."""
    node = run.members.node_of(event.worker)
    is_complete = run.members.join(event.worker, event.data_address)
    if event.zone and run.members.zones.get(node) != event.zone:
        run.members.zones[node] = event.zone
        run.plan_selector.locate(run.members.zones)
    if not is_complete or node in run.past.joined:
        return []
    run.count_cost()
    zone = run.members.zones.get(node, "")
    record = NodeJoined(node=node, live_nodes=len(run.members.nodes), zone=zone)
    entry = JournalNode(node=node, fate=Fate.JOINED, zone=zone, records=(record,), learnt=run.to_write())
    return [entry, Publish(record)]


def joined_running(run: Run, event: WorkerJoined) -> list[Command]:
    """Handles a worker that joins while the job runs: its node is considered at the next step boundary."""
    commands = join(run, event)
    node = run.members.node_of(event.worker)
    if node not in run.members.nodes:
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
    is_here = event.node in run.members.nodes or (run.phase is Phase.RETURNING and run.is_known(event.node))
    if not is_here or event.node in run.members.leaving:
        return []
    run.members.leaving[event.node] = run.now
    run.plan_validity.newcomers.discard(event.node)
    leaving = NodeLeaving(node=event.node, step=run.step, grace_s=event.grace_s, cause=event.cause)
    return [JournalNode(node=event.node, fate=Fate.LEAVING, records=(leaving,)), Publish(leaving)]
