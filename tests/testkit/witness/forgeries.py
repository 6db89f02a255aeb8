"""Forgeries: changes of a true history after which something does not hold any more, each with the rule that says so.

A forgery is made at a place drawn at random of those where it is one; a history without such a place gives none.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.testkit.witness.history import Entry, History, Plain
from tests.testkit.witness.journal import layers_held
from tests.testkit.witness.rules import Rule

Change = Callable[[History, Random], History | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgery:
    """A change of a history.

    Attributes:
        what: is changed, for people.
        rule: that it breaks; others may break as well.
        change: makes it; None: there is no place for it.
    """

    what: str
    rule: Rule
    change: Change


FORGERIES: list[Forgery] = []


def _forgery(what: str, rule: Rule) -> Callable[[Change], Change]:
    def add(change: Change) -> Change:
        FORGERIES.append(Forgery(what=what, rule=rule, change=change))
        return change

    return add


# Places, and changes at them


def _at(history: History, kind: str, holds: Callable[[Any], object] = lambda what: True) -> list[int]:
    """Returns where entries of a kind are whose last value is as wanted."""
    return [at for at, entry in enumerate(history) if entry[0] == kind and holds(entry[-1])]


def _journal(history: History, kind: str, holds: Callable[[Plain], object] = lambda entry: True) -> list[int]:
    return _at(history, "journal", lambda entry: entry["type"] == kind and holds(entry))


def _told(history: History, event: str, holds: Callable[[Plain], object] = lambda record: True) -> list[int]:
    return _at(history, "told", lambda record: record["event"] == event and holds(record))


def _one(places: list[int], draw: Random) -> int | None:
    return draw.choice(places) if places else None


def _without(history: History, at: int | None) -> History | None:
    return None if at is None else [*history[:at], *history[at + 1 :]]


def _with(history: History, at: int | None, *entries: Entry) -> History | None:
    return None if at is None else [*history[:at], *entries, *history[at:]]


def _twice(history: History, at: int | None) -> History | None:
    return None if at is None else _with(history, at, history[at])


def _changed(history: History, at: int | None, change: Callable[[list[Any]], None]) -> History | None:
    """Returns a history of which one entry is changed."""
    if at is None:
        return None
    entry = copy.deepcopy(list(history[at]))
    change(entry)
    return [*history[:at], entry, *history[at + 1 :]]


def _backing(history: History) -> Iterator[tuple[int, int]]:
    """Yields where each vote that a commit rests on was heard, and where that commit is; of a vote that was told twice
    the last."""
    heard: dict[tuple[int, int, int], int] = {}
    for at, entry in enumerate(history):
        if entry[0] == "heard" and entry[2]["type"] == "vote":
            heard[entry[2]["generation"], entry[2]["step"], entry[1]] = at
        elif entry[0] == "heard" and (vote := entry[2].get("vote")) is not None:
            heard.pop((vote["generation"], vote["step"], entry[1]), None)
        elif entry[0] == "journal" and entry[1]["type"] == "commit":
            where = entry[1]["commit"]["generation"], entry[1]["commit"]["step"]
            yield from ((found, at) for key, found in heard.items() if key[:2] == where)


def _of_whole(history: History) -> list[tuple[int, int]]:
    """Returns the votes of commits for which every worker of the plan voted, each heard once."""
    gone: set[int] = set()
    plan: Plain = {}
    whole: dict[int, bool] = {}
    votes = list(_backing(history))
    for at, entry in enumerate(history):
        if entry[0] != "journal":
            continue
        if entry[1]["type"] == "plan":
            plan = entry[1]["message"]["plan"]
        elif entry[1]["type"] == "node" and entry[1]["fate"] in ("lost", "released"):
            gone.add(entry[1]["node"])
        elif entry[1]["type"] == "commit":
            workers, per_node = set(layers_held(plan)), history[0][1]["devices_per_node"]
            voters = {history[vote][1] for vote, of in votes if of == at}
            is_here = not {worker // per_node for worker in workers} & gone
            whole[at] = voters == workers and is_here and entry[1]["commit"]["generation"] == plan["generation"]
    return [(vote, of) for vote, of in votes if whole[of]]


def _first(pairs: Iterable[tuple[int, int]], draw: Random) -> int | None:
    return _one([pair[0] for pair in pairs], draw)


# The journal


@_forgery("a commit is not there", Rule.IN_ORDER)
def _drop_commit(history: History, draw: Random) -> History | None:
    commits = _journal(history, "commit")
    nexts = [
        at for at, then in itertools.pairwise(commits)
        if history[then][1]["commit"]["step"] == history[at][1]["commit"]["step"] + 1
    ]  # fmt: skip
    return _without(history, _one(nexts, draw))


@_forgery("a commit is there twice", Rule.ONE_GENERATION)
def _double_commit(history: History, draw: Random) -> History | None:
    return _twice(history, _one(_journal(history, "commit"), draw))


@_forgery("two commits change places", Rule.IN_ORDER)
def _swap_commits(history: History, draw: Random) -> History | None:
    commits = _journal(history, "commit")
    if len(commits) < 2:
        return None
    one = draw.randrange(len(commits) - 1)
    changed = list(history)
    first, second = commits[one], commits[one + 1]
    changed[first], changed[second] = changed[second], changed[first]
    return changed


@_forgery("a commit is of another generation", Rule.ONE_GENERATION)
def _other_generation(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1]["commit"]["generation"] += draw.choice([-1, 1])

    return _changed(history, _one(_journal(history, "commit"), draw), change)


@_forgery("a commit says another loss", Rule.NUMBERS)
def _other_loss(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1]["commit"]["loss"] += 2.0**-20

    commits = sorted({of for _, of in _of_whole(history)})
    finite = [at for at in commits if history[at][1]["commit"]["clip_factor"]]
    return _changed(history, _one(finite, draw), change)


@_forgery("a step that is not finite is applied", Rule.NUMBERS)
def _apply_all(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1]["commit"]["clip_factor"] = 1.0

    return _changed(history, _one(_journal(history, "commit", lambda e: not e["commit"]["clip_factor"]), draw), change)


@_forgery("a plan's generation is that of one before", Rule.GENERATIONS_RISE)
def _old_generation(history: History, draw: Random) -> History | None:
    plans = _journal(history, "plan")
    if len(plans) < 2:
        return None
    one = draw.randrange(1, len(plans))
    earlier = history[plans[one - 1]][1]["message"]["plan"]["generation"]

    def change(entry: list[Any]) -> None:
        entry[1]["message"]["plan"]["generation"] = earlier

    return _changed(history, plans[one], change)


@_forgery("a plan leaves out a microbatch", Rule.ROUTED)
def _drop_microbatch(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        route = draw.choice(entry[1]["message"]["plan"]["routes"])
        route["microbatches"] = route["microbatches"][1:]

    return _changed(history, _one(_journal(history, "plan", lambda e: e["message"]["plan"]["routes"]), draw), change)


@_forgery("a plan has a node that is gone", Rule.ROUTED)
def _dead_member(history: History, draw: Random) -> History | None:
    lost = _journal(history, "node", lambda entry: entry["fate"] == "lost")
    plans = [at for at in _journal(history, "plan") if lost and at > lost[0]]
    per_node = history[0][1]["devices_per_node"]

    def change(entry: list[Any]) -> None:
        stage = draw.choice(draw.choice(entry[1]["message"]["plan"]["pipelines"])["stages"])
        stage["worker"] = history[lost[0]][1]["node"] * per_node

    return _changed(history, _one(plans, draw), change)


@_forgery("a node joins twice", Rule.NODES)
def _join_twice(history: History, draw: Random) -> History | None:
    return _twice(history, _one(_journal(history, "node", lambda entry: entry["fate"] == "joined"), draw))


@_forgery("a node is lost twice", Rule.NODES)
def _lose_twice(history: History, draw: Random) -> History | None:
    return _twice(history, _one(_journal(history, "node", lambda entry: entry["fate"] == "lost"), draw))


@_forgery("a node is given up that nothing befell", Rule.FOUNDED)
def _lose_live(history: History, draw: Random) -> History | None:
    if any(entry[0] == "befell" and not entry[3] for entry in history):
        return None
    over = {entry[1] for entry in history if entry[0] == "over"}
    joins = _journal(history, "node", lambda entry: entry["fate"] == "joined" and entry["node"] not in over)
    at = _one(joins, draw)
    if at is None:
        return None
    loss = {"type": "node", "node": history[at][1]["node"], "fate": "lost", "cause": "heard nothing for 1.0 s"}
    return _with(history, at + 1, ("journal", loss))


@_forgery("the job goes back from another step than it was at", Rule.GOES_BACK)
def _back_from_elsewhere(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        for record in entry[1]["records"]:
            if record["event"] == "restored":
                record["from_step"] += 1

    return _changed(history, _one(_journal(history, "plan", _goes_back), draw), change)


@_forgery("the job goes back to a step that is not saved", Rule.GOES_BACK)
def _back_to_unsaved(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1]["message"]["step"] += 1
        for record in entry[1]["records"]:
            if record["event"] == "restored":
                record["to_step"] += 1

    return _changed(history, _one(_journal(history, "plan", _goes_back), draw), change)


def _goes_back(entry: Plain) -> bool:
    return any(record["event"] == "restored" for record in entry.get("records", ()))


@_forgery("something is decided after the end", Rule.AT_END)
def _after_end(history: History, draw: Random) -> History | None:
    ends, nodes = _journal(history, "end"), _journal(history, "node")
    return _with(history, ends[0] + 1, history[nodes[0]]) if ends and nodes else None


# Votes and sums


@_forgery("a vote was never cast", Rule.VOTED)
def _drop_vote(history: History, draw: Random) -> History | None:
    return _without(history, _first(_of_whole(history), draw))


@_forgery("a commit comes before its last vote", Rule.VOTED)
def _commit_early(history: History, draw: Random) -> History | None:
    last = {of: vote for vote, of in sorted(_of_whole(history))}
    of = _one(sorted(last), draw)
    if of is None:
        return None
    vote = last[of]
    return [*history[:vote], history[of], *history[vote:of], *history[of + 1 :]]


@_forgery("a layer does not count a microbatch", Rule.COUNTED)
def _drop_count(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        masks = list(entry[2]["ledger"]["masks"])
        layer = draw.choice([layer for layer, mask in enumerate(masks) if mask != "0"])
        mask = int(masks[layer], 16)
        masks[layer] = f"{mask & (mask - 1):x}"
        entry[2]["ledger"]["masks"] = masks

    return _changed(history, _first(_counting(history), draw), change)


@_forgery("a layer counts a microbatch twice", Rule.COUNTED)
def _double_count(history: History, draw: Random) -> History | None:
    pairs = list(_counting(history))
    commits = [of for of in {of for _, of in pairs} if sum(other == of for _, other in pairs) > 1]
    if not commits:
        return None
    votes = [vote for vote, of in pairs if of == draw.choice(commits[:1])]
    one, other = draw.sample(votes, 2)
    masks = history[one][2]["ledger"]["masks"]

    def change(entry: list[Any]) -> None:
        layer = draw.choice([layer for layer, mask in enumerate(masks) if mask != "0"])
        both = list(entry[2]["ledger"]["masks"])
        both[layer] = f"{int(both[layer], 16) | int(masks[layer], 16):x}"
        entry[2]["ledger"]["masks"] = both

    return _changed(history, other, change)


def _counting(history: History) -> Iterator[tuple[int, int]]:
    for vote, of in _of_whole(history):
        if any(mask != "0" for mask in history[vote][2]["ledger"]["masks"]):
            yield vote, of


@_forgery("an owner of a group voted for other bits", Rule.AGREED)
def _differ(history: History, draw: Random) -> History | None:
    pairs = _of_whole(history)
    told: dict[tuple[int, int], list[int]] = {}
    for vote, of in pairs:
        for group in history[vote][2]["digests"]:
            told.setdefault((of, group), []).append(vote)
    shared = sorted((group, votes[0]) for (_, group), votes in told.items() if len(votes) > 1)
    if not shared:
        return None
    group, at = draw.choice(shared)

    def change(entry: list[Any]) -> None:
        digest = list(entry[2]["digests"][group])
        digest[draw.randrange(2)] ^= 1 << draw.randrange(60)
        entry[2]["digests"][group] = digest

    return _changed(history, at, change)


def _committed_sums(history: History) -> list[int]:
    keys = {
        (entry[1]["commit"]["generation"], entry[1]["commit"]["step"])
        for entry in history
        if entry[0] == "journal" and entry[1]["type"] == "commit"
    }
    return [at for at, entry in enumerate(history) if entry[0] == "summed" and tuple(entry[2:4]) in keys and entry[4]]


def _change_sum(history: History, draw: Random, sign: int) -> History | None:
    """Adds a contribution to a sum once more, or takes it away."""
    at = _one(_committed_sums(history), draw)
    if at is None:
        return None
    step, group = history[at][3], draw.choice(sorted(history[at][4]))
    values = [entry[7] for entry in history if entry[0] == "counted" and tuple(entry[3:5]) == (step, group)]
    if not values:
        return None

    def change(entry: list[Any]) -> None:
        entry[4][group] += sign * draw.choice(values)

    return _changed(history, at, change)


@_forgery("a sum has a contribution twice", Rule.SUMMED)
def _add_contribution(history: History, draw: Random) -> History | None:
    return _change_sum(history, draw, 1)


@_forgery("a sum lacks a contribution", Rule.SUMMED)
def _drop_contribution(history: History, draw: Random) -> History | None:
    return _change_sum(history, draw, -1)


@_forgery("a contribution was of another value", Rule.SUMMED)
def _other_contribution(history: History, draw: Random) -> History | None:
    at = _one(_committed_sums(history), draw)
    if at is None:
        return None
    group = draw.choice(sorted(history[at][4]))
    places = [here for here, e in enumerate(history) if e[0] == "counted" and (e[3], e[4]) == (history[at][3], group)]
    where = _one(places, draw)
    if where is None:
        return None
    key = tuple(history[where][3:7])
    if any(e[0] == "cut" or (e[0] == "befell" and e[1] == "corrupt") for e in history):
        return None
    return [
        (*e[:7], e[7] + 1) if e[0] == "counted" and tuple(e[3:7]) == key else e for e in history
    ]  # fmt: skip


# What workers did


@_forgery("a worker adopts an older plan", Rule.GENERATIONS_RISE)
def _adopt_old(history: History, draw: Random) -> History | None:
    return _twice(history, _one([at for at, entry in enumerate(history) if entry[0] == "adopted"], draw))


def _applied(history: History) -> list[int]:
    return [at for at, entry in enumerate(history) if entry[0] == "applied"]


@_forgery("a worker applies a step twice", Rule.APPLIED)
def _apply_twice(history: History, draw: Random) -> History | None:
    return _twice(history, _one(_applied(history), draw))


@_forgery("a worker applies other numbers than the journal has", Rule.APPLIED)
def _apply_other(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[2]["clip_factor"] += 0.5

    return _changed(history, _one(_applied(history), draw), change)


@_forgery("a worker skips a step", Rule.APPLIED)
def _skip_applied(history: History, draw: Random) -> History | None:
    runs: dict[int, list[int]] = {}
    places = []
    for at, entry in enumerate(history):
        if entry[0] == "adopted":
            runs[entry[1]] = []
        elif entry[0] == "applied":
            runs.setdefault(entry[1], []).append(at)
            places += runs[entry[1]][1:][-2:-1]
    return _without(history, _one(places, draw))


@_forgery("a worker holds something else after a step", Rule.APPLIED)
def _hold_other(history: History, draw: Random) -> History | None:
    if any(entry[0] == "befell" and entry[1] == "corrupt" for entry in history):
        return None
    held: dict[tuple[int, int, int], list[int]] = {}
    for at in _applied(history):
        generation, step = history[at][2]["generation"], history[at][2]["step"]
        for group in history[at][3]:
            held.setdefault((generation, step, group), []).append(at)
    shared = sorted((key[2], places[-1]) for key, places in held.items() if len(places) > 1)
    if not shared:
        return None
    group, at = draw.choice(shared)

    def change(entry: list[Any]) -> None:
        entry[3][group] ^= 1

    return _changed(history, at, change)


# What users were told


@_forgery("a step is not told", Rule.TOLD_STEPS)
def _untold_step(history: History, draw: Random) -> History | None:
    told = _told(history, "step_committed")
    return _without(history, _one(told[:-1], draw))


@_forgery("a step is told twice", Rule.TOLD_STEPS)
def _step_again(history: History, draw: Random) -> History | None:
    return _twice(history, _one(_told(history, "step_committed"), draw))


@_forgery("a step is told with another loss", Rule.TOLD_STEPS)
def _told_loss(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1]["loss"] *= 1.0 + 2.0**-30

    return _changed(history, _one(_told(history, "step_committed"), draw), change)


@_forgery("a step is told before the journal has it", Rule.TOLD_STEPS)
def _told_early(history: History, draw: Random) -> History | None:
    for at in draw.sample(steps := _told(history, "step_committed"), len(steps)):
        record = history[at][1]
        key = record["generation"], record["step"]
        commits = [
            here for here in _journal(history, "commit")
            if here < at and (history[here][1]["commit"]["generation"], history[here][1]["commit"]["step"]) == key
        ]  # fmt: skip
        if commits:
            return [*history[: commits[0]], history[at], *history[commits[0] : at], *history[at + 1 :]]
    return None


@_forgery("more nodes live than is told", Rule.TOLD_NODES)
def _miscount(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1]["live_nodes"] += draw.choice([-1, 1])

    return _changed(history, _one(_told(history, "step_committed"), draw), change)


@_forgery("a loss is not told", Rule.TOLD_NODES)
def _untold_loss(history: History, draw: Random) -> History | None:
    return _without(history, _one(_told(history, "node_lost"), draw))


@_forgery("a loss is told twice", Rule.TOLD_NODES)
def _loss_again(history: History, draw: Random) -> History | None:
    return _twice(history, _one(_told(history, "node_lost"), draw))


@_forgery("a loss is told that was none", Rule.TOLD_NODES)
def _false_loss(history: History, draw: Random) -> History | None:
    gone = {entry[1]["node"] for entry in history if entry[0] == "journal" and entry[1]["type"] == "node"
            and entry[1]["fate"] != "joined"}  # fmt: skip
    at = _one(_told(history, "node_joined", lambda record: record["node"] not in gone), draw)
    if at is None or not any(_journal(history[:at], "plan")):
        at = _one(_told(history, "step_committed"), draw)
    if at is None:
        return None
    live = {e[1]["node"] for e in history[:at] if e[0] == "told" and e[1]["event"] == "node_joined"} - gone
    if not live:
        return None
    record = {"event": "node_lost", "node": draw.choice(sorted(live)), "step": 1, "cause": "process killed",
              "live_nodes": len(live) - 1, "detect_ms": None}  # fmt: skip
    return _with(history, at + 1, ("told", record))


@_forgery("a recovery is told that was none", Rule.TOLD_RECOVERY)
def _false_recovery(history: History, draw: Random) -> History | None:
    at = _one(_told(history, "step_committed"), draw)
    if at is None:
        return None
    recovery = {"step": history[at][1]["step"], "lost_nodes": [9999], "steps_redone": 0, "microbatches_rerun": 0,
                "microbatches_per_step": history[0][1]["microbatches"]}  # fmt: skip
    return _with(history, at + 1, ("told", {"event": "recovered", "recovery": recovery}))


@_forgery("a recovery is told twice", Rule.TOLD_RECOVERY)
def _recovery_again(history: History, draw: Random) -> History | None:
    return _twice(history, _one(_told(history, "recovered"), draw))


@_forgery("a recovery is not told", Rule.TOLD_RECOVERY)
def _untold_recovery(history: History, draw: Random) -> History | None:
    is_completed = _told(history, "run_ended", lambda record: record["status"] == "completed")
    return _without(history, _one(_told(history, "recovered"), draw)) if is_completed else None


@_forgery("a recovery tells of fewer steps that are done again", Rule.TOLD_RECOVERY)
def _fewer_redone(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1]["recovery"]["steps_redone"] += 1

    return _changed(history, _one(_told(history, "recovered"), draw), change)


@_forgery("a recovery comes before the step that ends it", Rule.TOLD_RECOVERY)
def _early_recovery(history: History, draw: Random) -> History | None:
    at = _one(_told(history, "recovered"), draw)
    if at is None:
        return None
    nodes = history[at][1]["recovery"]["lost_nodes"]
    losses = _told(history, "node_lost", lambda record: record["node"] in nodes)
    last = losses[-1] + 1
    events = ("step_committed", "step_skipped", "evaluated")
    passes = [here for event in events for here in _told(history, event) if losses[0] < here < last]
    return None if passes else [*history[:last], history[at], *history[last:at], *history[at + 1 :]]


@_forgery("a plan is told otherwise", Rule.TOLD_PLANS)
def _told_plan(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        for record in entry[1]["records"]:
            if record["event"] == "plan_taken":
                record["microbatches"] = [record["microbatches"][0] + 1, *record["microbatches"][1:]]

    plans = _journal(history, "plan", lambda e: any(r["event"] == "plan_taken" for r in e.get("records", ())))
    return _changed(history, _one(plans, draw), change)


@_forgery("too few replicas are not told", Rule.TOLERANCE)
def _untold_degraded(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1]["records"] = [r for r in entry[1]["records"] if r.get("subject") != "degraded"]

    return _changed(history, _one(_journal(history, "plan", _is_degraded), draw), change)


@_forgery("the number of replicas is told wrong", Rule.TOLERANCE)
def _wrong_degraded(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        for record in entry[1]["records"]:
            if record.get("subject") == "degraded":
                record["text"] = record["text"].replace(" has ", " has 1")

    return _changed(history, _one(_journal(history, "plan", _is_degraded), draw), change)


def _is_degraded(entry: Plain) -> bool:
    records = entry.get("records", ())
    taken = [r["purpose"] for r in records if r["event"] == "plan_taken"]
    is_placed = bool(taken) and taken[0] in ("start", "reconfigure", "restore")
    return is_placed and any(record.get("subject") == "degraded" for record in records)


@_forgery("the end tells of a step more", Rule.TOLD_END)
def _more_steps(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1]["steps"] += 1

    return _changed(history, _one(_told(history, "run_ended"), draw), change)


@_forgery("the end tells of a skipped microbatch", Rule.TOLD_END)
def _tell_skipped(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1][draw.choice(["skipped_microbatches", "duplicated_microbatches"])] = 1

    return _changed(history, _one(_told(history, "run_ended"), draw), change)


@_forgery("the end is told twice", Rule.TOLD_END)
def _end_again(history: History, draw: Random) -> History | None:
    return _twice(history, _one(_told(history, "run_ended"), draw))


# Checkpoints


def _manifests(history: History) -> list[int]:
    """Returns where checkpoints became whole of steps that somebody applied."""
    known = {entry[2]["step"] for entry in history if entry[0] == "applied"} - {history[0][1]["done"]}
    return [at for at, entry in enumerate(history) if entry[0] == "manifest" and entry[1] in known]


@_forgery("a checkpoint is of a step that was not committed", Rule.SAVED)
def _save_uncommitted(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1] += 1000

    return _changed(history, _one(_manifests(history), draw), change)


@_forgery("a checkpoint has another state", Rule.SAVED)
def _save_other(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        group, state = entry[3][0]
        entry[3] = [(group, state ^ 1), *entry[3][1:]]

    is_corrupt = any(entry[0] == "befell" and entry[1] == "corrupt" for entry in history)
    return None if is_corrupt else _changed(history, _one(_manifests(history), draw), change)


@_forgery("a checkpoint lacks a group", Rule.SAVED)
def _save_less(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[3] = entry[3][1:]

    return _changed(history, _one(_manifests(history), draw), change)


@_forgery("a checkpoint has other exponents", Rule.SAVED)
def _save_exponents(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[4] = [exponent + 1 for exponent in entry[4]]

    return _changed(history, _one(_manifests(history), draw), change)
