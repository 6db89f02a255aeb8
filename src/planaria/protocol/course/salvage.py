"""A loss inside a step: what it broke is halted and asked; once all have reported, the rest of the step is planned."""

from __future__ import annotations

from planaria.plan.salvage import to_halt
from planaria.protocol.course import boundary
from planaria.protocol.course.restore import restore
from planaria.protocol.course.run import Run
from planaria.protocol.course.take import take
from planaria.protocol.events import Command, Received, Send
from planaria.protocol.kept import Holders
from planaria.protocol.messages import Halt, Report, StateSource
from planaria.protocol.phases import Phase, Purpose


def begin(run: Run) -> list[Command]:
    """Halt what the loss broke; decide once all of it has reported."""
    run.phase = Phase.SALVAGING
    run.attempt.is_void |= not run.placing.finishes(run.plan, run.members.addresses)
    broken = to_halt(run.plan, run.members.addresses, run.attempt.unready)
    if run.attempt.is_void or run.shortages.fatal is not None:
        broken = frozenset(run.plan.workers) & run.members.addresses.keys()
    halt = Halt(generation=run.plan.generation, step=run.step)
    commands: list[Command] = [Send(worker, halt) for worker in run.attempt.salvage.halt(broken)]
    return commands + _decide_when_reported(run)


def reported(run: Run, event: Received) -> list[Command]:
    """One of those that were halted."""
    report = event.message
    assert isinstance(report, Report)
    if (report.generation, report.step) != (run.plan.generation, run.step):
        return []
    run.attempt.salvage.report(event.worker, report)
    return _decide_when_reported(run)


def _decide_when_reported(run: Run) -> list[Command]:
    salvage = run.attempt.salvage
    if not salvage.is_complete:
        return []
    if run.shortages.fatal is not None:
        return boundary.end_short_of_memory(run)
    holders = run.holders()
    if without := run.without_replica(holders):
        return restore(run, without)
    if run.attempt.is_void:
        return boundary.reconfigure(run, holders)
    computing = [w for w in run.plan.workers if w in run.members.addresses and w not in salvage.halted]
    if not computing and salvage.is_untouched:
        return boundary.reconfigure(run, holders)
    return _finish_step(run, holders)


def _finish_step(run: Run, holders: Holders) -> list[Command]:
    salvage = run.attempt.salvage
    proposal = run.placing.finish_step(
        run.plan,
        live=run.members.workers,
        halted=salvage.halted,
        counted=salvage.counted(run.plan.num_layers),
        holders=holders,
    )
    if proposal is None:
        run.attempt.is_void = True
        return begin(run)
    if run.recovery is not None:
        run.recovery.add_rerun(proposal.plan)
    return take(run, proposal, Purpose.FINISH_STEP, StateSource.LIVE)
