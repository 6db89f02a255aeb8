"""Switching the policy at the user's wish: it makes the next plans; the plan in force is reviewed after the step."""

from __future__ import annotations

from planaria.job.registry import PolicyName
from planaria.plan.plan import PlanError
from planaria.protocol.handlers import boundary
from planaria.protocol.messages.events import Command, PolicyRequested, Publish
from planaria.protocol.messages.journal import JournalPolicy
from planaria.protocol.messages.records import Note, PolicySwitched
from planaria.protocol.phases import Phase
from planaria.protocol.run.run import Run


def policy_requested(run: Run, event: PolicyRequested) -> list[Command]:
    """Switches the policy, or does nothing where that is impossible; the user was told of any `refusal` before."""
    before = run.plan_selector.policy_switch.name
    if event.name == before:
        return []
    try:
        run.plan_selector.switch(event.name)
    except PlanError as error:
        return [Publish(Note(level="warning", text=f"the policy stays {before}: {error}"))]
    record = PolicySwitched(policy=event.name, before=before, step=run.step)
    commands: list[Command] = [JournalPolicy(policy=event.name, records=(record,)), Publish(record)]
    return commands + (boundary.try_again(run) if run.phase is Phase.WAITING else [])


def refusal(run: Run, name: str) -> str | None:
    """Returns why the policy in force cannot be changed for the one of this name; None if it can.

    It must have a plan for the nodes of now. What makes a job wait for nodes is no reason: any policy may wait.
    """
    placing = run.plan_selector
    why = placing.policy_switch.refusal(name)
    if why is not None or name == placing.policy_switch.name:
        return why
    if name == PolicyName.MORPH and (why := _unkept(run)) is not None:
        return why
    try:
        if run.current is None:
            placing.first_of(name, run.settings.num_nodes)
        elif run.phase in (Phase.TRAINING, Phase.SALVAGING, Phase.SAVING):
            placing.next_of(name, run.situation(run.holders()))
    except PlanError as error:
        return f"policy {name} has no plan for this job: {str(error).rstrip('.')}"
    return None


def _unkept(run: Run) -> str | None:
    """Returns why there may be no checkpoint to go back to, as the job file is refused for it; None if there is one."""
    keeps = run.settings.keep_checkpoints
    if not run.checkpoints.cadence.is_on:
        why, remedy = "writes none on the way", "run.checkpoint_every"
    elif keeps < 2:
        why, remedy = f"keeps only {keeps}", "run.keep_checkpoints to 2 or more"
    else:
        return None
    return (
        f"policy morph goes back to the last checkpoint, and the job {why}. Set {remedy} in the job file, "
        "and go on with --resume"
    )
