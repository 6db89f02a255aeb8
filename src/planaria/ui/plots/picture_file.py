"""The file that a picture is drawn into: whether that can be done is known before any work is."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from planaria.job.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ENDINGS = (".png", ".svg", ".pdf")

NO_MATPLOTLIB = 'plots need matplotlib. Install it: pip install matplotlib (in a clone: pip install -e ".[plot]")'


def check_picture(target: Path) -> None:
    """Checks that a picture can be drawn into the file.

    Raises:
        UserError: its ending is not known, its folder does not exist, or matplotlib is not installed.
    """
    if target.suffix.lower() not in _ENDINGS:
        raise UserError(f"{target}: its ending is none of {', '.join(_ENDINGS)}. Give the picture such a name.")
    if not target.absolute().parent.is_dir():
        raise UserError(f"{target} cannot be written: there is no folder {target.parent}. Give another path.")
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError(NO_MATPLOTLIB)


def save_picture(figure: Figure, target: Path) -> None:
    """Saves a picture. Raises UserError: the file cannot be written."""
    from matplotlib import rc_context

    try:
        with rc_context({"svg.hashsalt": "planaria"}):  # the same figures give the same file
            figure.savefig(target, dpi=150, metadata={"Date": None} if target.suffix == ".svg" else None)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}. Give another path.") from None
