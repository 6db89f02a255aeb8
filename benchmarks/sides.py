"""The programs that are measured: a Planaria run, and the baselines beside it."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from figures import SCRATCH
from interleave import Side

from planaria.data.opening import prepare
from planaria.job.parse import job_json, parse_job
from planaria.job.settings import Job
from planaria.protocol.messages.records import PlanTaken
from planaria.runtime.run_folder.recorder import read_events
from planaria.runtime.run_folder.run_folder import RunFolder

BASELINES = Path(__file__).parent / "baselines"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def make_job(text: str, *overrides: str) -> Job:
    """A job from TOML text; its runs go to the scratch folder."""
    return parse_job(text, overrides=[*overrides, f'run.folder="{SCRATCH / "runs"}"'], origin="benchmark")


def planaria_side(name: str, job: Job, faults: Sequence[str] = ()) -> Side:
    """`planaria.train` in a process of its own, as a user runs it; steps from its events.jsonl."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    run = f"{name}-{secrets.token_hex(4)}"
    job_file = SCRATCH / f"{run}.json"
    job_file.write_bytes(job_json(job))
    command = [sys.executable, str(Path(__file__).parent / "run_job.py"), str(job_file), run, *faults]
    return Side(
        name=name,
        commands=[(command, {})],
        log=RunFolder(Path(job.run.folder) / run).events,
        seconds_of=lambda line: float(str(line["duration_s"])) if line["event"] == "step_committed" else None,
        output=SCRATCH / f"{run}.out",
    )


def run_to_end(side: Side, timeout_s: float) -> None:
    """Runs a side of one process until it ends. Raises SystemExit: it failed."""
    with side.output.open("wb") as output:
        done = subprocess.run(
            side.commands[0][0], stdout=output, stderr=output, timeout=timeout_s, env=ENVIRONMENT, check=False
        )
    if done.returncode:
        raise SystemExit(f"{side.name}: failed, see {side.output}")


def pipelines_of(side: Side) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """The first plan of a Planaria run that has begun."""
    return next(record.pipelines for record, _ in read_events(side.log) if isinstance(record, PlanTaken))


def torch_side(name: str, script: str, job: Job, ranks: int, arguments: Sequence[str] = ()) -> Side:
    """A baseline script, one process a rank."""
    data = SCRATCH / "data"
    data.mkdir(parents=True, exist_ok=True)
    prepare(job, data)
    run = f"{name}-{secrets.token_hex(4)}"
    job_file = SCRATCH / f"{run}.json"
    job_file.write_bytes(job_json(job))
    log = SCRATCH / f"{run}.steps"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, str(BASELINES / script), str(job_file), str(data), str(log), *arguments]
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    return Side(
        name=name,
        commands=[(command, {**meet, "RANK": str(rank)}) for rank in range(ranks)],
        log=log,
        seconds_of=lambda line: float(str(line["duration_s"])),
        output=SCRATCH / f"{run}.out",
    )
