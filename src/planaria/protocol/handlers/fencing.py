"""The loss of a node, or of one device of it: it is fenced, and its workers are forgotten.

What follows for the step is `losses`' to say.
"""

from __future__ import annotations

from planaria.plan.plan import NodeId
from planaria.protocol.handlers import checkpoints
from planaria.protocol.messages.events import (
    Command,
    DeviceGone,
    Evict,
    EvictDevice,
    NodeGone,
    Publish,
    Received,
)
from planaria.protocol.messages.from_worker import FaultInjected
from planaria.protocol.messages.journal import Fate, JournalDisputes, JournalNode
from planaria.protocol.messages.records import ComputedWrong, DeviceLost, NodeLost
from planaria.protocol.phases import AT_WORK
from planaria.protocol.run.run import Run
from planaria.protocol.step.agreement import Held
from planaria.protocol.step.recovery import OpenRecovery

COMPUTED_WRONG = "computed wrong"
"""Cause of the loss of a node whose bits are not those of the others."""


def lose_wrong(run: Run, node: NodeId, held: Held, layers: tuple[int, ...]) -> list[Command]:
    """Fences a node that computed wrong; its host is remembered."""
    host = run.members.host_of(node)
    run.members.wrong_hosts[host] += 1
    wrong = ComputedWrong(
        node=node, step=run.step, held=held.value, layers=layers, host=host, times=run.members.wrong_hosts[host]
    )
    return [*lose(run, NodeGone(node, COMPUTED_WRONG), wrong), Publish(wrong)]


def disputed(run: Run) -> list[Command]:
    """Returns what is to be written of who may be wrong, once it is written that what told of it is done again.

    A coordinator that knew of a dispute, and not of that, would hold what was told against itself.
    """
    disputes = run.disputes.to_write()
    return [] if disputes is None else [JournalDisputes(disputes=disputes)]


def lose(run: Run, event: NodeGone, *why: ComputedWrong) -> list[Command]:
    """Fences a node and forgets its workers; `why`: records of what led to it."""
    if event.ran_out is not None:
        event = run.shortages.note(event, run.current, run.step)
    run.failures.lost(run.step, run.now)
    run.transition_times.stop()
    run.plan_validity.lost(event.node)
    run.plan_selector.forget(event.node, run.step)
    for worker in run.members.lose(event.node):
        run.attempt.forget(worker)
    run.plan_selector.lack(run.members.lost_devices)
    run.spending.count(run.members.in_zones, run.now)
    run.returning.forget(run.members.workers_of(event.node))
    given_up = checkpoints.lose_writers(run, run.members.workers_of(event.node))
    strikes = run.needs(event.node)
    detect_ms = _count(run, event.node, event.cause, strikes=strikes)
    lost = NodeLost(
        node=event.node,
        step=run.step,
        cause=event.cause,
        live_nodes=run.num_live,
        detect_ms=detect_ms,
    )
    entry = JournalNode(
        node=event.node,
        fate=Fate.LOST,
        cause=event.cause,
        strikes=strikes,
        records=(*why, lost),
        learnt=run.to_write(),
    )
    return [entry, Evict(event.node), Publish(lost), *given_up]


def lose_device(run: Run, event: DeviceGone) -> list[Command]:
    """Fences a device and forgets its worker. Its node goes on with the others."""
    if event.ran_out is not None:
        event = noted(run, event)
    worker, node = event.worker, run.members.node_of(event.worker)
    device = worker % run.settings.devices_per_node
    strikes = run.phase in AT_WORK and worker in run.plan.workers
    run.transition_times.stop()
    run.plan_validity.lost_device()
    run.members.lose_device(worker)
    run.plan_selector.lack(run.members.lost_devices)
    run.attempt.forget(worker)
    given_up = checkpoints.lose_writers(run, [worker])
    detect_ms = _count(run, node, event.cause, device, strikes=strikes)
    lost = DeviceLost(
        node=node,
        device=device,
        step=run.step,
        cause=event.cause,
        live_devices=run.members.live_devices(node),
        detect_ms=detect_ms,
    )
    entry = JournalNode(
        node=node,
        fate=Fate.LOST,
        cause=event.cause,
        strikes=strikes,
        device=device,
        records=(lost,),
        learnt=run.to_write(),
    )
    return [entry, EvictDevice(worker), Publish(lost), *given_up]


def noted(run: Run, event: DeviceGone) -> DeviceGone:
    """Notes a shortage of memory; returns the event as of an ordinary loss, its cause in full."""
    node, is_alone = run.members.node_of(event.worker), run.members.goes_on_without(event.worker)
    as_of_node = NodeGone(node, event.cause, event.ran_out)
    return DeviceGone(event.worker, run.shortages.note(as_of_node, run.current, run.step, is_alone=is_alone).cause)


def _count(run: Run, node: NodeId, cause: str, device: int | None = None, *, strikes: bool) -> float | None:
    """Counts a loss in the recovery under way, or begins one if it strikes the job; returns how many milliseconds
    passed until it was detected, if that is known."""
    fault_at = run.members.fault_of(node)
    detect_ms = None if fault_at is None else max(0.0, (run.now - fault_at) * 1e3)
    if run.recovery is None and strikes:
        began = run.now if fault_at is None else fault_at
        run.recovery = OpenRecovery(step=run.step, policy=run.plan_selector.policy_switch.name, began=began)
    if run.recovery is not None:
        run.recovery.add_loss(node, cause, detect_ms, device)
    return detect_ms


def fault_injected(run: Run, event: Received) -> list[Command]:
    """Records when an injected fault really began; only measurements use it."""
    assert isinstance(event.message, FaultInjected)
    run.members.note_fault(event.worker, event.message.at_s)
    return []
