"""A loss inside a step: what it broke is halted and asked; once all workers have reported, the rest is planned.

And owners of a group that do not hold the same bits: the step is not committed with what is wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain

from planaria.plan.plan import PlanError, WorkerId
from planaria.plan.thresholds import ANEW_CLEARLY, LONG_REST
from planaria.planner.finish_step.salvage import to_halt
from planaria.policy.interface import Candidate
from planaria.protocol.handlers import boundary, checkpoints
from planaria.protocol.handlers.adopt_plan import take
from planaria.protocol.handlers.fencing import disputed, lose, lose_wrong
from planaria.protocol.handlers.restore import layers_text, restore, restore_all
from planaria.protocol.messages.events import Command, NodeGone, Publish, Received, Send
from planaria.protocol.messages.from_worker import AwaitsSamples, Digest, Report
from planaria.protocol.messages.journal import JournalVoid
from planaria.protocol.messages.records import Note
from planaria.protocol.messages.to_worker import Halt, StateSource
from planaria.protocol.phases import Phase, Purpose
from planaria.protocol.run.run import Run
from planaria.protocol.step.agreement import Claims, Computation, Difference, Held, claims_of, difference
from planaria.protocol.step.retained_replicas import Holders


def begin(run: Run) -> list[Command]:
    """Halts what the loss broke; the rest is decided once all halted workers have reported."""
    run.phase = Phase.SALVAGING
    if run.plan.evaluation is None:
        run.attempt.is_void |= not run.plan_selector.finishes(run.situation(run.holders()))
    # Nobody tells whether the parameters came that a device does not keep.
    run.attempt.is_void |= run.plan.spreads_optimizer and bool(run.attempt.unready)
    broken = to_halt(run.plan.of_pass, run.members.addresses, run.attempt.unready)
    if run.attempt.is_void or run.fatal is not None:
        broken = frozenset(run.plan.workers) & run.members.addresses.keys()
    halt = Halt(generation=run.plan.generation, step=run.step)
    commands: list[Command] = [Send(worker, halt) for worker in run.attempt.salvage.halt(broken)]
    return commands + _decide_when_reported(run)


def awaits_samples(run: Run, event: Received) -> list[Command]:
    """Gives up a step that waits for samples of a stream, where the user stops the run; begins it anew, where a node
    of it gave notice. Nobody waits for the stream with either."""
    told = event.message
    assert isinstance(told, AwaitsSamples)
    if (told.generation, told.step) != (run.plan.generation, run.step):
        return []
    leaving = run.members.leaving.keys() & set(run.plan.nodes) - run.plan_validity.needed
    text = f"step {run.step} waits for samples of the stream"
    if run.intent.is_stopping:
        run.attempt.is_given_up = True
        text += ": it is given up" + (f", and step {run.step - 1} saved" if run.step > 1 else "")
    elif leaving:
        named = ", ".join(map(str, sorted(leaving)))
        text += f": it is begun anew without node{'s' if len(leaving) > 1 else ''} {named}, if that can be"
    else:
        return []
    run.attempt.is_void = True
    return [Publish(Note(level="info", text=text)), *begin(run)]


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
    if run.attempt.is_given_up:
        return boundary.stop_early(run)
    if run.attempt.is_void:
        return boundary.reconfigure(run, holders)
    whole = (pipeline.workers for pipeline in run.plan.pipelines if pipeline.is_whole(run.plan.num_layers))
    computing = (w for w in chain(*whole) if w in run.members.addresses and w not in salvage.halted)
    if next(computing, None) is None and salvage.is_untouched:
        run.attempt.is_void = True
        return begin(run)
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
        parts_differ=salvage.parts_differ,
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


# Owners that do not hold the same


def disagree(run: Run) -> list[Command] | None:
    """Compares what the owners of each group told of it in their votes, and what is told of computations that are
    audited; None: they agree, and the step is concluded.

    Who is wrong is fenced, and the step begun anew without it. If that is not known, it is made known: sums are made
    again, and so is what was computed, by a third worker too where there is one; and where replicas differ, the job
    goes back to the last checkpoint, until it comes here again.
    """
    votes = run.attempt.votes
    claims = {**votes.digests, **claims_of(votes.computed, run.plan.num_sharing)}
    found = difference(claims)
    if found is not None:
        return _undo(run, found, claims)
    run.checkpoints.prove(run.step)
    if run.plan.evaluation is not None:
        return None
    denied = run.disputes.settle(run.step, claims, _num_dropped(run))
    return _fence(run, _suspected_twice(run, denied)) or None


def _undo(run: Run, found: Difference, claims: Claims) -> list[Command]:
    commands: list[Command] = [JournalVoid()]
    if found.held is Held.REPLICA:
        commands += checkpoints.distrust(run)
    wrong, unclear = found.known - found.misled, frozenset[WorkerId]()
    if not found.known:
        wrong, unclear = run.disputes.again(run.step, found, claims, _num_dropped(run))
    commands += _lose(run, dict.fromkeys(wrong, found))
    commands += _lose_beside(run, found.misled, "it has a replica of a node that computed wrong")
    commands += _lose_beside(run, unclear, "it or another node computed wrong, again and again")
    left = {group: _live(run, claims[group]) for group in claims}
    undecided = difference(left)
    if undecided is not None and undecided.known:
        return commands + _undo(run, undecided, left)
    if undecided is not None:
        run.disputes.begin(run.step, undecided, left, _num_dropped(run))
    if undecided is not None and undecided.held is Held.REPLICA:
        return commands + restore_all(run, f"replicas of {_where(run, undecided, left)} differ")
    commands += disputed(run)
    if undecided is not None:
        what = "sums" if undecided.held is Held.SUM else "messages" if undecided.is_on_the_way else "computations"
        text = f"{what} of {_where(run, undecided, left)} differ; step {run.step} is begun anew"
        commands.append(Publish(Note(level="warning", text=text)))
    run.attempt.is_void = True
    return commands + begin(run)


def _num_dropped(run: Run) -> int:
    return run.counts.dropped + len(run.plan.dropped)


def _live(run: Run, digests: Mapping[WorkerId, Digest]) -> dict[WorkerId, Digest]:
    return {worker: digest for worker, digest in digests.items() if worker in run.members.addresses}


def _where(run: Run, found: Difference, claims: Claims) -> str:
    """Describes for people what differs: "layers 2, 3 at nodes 0, 4"."""
    nodes = sorted({run.members.node_of(worker) for group in found.groups for worker in claims[group]})
    return f"{layers_text(_layers_of(run, found.groups))} at nodes {', '.join(map(str, nodes))}"


def _layers_of(run: Run, items: Collection[int | Computation]) -> tuple[int, ...]:
    """Returns the layers of groups, or of computations."""
    layers = set[int]()
    for item in items:
        if isinstance(item, Computation):
            ends = item.first_layer == item.end_layer  # a message's: the layers below and above its boundary
            layers.update(range(item.first_layer - ends, item.end_layer + ends))
        else:
            layers.update(run.plan.groups[item].layers)
    return tuple(sorted(layers))


def _suspected_twice(run: Run, denied: Mapping[WorkerId, Difference]) -> Mapping[WorkerId, Difference]:
    """Returns those of the workers that count as wrong now: one copies a sum from the next, and a message has two ends,
    so of several nodes each is suspected, and wrong the second time."""
    nodes = {run.members.node_of(worker) for worker in denied}
    if len(nodes) < 2 or all(found.held is not Held.SUM and not found.is_on_the_way for found in denied.values()):
        return denied
    before, run.suspects = run.suspects, run.suspects | nodes
    return {worker: found for worker, found in denied.items() if run.members.node_of(worker) in before}


def _fence(run: Run, wrong: Mapping[WorkerId, Difference]) -> list[Command]:
    """Fences those who were wrong and are here still, and begins the step anew without them."""
    commands = _lose(run, wrong)
    if not commands:
        return []
    run.attempt.is_void = True
    return [JournalVoid(), *commands, *disputed(run), *begin(run)]


def _lose(run: Run, wrong: Mapping[WorkerId, Difference]) -> list[Command]:
    commands: list[Command] = []
    for node in sorted({run.members.node_of(worker) for worker in wrong if worker in run.members.addresses}):
        mine = [worker for worker in sorted(wrong) if run.members.node_of(worker) == node]
        found = wrong[mine[0]]
        if found.is_on_the_way:
            commands += lose(run, NodeGone(node, "it or another node changed a message, a second time"))
        else:
            commands += lose_wrong(run, node, found.held, _layers_of(run, found.groups_of(mine)))
    return commands


def _lose_beside(run: Run, workers: Collection[WorkerId], cause: str) -> list[Command]:
    """Fences those whose replica is of no use, though they may have made no mistake."""
    commands: list[Command] = []
    for node in sorted({run.members.node_of(worker) for worker in workers if worker in run.members.addresses}):
        commands += lose(run, NodeGone(node, cause))
    return commands
