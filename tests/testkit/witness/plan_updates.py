"""Plans of a journal that are written as what changed since the plan before, made whole again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tests.testkit.witness.history import Plain

AS_THEY_ARE = ("generation", "sync_epochs", "transfers", "spare_in_flight", "dropped")
"""Fields that an update has of the plan itself; the others are those of the plan before."""

OF_THE_MESSAGE = ("step", "exponents", "source", "folder", "afresh", "begun", "lineage", "audits")


def whole(entries: Iterable[Plain]) -> list[Plain]:
    """Returns the entries of a journal with every plan in full. Raises ValueError: an update is of another plan."""
    found: list[Plain] = []
    last: Plain | None = None
    for entry in entries:
        if entry["type"] == "plan_update":
            update = entry["update"]
            if last is None or last["plan"]["generation"] != update["base"]:
                raise ValueError(f"plan {update['generation']} is written as an update of {update['base']}")
            rest = {name: value for name, value in entry.items() if name != "update"}
            entry = {**rest, "type": "plan", "message": _message(last, update)}
        if entry["type"] == "plan":
            last = entry["message"]
        elif entry["type"] == "past":
            last = None if entry["plan"] is None else entry["plan"]["message"]
        found.append(entry)
    return found


def _message(before: Plain, update: Plain) -> Plain:
    old = before["plan"]
    pipelines = [
        old["pipelines"][given] if isinstance(given, int) else {"stages": _stages(given)}
        for given in update["pipelines"]
    ]
    evaluated = old["evaluation"]["routes"] if old["evaluation"] else []
    number = update["num_evaluated"]
    routes = _routes(evaluated, update["evaluation"], pipelines, old["num_layers"])
    plan = {
        **old,
        **{name: update[name] for name in AS_THEY_ARE},
        "pipelines": pipelines,
        "routes": _routes(old["routes"], update["routes"], pipelines, old["num_layers"]),
        "shadows": _stages(update["shadows"]),
        "layer_units": old["layer_units"] if update["layer_units"] is None else update["layer_units"],
        "evaluation": {"num_microbatches": number, "routes": routes} if number else None,
    }
    workers = {stage["worker"] for pipeline in pipelines for stage in pipeline["stages"]}
    workers.update(stage["worker"] for stage in plan["shadows"])
    known = {**before["addresses"], **update["addresses"]}
    addresses = {worker: known[worker] for worker in sorted(workers)}
    return {**before, **{name: update[name] for name in OF_THE_MESSAGE}, "plan": plan, "addresses": addresses}


def _stages(cuts: Sequence[Sequence[int]]) -> list[Plain]:
    names = ("worker", "first_layer", "end_layer", "num_devices")
    return [dict(zip(names, cut, strict=True)) for cut in cuts]


def _routes(old: Sequence[Plain], given: Sequence[Any], pipelines: Sequence[Plain], num_layers: int) -> list[Plain]:
    return [old[one] if isinstance(one, int) else _route(one, pipelines, num_layers) for one in given]


def _route(given: Sequence[Any], pipelines: Sequence[Plain], num_layers: int) -> Plain:
    hops, microbatches, born, counted, reached = given
    return {
        "hops": pipelines[hops]["stages"] if isinstance(hops, int) else _stages(hops),
        "microbatches": [number for first, end in microbatches for number in range(first, end)],
        "born": born,
        "counted": list(range(num_layers)) if counted is None else counted,
        "reached": reached,
    }
