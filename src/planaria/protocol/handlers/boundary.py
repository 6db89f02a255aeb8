"""A step boundary: all workers wait after a commit, and the run goes on, gets another plan, is saved, waits or ends.

What is decided here is which of these; the plans themselves are chosen by `planaria.protocol.planning.plan_selection`.
"""

from __future__ import annotations

from planaria.plan.plan import PlanError
from planaria.protocol.handlers import checkpoints, end
from planaria.protocol.handlers.adopt_plan import release, same_again, take
from planaria.protocol.handlers.restore import go_back, restore, wait
from planaria.protocol.messages.events import Command, Discard, Publish, SaveRequested, SetTimer, TimerDue
from planaria.protocol.messages.records import Note, RunStatus, lost_in_words
from planaria.protocol.messages.to_worker import StateSource
from planaria.protocol.phases import Phase, Purpose
from planaria.protocol.planning.memory_limits import WouldRunOut
from planaria.protocol.planning.plan_selection import Choice
from planaria.protocol.run.run import Run
from planaria.protocol.step.checkpoint import NobodyHolds
from planaria.protocol.step.retained_replicas import Holders
from planaria.protocol.thresholds import SAVE_AGAIN_S


def after_commit(run: Run, committed: int) -> list[Command]:
    """Decides what follows a commit or the evaluation after it: an evaluation, the end of the run, or the next step."""
    if run.evaluations.is_due(committed) and run.fatal is None and not run.intent.is_stopping:
        return _evaluate(run)
    if (reached := run.evaluations.reached(committed)) is not None:
        return save_then_end(run, RunStatus.COMPLETED, reached)
    if committed == run.settings.train.steps:
        return save_then_end(run, RunStatus.COMPLETED, "")
    if run.fatal is not None:
        return end_early(run)
    if run.intent.is_stopping:
        return save_then_end(run, RunStatus.STOPPED, end.STOPPED_BY_USER)
    if (over := run.over_budget) is not None:
        return save_then_end(run, RunStatus.EXHAUSTED, over)
    return go_on(run)


def _evaluate(run: Run) -> list[Command]:
    """Has the state evaluated under the plan of the next step; after the last step the one in force will do."""
    is_last = run.step > run.settings.train.steps
    if is_last and run.plan_validity.has_lost_nobody(frozenset(run.members.nodes)):
        return same_again(run)
    return go_on(run)


def go_on(run: Run) -> list[Command]:
    """Begins the step with the same plan if it is still valid, else with a new one.

    A recovery is over with that, and told when it is known how long the decision took (`end.decision_took`).
    """
    if run.goes_on(run.step):
        return same_again(run)
    holders = run.holders()
    if without := run.without_replica(holders):
        return restore(run, without)
    if run.plan_validity.has_lost_nobody(frozenset(run.members.nodes)):
        return _hand_over(run, holders)
    return reconfigure(run, holders)


def try_again(run: Run) -> list[Command]:
    """Tries to go on after a node joined while the job waited for one."""
    holders = run.holders()
    if without := run.without_replica(holders):
        return restore(run, without)
    return reconfigure(run, holders)


# Another plan


def reconfigure(run: Run, holders: Holders) -> list[Command]:
    """Makes a new placement for a step that has not begun, or ends the run when too few nodes are left."""
    if run.fatal is not None:
        return end_early(run)
    try:
        proposal = run.plan_selector.placement(run.situation(holders), at_once=True)
    except WouldRunOut as error:
        return _exhausted(run, str(error), RunStatus.FAILED)
    except PlanError as error:
        return _exhausted(run, str(error))
    if proposal.restores:
        known = run.recovery
        lost = sorted(set(run.plan.nodes) & run.members.gone if known is None else known.lost)
        return go_back(run, proposal, f"{lost_in_words(lost, () if known is None else known.lost_devices)} lost")
    if run.recovery is not None:
        run.recovery.add_reconfiguration(proposal)
        if run.attempt.is_void:
            run.recovery.add_rerun(proposal.plan)
    beside = run.plan_selector.step_beside(proposal)
    purpose = Purpose.RECONFIGURE if beside is None else Purpose.WARM_UP
    commands = take(run, beside or proposal, purpose, StateSource.LIVE)
    if run.attempt.unready:
        return commands  # until state has moved, those that leave may have the only other replica
    return [*commands, *release(run)]


def _hand_over(run: Run, holders: Holders) -> list[Command]:
    """Chooses the next plan when no node is lost, but nodes joined, will leave or changed speed, or state is left to
    move beside steps: less each time."""
    steps_left = max(1, run.settings.train.steps - run.step + 1)
    stands = run.stands and not run.is_degraded
    validity = run.plan_validity
    most_bytes = validity.left_bytes if validity.is_warming and not validity.newcomers else None
    choice = run.plan_selector.beside(
        run.situation(holders), stands=stands, steps_left=steps_left, most_bytes=most_bytes
    )
    news: list[Command] = [Publish(Note(level="info", text=choice.told))] if choice.told else []
    return news + _change_over(run, holders, choice)


def _change_over(run: Run, holders: Holders, choice: Choice) -> list[Command]:
    """Carries out the choice: keeps the plan in force, moves state beside a step, or takes another plan."""
    if choice.purpose is Purpose.GO_ON and run.plan_validity.is_warming:
        return reconfigure(run, holders)  # without what was to be warmed up
    if choice.purpose is Purpose.GO_ON:
        run.plan_validity.keep(run.members.leaving.keys())
        measured = end.close_timing(run) if choice.is_second_look else []
        if choice.is_second_look:
            estimated = run.plan_selector.policy.estimated(run.plan)
            run.step_times.expect(estimated.step_time_s, estimated.longest_s)
        return [*measured, *same_again(run)]
    run.plan_validity.newcomers.clear()
    if choice.proposal is None:
        return reconfigure(run, holders)
    return take(run, choice.proposal, choice.purpose, StateSource.LIVE)


# Too few nodes, or too little memory


def _exhausted(run: Run, reason: str, status: RunStatus = RunStatus.EXHAUSTED) -> list[Command]:
    if run.step > run.settings.train.steps:  # nothing is left but to evaluate
        return save_then_end(run, RunStatus.COMPLETED, f"step {run.step - 1} is not evaluated: {reason}")
    if not run.settings.waits:
        return save_then_end(run, status, reason)
    run.intent.waiting = reason
    return [*end.close_recovery(run), *_save(run)]


def end_early(run: Run) -> list[Command]:
    """Ends a run that cannot go on: the state before the step in progress is saved first."""
    assert run.fatal is not None
    return _end_before_step(run, RunStatus.FAILED, run.fatal)


def stop_early(run: Run) -> list[Command]:
    """Ends a run that the user stops, without the step in progress: the state before it is saved first."""
    return _end_before_step(run, RunStatus.STOPPED, end.STOPPED_BY_USER)


def _end_before_step(run: Run, status: RunStatus, message: str) -> list[Command]:
    if run.step == 1:
        return end.end(run, status, message)  # there is nothing to save
    return save_then_end(run, status, message)


# Saving while everybody waits


def save_then_end(run: Run, status: RunStatus, message: str) -> list[Command]:
    """Ends the run with the state after the last committed step on disk, if that is possible."""
    run.intent.ending = (status, message)
    if run.intent.discards and not _is_saved(run):
        return [*end.close_recovery(run), *end.unsaved(run)]
    return [*end.close_recovery(run), *_save(run)]


def _save(run: Run) -> list[Command]:
    """Orders the state after the last committed step to be saved, each group by one holder, and waits for it."""
    under_way = run.checkpoints.under_way
    if _is_saved(run) and not run.checkpoints.is_wished:
        return after_saving(run)
    run.phase = Phase.SAVING
    if under_way is None or under_way.step != run.step - 1:
        return _order(run)
    return ask_to_save(run)


def _is_saved(run: Run) -> bool:
    """Returns whether the state after the last committed step is on disk."""
    last = run.checkpoints.last
    return last is not None and last.step == run.step - 1


def _order(run: Run) -> list[Command]:
    """Orders a new checkpoint that all workers wait for."""
    if run.checkpoints.under_way is not None:
        run.checkpoints.give_up("it is written anew")
    run.checkpoints.begin(run.step - 1, len(run.plan.groups), run.exponents, run.now, run.counts.dropped)
    return ask_to_save(run)


def ask_to_save(run: Run) -> list[Command]:
    """Orders the parts of the checkpoint that all wait for and that no worker writes."""
    if run.checkpoints.under_way is None:  # it is to be tried again; now is as good
        return _order(run)
    try:
        return checkpoints.order_rest(run)
    except NobodyHolds as lost:
        return could_not_save(run, f"no replica of parameter group {lost.group} is left")


def could_not_save(run: Run, why: str) -> list[Command]:
    """Goes on after a failed save for which all waited; the reason is told. A run that ends with all of its state in
    memory keeps it and tries again, until it is saved or the user does without it."""
    lost = f"step {run.step - 1} could not be saved: {why}"
    folder = run.checkpoints.give_up(why).folder
    without = run.without_replica(run.holders())
    if run.intent.ending is None and without:
        return restore(run, without)
    may_go_on = run.intent.is_exhausted and bool(run.plan_validity.newcomers)
    if run.intent.ending is None or may_go_on:
        return [Publish(Note(level="warning", text=lost)), *after_saving(run)]
    is_told, run.intent.unsaved = run.intent.unsaved == lost, lost
    if not without:
        text = (
            f"{lost}. The workers keep it, and it is tried again every {SAVE_AGAIN_S:.0f} s: make room, or name "
            "another folder (planaria save RUN --to FOLDER), or end without it (planaria stop RUN --discard)"
        )
        told: list[Command] = [] if is_told else [Publish(Note(level="warning", text=text))]
        return [Discard(folder), *told, SetTimer(SAVE_AGAIN_S)]
    return end.unsaved(run)


def save_again(run: Run, event: TimerDue) -> list[Command]:
    """Orders once more the checkpoint that failed, unless one is being written."""
    return [] if run.checkpoints.under_way is not None else _order(run)


def save_requested(run: Run, event: SaveRequested) -> list[Command]:
    """Saves at the user's request: at once where all workers wait, else beside training after the next commit."""
    run.checkpoints.wish_for(event.folder)
    if run.phase is Phase.SAVING:
        return [] if run.checkpoints.joins_wish() else _order(run)
    if run.phase is Phase.WAITING and not run.without_replica(run.holders()):
        run.intent.waiting = "the state is saved"
        return _save(run)
    return []


def after_saving(run: Run) -> list[Command]:
    """Does what the state was saved for: ends the run, waits for nodes, or goes on."""
    if run.intent.is_exhausted and run.plan_validity.newcomers:
        run.plan_validity.newcomers.clear()  # who joined while the state was saved may be enough
        run.intent.ending = run.intent.waiting = None
        return try_again(run)
    if run.intent.ending is not None:
        return end.end(run, *run.intent.ending)
    if run.intent.waiting is not None:
        return wait(run)
    return go_on(run)
