"""A loss inside a step: what it broke is halted and asked; once all workers have reported, the rest is planned."""

from __future__ import annotations

from planaria.plan.plan import PlanError
from planaria.plan.thresholds import ANEW_CLEARLY, LONG_REST
from planaria.planner.finish_step.salvage import to_halt
from planaria.policy.interface import Candidate
from planaria.protocol.handlers import boundary
from planaria.protocol.handlers.adopt_plan import take
from planaria.protocol.handlers.restore import restore
from planaria.protocol.messages.events import Command, Publish, Received, Send
from planaria.protocol.messages.from_worker import Report
from planaria.protocol.messages.records import Note
from planaria.protocol.messages.to_worker import Halt, StateSource
from planaria.protocol.phases import Phase, Purpose
from planaria.protocol.run.run import Run
from planaria.protocol.step.retained_replicas import Holders


def begin(run: Run) -> list[Command]:
    """Halts what the loss broke; the rest is decided once all halted workers have reported."""
    run.phase = Phase.SALVAGING
    if run.plan.evaluation is None:
        run.attempt.is_void |= not run.plan_selector.finishes(run.situation(run.holders()))
    broken = to_halt(run.plan.of_pass, run.members.addresses, run.attempt.unready)
    if run.attempt.is_void or run.fatal is not None:
        broken = frozenset(run.plan.workers) & run.members.addresses.keys()
    halt = Halt(generation=run.plan.generation, step=run.step)
    commands: list[Command] = [Send(worker, halt) for worker in run.attempt.salvage.halt(broken)]
    return commands + _decide_when_reported(run)


def reported(run: Run, event: Received) -> list[Command]:
    """Records the report of a halted worker; once all are in, plans the rest of the step."""
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
    if run.fatal is not None:
        return boundary.end_early(run)
    holders = run.holders()
    if without := run.without_replica(holders):
        return restore(run, without)
    if run.attempt.is_void:
        return boundary.reconfigure(run, holders)
    computing = (w for w in run.plan.workers if w in run.members.addresses and w not in salvage.halted)
    if next(computing, None) is None and salvage.is_untouched:
        return boundary.reconfigure(run, holders)
    return _finish_step(run, holders)


def _finish_step(run: Run, holders: Holders) -> list[Command]:
    salvage = run.attempt.salvage
    proposal = run.plan_selector.finish_step(
        run.plan,
        live=run.members.workers,
        halted=salvage.halted,
        counted=salvage.counted(run.plan.num_layers),
        holders=holders,
        forecast=run.situation(holders).forecast,
        so_far=run.attempt.so_far(run.plan, run.now, run.step_times.stretch),
    )
    if proposal is None:
        run.attempt.is_void = True
        return begin(run)
    if run.plan.evaluation is None and (sooner := _anew_s(run, proposal, holders)) is not None:
        run.attempt.is_void = True
        rest_s, anew_s = sooner
        text = f"step {run.step} is begun anew ({anew_s:.3g} s), which is quicker than to finish it ({rest_s:.3g} s)"
        return [Publish(Note(level="info", text=text)), *begin(run)]
    if run.recovery is not None:
        run.recovery.add_rerun(proposal.plan)
    return take(run, proposal, Purpose.FINISH_STEP, StateSource.LIVE)


def _anew_s(run: Run, proposal: Candidate, holders: Holders) -> tuple[float, float] | None:
    """Returns seconds to finish the step, and to begin it anew on another placement where that is clearly quicker.

    That placement follows in any case, so what the change to it takes counts for neither. To look for it takes time
    that a short rest does not. Where workers share cores it never is: nothing idles then beside those who finish, and
    what is done need not be done again.
    """
    if proposal.rest_s is None or run.settings.shares_cores:
        return None
    stretch, usual_s = run.step_times.stretch, run.attempt.usual_s or run.step_times.step_s
    rest_s = proposal.rest_s * stretch
    if rest_s < LONG_REST * usual_s * stretch + (run.step_times.decision_s or 0.0):
        return None
    try:
        anew = run.plan_selector.placement(run.situation(holders), at_once=True)
    except PlanError:
        return None
    if anew.restores or anew.dropped != proposal.dropped:
        return None
    anew_s = (anew.beside or anew).step_time_s * stretch
    return (rest_s, anew_s) if anew_s < ANEW_CLEARLY * rest_s else None
