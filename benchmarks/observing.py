"""What it costs to watch a run: processor seconds a step of the demo, with everything of [observe] and without.

Pairs of runs at the same time, so that what slows the machine slows both: runs in turns differed by 4% with nothing
changed. All processes of each are counted: launcher, coordinator, forkserver, workers and the page. Between two steps
in the middle, so that neither starts nor ends are counted. The bound is of the mean of the logarithms of the ratios, by
Student's t (Abramowitz and Stegun, 26.7.5).

    python benchmarks/observing.py [--pairs 20] [--steps 100]
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from figures import note, report

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.e2e.agents import family

ROOT = Path(__file__).parents[1]
PLANARIA = [sys.executable, "-m", "planaria.ui.cli.main"]
FIRST_STEP = 30
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
DEADLINE_S = 300.0
GOAL = 1.01
WATCHED = (
    "tensorboard=true",
    "wandb=demo",
    "mlflow=mlflow",
    "metrics_port=29461",
    "dashboard_port=29462",
    "instructions=true",
    "command='true'",
)
"""Everything there is, but for a webhook, which needs a server."""


def processor_s(ancestor: int) -> float:
    """Returns what a process and its descendants have used, those that have ended among them."""
    ticks = 0
    for pid in family(ancestor):
        with contextlib.suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks * TICK_S


def seconds_a_step(folder: Path, steps: int, *, is_watched: bool) -> float:
    """Trains the demo, and returns processor seconds a step."""
    name = "watched" if is_watched else "plain"
    shutil.rmtree(folder / "runs" / name, ignore_errors=True)
    command = [*PLANARIA, "train", str(ROOT / "examples" / "demo.toml"), "--name", name]
    settings = [f"train.steps={steps}", "run.checkpoint_every=0"]
    settings += [f"observe.{setting}" for setting in WATCHED] if is_watched else []
    command += [part for setting in settings for part in ("--set", setting)]
    metrics = folder / "runs" / name / "metrics.jsonl"
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "WANDB_MODE": "offline"},
    ) as run:  # fmt: skip
        first, before_s = _at(metrics, FIRST_STEP, run)
        last, after_s = _at(metrics, steps - 5, run)
        run.wait(DEADLINE_S)
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {run.returncode}")
    return (after_s - before_s) / (last - first)


def _at(metrics: Path, step: int, run: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Waits for a step; returns the last one by then, and the processor seconds used."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline and run.poll() is None:
        done = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        if done >= step:
            return done, processor_s(run.pid)
        time.sleep(0.02)
    raise SystemExit(f"the run did not come to step {step}")


def student(freedom: int) -> float:
    """Returns the 95% quantile of Student's distribution."""
    z = statistics.NormalDist().inv_cdf(0.95)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    logarithms, plain = [], []
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(2) as both:
        for pair in range(arguments.pairs):
            order = (False, True) if pair % 2 else (True, False)
            runs = {one: both.submit(seconds_a_step, Path(scratch), arguments.steps, is_watched=one) for one in order}
            plain.append(runs[False].result())
            logarithms.append(math.log(runs[True].result() / plain[-1]))
            note(f"pair {pair + 1}: {plain[-1] * 1e3:.1f} ms a step, watched {math.exp(logarithms[-1]):.4f} of it")
    mean = statistics.fmean(logarithms)
    error = statistics.stdev(logarithms) / math.sqrt(len(logarithms))
    bound = math.exp(mean + student(len(logarithms) - 1) * error)
    report("observing/plain", statistics.median(plain), "s a step")
    report("observing/ratio", math.exp(mean), "x")
    report("observing/upper 95% bound", bound, "x", goal=f"<= {GOAL}")


if __name__ == "__main__":
    main()
