"""Forgeries of what users were told, and of checkpoints."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.testkit.witness.forgeries.forgery import Forgeries
from tests.testkit.witness.forgeries.places import (
    changed,
    in_journal,
    in_told,
    is_rest,
    one_of,
    twice,
    with_more,
    without,
)
from tests.testkit.witness.history import History, Plain
from tests.testkit.witness.rules import Rule

FORGERIES = Forgeries()


@FORGERIES.of("a step is not told", Rule.TOLD_STEPS)
def _untold_step(history: History, draw: Random) -> History | None:
    told = in_told(history, "step_committed")
    return without(history, one_of(told[:-1], draw))


@FORGERIES.of("a step is told twice", Rule.TOLD_STEPS)
def _step_again(history: History, draw: Random) -> History | None:
    return twice(history, one_of(in_told(history, "step_committed"), draw))


@FORGERIES.of("a step is told with another loss", Rule.TOLD_STEPS)
def _told_loss(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1]["loss"] *= 1.0 + 2.0**-30

    return changed(history, one_of(in_told(history, "step_committed"), draw), change)


@FORGERIES.of("a step is told before the journal has it", Rule.TOLD_STEPS)
def _told_early(history: History, draw: Random) -> History | None:
    for at in draw.sample(steps := in_told(history, "step_committed"), len(steps)):
        record = history[at][1]
        key = record["generation"], record["step"]
        commits = [
            here for here in in_journal(history, "commit")
            if here < at and (history[here][1]["commit"]["generation"], history[here][1]["commit"]["step"]) == key
        ]  # fmt: skip
        if commits:
            return [*history[: commits[0]], history[at], *history[commits[0] : at], *history[at + 1 :]]
    return None


@FORGERIES.of("more nodes live than is told", Rule.TOLD_NODES)
def _miscount(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1]["live_nodes"] += draw.choice([-1, 1])

    return changed(history, one_of(in_told(history, "step_committed"), draw), change)


@FORGERIES.of("a loss is not told", Rule.TOLD_NODES)
def _untold_loss(history: History, draw: Random) -> History | None:
    return without(history, one_of(in_told(history, "node_lost"), draw))


@FORGERIES.of("a loss is told twice", Rule.TOLD_NODES)
def _loss_again(history: History, draw: Random) -> History | None:
    return twice(history, one_of(in_told(history, "node_lost"), draw))


@FORGERIES.of("a loss is told that was none", Rule.TOLD_NODES)
def _false_loss(history: History, draw: Random) -> History | None:
    gone = {entry[1]["node"] for entry in history if entry[0] == "journal" and entry[1]["type"] == "node"
            and entry[1]["fate"] != "joined"}  # fmt: skip
    at = one_of(in_told(history, "node_joined", lambda record: record["node"] not in gone), draw)
    if at is None or not any(in_journal(history[:at], "plan")):
        at = one_of(in_told(history, "step_committed"), draw)
    if at is None:
        return None
    live = {e[1]["node"] for e in history[:at] if e[0] == "told" and e[1]["event"] == "node_joined"} - gone
    if not live:
        return None
    record = {"event": "node_lost", "node": draw.choice(sorted(live)), "step": 1, "cause": "process killed",
              "live_nodes": len(live) - 1, "detect_ms": None}  # fmt: skip
    return with_more(history, at + 1, ("told", record))


@FORGERIES.of("a recovery is told that was none", Rule.TOLD_RECOVERY)
def _false_recovery(history: History, draw: Random) -> History | None:
    at = one_of(in_told(history, "step_committed"), draw)
    if at is None:
        return None
    recovery = {
        "step": history[at][1]["step"],
        "lost_nodes": [9999],
        "cause": "",
        "detect_ms": None,
        "steps_redone": 0,
        "microbatches_rerun": 0,
        "microbatches_per_step": history[0][1]["microbatches"],
    }
    return with_more(history, at + 1, ("told", {"event": "recovered", "recovery": recovery}))


@FORGERIES.of("a recovery is told twice", Rule.TOLD_RECOVERY)
def _recovery_again(history: History, draw: Random) -> History | None:
    return twice(history, one_of(in_told(history, "recovered"), draw))


@FORGERIES.of("a recovery is not told", Rule.TOLD_RECOVERY)
def _untold_recovery(history: History, draw: Random) -> History | None:
    is_completed = in_told(history, "run_ended", lambda record: record["status"] == "completed")
    return without(history, one_of(in_told(history, "recovered"), draw)) if is_completed else None


@FORGERIES.of("a recovery tells of fewer steps that are done again", Rule.TOLD_RECOVERY)
def _fewer_redone(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1]["recovery"]["steps_redone"] += 1

    return changed(history, one_of(in_told(history, "recovered"), draw), change)


@FORGERIES.of("a recovery tells of another cause", Rule.TOLD_RECOVERY)
def _other_cause(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1]["recovery"]["cause"] += ", and another"

    return changed(history, one_of(in_told(history, "recovered"), draw), change)


@FORGERIES.of("a step is told to train more tokens", Rule.TOLD_STEPS)
def _more_tokens(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1]["tokens_per_s"] *= 1.0 + 1.0 / history[0][1]["microbatches"]

    return changed(history, one_of(in_told(history, "step_committed"), draw), change)


@FORGERIES.of("a recovery comes before the step that ends it", Rule.TOLD_RECOVERY)
def _early_recovery(history: History, draw: Random) -> History | None:
    at = one_of(in_told(history, "recovered"), draw)
    if at is None:
        return None
    nodes = history[at][1]["recovery"]["lost_nodes"]
    losses = in_told(history, "node_lost", lambda record: record["node"] in nodes)
    last = losses[-1] + 1
    events = ("step_committed", "step_skipped", "evaluated")
    passes = [here for event in events for here in in_told(history, event) if losses[0] < here < last]
    return None if passes else [*history[:last], history[at], *history[last:at], *history[at + 1 :]]


@FORGERIES.of("a plan is told otherwise", Rule.TOLD_PLANS)
def _told_plan(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        for record in entry[1]["records"]:
            if record["event"] == "plan_taken":
                record["microbatches"] = [record["microbatches"][0] + 1, *record["microbatches"][1:]]

    told = in_journal(history, "plan", lambda e: any(r["event"] == "plan_taken" for r in e.get("records", ())))
    plans = [at for at in told if not is_rest(history[at][1])]
    return changed(history, one_of(plans, draw), change)


@FORGERIES.of("too few replicas are not told", Rule.TOLERANCE)
def _untold_degraded(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1]["records"] = [r for r in entry[1]["records"] if r.get("subject") != "degraded"]

    return changed(history, one_of(in_journal(history, "plan", _is_degraded), draw), change)


@FORGERIES.of("the number of replicas is told wrong", Rule.TOLERANCE)
def _wrong_degraded(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        for record in entry[1]["records"]:
            if record.get("subject") == "degraded":
                record["text"] = record["text"].replace(" has ", " has 1")

    return changed(history, one_of(in_journal(history, "plan", _is_degraded), draw), change)


def _is_degraded(entry: Plain) -> bool:
    records = entry.get("records", ())
    taken = [r["purpose"] for r in records if r["event"] == "plan_taken"]
    is_placed = bool(taken) and taken[0] in ("start", "reconfigure", "restore")
    return is_placed and any(record.get("subject") == "degraded" for record in records)


@FORGERIES.of("the end tells of a step more", Rule.TOLD_END)
def _more_steps(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1]["steps"] += 1

    return changed(history, one_of(in_told(history, "run_ended"), draw), change)


@FORGERIES.of("the end tells of a skipped microbatch", Rule.TOLD_END)
def _tell_skipped(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1][draw.choice(["skipped_microbatches", "duplicated_microbatches"])] = 1

    return changed(history, one_of(in_told(history, "run_ended"), draw), change)


@FORGERIES.of("the end is told twice", Rule.TOLD_END)
def _end_again(history: History, draw: Random) -> History | None:
    return twice(history, one_of(in_told(history, "run_ended"), draw))


# Checkpoints


def _manifests(history: History) -> list[int]:
    """Returns where checkpoints became whole of steps that somebody applied."""
    known = {entry[2]["step"] for entry in history if entry[0] == "applied"} - {history[0][1]["done"]}
    return [at for at, entry in enumerate(history) if entry[0] == "manifest" and entry[1] in known]


@FORGERIES.of("a checkpoint is of a step that was not committed", Rule.SAVED)
def _save_uncommitted(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1] += 1000

    return changed(history, one_of(_manifests(history), draw), change)


@FORGERIES.of("a checkpoint has another state", Rule.SAVED)
def _save_other(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        group, state = entry[3][0]
        entry[3] = [(group, state ^ 1), *entry[3][1:]]

    is_corrupt = any(entry[0] == "befell" and entry[1] == "corrupt" for entry in history)
    return None if is_corrupt else changed(history, one_of(_manifests(history), draw), change)


@FORGERIES.of("a checkpoint lacks a group", Rule.SAVED)
def _save_less(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[3] = entry[3][1:]

    return changed(history, one_of(_manifests(history), draw), change)


@FORGERIES.of("a checkpoint has other exponents", Rule.SAVED)
def _save_exponents(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[4] = [exponent + 1 for exponent in entry[4]]

    return changed(history, one_of(_manifests(history), draw), change)
