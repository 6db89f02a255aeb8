"""Models and datasets given as Python objects: pickled into the run folder, from where every process loads them.

What a script or a notebook defines is pickled by value, and what modules define by its name (cloudpickle).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planaria.job.errors import UserError
from planaria.job.parse import OBJECT

FOLDER = "given"
_CALLED = {"model": "model", "data": "dataset", "eval": "eval_dataset"}


def with_objects(table: Mapping[str, Any], folder: Path, objects: Mapping[str, object]) -> dict[str, Any]:
    """Returns a job's sections with what loads objects from a run's folder in their places.

    Args:
        table: the job's sections.
        folder: of the run.
        objects: by section: "model", "data" or "eval".
    """
    named = dict(table)
    for section in objects:
        config = {"file": str(_file(folder, section))}
        field = "type" if section == "model" else "source"
        named[section] = {**named.get(section, {}), field: OBJECT, "config": config}
    return named


def save(folder: Path, objects: Mapping[str, object]) -> None:
    """Writes objects to where `with_objects` has them loaded from.

    Raises:
        UserError: one cannot be pickled.
    """
    import cloudpickle

    for section, given in objects.items():
        try:
            pickled = cloudpickle.dumps(given)
        except Exception as error:  # the user's object may raise anything
            raise UserError(
                f"The {_CALLED[section]} of type {type(given).__name__} cannot be pickled for other processes "
                f"({type(error).__name__}: {error}). Give a function that returns it."
            ) from error
        file = _file(folder, section)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(pickled)


def load(file: str) -> object:
    """Returns a model or a dataset: the object, or what it returns if it is a function."""
    import cloudpickle

    given = cloudpickle.loads(Path(file).read_bytes())
    from torch import nn

    is_made = isinstance(given, nn.Module) or hasattr(given, "__getitem__")
    return given if is_made or not callable(given) else given()


def _file(folder: Path, section: str) -> Path:
    return folder.absolute() / FOLDER / f"{section}.pkl"
