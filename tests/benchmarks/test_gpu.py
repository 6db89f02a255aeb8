"""`benchmarks/gpu.py`: refused without a GPU; its whole way works on the stand-in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("torch sees no CUDA device here.")
    assert done.stderr.count("\n") == 1


@pytest.mark.proof
def test_its_whole_way_works_on_the_stand_in(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    command = [sys.executable, str(SCRIPT), "--stand-in", "--page", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    written = page.read_text()
    for title in (
        "A step",
        "Bits, and a loss",
        "Redundant computation",
        "Ways between workers",
        "Memory beside the estimate",
    ):
        assert f"## {title}" in written
    assert "those of the reference, to the bit" in written
    assert written.count("| eager-lazy |") == 1
