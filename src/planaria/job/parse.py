"""From a job file's text to a `Job`, or to one line that names the field, its value and the remedy.

This module owns reading and writing of jobs; what makes a well-typed job impossible is in
`planaria.job.checks`. It never looks at the machine, and reads no file but the job file.
"""

from __future__ import annotations

import datetime
import enum
import hashlib
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from planaria.job.checks import check_job, tensor_devices, whole_layers_of
from planaria.job.errors import UserError
from planaria.job.sections.cluster import Device, check_dealing
from planaria.job.sections.model import ModelSection
from planaria.job.sections.section import Section
from planaria.job.sections.train import Numerics, TrainSection
from planaria.job.settings import Job
from planaria.job.suggestions import did_you_mean
from planaria.job.values import shown

Table = dict[str, Any]

EMULATED_MODEL = "emulated"
"""`model.type` of a job that names none, because its device is emulated."""

OBJECT = "planaria.runtime.launch.given:load"
"""`model.type` or `data.source` where a Python object is in its place; the section's config says where it lies."""

_LARGEST_INT = 2**63 - 1
_MAX_DEPTH = 32
_EXPECTED = {int: "a whole number", float: "a number", str: "a text in quotes", bool: "true or false"}


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """Reads a job file; a run without a name is given the file's.

    Args:
        path: of the TOML file.
        overrides: "section.key=value" each, applied in order over the file.

    Raises:
        UserError: the file cannot be read, or is not a valid job.
    """
    path = Path(path)
    job = parse_job(text_of(path, "job file", "TOML job file"), overrides=overrides, origin=str(path))
    if job.run.name is None:
        job = msgspec.structs.replace(job, run=msgspec.structs.replace(job.run, name=path.stem))
    return job


def text_of(path: Path, named: str, kind: str = "file") -> str:
    """Returns the text of a user's file.

    Args:
        path: of the file.
        named: what messages call it.
        kind: of file that is meant.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{named} {path} does not exist. Give the path of a {kind}.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{named} {path} is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{named} {path} cannot be read: {reason}. Give a readable {kind}.") from None


def parse_job(text: str, *, overrides: Sequence[str] = (), origin: str) -> Job:
    """Parses and checks a job.

    Args:
        text: TOML.
        overrides: "section.key=value" each; the value is TOML, or else a plain string.
        origin: what errors call the text, for instance its path.

    Raises:
        UserError: one line with field, value and remedy.
    """
    table = read_toml(text, overrides, origin)
    try:
        job = job_from_table(table)
        check_dealing(job.cluster)
        return job
    except UserError as error:
        raise UserError(f"{origin}: {error}") from None


def job_from_table(table: Mapping[str, Any]) -> Job:
    """Returns a checked job from plain dicts.

    Raises:
        UserError: one line with field, value and remedy.
    """
    sections: dict[str, Any] = {}
    fields = {field.name: field for field in msgspec.structs.fields(Job)}
    _refuse_unknown(table, fields, prefix="", kind="section", elsewhere=_sections_of_fields())
    for name, field in fields.items():
        if name in table:
            sections[name] = _section(name, table[name], field.type)
        elif name == "model" and _is_emulated(table):
            sections[name] = ModelSection(type=EMULATED_MODEL)
        elif field.required:
            # An empty section says which of its fields must be given.
            sections[name] = _section(name, {}, field.type)
    job = _with_shards(Job(**sections))
    check_job(job)
    return job


def _with_shards(job: Job) -> Job:
    """Returns the job with a shard for each device of a tensor stage, where it does not say how many there are. Numbers
    then depend on how many devices a stage has, so only in fast numerics."""
    model, devices = job.model, tensor_devices(job.cluster)
    if model.virtual_shards or not devices or whole_layers_of(job) or job.train.numerics is not Numerics.FAST:
        return job
    return msgspec.structs.replace(job, model=msgspec.structs.replace(model, virtual_shards=devices))


def sections(table: Mapping[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Returns the sections of a file of another kind, read as a job's are; what the file leaves out is left out.

    Args:
        table: the whole file.
        kind: a struct of sections; those without a default must be there.

    Raises:
        UserError: one line with field, value and remedy.
    """
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    types_ = _types(kind)
    _refuse_unknown(table, fields, prefix="", kind="section")
    return {
        name: _section(name, table.get(name, {}), types_[name])
        for name, field in fields.items()
        if name in table or field.required
    }


def read_toml(text: str, overrides: Sequence[str], origin: str) -> Table:
    """Returns a file's table, with the overrides over it; see `parse_job`. Raises UserError."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{origin} is not valid TOML: {_one_line(error)}. Correct it there.") from None
    except (RecursionError, ValueError, OverflowError) as error:
        raise UserError(f"{origin} is not valid TOML: {_one_line(error) or 'nested too deeply'}.") from None
    for override in overrides:
        _apply_override(table, override)
    return table


def _is_emulated(table: Mapping[str, Any]) -> bool:
    """Whether the job's device is emulated: then the profile says which layers there are."""
    cluster = table.get("cluster")
    return isinstance(cluster, Mapping) and cluster.get("device") == Device.EMULATED.value


def validated(job: Job) -> Job:
    """Returns the job, checked as a job file is: for jobs made in Python, where nothing has looked at the types.

    Raises:
        UserError: one line with field, value and remedy.
    """
    return job_from_table(msgspec.to_builtins(job))


def job_json(job: Job) -> bytes:
    """Returns the resolved job (every default filled in) as JSON; the same job gives the same bytes."""
    return msgspec.json.encode(job, order="deterministic")


def job_from_json(data: bytes) -> Job:
    """Returns the job of which `job_json` made these bytes.

    Raises:
        UserError: the bytes are not a job.
    """
    try:
        job = msgspec.json.decode(data, type=Job)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(
            f"job.json is damaged, or of a later version of Planaria: {_one_line(error)}. "
            "Use that version, or start a new run from the job file."
        ) from None
    check_job(job)
    return job


_NOT_COMPARED = ("steps", "weights", "weights_from", "start_from")
"""train.steps may be raised; model.weights and train.start_from are paths to what a run began with (model.weights_from
a URL), and a checkpoint has its own."""


def job_fingerprint(job: Job) -> str:
    """Returns the SHA-256 (hex) over what determines the numbers beside the data: the sections model and train.

    Fields at their defaults are left out, so that a field that is new leaves older jobs' fingerprints as they were.
    """
    given = [_given(section) for section in (job.model, job.train)]
    return hashlib.sha256(msgspec.json.encode(given, order="deterministic")).hexdigest()


def _given(section: Section) -> Table:
    """Returns the fields that are compared and not at their defaults, some of which are the optimizer's."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(section)}
    if isinstance(section, TrainSection):
        defaults |= section.optimizer_defaults
    return {name: value for name, value in _compared(section).items() if value not in (defaults[name], {})}


def _compared(section: Section) -> Table:
    """Returns the fields that determine the numbers; where a run's folder lies does not."""
    is_object = isinstance(section, ModelSection) and section.type == OBJECT
    left_out = (*_NOT_COMPARED, "config") if is_object else _NOT_COMPARED
    return {name: getattr(section, name) for name in section.__struct_fields__ if name not in left_out}


def changed_numbers(old: Job, new: Job) -> tuple[str, ...]:
    """Returns the fields of [model] and [train] that differ and must not, as "section.key"."""
    sections = [(name, _compared(getattr(old, name)), _compared(getattr(new, name))) for name in ("model", "train")]
    return tuple(
        f"{name}.{field}"
        for name, before, now in sections
        for field in before
        if before[field] != now.get(field, before[field])
    )


def _apply_override(table: Table, override: str) -> None:
    """Sets one "a.b.c=value" in the table."""
    key, equals, text = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or len(parts) < 2 or not all(parts):
        raise UserError(f"--set {shown(override)} is not section.key=value. Write for instance train.steps=100.")
    place = table
    for depth, part in enumerate(parts[:-1]):
        deeper = place.setdefault(part, {})
        if not isinstance(deeper, dict):
            parent = ".".join(parts[: depth + 1])
            raise UserError(f"--set {shown(override)}: {parent} = {shown(deeper)} is not a table. Set {parent} itself.")
        place = deeper
    place[parts[-1]] = _override_value(text.strip())


def _override_value(text: str) -> object:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError, OverflowError):
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _section(name: str, value: object, section: type[Section]) -> Section:
    """Returns one section from its table."""
    if not isinstance(value, dict):
        raise UserError(f"{name} = {shown(value)} is not a section. Write a table: [{name}].")
    fields = {field.name: field for field in msgspec.structs.fields(section)}
    types_ = _types(section)
    is_jobs = _types(Job).get(name) is section
    elsewhere = _sections_of_fields() if is_jobs else None
    _refuse_unknown(value, fields, prefix=f"{name}.", kind="field", elsewhere=elsewhere)
    arguments = {}
    for key, field in fields.items():
        if key in value:
            arguments[key] = _convert(f"{name}.{key}", value[key], types_[key])
        elif field.required:
            raise UserError(f"{name}.{key} is missing (expected {_expected(types_[key])}). Add {key} to [{name}].")
    return section(**arguments)


def _convert(field: str, value: object, expected: Any) -> Any:
    """Returns a field's value in its type."""
    _refuse_unusable(field, value, depth=0)
    entries = typing.get_args(expected)
    table = entries[0] if entries and isinstance(entries[0], type) and issubclass(entries[0], Section) else None
    if table is not None and typing.get_origin(expected) is tuple and isinstance(value, list | tuple):
        return tuple(_section(f"{field}[{number}]", entry, table) for number, entry in enumerate(value))
    if table is not None and typing.get_origin(expected) is not tuple and isinstance(value, dict):
        return _section(field, value, table)
    try:
        return msgspec.convert(value, expected)
    except (msgspec.ValidationError, OverflowError):
        pass
    choices = _choices(expected)
    kind = "unknown" if choices and isinstance(value, str) else _kind(value)
    raise UserError(
        f"{field} = {shown(value)} is {kind}; expected {_expected(expected)}.{did_you_mean(value, choices)}"
    )


def _refuse_unusable(field: str, value: object, depth: int) -> None:
    """Refuses TOML that no field can hold: it would not survive the journey through JSON."""
    if depth > _MAX_DEPTH:
        raise UserError(f"{field} is nested more than {_MAX_DEPTH} deep. Flatten it.")
    if isinstance(value, dict):
        for key, part in value.items():
            _refuse_unusable(f"{field}.{key}" if key.isidentifier() else f"{field}.{shown(key)}", part, depth + 1)
    elif isinstance(value, list | tuple):
        for part in value:
            _refuse_unusable(field, part, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{field} = {value} is not finite. Give a finite number.")
    elif isinstance(value, int) and not -_LARGEST_INT - 1 <= value <= _LARGEST_INT:
        raise UserError(f"{field} = {shown(value)} is out of range. Give a whole number below 2**63.")
    elif isinstance(value, datetime.date | datetime.time):
        raise UserError(f"{field} = {value} is a date or time, which no field takes. Put it in quotes.")


def _refuse_unknown(
    table: Mapping[str, Any],
    known: Iterable[str],
    *,
    prefix: str,
    kind: str,
    elsewhere: Mapping[str, str] | None = None,
) -> None:
    names = list(known)
    for key in table:
        if key not in names:
            meant = did_you_mean(key, names, prefix=prefix, elsewhere=elsewhere)
            remedy = meant or f" Known: {', '.join(names)}."
            raise UserError(f"{prefix}{_key(key)} = {shown(table[key])}: there is no such {kind}.{remedy}")


@cache
def _types(kind: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Returns the types of a struct's fields."""
    return typing.get_type_hints(kind)


@cache
def _sections_of_fields() -> Mapping[str, str]:
    """Returns the section of each field of a job; the first, where several sections have one of this name."""
    found: dict[str, str] = {}
    for name, section in _types(Job).items():
        for field in section.__struct_fields__:
            found.setdefault(field, name)
    return found


def _choices(expected: Any) -> tuple[str, ...]:
    if isinstance(expected, type) and issubclass(expected, enum.Enum):
        return tuple(str(member.value) for member in expected)
    return ()


def _expected(expected: Any) -> str:
    """Returns a field's type in a user's words."""
    if choices := _choices(expected):
        return " or ".join(f'"{choice}"' for choice in choices)
    if expected in _EXPECTED:
        return _EXPECTED[expected]
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin in (types.UnionType, typing.Union):
        return ", or ".join(_expected(part) for part in reversed(arguments) if part is not types.NoneType)
    if origin is tuple and isinstance(arguments[0], type) and issubclass(arguments[0], Section):
        return "a list of tables"
    if origin is tuple and arguments[-1] is Ellipsis:
        return 'a list of texts, for instance ["a", "b"]'
    if origin is list:
        return f"a list, each {_expected(arguments[0])}"
    if origin is tuple:
        return f"a list of {len(arguments)} numbers, for instance [0.9, 0.95]"
    return "a table"


def _kind(value: object) -> str:
    match value:
        case bool():
            return "true or false"
        case int():
            return "a whole number"
        case float():
            return "a number"
        case str():
            return "a text"
        case list() | tuple():
            return f"a list of {len(value)}"
        case _:
            return "a table"


def _key(key: str) -> str:
    return key if key.replace("-", "_").isidentifier() and len(key) <= 60 else shown(key)


def _one_line(error: object) -> str:
    return " ".join(str(error).split()).rstrip(".")
