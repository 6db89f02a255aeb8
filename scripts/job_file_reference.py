"""Writes the reference of the job file into docs/reference/job-file.md, from the settings' fields and docstrings."""

from __future__ import annotations

import enum
import inspect
import re
import sys
import types
import typing

import msgspec
from generated import ROOT, wrapped, write

from planaria.job.sections.section import Section
from planaria.job.sections.train import OPTIMIZER_FIELDS, TrainSection
from planaria.job.settings import Job

SCRIPT = "scripts/job_file_reference.py"
WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}


def reference() -> str:
    """Returns a list of fields for each section, in the order of `Job`."""
    return "\n\n".join(_section(field.name, field.type, field.required) for field in msgspec.structs.fields(Job))


def _section(name: str, section: type, required: bool) -> str:
    head = [f"## [{name}]", "", "Required." if required else "May be left out.", ""]
    return "\n".join([*head, *_fields(section)])


def _fields(section: type) -> list[str]:
    """Returns a line or more for each field of a table."""
    described = _descriptions(section)
    hints = typing.get_type_hints(section)
    lines: list[str] = []
    for field in msgspec.structs.fields(section):
        default = OPTIMIZER_FIELDS.get(field.name) if section is TrainSection else None
        given = "required" if field.required else _toml(_default(field) if default is None else default)
        kind = _kind(hints[field.name])
        about = ", ".join(part for part in (kind, given) if part)
        lines += wrapped(f"**`{field.name}`** ({about}): {described[field.name]}", "- ")
        if entries := _entries(hints[field.name]):
            lines += [f"  {line}" for line in _fields(entries)]
    return lines


def _entries(hint: object) -> type | None:
    """Returns the table that a field is, or is a list of."""
    first = next(iter(typing.get_args(hint)), None)
    return first if isinstance(first, type) and issubclass(first, Section) else None


def _descriptions(section: type) -> dict[str, str]:
    """Field -> what the docstring's Attributes say of it."""
    _, _, attributes = (inspect.getdoc(section) or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    for line in inspect.cleandoc(attributes).splitlines():
        field = re.match(r"(\w+): (.*)", line)
        if field is not None:
            name, text = field.groups()
            found[name] = text
        elif line.strip():
            found[name] += f" {line.strip()}"
    return found


def _kind(hint: object) -> str:
    """A type in a user's words."""
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return ("one of " if len(hint) > 1 else "") + ", ".join(f'`"{member.value}"`' for member in hint)
    if isinstance(hint, type) and hint in WORDS:
        return WORDS[hint]
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(_kind(part) for part in reversed(arguments) if part is not types.NoneType)
    if _entries(hint):
        return "list of tables" if typing.get_origin(hint) is tuple else "table"
    if typing.get_origin(hint) is tuple and arguments[-1] is Ellipsis:
        return "list of texts"
    return f"{len(arguments)} numbers" if typing.get_origin(hint) is tuple else "table"


def _default(field: msgspec.structs.FieldInfo) -> object:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


def _toml(default: object) -> str:
    """Returns a default as one would write it in the job file."""
    match default:
        case None:
            return "no default"
        case enum.Enum():
            return f'default `"{default.value}"`'
        case bool():
            return f"default `{str(default).lower()}`"
        case str():
            return f'default `"{default}"`'
        case tuple():
            return f"default `{list(default)}`"
        case _:
            return f"default `{default}`"


def main() -> int:
    """Writes or checks the page."""
    return write(ROOT / "docs" / "reference" / "job-file.md", SCRIPT, reference())


if __name__ == "__main__":
    sys.exit(main())
