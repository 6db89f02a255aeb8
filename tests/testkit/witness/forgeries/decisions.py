"""Forgeries of decisions: of the journal, of votes and sums, and of what workers did."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random
from typing import Any

from tests.testkit.witness.forgeries.forgery import Forgeries
from tests.testkit.witness.forgeries.places import (
    changed,
    first_of,
    in_journal,
    is_rest,
    one_of,
    twice,
    votes_of_whole,
    with_more,
    without,
)
from tests.testkit.witness.history import History, Plain
from tests.testkit.witness.journal import auditable, layers_held
from tests.testkit.witness.rules import Rule

FORGERIES = Forgeries()

# The journal


@FORGERIES.of("a commit is not there", Rule.IN_ORDER)
def _drop_commit(history: History, draw: Random) -> History | None:
    commits = in_journal(history, "commit")
    nexts = [
        at for at, then in itertools.pairwise(commits)
        if history[then][1]["commit"]["step"] == history[at][1]["commit"]["step"] + 1
    ]  # fmt: skip
    return without(history, one_of(nexts, draw))


@FORGERIES.of("a commit is there twice", Rule.ONE_GENERATION)
def _double_commit(history: History, draw: Random) -> History | None:
    return twice(history, one_of(in_journal(history, "commit"), draw))


@FORGERIES.of("two commits change places", Rule.IN_ORDER)
def _swap_commits(history: History, draw: Random) -> History | None:
    commits = in_journal(history, "commit")
    if len(commits) < 2:
        return None
    one = draw.randrange(len(commits) - 1)
    changed = list(history)
    first, second = commits[one], commits[one + 1]
    changed[first], changed[second] = changed[second], changed[first]
    return changed


@FORGERIES.of("a commit is of another generation", Rule.ONE_GENERATION)
def _other_generation(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1]["commit"]["generation"] += draw.choice([-1, 1])

    return changed(history, one_of(in_journal(history, "commit"), draw), change)


@FORGERIES.of("a commit says another loss", Rule.NUMBERS)
def _other_loss(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1]["commit"]["loss"] += 2.0**-20

    commits = sorted({of for _, of in votes_of_whole(history)})
    finite = [at for at in commits if history[at][1]["commit"]["clip_factor"]]
    return changed(history, one_of(finite, draw), change)


@FORGERIES.of("a step that is not finite is applied", Rule.NUMBERS)
def _apply_all(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1]["commit"]["clip_factor"] = 1.0

    return changed(
        history, one_of(in_journal(history, "commit", lambda e: not e["commit"]["clip_factor"]), draw), change
    )


@FORGERIES.of("a plan's generation is that of one before", Rule.GENERATIONS_RISE)
def _old_generation(history: History, draw: Random) -> History | None:
    plans = in_journal(history, "plan")
    if len(plans) < 2:
        return None
    one = draw.randrange(1, len(plans))
    earlier = history[plans[one - 1]][1]["message"]["plan"]["generation"]

    def change(entry: list[Any]) -> None:
        entry[1]["message"]["plan"]["generation"] = earlier

    return changed(history, plans[one], change)


@FORGERIES.of("a group's epoch is an older one", Rule.GENERATIONS_RISE)
def _old_epoch(history: History, draw: Random) -> History | None:
    plans = in_journal(history, "plan")
    risen = [
        at for before, at in itertools.pairwise(plans)
        if history[at][1]["message"]["plan"]["sync_epochs"][0] > 0
        and history[before][1]["message"]["plan"]["sync_epochs"][0] > 0
    ]  # fmt: skip

    def change(entry: list[Any]) -> None:
        entry[1]["message"]["plan"]["sync_epochs"][0] = 0

    return changed(history, one_of(risen, draw), change)


@FORGERIES.of("a plan leaves out a microbatch", Rule.ROUTED)
def _drop_microbatch(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        route = draw.choice(entry[1]["message"]["plan"]["routes"])
        route["microbatches"] = route["microbatches"][1:]

    return changed(history, one_of(in_journal(history, "plan", lambda e: not is_rest(e)), draw), change)


@FORGERIES.of("a plan has a node that is gone", Rule.ROUTED)
def _dead_member(history: History, draw: Random) -> History | None:
    lost = in_journal(history, "node", lambda entry: entry["fate"] == "lost")
    plans = [at for at in in_journal(history, "plan") if lost and at > lost[0]]
    per_node = history[0][1]["devices_per_node"]

    def change(entry: list[Any]) -> None:
        stage = draw.choice(draw.choice(entry[1]["message"]["plan"]["pipelines"])["stages"])
        stage["worker"] = history[lost[0]][1]["node"] * per_node

    return changed(history, one_of(plans, draw), change)


@FORGERIES.of("a node joins twice", Rule.NODES)
def _join_twice(history: History, draw: Random) -> History | None:
    return twice(history, one_of(in_journal(history, "node", lambda entry: entry["fate"] == "joined"), draw))


@FORGERIES.of("a node is lost twice", Rule.NODES)
def _lose_twice(history: History, draw: Random) -> History | None:
    return twice(history, one_of(in_journal(history, "node", lambda entry: entry["fate"] == "lost"), draw))


@FORGERIES.of("a node of a host where one computed wrong is not audited", Rule.PROBATION)
def _no_probation(history: History, draw: Random) -> History | None:
    starts = in_journal(history, "plan", lambda entry: not is_rest(entry))
    if not starts:
        return None
    plan, per_node = history[starts[0]][1]["message"]["plan"], history[0][1]["devices_per_node"]
    nodes = {worker // per_node for worker in layers_held(plan)}
    looked_at = sorted({worker // per_node for worker, _, _ in auditable(plan, nodes, per_node)})
    joins = in_journal(
        history, "node", lambda e: e["fate"] == "joined" and e.get("device") is None and e["node"] in looked_at
    )
    at = one_of([at for at in joins if at < starts[0]], draw)
    if at is None:
        return None
    wrong = {"event": "computed_wrong", "node": 999, "step": 1, "host": history[at][1]["host"], "times": 1}
    loss = {"type": "node", "node": 999, "fate": "lost", "cause": "computed wrong", "records": [wrong]}
    return with_more(history, at, ("journal", loss))


@FORGERIES.of("a node is given up that nothing befell", Rule.FOUNDED)
def _lose_live(history: History, draw: Random) -> History | None:
    unclear = [at for at, entry in enumerate(history) if entry[0] == "befell" and not entry[3]]
    over = {entry[1]: at for at, entry in reversed(list(enumerate(history))) if entry[0] == "over"}
    joins = in_journal(history, "node", lambda entry: entry["fate"] == "joined")
    live = [at for at in joins if at < min([*unclear, over.get(history[at][1]["node"], len(history))])]
    at = one_of(live, draw)
    if at is None:
        return None
    loss = {"type": "node", "node": history[at][1]["node"], "fate": "lost", "cause": "heard nothing for 1.0 s"}
    return with_more(history, at + 1, ("journal", loss))


@FORGERIES.of("the job goes back from another step than it was at", Rule.GOES_BACK)
def _back_from_elsewhere(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        for record in entry[1]["records"]:
            if record["event"] == "restored":
                record["from_step"] += 1

    return changed(history, one_of(in_journal(history, "plan", _goes_back), draw), change)


@FORGERIES.of("the job goes back to a step that is not saved", Rule.GOES_BACK)
def _back_to_unsaved(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[1]["message"]["step"] += 1
        for record in entry[1]["records"]:
            if record["event"] == "restored":
                record["to_step"] += 1

    return changed(history, one_of(in_journal(history, "plan", _goes_back), draw), change)


def _goes_back(entry: Plain) -> bool:
    return any(record["event"] == "restored" for record in entry.get("records", ()))


@FORGERIES.of("something is decided after the end", Rule.AT_END)
def _after_end(history: History, draw: Random) -> History | None:
    ends, nodes = in_journal(history, "end"), in_journal(history, "node")
    return with_more(history, ends[0] + 1, history[nodes[0]]) if ends and nodes else None


# Votes and sums


@FORGERIES.of("a vote was never cast", Rule.VOTED)
def _drop_vote(history: History, draw: Random) -> History | None:
    return without(history, first_of(votes_of_whole(history), draw))


@FORGERIES.of("a commit comes before its last vote", Rule.VOTED)
def _commit_early(history: History, draw: Random) -> History | None:
    last = {of: vote for vote, of in sorted(votes_of_whole(history))}
    of = one_of(sorted(last), draw)
    if of is None:
        return None
    vote = last[of]
    return [*history[:vote], history[of], *history[vote:of], *history[of + 1 :]]


@FORGERIES.of("a layer does not count a microbatch", Rule.COUNTED)
def _drop_count(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        masks = list(entry[2]["ledger"]["masks"])
        layer = draw.choice([layer for layer, mask in enumerate(masks) if mask != "0"])
        mask = int(masks[layer], 16)
        masks[layer] = f"{mask & (mask - 1):x}"
        entry[2]["ledger"]["masks"] = masks

    return changed(history, first_of(_counting(history), draw), change)


@FORGERIES.of("a layer counts a microbatch twice", Rule.COUNTED)
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

    return changed(history, other, change)


def _counting(history: History) -> Iterator[tuple[int, int]]:
    for vote, of in votes_of_whole(history):
        if any(mask != "0" for mask in history[vote][2]["ledger"]["masks"]):
            yield vote, of


@FORGERIES.of("an owner of a group voted for other bits", Rule.AGREED)
def _differ(history: History, draw: Random) -> History | None:
    pairs = votes_of_whole(history)
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

    return changed(history, at, change)


@FORGERIES.of("a worker told something else of what another ran", Rule.AUDITED)
def _compute_otherwise(history: History, draw: Random) -> History | None:
    votes: dict[int, list[int]] = {}
    for vote, of in votes_of_whole(history):
        votes.setdefault(of, []).append(vote)
    shared = [found for _, found in sorted(votes.items()) if len(found) > 1]
    made: History | None = history
    for digest, at in enumerate(draw.sample(draw.choice(shared), 2) if shared else ()):

        def change(entry: list[Any], digest: int = digest) -> None:
            entry[2]["computed"] = [*entry[2].get("computed", ()), [0, 0, 1, [0, 7], {"w0": digest}]]

        made = None if made is None else changed(made, at, change)
    return made if shared else None


@FORGERIES.of("a node is said to be wrong, and nothing differed", Rule.ACCUSED)
def _accuse(history: History, draw: Random) -> History | None:
    if any(entry[0] == "befell" and entry[1] == "corrupt" for entry in history):
        return None

    def change(entry: list[Any]) -> None:
        wrong = {"event": "computed_wrong", "node": entry[1]["node"], "step": 1, "host": "", "times": 1}
        entry[1]["records"] = [*entry[1].get("records", ()), wrong]

    losses = in_journal(history, "node", lambda e: e["fate"] == "lost" and e.get("device") is None)
    return changed(history, one_of(losses, draw), change)


def _committed_sums(history: History) -> list[int]:
    keys = {
        (entry[1]["commit"]["generation"], entry[1]["commit"]["step"])
        for entry in history
        if entry[0] == "journal" and entry[1]["type"] == "commit"
    }
    return [at for at, entry in enumerate(history) if entry[0] == "summed" and tuple(entry[2:4]) in keys and entry[4]]


def _change_sum(history: History, draw: Random, sign: int) -> History | None:
    """Adds a contribution to a sum once more, or takes it away."""
    at = one_of(_committed_sums(history), draw)
    if at is None:
        return None
    step, group = history[at][3], draw.choice(sorted(history[at][4]))
    values = [entry[7] for entry in history if entry[0] == "counted" and tuple(entry[3:5]) == (step, group)]
    if not values:
        return None

    def change(entry: list[Any]) -> None:
        entry[4][group] += sign * draw.choice(values)

    return changed(history, at, change)


@FORGERIES.of("a sum has a contribution twice", Rule.SUMMED)
def _add_contribution(history: History, draw: Random) -> History | None:
    return _change_sum(history, draw, 1)


@FORGERIES.of("a sum lacks a contribution", Rule.SUMMED)
def _drop_contribution(history: History, draw: Random) -> History | None:
    return _change_sum(history, draw, -1)


@FORGERIES.of("a contribution was of another value", Rule.SUMMED)
def _other_contribution(history: History, draw: Random) -> History | None:
    at = one_of(_committed_sums(history), draw)
    if at is None:
        return None
    group = draw.choice(sorted(history[at][4]))
    places = [here for here, e in enumerate(history) if e[0] == "counted" and (e[3], e[4]) == (history[at][3], group)]
    where = one_of(places, draw)
    if where is None:
        return None
    key = tuple(history[where][3:7])
    if any(e[0] == "cut" or (e[0] == "befell" and e[1] == "corrupt") for e in history):
        return None
    return [
        (*e[:7], e[7] + 1) if e[0] == "counted" and tuple(e[3:7]) == key else e for e in history
    ]  # fmt: skip


# What workers did


@FORGERIES.of("a worker adopts an older plan", Rule.GENERATIONS_RISE)
def _adopt_old(history: History, draw: Random) -> History | None:
    return twice(history, one_of([at for at, entry in enumerate(history) if entry[0] == "adopted"], draw))


def _applied(history: History) -> list[int]:
    return [at for at, entry in enumerate(history) if entry[0] == "applied"]


@FORGERIES.of("a worker applies a step twice", Rule.APPLIED)
def _apply_twice(history: History, draw: Random) -> History | None:
    return twice(history, one_of(_applied(history), draw))


@FORGERIES.of("a worker applies other numbers than the journal has", Rule.APPLIED)
def _apply_other(history: History, draw: Random) -> History | None:
    def change(entry: list[Any]) -> None:
        entry[2]["clip_factor"] += 0.5

    return changed(history, one_of(_applied(history), draw), change)


@FORGERIES.of("a worker skips a step", Rule.APPLIED)
def _skip_applied(history: History, draw: Random) -> History | None:
    runs: dict[int, list[int]] = {}
    places = []
    for at, entry in enumerate(history):
        if entry[0] == "adopted":
            runs[entry[1]] = []
        elif entry[0] == "applied":
            runs.setdefault(entry[1], []).append(at)
            places += runs[entry[1]][1:][-2:-1]
    return without(history, one_of(places, draw))


@FORGERIES.of("a worker holds something else after a step", Rule.APPLIED)
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

    return changed(history, at, change)
