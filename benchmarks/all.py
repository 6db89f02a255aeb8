"""Runs every benchmark; figures go to standard output and to benchmarks.jsonl in the working directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from figures import note

BENCHMARKS = ("overhead", "recovery", "memory", "transport", "wire", "planner", "closed_forms", "fidelity")


def main() -> int:
    failed = 0
    with Path("benchmarks.jsonl").open("w") as results:
        for name in BENCHMARKS:
            note(f"-- {name}")
            script = Path(__file__).parent / f"{name}.py"
            process = subprocess.Popen([sys.executable, str(script), *sys.argv[1:]], stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                results.write(line)
                results.flush()
            failed += process.wait() != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
