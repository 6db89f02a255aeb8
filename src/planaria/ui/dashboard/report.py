"""The report of a run: one HTML file with everything in it, drawn by the page's own code."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import msgspec

from planaria.job.errors import UserError
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.ui.dashboard.runs import RunReader

_STATIC = Path(__file__).parent / "static"
_SCRIPTS = ("draw.js", "charts.js", "worms.js", "accounts.js", "parts.js", "report.js")


def write_report(run: Path, target: Path) -> None:
    """Writes the report of a run.

    Args:
        run: its folder.
        target: the file to write.

    Raises:
        UserError: there is no run, or the file cannot be written.
    """
    found = RunReader(RunFolder.open(run)).whole()
    try:
        target.write_text(report_page(msgspec.json.encode(found)), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}. Give another path by -o.") from None


def report_page(data: bytes) -> str:
    """Returns the page that shows what a run's view tells, given as JSON. Nothing in it can end its element."""
    style = (_STATIC / "page.css").read_text(encoding="utf-8")
    script = "\n".join((_STATIC / name).read_text(encoding="utf-8") for name in _SCRIPTS)
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
