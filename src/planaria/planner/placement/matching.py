"""Matchings between classes of equal things: fewest costs, or feasible at all. Whole numbers throughout, so exact.

Nodes that hold the same and roles that need the same are one row and one column with a count: a cluster of 512 nodes
is a table of some ten by ten, and nothing has to be imported at the moment of a failure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planaria.plan.ledger import members_of

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_FORBIDDEN = np.int64(1) << 60
_CLOSED = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """A matching of least cost.

    Attributes:
        flow: how many of each row's things go to each column.
        tight: the cells that a matching of least cost may use. A full matching within them is of least cost too.
    """

    flow: Ints
    tight: Bools


def cheapest(cost: Ints, supply: Ints, demand: Ints, allowed: Bools | None = None) -> Matching | None:
    """Returns the full matching of least cost between classes (Kuhn-Munkres with counts).

    Shortest augmenting paths with potentials: each path starts in a row with something left and ends in the nearest
    column with room.

    Args:
        cost: of one thing of a row in a column; less than 2**58.
        supply: things in each row.
        demand: places in each column, as many as there are things.
        allowed: the cells that may be used; default: all.

    Returns:
        None where the allowed cells hold no full matching.
    """
    assert int(supply.sum()) == int(demand.sum()), f"{supply.sum()} things for {demand.sum()} places"
    priced = cost.copy() if allowed is None else np.where(allowed, cost, _FORBIDDEN)
    flow = np.zeros_like(priced)
    rows = _lowest(priced, 1)
    columns = _lowest(priced - rows[:, None], 0)
    left, places = supply.tolist(), demand.tolist()
    # Cells of no reduced cost need no search.
    for row, column in np.argwhere((priced == rows[:, None] + columns) & (priced < _FORBIDDEN)).tolist():
        if amount := min(left[row], places[column]):
            flow[row, column] = amount
            left[row] -= amount
            places[column] -= amount
    room = np.array(places, np.int64)
    for row, count in enumerate(left):
        while count:
            path = _nearest(priced, flow, room, rows, columns, row)
            if path is None:
                return None
            count -= _push(flow, room, path, count)
    return Matching(flow=flow, tight=(priced < _FORBIDDEN) & (priced == rows[:, None] + columns[None, :]))


def _lowest(priced: Ints, axis: int) -> Ints:
    """Returns the lowest price along an axis; 0 where nothing is allowed."""
    lowest = priced.min(axis=axis)
    return np.where(lowest < _FORBIDDEN // 2, lowest, 0)


def _nearest(
    priced: Ints, flow: Ints, room: Ints, rows: Ints, columns: Ints, start: int
) -> list[tuple[int, int]] | None:
    """Returns the shortest path from row `start` to a column with room, as (row, column) cells from the end backwards;
    the potentials `rows` and `columns` are updated so that it is tight."""
    distance = priced[start] - rows[start] - columns
    came_from = np.full(len(room), start)
    closed = np.zeros(len(room), np.bool_)
    full = room == 0
    row_distance = {start: 0}
    column_of: dict[int, int] = {}
    while True:
        # Of equally near columns, one with room: it ends the search.
        column = int(np.where(closed, _CLOSED, 2 * distance + full).argmin())
        reached = int(distance[column])
        if closed[column] or reached >= _FORBIDDEN // 2:
            return None
        if room[column]:
            break
        closed[column] = True
        for row in flow[:, column].nonzero()[0].tolist():
            if row in row_distance:
                continue
            row_distance[row], column_of[row] = reached, column
            through = priced[row] - rows[row] - columns + reached
            # A closed column is never farther than what is found later.
            better = through < distance
            distance[better] = through[better]
            came_from[better] = row
    for row, at in row_distance.items():
        rows[row] += reached - at
    columns[closed] -= reached - distance[closed]
    path = []
    while True:
        row = int(came_from[column])
        path.append((row, column))
        if row == start:
            return path
        column = column_of[row]


def _push(flow: Ints, room: Ints, path: list[tuple[int, int]], count: int) -> int:
    """Moves as much as the path takes, at most `count`, into its cells, out of the links; returns the amount."""
    links = [(row, path[at + 1][1]) for at, (row, _) in enumerate(path[:-1])]
    amount = min([count, int(room[path[0][1]]), *(int(flow[link]) for link in links)])
    for cell in path:
        flow[cell] += amount
    for link in links:
        flow[link] -= amount
    room[path[0][1]] -= amount
    return amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """Result of `fill`.

    Attributes:
        flow: how much of each row goes to each column.
        stuck: where not everything has a place, rows that need more than all the columns open to them hold.
    """

    flow: Ints
    stuck: Bools | None


def fill(supply: Ints, room: Ints, allowed: Bools, start: Ints | None = None) -> Filling:
    """Places every row's things in allowed columns, if possible (a maximum flow by shortest augmenting paths).

    Args:
        supply: things in each row.
        room: the room of each column.
        allowed: the cells that may be used.
        start: a flow to begin with; what it has in cells that are not allowed is taken out.
    """
    flow = np.zeros(allowed.shape, np.int64) if start is None else np.where(allowed, start, 0)
    paths = _Paths(allowed, flow, room - flow.sum(axis=0))
    for row, count in enumerate((supply - flow.sum(axis=1)).tolist()):
        while count:
            path = paths.shortest(row)
            if path is None:
                return Filling(flow=paths.array, stuck=paths.seen)
            count -= paths.push(path, count)
    return Filling(flow=paths.array, stuck=None)


class _Paths:
    """Augmenting paths of a flow, with bit masks for sets of rows and of columns: there are some ten of each, and each
    is looked at for a moment only."""

    def __init__(self, allowed: Bools, flow: Ints, left: Ints) -> None:
        self._allowed = _masks(allowed)
        self._users = _masks((flow > 0).T)
        self._open = _masks((left > 0)[None, :])[0]
        self._flow: list[list[int]] = flow.tolist()
        self._left: list[int] = left.tolist()
        self._seen = 0

    @property
    def array(self) -> Ints:
        """The flow as an array."""
        return np.array(self._flow, np.int64).reshape(len(self._allowed), len(self._users))

    @property
    def seen(self) -> Bools:
        """The rows that the last search reached."""
        return np.array([self._seen >> row & 1 for row in range(len(self._allowed))], np.bool_)

    def shortest(self, start: int) -> list[tuple[int, int]] | None:
        """Returns the path of fewest steps to a column with room, from the end backwards."""
        closed, seen = 0, 1 << start
        row_of: dict[int, int] = {}
        column_of: dict[int, int] = {}
        frontier = [start]
        while frontier:
            reached: list[int] = []
            for row in frontier:
                fresh = self._allowed[row] & ~closed
                closed |= fresh
                columns = members_of(fresh)
                row_of.update(dict.fromkeys(columns, row))
                if with_room := fresh & self._open:
                    return _trace((with_room & -with_room).bit_length() - 1, row_of, column_of, start)
                reached += columns
            frontier = []
            for column in reached:
                rows = members_of(self._users[column] & ~seen)
                seen |= self._users[column]
                column_of.update(dict.fromkeys(rows, column))
                frontier += rows
        self._seen = seen
        return None

    def push(self, path: list[tuple[int, int]], count: int) -> int:
        """Moves as much as the path takes, at most `count`, as `_push` does; returns the amount."""
        links = [(row, path[at + 1][1]) for at, (row, _) in enumerate(path[:-1])]
        end = path[0][1]
        amount = min([count, self._left[end], *(self._flow[row][column] for row, column in links)])
        for row, column in path:
            self._flow[row][column] += amount
            self._users[column] |= 1 << row
        for row, column in links:
            self._flow[row][column] -= amount
            if not self._flow[row][column]:
                self._users[column] ^= 1 << row
        self._left[end] -= amount
        if not self._left[end]:
            self._open ^= 1 << end
        return amount


def _masks(marks: Bools) -> list[int]:
    """Returns each row's marked columns as a bit mask."""
    return [int.from_bytes(row, "little") for row in np.packbits(marks, axis=1, bitorder="little")]


def _trace(column: int, row_of: dict[int, int], column_of: dict[int, int], start: int) -> list[tuple[int, int]]:
    path = []
    while True:
        row = row_of[column]
        path.append((row, column))
        if row == start:
            return path
        column = column_of[row]
