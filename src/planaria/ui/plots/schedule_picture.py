"""Pictures of a step: a row a worker, time from left to right; text for terminals, SVG for pages."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from xml.sax.saxutils import escape

from planaria.plan.plan import Plan
from planaria.plan.program.instructions import Op
from planaria.ui.plots.cells import Cell, CellKind, CellTimeline, cells, label, microbatches, milliseconds, rows, tick_s

_FILL = {CellKind.FORWARD: "░", CellKind.BACKWARD: "▓", CellKind.WEIGHT: "▒", CellKind.SHADOW: "·", CellKind.SYNC: "≈"}

_MOST_ROWS = 24
"""Workers that a terminal shows; a pipeline is shown whole or not at all."""

Paint = Callable[[CellKind, str], str]
"""A function that gives the text of a cell its colour; the text is as long as the cell is wide."""


def terminal(timeline: CellTimeline, plan: Plan, width: int, *, paint: Paint | None = None) -> str:
    """Returns the schedule as text, at most `width` characters wide (but never less than 40).

    Each cell begins with its microbatch's number where there is room. Syncs run beside compute; they are
    shown where a worker would else be idle.

    Args:
        timeline: the timeline of a step.
        plan: that it belongs to.
        width: of the terminal, in characters.
        paint: colours the cells; without it they are told apart by what they are filled with.
    """
    names = [(number, worker, label(plan, worker)) for number, worker in rows(plan)]
    drawn = next((at for at, (number, _, _) in enumerate(names) if at >= _MOST_ROWS and number is not None), len(names))
    more = sum(number is not None for number, _, _ in names[drawn:])
    names = names[:drawn]
    margin = max(len(name) for _, _, name in names) + 4
    columns = max(width, 40, margin + 12) - margin
    scale = columns / timeline.step_time_s if timeline.step_time_s > 0 else 0.0
    lines: list[str] = []
    for number, worker, name in names:
        if number is not None:
            lines.append(f"pipeline {number}" + _share(plan, number))
        lines.append(f"  {name:<{margin - 4}} │" + _row(cells(timeline.spans[worker]), columns, scale, paint))
    if more:
        lines.append(f"{more} more pipeline{'' if more == 1 else 's'}: --svg FILE draws all")
    lines.append(" " * (margin - 1) + "└" + "─" * columns)
    lines.append(" " * margin + _axis(timeline.step_time_s, columns, scale))
    shown = _shown(timeline)
    swatches = {kind: fill if paint is None else paint(kind, "  ") for kind, fill in _FILL.items() if kind in shown}
    words = "  ".join(f"{swatch} {kind.value}" for kind, swatch in swatches.items())
    lines.append(f"  {words}  numbers: microbatches")
    return "\n".join(lines)


def _shown(timeline: CellTimeline) -> set[CellKind]:
    """Returns the kinds for the legend: weight gradients only where they are apart."""
    kinds = {CellKind.FORWARD, CellKind.BACKWARD, CellKind.SYNC}
    if any(i.op is Op.BACKWARD_WEIGHT for spans in timeline.spans.values() for i, _, _ in spans):
        kinds.add(CellKind.WEIGHT)
    if any(i.op is Op.SHADOW_FORWARD for spans in timeline.spans.values() for i, _, _ in spans):
        kinds.add(CellKind.SHADOW)
    return kinds


def _share(plan: Plan, number: int) -> str:
    count = microbatches(plan)[number]
    return f": {count} microbatch{'es' if count != 1 else ''}" if count else ""


def _row(boxes: tuple[Cell, ...], columns: int, scale: float, paint: Paint | None) -> str:
    row: list[tuple[str, Cell | None]] = [(" ", None)] * columns
    for box in sorted(boxes, key=lambda box: box.kind is not CellKind.SYNC):
        start = min(round(box.start_s * scale), columns - 1)
        end = min(max(round(box.end_s * scale), start + 1), columns)
        text = str(box.number) if box.kind is not CellKind.SYNC and len(str(box.number)) <= end - start else ""
        fill = _FILL[box.kind] if paint is None else " "
        row[start:end] = [(character, box) for character in text.ljust(end - start, fill)]
    texts = []
    for cell, characters in itertools.groupby(row, key=lambda place: place[1]):
        text = "".join(character for character, _ in characters)
        texts.append(text if cell is None or paint is None else paint(cell.kind, text))
    return "".join(texts).rstrip()


def _axis(step_time_s: float, columns: int, scale: float) -> str:
    axis = [" "] * (columns + 12)
    end = _length(step_time_s)
    tick = tick_s(step_time_s, max(1, columns // 12))
    for number in range(int(step_time_s / tick) + 1) if scale else ():
        text, at = milliseconds(number * tick), round(number * tick * scale)
        if at + len(text) + 1 < columns - len(end):
            axis[at : at + len(text)] = text
    axis[columns - len(end) :] = end
    return "".join(axis)


_COLOURS = {
    CellKind.FORWARD: "#8ecae6",
    CellKind.BACKWARD: "#f4a261",
    CellKind.WEIGHT: "#e9d8a6",
    CellKind.SHADOW: "#d5d5d5",
    CellKind.SYNC: "#6a994e",
}
_WORDS = {
    CellKind.FORWARD: "forward",
    CellKind.BACKWARD: "backward",
    CellKind.WEIGHT: "weight gradients",
    CellKind.SHADOW: "shadow",
    CellKind.SYNC: "sync of gradients",
}
_ROW, _BAR, _SYNC_BAR, _HEADING, _TOP, _CHART, _RIGHT = 34, 20, 5, 24, 44, 960, 24
"""Sizes in px: a row, its bar, its sync bar and a pipeline's heading; the chart's top, width and right margin."""


def svg(timeline: CellTimeline, plan: Plan) -> str:
    """Returns the schedule as a standalone SVG document."""
    names = [(number, worker, label(plan, worker)) for number, worker in rows(plan)]
    left = 24 + 7 * max(len(name) for _, _, name in names)
    height = _TOP + len(names) * _ROW + sum(n is not None for n, _, _ in names) * _HEADING
    scale = _CHART / timeline.step_time_s if timeline.step_time_s > 0 else 0.0
    body: list[str] = list(_svg_axis(timeline.step_time_s, scale, left, height))
    y = _TOP
    for number, worker, name in names:
        if number is not None:
            body.append(_text(12, y + 16, f"pipeline {number}{_share(plan, number)}", 'class="heading"'))
            y += _HEADING
        body.append(_text(left - 10, y + 15, name, 'text-anchor="end"'))
        body.append(f'<rect x="{left}" y="{y}" width="{_CHART}" height="{_BAR}" fill="#f3f4f6"/>')
        for box in cells(timeline.spans[worker]):
            body.extend(_svg_cell(box, scale, left, y))
        y += _ROW
    body.extend(_svg_legend(left, _shown(timeline)))
    size = f'width="{left + _CHART + _RIGHT}" height="{height + 40}"'
    view = f'viewBox="0 0 {left + _CHART + _RIGHT} {height + 40}"'
    style = (
        "text{font:12px ui-sans-serif,system-ui,sans-serif;fill:#1f2933}"
        ".cell{font-size:11px;text-anchor:middle}.heading{font-weight:600}.axis{fill:#616e7c;text-anchor:middle}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view} role="img"><style>{style}</style>'
    background = '<rect width="100%" height="100%" fill="#ffffff"/>'
    title = f"<title>One step of {_length(timeline.step_time_s)}</title>"
    return "\n".join([head, title, background, *body, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(text)}</text>'


def _svg_cell(box: Cell, scale: float, left: int, y: int) -> Iterator[str]:
    x, width = left + box.start_s * scale, (box.end_s - box.start_s) * scale
    if width <= 0:
        return
    is_sync = box.kind is CellKind.SYNC
    top, height = (y + _BAR + 1, _SYNC_BAR) if is_sync else (y, _BAR)
    what = f"{_WORDS[box.kind]}, {'group' if is_sync else 'microbatch'} {box.number}"
    when = f"{box.start_s * 1e3:.4g} to {box.end_s * 1e3:.4g} ms"
    yield (
        f'<rect x="{x:.2f}" y="{top}" width="{width:.2f}" height="{height}" fill="{_COLOURS[box.kind]}" '
        f'stroke="#ffffff" stroke-width="0.6"><title>{what}: {when}</title></rect>'
    )
    if not is_sync and width >= 7 * len(str(box.number)) + 2:
        yield _text(x + width / 2, y + 14, str(box.number), 'class="cell"')


def _svg_axis(step_time_s: float, scale: float, left: int, height: int) -> Iterator[str]:
    tick = tick_s(step_time_s, 10)
    for number in range(int(step_time_s / tick) + 1) if scale else ():
        x = left + number * tick * scale
        yield f'<line x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{height}" stroke="#d9dee4"/>'
        yield _text(x, height + 16, milliseconds(number * tick), 'class="axis"')
    yield _text(left + _CHART / 2, height + 33, "ms", 'class="axis"')


def _svg_legend(left: int, shown: Collection[CellKind]) -> Iterator[str]:
    x = left
    for kind, word in _WORDS.items():
        if kind not in shown:
            continue
        yield f'<rect x="{x}" y="14" width="14" height="14" fill="{_COLOURS[kind]}"/>'
        yield _text(x + 20, 25, word)
        x += 48 + 7 * len(word)
    yield _text(x, 25, "numbers are microbatches")


def _length(seconds: float) -> str:
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:.0f} s"
