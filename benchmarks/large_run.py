"""What a run folder of a million steps and thousands of recoveries costs whoever looks at it: time and memory.

    python benchmarks/large_run.py                        # 1,000,000 steps, 5,000 recoveries, 64 nodes
    python benchmarks/large_run.py --steps 20000 --recoveries 100
    python benchmarks/large_run.py --folder runs/huge     # keeps the folder, and uses it again

The folder is made up from the typed records and written by the run's own recorder. Each command is a process of its
own, from its start to its end, the quickest of --repeats; beside that its processor time, which others on the machine
matter less to, and the most memory that it held (VmHWM). The page is asked for as a browser does: from the request to
the first answer, and to the first that has the whole run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from figures import SCRATCH, Figures, note

from planaria.job.parse import job_json
from planaria.protocol.messages.records import RunEnded, RunStatus
from planaria.runtime.run_folder.recorder import Recorder
from planaria.runtime.run_folder.run_folder import RunFolder

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.runtime.run_folder.happenings import JOB
from tests.ui.dashboard.made_up import happenings

PLANARIA = [sys.executable, "-m", "planaria.ui.cli.main"]
TELLS_ITS_MEMORY = """
import sys, time
from planaria.ui.cli.main import main
try:
    main()
finally:
    print(open("/proc/self/status").read(), "cpu_s:", time.process_time(), file=sys.stderr)
"""
STEP_S = 0.11
LOG_LINES = 1_000_000
GOAL_S, GOAL_MB = 2.0, 300


def make_folder(path: Path, num_nodes: int, num_steps: int, recoveries: int) -> RunFolder:
    """Writes the folder of a run that has ended, as its recorder would have."""
    folder = RunFolder.create(path.parent, path.name)
    folder.job.write_bytes(job_json(JOB))
    at_s = 1e9
    with Recorder(folder, JOB) as recorder:
        for record in happenings(num_nodes, num_steps, recoveries, replaces=True):
            recorder(record, at_s)
            at_s += STEP_S
        recorder(
            RunEnded(
                status=RunStatus.COMPLETED, steps=num_steps, message="", skipped_microbatches=0,
                duplicated_microbatches=0,
            ),
            at_s,
        )  # fmt: skip
    with (folder.logs / "coordinator.log").open("w") as log:
        log.writelines(f"2026-11-26 12:00:00 INFO step {line} is committed\n" for line in range(LOG_LINES))
    return folder


def measured(*arguments: str) -> tuple[float, float, float]:
    """Runs a command to its end; returns its seconds, those of a processor, and the most memory that it held, in MB."""
    began = time.monotonic()
    command = [sys.executable, "-c", TELLS_ITS_MEMORY, *arguments]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    took_s = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"planaria {' '.join(arguments)} failed: {done.stderr}")
    return took_s, float(done.stderr.split("cpu_s:")[1]), _peak_mb(done.stderr)


def _peak_mb(status: str) -> float:
    peak = re.search(r"VmHWM:\s+(\d+)", status)
    assert peak is not None
    return int(peak[1]) / 1e3


def measured_page(folder: Path) -> tuple[float, float, float, float, int]:
    """Opens the page of a run; returns seconds to the whole answer and to the first, those of a processor (the server's
    start is among them), MB, and the bytes of the largest message."""
    command = [*PLANARIA, "dashboard", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split(": ")[1].strip()
        began, first_s, size = time.monotonic(), 0.0, 0
        with urllib.request.urlopen(f"{address}api/run?name={folder.name}") as stream:
            for line in stream:
                if line.startswith(b"data: "):
                    first_s = first_s or time.monotonic() - began
                    size = max(size, len(line))
                    if json.loads(line[6:])["read"] == 1:
                        break
        whole_s = time.monotonic() - began
        used = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        cpu_s = (int(used[11]) + int(used[12])) / os.sysconf("SC_CLK_TCK")
        return whole_s, first_s, cpu_s, _peak_mb(Path(f"/proc/{process.pid}/status").read_text()), size
    finally:
        process.terminate()
        process.wait()


def measure(path: Path, repeats: int, figures: Figures) -> None:
    """Opens the page and runs each command, so many times."""
    whole_s, first_s, cpu_s, held_mb, size = min(measured_page(path) for _ in range(repeats))
    figures.add("dashboard.first", first_s, "s", goal=f"<= {GOAL_S}")
    figures.add("dashboard.whole", whole_s, "s", goal=f"<= {GOAL_S}")
    figures.add("dashboard.cpu", cpu_s, "s")
    figures.add("dashboard.memory", held_mb, "MB", goal=f"<= {GOAL_MB}")
    figures.add("dashboard.largest_message", size / 1e6, "MB")
    report = SCRATCH / "report.html"
    commands = {
        "report": ("report", str(path), "-o", str(report)),
        "ls": ("ls", str(path)),
        "status": ("status", str(path)),
        "status --json": ("status", str(path), "--json"),
        "top --once": ("top", str(path), "--once"),
        "logs": ("logs", str(path)),
        "--version": ("--version",),
    }
    for name, arguments in commands.items():
        seconds, cpu_s, held_mb = min(measured(*arguments) for _ in range(repeats))
        figures.add(f"{name}.time", seconds, "s", goal=f"<= {GOAL_S}")
        figures.add(f"{name}.cpu", cpu_s, "s")
        figures.add(f"{name}.memory", held_mb, "MB", goal=f"<= {GOAL_MB}")
    figures.add("report.size", report.stat().st_size / 1e6, "MB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--recoveries", type=int, default=5_000)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--folder", type=Path, help="Of the run: used if it is there, else made and kept.")
    parser.add_argument("--without-index", action="store_true", help="As of a run from before there was one.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="File for the figures.")
    options = parser.parse_args()
    path = options.folder or SCRATCH / "runs" / f"large-{options.steps}-{options.recoveries}-{options.nodes}"
    if not (path / "summary.json").exists():
        began = time.monotonic()
        make_folder(path, options.nodes, options.steps, options.recoveries)
        note(f"written in {time.monotonic() - began:.0f} s")
    figures = Figures(f"a run of {options.steps} steps and {options.recoveries} recoveries")
    for file in ("events.jsonl", "metrics.jsonl", "summary.json"):
        figures.add(f"size.{file}", (path / file).stat().st_size / 1e6, "MB")
    index = RunFolder(path).step_blocks
    aside = index.with_suffix(".aside")
    if options.without_index:
        index.rename(aside)
    try:
        measure(path, options.repeats, figures)
    finally:
        if aside.exists():
            aside.rename(index)
    figures.finish(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
