"""Runs the same work in several processes at once, each a fork of this one."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

Meet = Callable[[str], list[str]]
"""Waits until all processes are ready; given what this one has to tell the others, returns what each told."""

Work = Callable[[int, Meet], tuple[float, ...]]
"""What a process does: given its place among them, and how they meet, which it does once. Returns what it measured."""


def at_once(number: int, work: Work) -> list[tuple[float, ...]] | None:
    """Runs the work in so many processes; returns what each measured. None: one of them died, or there was no room for
    it, so all have ended."""
    ends: list[Connection[Any, Any]] = []
    pids: list[int] = []
    try:
        for place in range(number):
            here, there = Pipe()
            ends.append(here)
            pid = os.fork()
            if pid == 0:
                for end in ends:
                    end.close()
                _do(work, place, there)
            pids.append(pid)
            there.close()
        told = _of_each(ends)
        for end in ends:
            end.send(told)
        return _of_each(ends)
    except (EOFError, OSError):
        return None
    finally:
        for end in ends:
            end.close()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # it may wait for one that died
            os.waitpid(pid, 0)


def _of_each(ends: Sequence[Connection[Any, Any]]) -> list[Any]:
    """Returns what each process says next, in their order. Raises EOFError: one has ended without."""
    said: dict[int, Any] = {}
    while missing := {ends[at]: at for at in range(len(ends)) if at not in said}:
        for end in wait(list(missing)):
            assert isinstance(end, Connection)
            said[missing[end]] = end.recv()
    return [said[at] for at in range(len(ends))]


def _do(work: Work, place: int, end: Connection[Any, Any]) -> NoReturn:
    """Does the work in a process of its own, and ends that."""
    status = 1

    def meet(own: str) -> list[str]:
        end.send(own)
        told: list[str] = end.recv()
        return told

    try:
        end.send(work(place, meet))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
