"""Places of a history that can be forged, and changes at them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any

from tests.testkit.witness.history import Entry, History, Plain
from tests.testkit.witness.journal import layers_held


def places(history: History, kind: str, holds: Callable[[Any], object] = lambda what: True) -> list[int]:
    """Returns where entries of a kind are whose last value is as wanted."""
    return [at for at, entry in enumerate(history) if entry[0] == kind and holds(entry[-1])]


def in_journal(history: History, kind: str, holds: Callable[[Plain], object] = lambda entry: True) -> list[int]:
    return places(history, "journal", lambda entry: entry["type"] == kind and holds(entry))


def in_told(history: History, event: str, holds: Callable[[Plain], object] = lambda record: True) -> list[int]:
    return places(history, "told", lambda record: record["event"] == event and holds(record))


def one_of(places: list[int], draw: Random) -> int | None:
    return draw.choice(places) if places else None


def without(history: History, at: int | None) -> History | None:
    return None if at is None else [*history[:at], *history[at + 1 :]]


def with_more(history: History, at: int | None, *entries: Entry) -> History | None:
    return None if at is None else [*history[:at], *entries, *history[at:]]


def twice(history: History, at: int | None) -> History | None:
    return None if at is None else with_more(history, at, history[at])


def changed(history: History, at: int | None, change: Callable[[list[Any]], None]) -> History | None:
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


def votes_of_whole(history: History) -> list[tuple[int, int]]:
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


def first_of(pairs: Iterable[tuple[int, int]], draw: Random) -> int | None:
    return one_of([pair[0] for pair in pairs], draw)


def is_rest(entry: Plain) -> bool:
    """Returns whether a plan is for the rest of a step, of which some is done."""
    return any(record.get("purpose") == "finish step" for record in entry.get("records", ()))
