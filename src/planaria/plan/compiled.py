"""Compiled kernels: numba where it pays, the same answers where it does not or is missing.

Importing numba and loading a cached kernel takes about a second, more than most plans take. So a kernel has two forms,
loops for numba and plain Python or numpy, with the same operations on the same numbers in the same order, and the
compiled one is taken only where the work is worth it, or where numba is there already.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

WORTH_S = 1.0
"""Seconds of the plain form from which importing numba pays."""

_loaded: list[bool] = []


@cache
def _numba() -> Any:
    """The module, or None where it is not installed."""
    try:
        import numba
    except ImportError:
        return None
    _loaded.append(True)
    return numba


def compile_pays(plain_s: float) -> bool:
    """Whether work that takes the plain forms `plain_s` seconds is better done by compiled ones."""
    return (bool(_loaded) or plain_s >= WORTH_S) and _numba() is not None


class Kernel(Generic[P, R]):
    """A computation in two forms with identical answers.

    Args:
        loops: numba's form: loops over arrays, no calls of other functions of ours.
        plain: the other.
    """

    def __init__(self, loops: Callable[P, R], plain: Callable[P, R]) -> None:
        self._loops = loops
        self._plain = plain
        self._jitted: Callable[P, R] | None = None

    @property
    def is_loaded(self) -> bool:
        """The compiled form was asked for before, and is there."""
        return self._jitted is not None

    def load(self) -> None:
        """Have the compiled form there, if numba is."""
        self.form(compiled=True)

    def load_on(self, *example: P.args, **named: P.kwargs) -> None:
        """Has the compiled form there, if numba is and it takes the example: compiled now, or from numba's cache.

        Raises:
            Exception: whatever compiling raises; then the compiled form is not there.
        """
        try:
            self.form(compiled=True)(*example, **named)
        except Exception:
            self._jitted = None
            raise

    def form(self, *, compiled: bool) -> Callable[P, R]:
        """The compiled form if asked for and numba is there, else the plain one."""
        if not compiled or _numba() is None:
            return self._plain
        if self._jitted is None:
            self._jitted = _numba().njit(cache=True, nogil=True)(self._loops)
        return self._jitted
