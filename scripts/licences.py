"""Writes the licences of what Planaria needs into docs/reference/licences.md, from the packages installed here.

All extras that bring something at run time must be installed: pip install -e ".[peft,plot,...]"; an error names what is
missing. Not part of `make docs`, since they are large.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from generated import ROOT, wrapped, write
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SCRIPT = "scripts/licences.py"
FOR_DEVELOPERS = ("bench", "dev", "docs")
"""Extras with which nothing of Planaria runs that users run."""


def reference() -> str:
    """Returns a list of what is asked for by name, and one of what those packages bring along."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked: dict[str, tuple[Requirement, str]] = {}
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    for extra, texts in groups.items():
        for requirement in map(Requirement, () if extra in FOR_DEVELOPERS else texts):
            asked.setdefault(canonicalize_name(requirement.name), (requirement, extra))
    missing = [name for name in asked if _found(name) is None]
    if missing:
        raise SystemExit(f"not installed here: {', '.join(missing)}. Install them: pip install {' '.join(missing)}")
    brought = _closure(requirement for requirement, _ in asked.values())
    lines = ["## Asked for by name", ""]
    for name, (_, extra) in sorted(asked.items()):
        lines += _row(name, f", for `{extra}`" if extra else "")
    lines += ["", "## Brought along by these", ""]
    for name in sorted(brought - set(asked)):
        lines += _row(name, "")
    return "\n".join(lines)


def _found(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _closure(requirements: Iterable[Requirement]) -> set[str]:
    """Returns the names of all packages that are installed because of the requirements."""
    found: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = list(requirements)
    while todo:
        one = todo.pop()
        name, extras = canonicalize_name(one.name), frozenset(one.extras)
        package = _found(name)
        if package is None or (name, extras) in seen:
            continue
        found.add(name)
        seen.add((name, extras))
        todo += _needs(package, extras)
    return found


def _needs(package: Distribution, extras: Iterable[str]) -> Iterator[Requirement]:
    for requirement in map(Requirement, package.requires or ()):
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": one}) for one in ("", *extras)):
            yield requirement


def _row(name: str, purpose: str) -> list[str]:
    package = distribution(name)
    return wrapped(f"**{name}** {package.version.partition('+')[0]}{purpose}: {_licence(package)}", "- ")


def _licence(package: Distribution) -> str:
    """Returns what the package says of its licence, in one line: the expression, the classifiers or the field."""
    about = package.metadata
    expression = about.get("License-Expression")
    classifiers = [one.rpartition(" :: ")[2] for one in about.get_all("Classifier") or () if one.startswith("License")]
    text = expression or "; ".join(one for one in classifiers if one != "OSI Approved") or about.get("License") or ""
    first = text.strip().partition("\n")[0]
    return first or "not told; its files have it"


def main() -> int:
    """Writes or checks the page."""
    return write(ROOT / "docs" / "reference" / "licences.md", SCRIPT, reference(), command=f"python {SCRIPT}")


if __name__ == "__main__":
    sys.exit(main())
