"""Going back to the last checkpoint, when a group has no replica left or the policy answers a loss so; and waiting
when too few nodes are left for it."""

from __future__ import annotations

from collections.abc import Collection

from planaria.plan.plan import PlanError
from planaria.policy.interface import Candidate
from planaria.protocol.handlers import checkpoints as saving_course
from planaria.protocol.handlers import end
from planaria.protocol.handlers.adopt_plan import release, take
from planaria.protocol.handlers.fencing import disputed
from planaria.protocol.messages.checkpoint_ref import CheckpointRef
from planaria.protocol.messages.events import Command, Publish
from planaria.protocol.messages.records import Restored, RunStatus, Waiting
from planaria.protocol.messages.to_worker import StateSource
from planaria.protocol.phases import Phase, Purpose
from planaria.protocol.planning.memory_limits import WouldRunOut
from planaria.protocol.run.run import Run


def restore(run: Run, without: list[int]) -> list[Command]:
    """Restores all live nodes from the last checkpoint because some groups have no replica left.

    Args:
        run: whose state is lost in part.
        without: groups that nobody holds.
    """
    layers = sorted({layer for group in without for layer in run.plan.groups[group].layers})
    return restore_all(run, f"no replica of {layers_text(layers)} is left")


def layers_text(layers: Collection[int]) -> str:
    """Names layers: "layers 2, 3"."""
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"


def restore_all(run: Run, lost: str) -> list[Command]:
    """Restores all live nodes from the last checkpoint; `lost` says why."""
    if run.fatal is not None:
        return end.end(run, RunStatus.FAILED, f"{run.fatal}; {lost}")
    if not _can_go_back(run):
        return _nothing_saved(run, lost)
    try:
        proposal = run.plan_selector.again(run.members.nodes, run.forecast)
    except PlanError as error:
        return _no_plan(run, error, lost)
    return go_back(run, proposal, lost)


def go_back(run: Run, proposal: Candidate, why: str) -> list[Command]:
    """Goes back to the last checkpoint under this plan. Or to the start, if nothing was committed, or no checkpoint is
    whole yet though the job writes them."""
    if not _can_go_back(run):
        return _nothing_saved(run, why)
    checkpoint, committed = run.checkpoints.last, run.step - 1
    given_up = _give_up_saving(run)
    _rewind(run, checkpoint)
    if run.recovery is not None:
        reason = proposal.reason if proposal.restores else f"{why}: back to step {run.step - 1}."
        run.recovery.add_restore(proposal.plan, committed - (run.step - 1), reason)
    source = StateSource.CHECKPOINT if checkpoint else StateSource.INITIAL
    record = Restored(from_step=committed, to_step=run.step - 1, reason=why)
    folder = checkpoint.folder if checkpoint else ""
    taken = take(run, proposal, Purpose.RESTORE, source, folder, (record,))
    return [*given_up, *taken, *disputed(run), *release(run)]


def _give_up_saving(run: Run) -> list[Command]:
    """Gives up the checkpoint under way: its step is to be done again. One that is already whole on disk may be getting
    its manifest: it stays, and nobody goes back to it."""
    saving = run.checkpoints.under_way
    return [] if saving is None or saving.is_whole else saving_course.give_up(run, "the job goes back")


def _can_go_back(run: Run) -> bool:
    return run.checkpoints.last is not None or run.step == run.settings.first_step or run.checkpoints.cadence.is_on


def _nothing_saved(run: Run, why: str) -> list[Command]:
    remedy = "Leave out run.checkpoint_every = 0, or set a higher resilience.fault_tolerance."
    return end.end(run, RunStatus.FAILED, f"{why} and there is no checkpoint. {remedy}")


def _no_plan(run: Run, error: PlanError, lost: str) -> list[Command]:
    """Waits or ends the run: there is a state to go back to, but no plan for the nodes that are left."""
    checkpoint = run.checkpoints.last
    saved = f"Checkpoint: step {checkpoint.step}." if checkpoint else "There is no checkpoint."
    reason = f"{lost}; {error} {saved}"
    if not run.settings.waits:
        status = RunStatus.FAILED if isinstance(error, WouldRunOut) else RunStatus.EXHAUSTED
        return end.end(run, status, reason)
    run.intent.waiting = reason
    return wait(run)


def _rewind(run: Run, checkpoint: CheckpointRef | None) -> None:
    run.plan_selector.wake_all(run.step)
    run.checkpoints.unproven = None
    if run.checkpoints.under_way is not None:
        run.checkpoints.give_up("the job goes back")
    run.step = 1 + (checkpoint.step if checkpoint else 0)
    run.counts.dropped = checkpoint.num_dropped if checkpoint else 0
    run.skipped_steps = {step for step in run.skipped_steps if step < run.step}
    run.exponents = run.exponents_of(checkpoint)
    run.evaluations.forget_after(run.step - 1)


def wait(run: Run) -> list[Command]:
    """Waits for nodes; the remaining ones keep their state. Ends instead if the user wants the run to end."""
    assert run.intent.waiting is not None
    run.phase = Phase.WAITING
    run.step_times.patience_s = float("inf")
    live = len(run.members.nodes)
    record = Waiting(step=run.step, live_nodes=live, reason=run.intent.waiting)
    run.intent.waiting = None
    if run.intent.is_stopping:
        return end.end(run, RunStatus.STOPPED, end.STOPPED_BY_USER)
    return [Publish(record)]
