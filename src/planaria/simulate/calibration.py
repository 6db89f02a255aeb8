"""Calibration: timings that are not modelled, from what the events of a real run say of them. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from planaria.job.errors import UserError


def calibrated(
    events: Sequence[Mapping[str, Any]], timings: Mapping[str, float]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """The timings, with those that the run's events tell of in their place, and a sentence about each.

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
    """Seconds of one decision in each recovery from several losses, or from one."""
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
