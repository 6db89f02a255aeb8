"""Commands to a run that is under way: what is asked, and how the answer is told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import msgspec

from planaria.coordinator.client import ask
from planaria.job.errors import UserError
from planaria.observe.run_folder import RunFolder
from planaria.observe.wording import counted, duration, picture
from planaria.protocol.requests import Answer, Wish


def status(run: Path, *, as_json: bool) -> str:
    """Raises UserError for a run that does not run."""
    state = _ask(run, Wish.STATUS).state
    if as_json:
        return msgspec.json.encode(state).decode()
    leaving = f", of them leaving: {', '.join(map(str, state.leaving))}" if state.leaving else ""
    lines = [
        f"{run}: {state.phase}, step {state.step} of {state.steps}",
        f"{counted(len(state.nodes), 'node')}: {', '.join(map(str, state.nodes))}{leaving}",
    ]
    if state.speeds:
        lines.append(f"slow: {', '.join(_slow(node, speed, state.resting) for node, speed in state.speeds.items())}")
    if state.zones:
        lines.append(f"zones: {'; '.join(_zones(state.zones))}")
    if state.policy:
        lines.append(f"policy: {state.policy}")
    if state.num_dropped:
        lines.append(f"dropped: {counted(state.num_dropped, 'microbatch')}")
    if state.pipelines:
        lines.append(f"plan {state.generation}: {picture(state.pipelines)}")
    return "\n".join(lines)


def _slow(node: int, speed: float, resting: tuple[int, ...]) -> str:
    left_out = ", left out" if node in resting else ""
    return f"node {node} ({speed:.0%} of the others' speed{left_out})"


def _zones(zones: Mapping[int, str]) -> list[str]:
    """Each with its nodes."""
    return [
        f"{name}: {', '.join(str(node) for node in sorted(zones) if zones[node] == name)}"
        for name in sorted(set(zones.values()))
    ]


def add(run: Path, count: int) -> str:
    """Raises UserError where it cannot be done."""
    return _ask(run, Wish.ADD, count=count).text


def drain(run: Path, node: int, grace_s: float) -> str:
    """Raises UserError where it cannot be done."""
    if not 0 <= grace_s < math.inf:
        raise UserError(f"--grace {grace_s:g} is not a number of seconds from 0 on.")
    return _ask(run, Wish.DRAIN, node=node, grace_s=grace_s).text


def switch(run: Path, name: str) -> str:
    """Raises UserError where it cannot be done."""
    return _ask(run, Wish.POLICY, policy=name).text


def policy(run: Path, *, as_json: bool) -> str:
    """The policy in force, and its last decision with what it weighed. Raises UserError for a run that does not run."""
    state = _ask(run, Wish.STATUS).state
    decision = state.decision
    if as_json:
        return msgspec.json.encode({"policy": state.policy, "decision": decision}).decode()
    lines = [f"policy: {state.policy}"]
    if decision is None:
        return "\n".join([*lines, "there is no plan yet"])
    lines.append(f"step {decision.step}, plan {decision.generation} ({decision.purpose}): {decision.reason}")
    for candidate in decision.candidates:
        degraded = ", degraded" if candidate.is_degraded else ""
        lines.append(
            f"  {candidate.name}: {candidate.samples_per_s:.4g} samples/s, {duration(candidate.step_time_s)} a step, "
            f"{duration(candidate.transition_s)} of transition{degraded}"
        )
    return "\n".join(lines)


def stop(run: Path) -> str:
    """Raises UserError for a run that does not run."""
    return _ask(run, Wish.STOP).text


def _ask(run: Path, wish: Wish, *, node: int = -1, count: int = 1, grace_s: float = 0.0, policy: str = "") -> Answer:
    answer = ask(RunFolder.open(run).contact, wish, node=node, count=count, grace_s=grace_s, policy=policy)
    if not answer.accepted:
        raise UserError(f"run {run}: {answer.text}.")
    return answer
