"""How modules depend on each other."""

from __future__ import annotations

import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from planaria.job.registry import DataSource, Launcher, OptimizerName, PolicyName, Registered

CONTRACTS = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]


def test_no_module_imports_itself_by_a_detour() -> None:
    """Imports within functions count, and those for types alone."""
    graph = grimp.build_graph("planaria", cache_dir=None)
    TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()


def test_every_name_of_the_registries_stands_for_something() -> None:
    for names in Registered.__subclasses__():
        for name in names:
            assert (name.load() is None) == (name in (Launcher.LOCAL, Launcher.AGENTS, Launcher.RAY)), name


@pytest.mark.parametrize("names", [PolicyName, OptimizerName, DataSource, Launcher])
def test_a_module_has_a_place_in_the_import_rules_or_in_a_registry(names: type[Registered]) -> None:
    """A rule that is not exhaustive leaves out what a registry names, and nothing else."""
    home = {
        PolicyName: "planaria.policy",
        OptimizerName: "planaria.model.training",
        DataSource: "planaria.data",
        Launcher: "planaria.runtime.launch",
    }[names]
    (contract,) = (contract for contract in CONTRACTS if contract.get("containers") == [home])
    ruled = {f"{home}.{module.strip()}" for layer in contract["layers"] for module in layer.split("|")}
    registered = {name.place.partition(":")[0] for name in names}
    children = grimp.build_graph("planaria", cache_dir=None).find_children(home)
    assert children <= ruled | registered
    assert [contract["name"] for contract in CONTRACTS if contract.get("exhaustive") is False] == [
        "planaria.data.reading", "planaria.model.training", "planaria.policy", "planaria.runtime.launch",
    ]  # fmt: skip


def test_no_folder_has_more_than_fourteen_entries() -> None:
    root = Path(__file__).parents[1] / "src" / "planaria"
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir() and path.name != "__pycache__")):
        entries = {path.name for path in folder.iterdir()} - {"__init__.py", "__pycache__", "py.typed"}
        assert len(entries) <= 14, f"{folder.relative_to(root)}: {sorted(entries)}"
