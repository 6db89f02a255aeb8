"""The report of a run, drill, comparison or simulation: one HTML file with all of it, drawn by the page's own code."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import msgspec

from planaria.job.errors import UserError
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.simulate.results import Outcome
from planaria.ui.dashboard.runs import RunReader
from planaria.ui.report.sheets import Sheet

_HERE = Path(__file__).parent
_STATIC = _HERE.parent / "dashboard" / "static"
_SCRIPTS = (
    *(_STATIC / name for name in ("draw.js", "charts.js", "worms.js", "accounts.js", "parts.js")),
    _HERE / "report.js",
)
_COMPARISON = "compare.json"
_NOT_ONE = (
    "It is no run, no folder of planaria compare and no output of planaria simulate --json. Give one of these, for "
    "instance runs/demo."
)


def write_report(source: Path, target: Path) -> None:
    """Writes a report.

    Args:
        source: the folder of a run, of a drill or of a comparison, its compare.json or drill.json, or a file with what
            `planaria simulate --json` printed.
        target: the file to write.

    Raises:
        UserError: there is nothing to report, or the file cannot be written.
    """
    write_found(_found(source), target)


def write_found(found: dict[str, Any] | Sheet, target: Path) -> None:
    """Writes a report of what was found. Raises UserError: the file cannot be written."""
    page = report_page(msgspec.json.encode(found))
    try:
        target.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}. Give another path.") from None


def _found(source: Path) -> dict[str, Any] | Sheet:
    if (source / _COMPARISON).is_file() or (source.name == _COMPARISON and source.is_file()):
        return _comparison(source / _COMPARISON if source.is_dir() else source)
    if source.is_file() and RunFolder(source.parent).drill == source:
        source = source.parent
    return _simulation(source) if source.is_file() else _run(RunFolder.open(source))


def _run(folder: RunFolder) -> dict[str, Any]:
    found = RunReader(folder).whole()
    if folder.drill.is_file():
        from planaria.runtime.launch.rehearsal.rehearsal import Rehearsed
        from planaria.ui.report.rehearsals import drill_sections

        found["sections"] = drill_sections(_decoded(folder.drill, Rehearsed))
    return found


def _comparison(path: Path) -> Sheet:
    from planaria.runtime.launch.rehearsal.comparison import Comparison
    from planaria.ui.report.rehearsals import comparison_sheet

    return comparison_sheet(path.resolve().parent.name, _decoded(path, Comparison))


def _simulation(path: Path) -> Sheet:
    from planaria.ui.report.simulations import simulation_sheet

    outcomes = _decoded(path, list[Outcome])
    if not any(outcome.summaries for outcome in outcomes):
        raise UserError(f"{path} has no result. {_NOT_ONE}")
    return simulation_sheet(path.stem, outcomes)


def _decoded(path: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}. Give another.") from None
    except msgspec.MsgspecError as error:
        raise UserError(f"{path} cannot be reported on: {error}. {_NOT_ONE}") from None


def report_page(data: bytes) -> str:
    """Returns the page that shows what a report tells, given as JSON. Nothing in it can end its element."""
    style = (_STATIC / "page.css").read_text(encoding="utf-8")
    script = "\n".join(path.read_text(encoding="utf-8") for path in _SCRIPTS)
    shown = data.decode().replace("<", "\\u003c")
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>Planaria report</title>'
        f'<style>{style}</style></head><body><main id="report"></main>'
        f'<script type="application/json" id="data">{shown}</script><script>{script}</script></body></html>\n'
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
