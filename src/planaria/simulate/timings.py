"""Timings that the simulation does not model: their defaults, and what the events of a real run say of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from planaria.job.errors import UserError


class Timings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Durations that the simulation does not model, in seconds unless a name says otherwise.

    Attributes:
        detection_s: from a node's death until the coordinator knows. 0.05: a process that is seen to be gone, with room
            for a loaded machine (docs/figures/benchmarks.md, recovery); a host that goes silent takes
            resilience.heartbeat_timeout_s.
        decision_s: from the last report until the new plan is sent: the policy's own time. 0.01: decisions that were
            made in advance; `planaria.policy.forecast.USUAL_DECISION_S` is what one takes that was not.
        unprepared_s: how long a decision takes that cannot have been made in advance: several nodes were lost, or
            nobody was. 0: as long as the others, as it is where plans are not weighed.
        change_s: from the last vote under one plan to the first instruction under the next
            (`planaria.policy.forecast.CHANGE_S`).
        start_s: from a node's arrival in the trace until its workers have joined: image, process, model code. 30.
        restart_s: beside reading, from the decision to go back to a checkpoint until work begins
            (`planaria.policy.forecast.RESTORE_S`); a system that starts its processes anew has more.
        storage_bytes_per_s: of one node to and from the storage of checkpoints. 1e9: an object store on a 10 Gbit/s
            network.
        checkpoint_copy_bytes_per_s: of a device to host memory: training stands still while its state is copied.
            12e9: PCIe 3 with 16 lanes.
    """

    detection_s: float = 0.05
    decision_s: float = 0.01
    unprepared_s: float = 0.0
    change_s: float = 0.005
    start_s: float = 30.0
    restart_s: float = 1.0
    storage_bytes_per_s: float = 1e9
    checkpoint_copy_bytes_per_s: float = 12e9


def calibrated(
    events: Sequence[Mapping[str, Any]], timings: Mapping[str, float]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Returns the timings, those that the run's events tell of replaced, and a sentence about each.

    Detection: the median over losses of which the moment is known. Decision: the median over recoveries from one loss,
    and that of unprepared ones over those from several, each divided by the plans that it took. Change: the median of
    what measured transitions took beside the decision, of plans for which no state moved.

    Args:
        events: of events.jsonl, one dict each.
        timings: by the names of `planaria.simulate.timings.Timings`.

    Raises:
        UserError: no event tells of any.
    """
    found = {
        "detection_s": [ms / 1e3 for ms in _numbers(events, "node_lost", "detect_ms")],
        "decision_s": _decisions(events, several=False),
        "unprepared_s": _decisions(events, several=True),
        "change_s": _changes(events),
    }
    result, told = dict(timings), []
    for name, values in found.items():
        if values:
            result[name] = statistics.median(values)
            told.append(f"timings.{name} = {result[name]:.4g}, the median of {len(values)}")
    if not told:
        raise UserError(
            "--calibrate: the run's events tell of no loss and no change of plans. Give a run in which nodes were "
            "lost, for instance one of planaria train --fail."
        )
    return result, tuple(told)


def _decisions(events: Sequence[Mapping[str, Any]], *, several: bool) -> list[float]:
    """Returns the seconds of one decision in each recovery from several losses, or from one."""
    found: list[float] = []
    is_open, num_plans = False, 0
    for event in events:
        kind, recovery = event.get("event"), event.get("recovery")
        if kind == "node_lost" and not is_open:
            is_open, num_plans = True, 0
        elif kind == "plan_taken":
            num_plans += 1
        elif kind == "recovered" and isinstance(recovery, dict):
            if (len(recovery.get("lost_nodes", ())) > 1) is several:
                found.append(recovery["decide_ms"] / 1e3 / max(1, num_plans))
            is_open = False
    return found


def _numbers(events: Sequence[Mapping[str, Any]], kind: str, field: str) -> list[float]:
    found = [event.get(field) for event in events if event.get("event") == kind]
    return [float(value) for value in found if isinstance(value, int | float)]


def _changes(events: Sequence[Mapping[str, Any]]) -> list[float]:
    unmoved = {
        event.get("generation")
        for event in events
        if event.get("event") == "plan_taken"
        and event.get("transfer_bytes") == 0
        and event.get("purpose") != "start"  # the first step of fresh processes is slow for other reasons
    }
    found = [
        event.get("measured_transition_s")
        for event in events
        if event.get("event") == "plan_measured" and event.get("generation") in unmoved
    ]
    return [float(value) for value in found if isinstance(value, int | float)]
