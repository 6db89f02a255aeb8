"""How modules depend on each other."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_no_module_imports_itself_by_a_detour() -> None:
    """Imports within functions count, and those for types alone."""
    graph = grimp.build_graph("planaria", cache_dir=None)
    TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()
