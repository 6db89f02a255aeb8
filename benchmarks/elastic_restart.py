"""torchrun's elastic restart of a small DDP job: what a loss costs where every worker is started again."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time

from figures import SCRATCH, note
from sides import BASELINES


def against_torchrun(attempts: int) -> list[float]:
    """Seconds from the SIGKILL of one of two workers to the next step's end, of the attempts that came to one."""
    found = []
    for _ in range(attempts):
        seconds = _torchrun_once(timeout_s=20)
        if seconds is None:
            note("torchrun: no step within 20 s of the start; the restart hung or gave up")
        else:
            found.append(seconds)
    return found


def _torchrun_once(timeout_s: float) -> float | None:
    log = SCRATCH / f"elastic-{secrets.token_hex(4)}.jsonl"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    process = subprocess.Popen(
        [*command, str(BASELINES / "elastic.py"), str(log)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    killed = None
    try:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
            lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
            killed = next((line["time_s"] for line in lines if "killed" in line), killed)
            resumed = next((line["time_s"] for line in lines if line["life"] == 1), None)
            if killed is not None and resumed is not None:
                return float(resumed - killed)
    finally:
        process.terminate()
        process.wait()
        log.unlink(missing_ok=True)
    return None
