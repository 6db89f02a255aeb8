"""Benchmarks are run from their own folders; so are their tests."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path += [str(FOLDER), str(FOLDER / "papers")]
