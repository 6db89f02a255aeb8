"""Writes the coordinator's state diagram and table of events into docs/explanation/protocol.md, from `TRANSITIONS`.

The table says which function takes an event in a phase. Where that may lead is read from the functions' source: the
phases that a function, or one that it calls, assigns. A branch under `if run.phase is Phase.X` counts only for X.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import sys
from importlib import import_module

from generated import ROOT, wrapped, write

from planaria.protocol import handlers, transitions
from planaria.protocol.phases import Phase
from planaria.protocol.transitions import TRANSITIONS

SCRIPT = "scripts/state_diagram.py"

_MODULES = {
    module.__name__: module
    for module in (
        transitions,
        *(import_module(f"{handlers.__name__}.{found.name}") for found in pkgutil.iter_modules(handlers.__path__)),
    )
}
_FUNCTIONS = {
    (name, node.name): node
    for name, module in _MODULES.items()
    for node in ast.parse(inspect.getsource(module)).body
    if isinstance(node, ast.FunctionDef)
}


def targets(module: str, function: str, source: Phase) -> set[Phase]:
    """The phases that the machine may be in after `function` of `module`, other than `source`, called in `source`."""
    found: set[Phase] = set()
    seen: set[tuple[str, str]] = set()
    todo = [(module, function)]
    while todo:
        where = todo.pop()
        if where in seen or where not in _FUNCTIONS:
            continue
        seen.add(where)
        for node in _reachable(_FUNCTIONS[where], source):
            if isinstance(node, ast.Assign) and _is_phase_of_run(node.targets[0]):
                found.add(_phase(node.value))
            elif isinstance(node, ast.Call):
                todo += _called(node.func, where[0])
    return found - {source}


def _called(function: ast.expr, module: str) -> list[tuple[str, str]]:
    """The function of a call in a module, as (module, name), if it is one of ours: `name()` or `module.name()`."""
    known = vars(_MODULES[module])
    if isinstance(function, ast.Name):
        called = known.get(function.id)
        return [(called.__module__, called.__name__)] if inspect.isfunction(called) else []
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        owner = known.get(function.value.id)
        return [(owner.__name__, function.attr)] if inspect.ismodule(owner) else []
    return []


def _reachable(node: ast.AST, source: Phase) -> list[ast.AST]:
    """The node and all below it, without branches that another phase guards."""
    nodes = [node]
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.If) and child in node.body and _guard(node.test) not in (None, source):
            continue
        nodes.extend(_reachable(child, source))
    return nodes


def _guard(test: ast.expr) -> Phase | None:
    """X in `run.phase is Phase.X`, alone or as a part of a conjunction."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    for part in parts:
        if isinstance(part, ast.Compare) and _is_phase_of_run(part.left) and isinstance(part.ops[0], ast.Is):
            return _phase(part.comparators[0])
    return None


def _is_phase_of_run(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "run.phase"


def _phase(node: ast.AST) -> Phase:
    assert isinstance(node, ast.Attribute), ast.unparse(node)
    return Phase[node.attr]


def diagram() -> str:
    """The phases and the events that may lead from one to another, as a mermaid diagram."""
    edges: dict[tuple[Phase, Phase], list[str]] = {}
    for (source, event), handler in TRANSITIONS.items():
        for target in targets(handler.__module__, handler.__name__, source):
            edges.setdefault((source, target), []).append(event)
    order = list(Phase)
    first = [f"    [*] --> {phase.value}" for phase in (Phase.GATHERING, Phase.RETURNING)]
    lines = ["```mermaid", "stateDiagram-v2", *first]
    for source, target in sorted(edges, key=lambda edge: (order.index(edge[0]), order.index(edge[1]))):
        arrow = f"    {source.value} --> {target.value}: "
        events = wrapped(", ".join(dict.fromkeys(edges[source, target])), width=80)
        lines += [arrow + part.rstrip(",") for part in events]
    return "\n".join([*lines, f"    {order[-1].value} --> [*]", "```"])


def table() -> str:
    """Returns what takes each event in which phases, as a table without what is illegal."""
    phases: dict[tuple[str, str], list[str]] = {}
    for event in dict.fromkeys(event for _, event in TRANSITIONS):
        for phase in Phase:
            handler = TRANSITIONS.get((phase, event))
            if handler is not None:
                taken = "ignored" if handler.__name__ == "ignore" else f"`{handler.__name__}`"
                phases.setdefault((event, taken), []).append(phase.value)
    lines = ["| event | taken by | in the phases |", "|---|---|---|"]
    for (event, taken), names in phases.items():
        lines.append(f"| {event} | {taken} | {'all' if len(names) == len(Phase) else ', '.join(names)} |")
    return "\n".join(lines)


def main() -> int:
    """Writes or checks the page."""
    return write(ROOT / "docs" / "explanation" / "protocol.md", SCRIPT, f"{diagram()}\n\n{table()}")


if __name__ == "__main__":
    sys.exit(main())
