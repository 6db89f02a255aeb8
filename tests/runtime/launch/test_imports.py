"""What is loaded by whom: who asks a running job, and who coordinates it, starts at once because torch stays out."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["planaria.ui.cli.live", "planaria.runtime.coordinator.process"])
def test_torch_is_not_loaded(module: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; import {module}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
