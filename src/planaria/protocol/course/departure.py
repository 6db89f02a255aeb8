"""Departures: what the loss of a node leads to in each phase. (Of a coordinator that has just begun: `restart`.)"""

from __future__ import annotations

from planaria.protocol.course import arrival, boundary, checkpoint, end, salvage, step
from planaria.protocol.course.loss import lose
from planaria.protocol.course.run import Run
from planaria.protocol.events import Command, NodeGone
from planaria.protocol.phases import Phase
from planaria.protocol.records import RunStatus


def lost_while_gathering(run: Run, event: NodeGone) -> list[Command]:
    """Fewer are waited for."""
    if event.node in run.members.gone:
        return []
    lost = lose(run, event)
    if run.fatal is not None:
        return lost + end.end(run, RunStatus.FAILED, run.fatal)
    return lost + arrival.start_when_gathered(run)


def lost_in_step(run: Run, event: NodeGone) -> list[Command]:
    """The step may be done all the same; else what is left of it is salvaged."""
    if event.node in run.members.gone:
        return checkpoint.lose_writers(run, event.node)
    commands = lose(run, event)
    if event.node not in run.plan.nodes:
        return commands
    if run.phase is Phase.TRAINING and run.attempt.votes.is_enough(run.members.addresses):
        return commands + step.commit(run)
    return commands + salvage.begin(run)


def lost_while_saving(run: Run, event: NodeGone) -> list[Command]:
    """Others write what it was to write."""
    return lost_while_waiting(run, event) + boundary.ask_to_save(run)


def lost_while_waiting(run: Run, event: NodeGone) -> list[Command]:
    """There is nothing that it interrupts."""
    return checkpoint.lose_writers(run, event.node) if event.node in run.members.gone else lose(run, event)
