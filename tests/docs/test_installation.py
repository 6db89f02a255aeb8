"""What an installation needs is declared, and what messages and pages tell a user to install exists."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=~! ]", requirement)[0] for requirement in requirements}


def imported(folder: Path, pattern: str) -> set[str]:
    """Top-level names of what the folder's files import, but for what Python brings along."""
    found: set[str] = set()
    for file in folder.glob(pattern):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Import(names=aliases):
                    found |= {alias.name.partition(".")[0] for alias in aliases}
                case ast.ImportFrom(module=str(module), level=0):
                    found.add(module.partition(".")[0])
                case _:
                    pass
    ours = {"planaria", "scripts", "tests"} | {path.stem for path in folder.iterdir()}
    return found - set(sys.stdlib_module_names) - ours


def test_what_is_imported_is_declared() -> None:
    extras = PROJECT["optional-dependencies"]
    declared = names(PROJECT["dependencies"])
    modules = {
        "PIL": "pillow",
        "mlflow": "mlflow-skinny",
        "prometheus_client": "prometheus-client",
        "yaml": "pyyaml",
    }
    ours = {modules.get(name, name) for name in imported(ROOT / "src" / "planaria", "**/*.py")}
    optional = (
        "hub",
        "tls",
        "images",
        "peft",
        "plot",
        "tensorboard",
        "wandb",
        "mlflow",
        "prometheus",
        "dashboard",
        "etcd",
        "ray",
    )
    assert ours <= declared.union(*(names(extras[one]) for one in optional))
    assert imported(ROOT / "benchmarks", "*.py") <= declared | names(extras["bench"])


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_packages_whose_private_names_are_used_have_an_upper_bound(package: str) -> None:
    (requirement,) = [one for one in PROJECT["dependencies"] if one.startswith(package)]
    bound = re.search(r"<([\d.]+)", requirement)
    assert bound is not None

    def numbers(text: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", text)[:2]]

    assert numbers(version(package)) < numbers(bound[1])


def test_nothing_is_to_be_installed_from_an_index_that_has_no_planaria() -> None:
    files = [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
    ]
    assert [file for file in files if re.search(r"install[^\n]*planaria\[", file.read_text())] == []


def test_the_readme_says_how_planaria_comes_into_the_path() -> None:
    readme = (ROOT / "README.md").read_text()
    assert readme.index(". .venv/bin/activate") < readme.index("\nplanaria ")
