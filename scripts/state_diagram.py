"""Writes the coordinator's state diagram and table of events into docs/protocol.md, from `TRANSITIONS`.

The table says which method takes an event in a phase. Where that may lead is read from the methods' source: the
phases that a method, or one that it calls, assigns. A branch under `if self.phase is Phase.X` counts only for X.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap

from generated import ROOT, write

from planaria.protocol.coordinator import TRANSITIONS, Coordinator, Phase

SCRIPT = "scripts/state_diagram.py"

_METHODS = {
    node.name: node
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(Coordinator))))
    if isinstance(node, ast.FunctionDef)
}


def targets(method: str, source: Phase) -> set[Phase]:
    """The phases that the machine may be in after `method`, other than `source`, called in phase `source`."""
    found: set[Phase] = set()
    seen: set[str] = set()
    todo = [method]
    while todo:
        name = todo.pop()
        if name in seen or name not in _METHODS:
            continue
        seen.add(name)
        for node in _reachable(_METHODS[name], source):
            if isinstance(node, ast.Assign) and _is_phase_of_self(node.targets[0]):
                found.add(_phase(node.value))
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                todo.append(node.attr)
    return found - {source}


def _reachable(node: ast.AST, source: Phase) -> list[ast.AST]:
    """The node and all below it, without branches that another phase guards."""
    nodes = [node]
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.If) and child in node.body and _guard(node.test) not in (None, source):
            continue
        nodes.extend(_reachable(child, source))
    return nodes


def _guard(test: ast.expr) -> Phase | None:
    """X in `self.phase is Phase.X`, alone or as a part of a conjunction."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    for part in parts:
        if isinstance(part, ast.Compare) and _is_phase_of_self(part.left) and isinstance(part.ops[0], ast.Is):
            return _phase(part.comparators[0])
    return None


def _is_phase_of_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "self.phase"


def _phase(node: ast.AST) -> Phase:
    assert isinstance(node, ast.Attribute), ast.unparse(node)
    return Phase[node.attr]


def diagram() -> str:
    """The phases and the events that may lead from one to another, as a mermaid diagram."""
    edges: dict[tuple[Phase, Phase], list[str]] = {}
    for (source, event), handler in TRANSITIONS.items():
        for target in targets(handler.__name__, source):
            edges.setdefault((source, target), []).append(event)
    order = list(Phase)
    first = [f"    [*] --> {phase.value}" for phase in (Phase.GATHERING, Phase.RETURNING)]
    lines = ["```mermaid", "stateDiagram-v2", *first]
    for source, target in sorted(edges, key=lambda edge: (order.index(edge[0]), order.index(edge[1]))):
        events = ", ".join(dict.fromkeys(edges[source, target]))
        lines.append(f"    {source.value} --> {target.value}: {events}")
    return "\n".join([*lines, f"    {order[-1].value} --> [*]", "```"])


def table() -> str:
    """What each phase does with each event."""
    events = list(dict.fromkeys(event for _, event in TRANSITIONS))
    lines = [
        "| event | " + " | ".join(phase.value for phase in Phase) + " |",
        "|---|" + "---|" * len(Phase),
    ]
    for event in events:
        cells = []
        for phase in Phase:
            handler = TRANSITIONS.get((phase, event))
            ignored = handler is not None and handler.__name__ == "_ignore"
            cells.append("illegal" if handler is None else "ignored" if ignored else f"`{handler.__name__[1:]}`")
        lines.append(f"| {event} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Writes or checks the page."""
    return write(ROOT / "docs" / "protocol.md", SCRIPT, f"{diagram()}\n\n{table()}")


if __name__ == "__main__":
    sys.exit(main())
