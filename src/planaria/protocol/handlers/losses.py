"""Losses: what the loss of a node leads to in each phase. (For a coordinator that has just begun: `restart`.)"""

from __future__ import annotations

from planaria.protocol.handlers import boundary, checkpoints, end, joins, salvage, step
from planaria.protocol.handlers.fencing import lose
from planaria.protocol.messages.events import Command, NodeGone
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
        return checkpoints.lose_writers(run, event.node)
    commands = lose(run, event)
    if event.node not in run.plan.nodes:
        return commands
    if run.phase is Phase.TRAINING and run.attempt.votes.is_enough(run.members.addresses):
        return commands + step.conclude(run)
    return commands + salvage.begin(run)


def lost_while_saving(run: Run, event: NodeGone) -> list[Command]:
    """Handles a loss while a checkpoint is saved: other workers write what the lost node was to write."""
    return lost_while_waiting(run, event) + boundary.ask_to_save(run)


def lost_while_waiting(run: Run, event: NodeGone) -> list[Command]:
    """Handles a loss while the job waits: nothing is interrupted."""
    return checkpoints.lose_writers(run, event.node) if event.node in run.members.gone else lose(run, event)
