"""The papers' scripts are run from their own folder; so are their tests."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks" / "papers"
sys.path.append(str(FOLDER))
