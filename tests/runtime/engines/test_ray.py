"""Ray is an extra: what is said where it is missing. tests/engines trains on it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import planaria


def test_who_has_no_ray_is_told_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "planaria.runtime.engines.ray", raising=False)
    with pytest.raises(planaria.UserError, match="pip install ray"):
        planaria.launch_on_ray({}, nodes=2)
