"""The benchmark of transfers needs only what an installation has."""

from __future__ import annotations

import planner_transfers
import pytest


def test_nothing_else_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a fresh clone: it used to import a package that nothing installs."""
    monkeypatch.setattr(planner_transfers, "cases", list)
    planner_transfers.measure_transfers()
