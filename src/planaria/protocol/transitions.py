"""The table of transitions: which handler takes an event in a phase. What is absent is illegal.

Here are also the events that may turn out to be the loss of a node, whatever that means in the phase: a worker that ran
out of memory, messages that arrive damaged again and again, a worker that comes back with a plan that nobody has.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from planaria.protocol.handlers import (
    boundary,
    end,
    fencing,
    joins,
    losses,
    policy,
    precompute,
    restart,
    salvage,
    saved,
    step,
)
from planaria.protocol.messages.events import Command, DeviceGone, Event, NodeGone, Publish, RanOut, Received, Send
from planaria.protocol.messages.from_worker import Damaged, Failed, OutOfMemory, Returned
from planaria.protocol.messages.records import Note, RunStatus
from planaria.protocol.phases import ALIVE, AT_WORK, Phase, ProtocolError
from planaria.protocol.run.run import Run
from planaria.protocol.step.damage import what

Handler = Callable[[Run, Any], list[Command]]


def handle(run: Run, event: Event, now: float) -> list[Command]:
    """Changes the run by one event at monotonic time `now` (seconds); returns commands to carry out in order.

    Raises:
        ProtocolError: the table has no entry for this phase and event.
    """
    name = type(event.message).__name__ if isinstance(event, Received) else type(event).__name__
    handler = TRANSITIONS.get((run.phase, name))
    if handler is None:
        raise ProtocolError(f"{name} is illegal in phase {run.phase.value}: {event!r:.300}. Recent: {run.recent}")
    before, run.now = run.phase, now
    commands = handler(run, event)
    run.history.append((before, name, run.phase))
    return commands


def ignore(run: Run, event: Event) -> list[Command]:
    """Ignores an event that may legally cross a decision on its way."""
    return []


def _gone(run: Run, event: NodeGone) -> list[Command]:
    return TRANSITIONS[run.phase, "NodeGone"](run, event)


def device_gone(run: Run, event: DeviceGone) -> list[Command]:
    """Handles the end of a worker whose node lives: the loss of a device, where another of its stage goes on, and of
    the node where none does, or where there is no plan yet."""
    if event.worker in run.members.lost_devices:
        return []
    if run.phase in (*AT_WORK, Phase.WAITING) and run.members.goes_on_without(event.worker):
        return losses.device_lost(run, event)
    return _gone(run, NodeGone(run.members.node_of(event.worker), event.cause, event.ran_out))


def returned_late(run: Run, event: Received) -> list[Command]:
    """Handles a late `Returned`: of a worker that begins, or of one whose plan was lost with a part of the journal."""
    assert isinstance(event.message, Returned)
    known = run.plan_selector.generation if run.current is None else run.plan.generation
    node = run.members.node_of(event.worker)
    if event.message.generation <= known or node in run.members.gone:
        return []
    return _gone(run, NodeGone(node, "it came back too late"))


def out_of_memory(run: Run, event: Received) -> list[Command]:
    """Loses a device whose worker ran out of memory; a job that must end because of it may save first."""
    told, node = event.message, run.members.node_of(event.worker)
    assert isinstance(told, OutOfMemory)
    ran_out = RanOut(worker=event.worker, where=told.where, held_bytes=told.held_bytes, wanted_bytes=told.wanted_bytes)
    gone = DeviceGone(event.worker, "out of memory", ran_out)
    if told.holds and run.phase in (Phase.TRAINING, Phase.SALVAGING) and node in run.plan.nodes:
        gone = fencing.noted(run, gone)
        if run.fatal is not None:
            text = f"node {node} does no more: {gone.cause}"
            return [Publish(Note(level="warning", text=text)), *salvage.begin(run)]
    return device_gone(run, gone)


def failed(run: Run, event: Received) -> list[Command]:
    """Ends the run because the user's own code raised and would again; the state is saved if it is held somewhere."""
    failure, node = event.message, run.members.node_of(event.worker)
    assert isinstance(failure, Failed)
    text = f"{failure.where.rstrip('.')}: {failure.text}"
    if run.phase not in AT_WORK:
        return end.end(run, RunStatus.FAILED, text)
    if node not in run.plan.nodes:  # the others go on
        return _gone(run, NodeGone(node, text))
    run.intent.failure = run.intent.failure or text
    if run.phase is Phase.SAVING:
        run.intent.ending = run.intent.ending or (RunStatus.FAILED, text)
    if not failure.holds and node not in run.members.gone:
        return _gone(run, NodeGone(node, "its worker failed"))
    return [] if run.phase is Phase.SAVING else salvage.begin(run)


def damaged(run: Run, event: Received) -> list[Command]:
    """Has damaged state sent again; other damaged messages are computed again, with the whole step."""
    told, target = event.message, event.worker
    assert isinstance(told, Damaged)
    if (told.generation, told.step) != (run.plan.generation, run.step) or target not in run.members.addresses:
        return []
    text = f"{what(run.plan, told)} arrived damaged at worker {target} from worker {told.source}"
    is_state = told.kind == "state" and run.phase is Phase.TRAINING
    again = run.damages.resend(run.plan, target, told, run.members.addresses) if is_state else None
    if (again is None) if is_state else run.damages.is_too_often(target, told):
        return _gone(run, NodeGone(run.members.node_of(target), f"{text}, again and again"))
    if again is not None:
        source = again.transfer.source
        note = Note(level="warning", text=f"{text}; worker {source} sends it again")
        return [Publish(note), Send(target, again), Send(source, again)]
    run.attempt.is_void = True
    note = Note(level="warning", text=f"{text}; step {run.step} is begun anew")
    return [Publish(note), *salvage.begin(run)]


def heard_later(run: Run, event: Received) -> list[Command]:
    """Keeps a complaint until all workers are back."""
    run.returning.complaints.append(event)
    return []


def _then_hear(handler: Handler) -> Handler:
    """Wraps a handler so that complaints kept while workers were awaited are heard once all are back."""

    @functools.wraps(handler)
    def heard(run: Run, event: Any) -> list[Command]:
        commands = handler(run, event)
        while run.phase is not Phase.RETURNING and run.returning.complaints:
            complaint = run.returning.complaints.pop(0)
            commands += TRANSITIONS[run.phase, type(complaint.message).__name__](run, complaint)
        return commands

    return heard


TRANSITIONS: Mapping[tuple[Phase, str], Handler] = {
    (Phase.RETURNING, "Restarted"): _then_hear(restart.restarted),
    (Phase.RETURNING, "WorkerJoined"): _then_hear(restart.came_back),
    (Phase.RETURNING, "Returned"): _then_hear(restart.returned),
    (Phase.RETURNING, "NodeGone"): _then_hear(restart.lost_while_returning),
    (Phase.RETURNING, "Vote"): restart.voted_while_returning,
    (Phase.RETURNING, "Ready"): restart.ready_while_returning,
    # Answers to the coordinator before.
    **{(Phase.RETURNING, name): ignore for name in ("Report", "Saved", "NotSaved")},
    **{(Phase.RETURNING, name): heard_later for name in ("Damaged", "Failed")},
    **{
        (phase, "Returned"): returned_late
        for phase in (Phase.GATHERING, Phase.TRAINING, Phase.SALVAGING, Phase.SAVING, Phase.WAITING)
    },
    (Phase.GATHERING, "WorkerJoined"): joins.joined,
    (Phase.GATHERING, "NodeGone"): losses.lost_while_gathering,
    **{(phase, "WorkerJoined"): joins.joined_running for phase in (*AT_WORK, Phase.WAITING)},
    (Phase.WAITING, "NodeGone"): losses.lost_while_waiting,
    (Phase.TRAINING, "NodeGone"): losses.lost_in_step,
    (Phase.SALVAGING, "NodeGone"): losses.lost_in_step,
    (Phase.SAVING, "NodeGone"): losses.lost_while_saving,
    (Phase.TRAINING, "Ready"): step.ready,
    (Phase.SALVAGING, "Ready"): step.ready,
    (Phase.SAVING, "Ready"): step.ready,
    (Phase.TRAINING, "Vote"): step.voted,
    (Phase.TRAINING, "AwaitsSamples"): salvage.awaits_samples,
    **{(phase, "AwaitsSamples"): ignore for phase in Phase if phase is not Phase.TRAINING},
    (Phase.TRAINING, "Damaged"): damaged,
    (Phase.SALVAGING, "Damaged"): damaged,
    **{(phase, "Damaged"): ignore for phase in (Phase.GATHERING, Phase.SAVING, Phase.WAITING)},
    (Phase.SALVAGING, "Report"): salvage.reported,
    **{(phase, "Saved"): saved.saved for phase in (*AT_WORK, Phase.WAITING)},
    **{(phase, "NotSaved"): saved.not_saved for phase in (*AT_WORK, Phase.WAITING)},
    **{(phase, "ManifestWritten"): saved.manifest_written for phase in (*AT_WORK, Phase.WAITING)},
    **{(phase, "ManifestFailed"): saved.manifest_failed for phase in (*AT_WORK, Phase.WAITING)},
    # A vote that crossed a halt or a new plan, a report that a later plan overtook: old news, not errors.
    (Phase.SALVAGING, "Vote"): ignore,
    (Phase.SAVING, "Vote"): ignore,
    (Phase.TRAINING, "Report"): ignore,
    (Phase.SAVING, "Report"): ignore,
    **{(Phase.WAITING, name): ignore for name in ("Ready", "Vote", "Report")},
    **{(phase, "LinksMeasured"): joins.links_measured for phase in Phase},
    **{(phase, "DeviceGone"): device_gone for phase in ALIVE},
    **{(phase, "Notice"): joins.notice for phase in ALIVE},
    **{(phase, "NodeNotice"): joins.node_notice for phase in ALIVE},
    **{(phase, "StopRequested"): end.stop_requested for phase in ALIVE},
    **{(phase, "PolicyRequested"): policy.policy_requested for phase in ALIVE},
    **{(phase, "PriceChanged"): joins.price_changed for phase in ALIVE},
    **{(phase, "FaultInjected"): fencing.fault_injected for phase in ALIVE},
    **{(phase, "OutOfMemory"): out_of_memory for phase in ALIVE},
    **{(phase, "DecisionTook"): end.decision_took for phase in ALIVE},
    (Phase.TRAINING, "Idle"): precompute.think,
    **{(phase, "Idle"): ignore for phase in Phase if phase is not Phase.TRAINING},
    **{(phase, "PieceTook"): precompute.took for phase in Phase},
    **{(phase, "Failed"): failed for phase in ALIVE if phase is not Phase.RETURNING},
    **{(phase, "SaveRequested"): boundary.save_requested for phase in ALIVE},
    **{(phase, "TimerDue"): ignore for phase in Phase if phase is not Phase.SAVING},
    (Phase.SAVING, "TimerDue"): boundary.save_again,
    (Phase.ENDED, "Restarted"): restart.restarted,
    (Phase.ENDED, "WorkerJoined"): joins.joined_too_late,
    **{
        (Phase.ENDED, name): ignore
        for name in (
            "NodeGone",
            "DeviceGone",
            "Returned",
            "Ready",
            "Vote",
            "Damaged",
            "Report",
            "Saved",
            "NotSaved",
            "ManifestWritten",
            "ManifestFailed",
            "StopRequested",
            "SaveRequested",
            "PolicyRequested",
            "PriceChanged",
            "FaultInjected",
            "OutOfMemory",
            "DecisionTook",
            "Failed",
            "Notice",
            "NodeNotice",
        )
    },
}
