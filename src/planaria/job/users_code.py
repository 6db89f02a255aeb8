"""Functions of the user's that a job names as "module:function": how they are found, and what to show where they raise.

Knows neither models nor data; what is called, and with what, is for those who need it.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from planaria.job.errors import UserCodeError, UserError


def look_in(folder: str | Path | None) -> None:
    """Has the user's modules looked for in a folder, before all others; None: nowhere beside the Python path."""
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def import_function(reference: str, field: str) -> Callable[..., Any]:
    """Imports the function that "module:function" names; modules of the working directory are found too.

    Raises:
        UserError: it cannot be imported or called; UserCodeError where importing it raised.
    """
    module_name, _, name = reference.partition(":")
    said = f"{field} = {reference!r}"
    if not module_name or not name:
        raise UserError(f'{said} is not of the form "module:function".')
    working_directory = os.getcwd()
    if working_directory not in sys.path and "" not in sys.path:
        sys.path.append(working_directory)
    try:
        module = import_module(module_name)
    except Exception as error:  # importing runs the user's code
        if isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]:
            raise UserError(
                f"{said}: cannot import {module_name!r} ({error}). It was looked for beside the job file, in "
                f"{working_directory} and on the Python path. Put it there, or add its folder to PYTHONPATH."
            ) from error
        raise UserCodeError(
            f"{said}: importing {module_name!r} fails with {type(error).__name__}: {error}. Mend it there.",
            users_trace(error),
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"{said}: module {module_name!r} has no function {name!r}. Correct the name.")
    return function  # type: ignore[no-any-return]


def users_trace(error: BaseException) -> str:
    """Returns the traceback of what the user's code raised, without our lines and torch's before its first."""
    found = traceback.TracebackException.from_exception(error)
    own = (at for at, frame in enumerate(found.stack) if not frame.filename.startswith(_not_the_users()))
    del found.stack[: next(own, len(found.stack))]
    return "".join(found.format())


def _not_the_users() -> tuple[str, ...]:
    """Returns beginnings of the files whose lines come before the user's own."""
    torch = find_spec("torch")
    libraries = (importlib.__file__, *([torch.origin] if torch is not None and torch.origin else []))
    return ("<frozen ", str(files("planaria")) + os.sep, *(os.path.dirname(file) + os.sep for file in libraries))
