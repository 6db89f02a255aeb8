"""Losses: what the loss of a node leads to in each phase. (For a coordinator that has just begun: `restart`.)

And of a device alone, whose node goes on with the others.
"""

from __future__ import annotations

from planaria.protocol.handlers import boundary, checkpoints, end, joins, salvage, step
from planaria.protocol.handlers.fencing import lose, lose_device
from planaria.protocol.messages.events import Command, DeviceGone, NodeGone
from planaria.protocol.messages.records import RunStatus
from planaria.protocol.phases import Phase
from planaria.protocol.run.run import Run


def lost_while_gathering(run: Run, event: NodeGone) -> list[Command]:
    """Handles a loss while the workers gather: the run starts on fewer nodes."""
    if event.node in run.members.gone:
        return []
    lost = lose(run, event)
    if run.fatal is not None:
        return lost + end.end(run, RunStatus.FAILED, run.fatal)
    return lost + joins.start_when_gathered(run)


def lost_in_step(run: Run, event: NodeGone) -> list[Command]:
    """Handles a loss inside a step: what remains of the step is salvaged, unless it can be committed all the same."""
    if event.node in run.members.gone:
        return checkpoints.lose_writers(run, run.members.workers_of(event.node))
    commands = lose(run, event)
    if event.node not in run.plan.nodes:
        return commands
    return commands + _go_on(run)


def _go_on(run: Run) -> list[Command]:
    """Commits the step that a loss struck where nothing of it was lost; else what remains of it is salvaged."""
    if run.phase is Phase.TRAINING and run.attempt.votes.is_enough(run.members.addresses):
        return step.conclude(run)
    return salvage.begin(run)


def lost_while_saving(run: Run, event: NodeGone) -> list[Command]:
    """Handles a loss while a checkpoint is saved: other workers write what the lost node was to write."""
    return lost_while_waiting(run, event) + boundary.ask_to_save(run)


def lost_while_waiting(run: Run, event: NodeGone) -> list[Command]:
    """Handles a loss while the job waits: nothing is interrupted."""
    if event.node in run.members.gone:
        return checkpoints.lose_writers(run, run.members.workers_of(event.node))
    return lose(run, event)


def device_lost(run: Run, event: DeviceGone) -> list[Command]:
    """Handles the loss of a device alone, in a step, while a checkpoint is saved, or while the job waits."""
    commands = lose_device(run, event)
    if run.phase is Phase.SAVING:
        return commands + boundary.ask_to_save(run)
    if run.phase is Phase.WAITING or event.worker not in run.plan.workers:
        return commands
    return commands + _go_on(run)
