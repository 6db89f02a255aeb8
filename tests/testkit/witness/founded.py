"""Why nodes were given up: what befell them before."""

from __future__ import annotations

from tests.testkit.witness.decisions import Decisions
from tests.testkit.witness.history import Plain
from tests.testkit.witness.rules import Find, Rule


class Founded:
    """Judges losses by the faults that struck: while none can be mistaken, who is given up must have ended."""

    def __init__(self, decisions: Decisions, find: Find) -> None:
        self._decisions = decisions
        self._find = find
        self._is_clear = True
        self._over: set[int] = set()
        self._wrong: set[int] = set()

    def befell(self, kind: str, nodes: list[int], is_clear: bool) -> None:
        self._is_clear &= is_clear
        if kind == "corrupt":
            self._wrong.update(nodes)
        elif kind == "replay":
            self._over.update(nodes)  # whose messages come twice, may be taken for another

    def over(self, node: int) -> None:
        self._over.add(node)

    def journal(self, entry: Plain) -> None:
        if entry["type"] != "node" or entry["fate"] != "lost" or self._decisions.is_cut:
            return
        node = entry["node"]
        if self._is_clear and node not in self._over:
            self._find(Rule.FOUNDED, f"node {node} is given up ({entry.get('cause')}), and nothing befell it")

    def told(self, record: Plain) -> None:
        if record["event"] == "computed_wrong" and record["node"] not in self._wrong:
            self._find(Rule.FOUNDED, f"node {record['node']} is told to compute wrong, and nothing changed what it has")
