"""Options and arguments that several commands have, and the exit codes of all.

Imported for every help page: nothing heavy.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any, TypeVar

import click

from planaria.job.errors import UserError
from planaria.job.values import TOKEN_VARIABLE

if TYPE_CHECKING:
    from planaria.runtime.launch.training.result import TrainResult

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_EXHAUSTED = 3
EXIT_SIGNALLED = 128
"""Exit code, plus the signal's number: 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP, 141 where nobody reads the output."""

TLS_VARIABLE = "PLANARIA_TLS"
ZONE_VARIABLE = "PLANARIA_ZONE"
LABEL_VARIABLE = "PLANARIA_LABEL"
JOB_FILE = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
RUN_FOLDER = click.Path(path_type=Path)
_REPAIRS_TOLD = 5


class Finite(click.FloatRange):
    """A range of numbers without infinity and nan, which float() takes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


_Command = TypeVar("_Command", bound=Callable[..., Any])


def exit_code(result: TrainResult) -> int:
    """Returns the exit code of a command that trains."""
    codes = {
        "completed": 0,
        "stopped": 0,
        "failed": EXIT_FAILED,
        "exhausted": EXIT_EXHAUSTED,
        "interrupted": EXIT_SIGNALLED + (result.signal or Signals.SIGINT),
    }
    return codes[result.status.value]


def set_option(command: _Command) -> _Command:
    return click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="Change a field of the job file.",
    )(command)


def given_text(path: Path, wanted: str) -> str:
    """Reads a file that a user names.

    Raises:
        UserError: it cannot be read; `wanted` says what to give.
    """
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UserError(f"{path} cannot be read: {why}. Give {wanted}.") from None


def tell_repairs(repairs: Sequence[str]) -> None:
    """Tells what was mended of a file: the first few one by one, and how many there are."""
    for repair in repairs[:_REPAIRS_TOLD]:
        click.echo(f"planaria: {repair}", err=True)
    if len(repairs) > _REPAIRS_TOLD:
        click.echo(f"planaria: {len(repairs) - _REPAIRS_TOLD} more repairs of this kind", err=True)


def token_option(command: _Command) -> _Command:
    return click.option(
        "--token-file", type=FILE, metavar="FILE",
        help=f"The job's token, readable by you alone; or set {TOKEN_VARIABLE}.  [default of train: a new one, "
        "in the run folder]",
    )(command)  # fmt: skip


def tls_option(command: _Command) -> _Command:
    return click.option(
        "--tls", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER", envvar=TLS_VARIABLE,
        help="Folder with the run's certificates (ca.pem, cert.pem, key.pem), where the job has cluster.tls; or set "
        f"{TLS_VARIABLE}.",
    )(command)  # fmt: skip


def token_of(file: Path | None) -> str:
    """Returns the job's token from the file, or the environment; "" where neither has one."""
    from planaria.runtime.coordinator.remote_nodes import check_token, read_token

    if file is not None:
        return read_token(file)
    given = os.environ.get(TOKEN_VARIABLE, "")
    return check_token(given, TOKEN_VARIABLE) if given else ""
