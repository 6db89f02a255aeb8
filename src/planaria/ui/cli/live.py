"""Commands to a run that is under way: what each asks, and how the answer is shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from planaria.job.errors import UserError
from planaria.job.parse import job_from_json
from planaria.job.values import is_url
from planaria.plan.quantities import count
from planaria.protocol.messages.records import Restored, RunEnded, StepCommitted, StepSkipped
from planaria.protocol.messages.user import Answer, RunState, Wish
from planaria.protocol.phases import Phase
from planaria.runtime.coordinator.client import Contact, NotReached, ask
from planaria.runtime.journal.leadership import Leadership, leadership
from planaria.runtime.progress.progress import Ending
from planaria.runtime.run_folder.claim import claimant
from planaria.runtime.run_folder.recorder import told_but_steps
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.run_folder.sentences import figures_of
from planaria.runtime.run_folder.tables import candidate_table, link_table, plan_table


class Address(Contact, frozen=True, kw_only=True):
    """A run that is asked at its coordinator's address, from any host that reaches it."""

    def __str__(self) -> str:
        return self.address


def status(run: Path | Address, *, as_json: bool) -> str:
    """Returns how far the run is: in its beginning, under way, or over.

    Raises:
        UserError: it is none, or does not answer though it is under way.
    """
    found = look(run, as_json=as_json)
    if isinstance(found, NoAnswer):
        return found.text
    state = found.state
    page, lead = _page_of(run), _leadership(RunFolder(run)) if isinstance(run, Path) else None
    if as_json:
        told = msgspec.to_builtins(state) | ({"page": page} if page else {})
        return msgspec.json.encode(told | ({} if lead is None else _led(lead))).decode()
    phase = "starting: nodes join" if state.phase == Phase.GATHERING else state.phase
    per_node = state.devices_per_node
    leaving = f", of them leaving: {', '.join(map(str, state.leaving))}" if state.leaving else ""
    lines = [
        f"{run}: {phase}, {progress(state)}",
        f"{count(len(state.nodes), 'node')}: {', '.join(map(str, state.nodes))}{leaving}",
    ]
    if state.lost_devices:
        lost = (f"device {worker % per_node} of node {worker // per_node}" for worker in state.lost_devices)
        lines.append(f"lost: {', '.join(lost)}")
    if state.wanted:
        lines.append(f"wanted: {count(state.wanted, 'node')}")
    if state.speeds:
        lines.append(f"slow: {', '.join(_slow(node, speed, state.resting) for node, speed in state.speeds.items())}")
    if state.zones:
        lines.append(f"zones: {'; '.join(_zones(state.zones))}")
    if state.labels:
        lines.append(f"labels: {', '.join(f'{node}: {label}' for node, label in sorted(state.labels.items()))}")
    if state.links:
        lines += ["links as measured:", *(f"  {line}" for line in link_table(state.links))]
    if state.policy:
        lines.append(f"policy: {state.policy}")
    if state.cost is not None:
        lines.append(f"cost: {state.cost:.2f} dollars so far, {state.cost_per_hour:.2f} an hour")
    if state.num_dropped:
        lines.append(f"dropped: {count(state.num_dropped, 'microbatch')}")
    if state.evaluated is not None:
        lines.append(f"evaluated after step {state.evaluated.step}: {', '.join(figures_of(state.evaluated))}")
    if lead is not None:
        lines.append(f"led from {lead.leader or 'nowhere now'}; {_standing_by(lead)}")
    if state.unsaved:
        lines.append(f"not saved yet: {state.unsaved}")
    if state.pipelines:
        table = plan_table(state.pipelines, state.microbatches, state.devices_per_node)
        lines += [f"plan {state.generation}:", *(f"  {line}" for line in table)]
    if page:
        lines.append(f"page: {page}")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A run that cannot be asked: what is known of it, and whether it is over."""

    text: str
    is_over: bool


def look(run: Path | Address, *, as_json: bool = False, details: bool = False) -> Answer | NoAnswer:
    """Returns the state of a run; where it cannot be asked, what its folder says: it is in its beginning, or over.

    Raises:
        UserError: it is none, or does not answer though it is under way.
    """
    try:
        return _ask(run, Wish.STATUS, details=details)
    except NotReached:
        if isinstance(run, Address):
            raise
        folder = RunFolder.open(run)
        owner = claimant(folder.claim)
        if owner is not None and not folder.contact.exists():
            return NoAnswer(_unasked(folder, owner.doing, as_json=as_json), is_over=False)
        lead = _leadership(folder)
        if lead is not None and (lead.leader or lead.standbys):
            return NoAnswer(_between_leaders(folder, lead, as_json=as_json), is_over=False)
        if owner is None:
            return NoAnswer(_over(folder, as_json=as_json), is_over=True)
        raise


def _page_of(run: Path | Address) -> str:
    """Returns the address of the run's page; "": it is not served, or not known from here."""
    try:
        return Contact.read(RunFolder(run).contact).page if isinstance(run, Path) else ""
    except NotReached:  # it has just ended
        return ""


def progress(state: RunState) -> str:
    """Returns the step in progress, or how many are done where none is."""
    if state.phase == Phase.SAVING or state.step > state.steps:
        return f"{state.step - 1} of {count(state.steps, 'step')} done"
    return f"step {state.step} of {state.steps}"


@dataclass(frozen=True, slots=True)
class _Told:
    """The content of a run's records.

    Attributes:
        steps: how many steps are trained.
        num_steps: the job's number of steps.
        ending: what is said when it is over.
        ended: its last record, if that is of its end.
    """

    steps: int
    num_steps: int
    ending: Ending
    ended: RunEnded | None


def _told(folder: RunFolder) -> _Told:
    job = job_from_json(folder.job.read_bytes())
    ending = Ending(job, folder)
    steps, last = 0, None
    for last in told_but_steps(folder):
        ending.note(last)
        match last:
            case StepCommitted(step=step) | StepSkipped(step=step) | Restored(to_step=step):
                steps = step
            case _:
                pass
    return _Told(steps, job.train.steps, ending, last if isinstance(last, RunEnded) else None)


def _unasked(folder: RunFolder, doing: str, *, as_json: bool) -> str:
    """Returns the status of a run that lives and has no coordinator to ask: in its beginning, its end, or alone."""
    told = _told(folder)
    if as_json:
        state = {"phase": doing.partition(":")[0], "doing": doing, "step": told.steps, "steps": told.num_steps}
        return msgspec.json.encode(state).decode()
    return f"{folder.path}: {doing}" + (f", step {told.steps} of {told.num_steps}" if told.steps else "")


def _leadership(folder: RunFolder) -> Leadership | None:
    """Returns who leads a run whose journal is in etcd; None: it is not there, or cannot be asked."""
    try:
        job = job_from_json(folder.job.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None
    return leadership(job.run.journal, folder.path.resolve().name, job.cluster.tls) if job.run.journal else None


def _between_leaders(folder: RunFolder, lead: Leadership, *, as_json: bool) -> str:
    """Returns the status of a run that is led by nobody who answers, and goes on once somebody does."""
    told = _told(folder)
    if as_json:
        return msgspec.json.encode(
            {"phase": "leaderless", "step": told.steps, "steps": told.num_steps, **_led(lead)}
        ).decode()
    who = "nobody leads it now"
    if lead.leader:
        who = f"{lead.leader} leads it and does not answer, its lease in etcd ends within {lead.lease_left_s} s"
    return f"{folder.path}: {who}; {_standing_by(lead)}. Step {told.steps} of {told.num_steps} was the last."


def _standing_by(lead: Leadership) -> str:
    if not lead.standbys:
        return "nobody stands by: planaria standby RUN does, on another host"
    return f"standing by: {', '.join(lead.standbys)}"


def _led(lead: Leadership) -> dict[str, object]:
    return {"lead": msgspec.to_builtins(lead)}


def _over(folder: RunFolder, *, as_json: bool) -> str:
    """Returns the status of a run that has ended, by itself or with its process."""
    told = _told(folder)
    if told.ended is not None and not as_json:
        first, *rest, _ = told.ending.lines(told.ended)
        return "\n".join([f"{folder.path}: {first}", *rest])
    if told.ended is not None and folder.summary.exists():
        return msgspec.json.encode({"phase": "ended", **msgspec.json.decode(folder.summary.read_bytes())}).decode()
    if as_json:
        return msgspec.json.encode({"phase": "gone", "step": told.steps, "steps": told.num_steps}).decode()
    remedy = "It left no checkpoint: train again as another run by --name NAME, or remove the folder first."
    if any(folder.checkpoints.iterdir()):
        remedy = "planaria train JOB --resume goes on from its last checkpoint."
    return f"{folder.path}: its process is gone, step {told.steps} of {told.num_steps} was the last. {remedy}"


def _slow(node: int, speed: float, resting: tuple[int, ...]) -> str:
    left_out = ", left out" if node in resting else ""
    return f"node {node} ({speed:.0%} of the others' speed{left_out})"


def _zones(zones: Mapping[int, str]) -> list[str]:
    """Returns each zone with its nodes."""
    return [
        f"{name}: {', '.join(str(node) for node in sorted(zones) if zones[node] == name)}"
        for name in sorted(set(zones.values()))
    ]


def add(run: Path | Address, count: int) -> str:
    """Adds nodes to the run. Raises UserError where it cannot be done."""
    return _ask(run, Wish.ADD, count=count).text


def add_device(run: Path | Address, name: str) -> str:
    """Has a device of a node ("NODE:DEVICE") started again, which was lost. Raises UserError where that is not done."""
    node, _, device = name.partition(":")
    if not (node.isdecimal() and device.isdecimal()):
        raise UserError(f"--device {name!r} is no device of a node. Write NODE:DEVICE, for instance 2:1.")
    return _ask(run, Wish.ADD, node=int(node), device=int(device)).text


def drain(run: Path | Address, node: int, grace_s: float) -> str:
    """Drains a node of the run. Raises UserError where it cannot be done."""
    if not 0 <= grace_s < math.inf:
        raise UserError(f"--grace {grace_s:g} is not a number of seconds from 0 on.")
    return _ask(run, Wish.DRAIN, node=node, grace_s=grace_s).text


def switch(run: Path | Address, name: str) -> str:
    """Switches the run's policy. Raises UserError where it cannot be done."""
    return _ask(run, Wish.POLICY, policy=name).text


def policy(run: Path | Address, *, as_json: bool) -> str:
    """Returns the policy in force and its last decision, with what it weighed. Raises UserError where none runs."""
    state = _ask(run, Wish.STATUS).state
    decision = state.decision
    if as_json:
        return msgspec.json.encode({"policy": state.policy, "decision": decision}).decode()
    lines = [f"policy: {state.policy}"]
    if decision is None:
        return "\n".join([*lines, "there is no plan yet"])
    lines.append(f"step {decision.step}, plan {decision.generation} ({decision.purpose}): {decision.reason}")
    if decision.candidates:
        lines += candidate_table(decision.candidates)
    return "\n".join(lines)


def save(run: Path | Address, folder: str | Path | None) -> str:
    """Saves the run's state. Raises UserError where it cannot be saved there."""
    wanted = "" if folder is None else str(folder)
    if wanted and isinstance(run, Path) and not is_url(wanted):
        wanted = str(Path(wanted).resolve())
    return _ask(run, Wish.SAVE, folder=wanted, timeout_s=None).text


def stop(run: Path | Address, *, discard: bool = False) -> str:
    """Stops the run. Raises UserError for a run that does not run."""
    return _ask(run, Wish.STOP, discards=discard).text


def _ask(run: Path | Address, wish: Wish, **wanted: Any) -> Answer:
    answer = _ask_in(run, wish, **wanted) if isinstance(run, Path) else ask(run, wish, run=str(run), **wanted)
    if not answer.accepted:
        raise UserError(f"run {run}: {answer.text}.")
    return answer


def _ask_in(run: Path, wish: Wish, **wanted: Any) -> Answer:
    """Asks the run of a folder."""
    folder = RunFolder.open(run)
    try:
        return ask(Contact.read(folder.contact), wish, run=str(run), **wanted)
    except NotReached:
        owner = claimant(folder.claim)
        if owner is None or folder.contact.exists():
            raise
        raise NotReached(
            f"run {run} cannot be asked now ({owner.doing}). planaria status {run} says how far it is."
        ) from None
