"""Compiled kernels: one text of plain loops, interpreted or compiled by numba, with the same bits.

Importing numba and loading a cached kernel takes about a second, more than most plans take; compiling one takes some
more. So a kernel is interpreted until work is ahead that is worth it, and compiled from then on. Interpreted, it runs
on lists, whose items Python reads and writes several times faster than those of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar

import numpy as np

from planaria.plan.thresholds import WORTH_COMPILING_S

P = ParamSpec("P")
R = TypeVar("R")

Numbers = Any
"""A kernel's array as its loops see it: the array itself, or a list of its rows."""


_loaded: list[bool] = []


@cache
def _numba() -> Any:
    import numba

    _loaded.append(True)
    return numba


def numba_is_loaded() -> bool:
    """Returns whether numba is imported already, so that compiled kernels cost no import."""
    return bool(_loaded)


class Work:
    """Work of kernels that somebody waits for, and whether it is better done compiled: numba is there, or pays by now.

    Args:
        ahead_s: seconds that the work is expected to take, interpreted.
        compiled: whether it is done compiled; None: where it pays.

    Attributes:
        interpreted_s: seconds of interpreted loops of all works of this process: numba pays for all of them.
    """

    interpreted_s: ClassVar[float] = 0.0

    def __init__(self, ahead_s: float = 0.0, *, compiled: bool | None = None) -> None:
        self._compiled = True if compiled is None and ahead_s >= WORTH_COMPILING_S else compiled

    @property
    def compiled(self) -> bool:
        if self._compiled is None:
            return numba_is_loaded() or Work.interpreted_s >= WORTH_COMPILING_S
        return self._compiled

    def add(self, interpreted_s: float) -> None:
        """Counts what was done, or is to be done next, in seconds of interpreted loops."""
        Work.interpreted_s += interpreted_s


class Kernel(Generic[P, R]):
    """A computation in plain loops, interpreted or compiled.

    Args:
        loops: over arrays or lists, `a[i][j]` not `a[i, j]`; no calls of other functions of ours, nothing made.
        writes: places of the arguments that it writes; they are arrays.
    """

    def __init__(self, loops: Callable[P, R], writes: Collection[int] = ()) -> None:
        self._loops = loops
        self._writes = writes
        self._jitted: Callable[P, R] | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether the compiled form was asked for before and is loaded."""
        return self._jitted is not None

    def load(self) -> None:
        """Loads the compiled form."""
        self.form(compiled=True)

    def load_on(self, *example: P.args, **named: P.kwargs) -> None:
        """Loads the compiled form for the example's types: compiled now, or from numba's cache.

        Raises:
            Exception: whatever importing numba or compiling raises; then the compiled form is not there.
        """
        try:
            self.form(compiled=True)(*example, **named)
        except Exception:
            self._jitted = None
            raise

    def form(self, *, compiled: bool) -> Callable[P, R]:
        """Returns the loops, compiled or interpreted; to the latter, arrays not written may be given as lists."""
        if not compiled:
            return self._interpreted
        if self._jitted is None:
            self._jitted = _numba().njit(cache=True, nogil=True)(self._loops)
        return self._jitted

    def _interpreted(self, *args: P.args, **named: P.kwargs) -> R:
        assert not named
        lists = {id(array): array.tolist() for array in args if isinstance(array, np.ndarray)}
        loops: Callable[..., R] = self._loops
        answer = loops(*(lists.get(id(each), each) for each in args))
        for at in self._writes:
            array: Any = args[at]
            array[...] = lists[id(array)]
        return answer
