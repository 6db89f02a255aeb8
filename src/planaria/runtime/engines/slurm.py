"""SLURM as an engine: sbatch, squeue, scontrol and scancel, run as commands."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

from planaria.job.errors import UserError
from planaria.runtime.engines.engine import EngineError, Task, TaskState
from planaria.runtime.engines.launch_folder import EngineJobs, Launch, LaunchFolder
from planaria.runtime.engines.slurm_scripts import SlurmOptions, agents_script, coordinator_script
from planaria.runtime.thresholds import ENGINE_COMMAND_S, ENGINE_POLL_S

ENGINE: Final = "slurm"

SOON: Final = "now+3"
"""When a requeued job may start: a node refuses one that starts in the second in which it was killed there."""

_HELD_BY_ITSELF: Final = "job requeued in held state"
"""Reason of a task that waits after `scontrol requeuehold`, not after a user's `scontrol hold`."""

_RUNNING: Final = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "SIGNALING"})
_ENDED_WELL: Final = frozenset({"COMPLETED", "CANCELLED"})
_WAITING: Final = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "RESIZING", "SPECIAL_EXIT"})


def scripts(launch: Launch, folder: LaunchFolder, options: SlurmOptions) -> dict[str, str]:
    """Returns the batch scripts, by what they run."""
    return {
        "coordinator": coordinator_script(launch, folder, options),
        "agents": agents_script(launch, folder, options),
    }


def submit(folder: LaunchFolder) -> EngineJobs:
    """Submits both jobs of a launch.

    Raises:
        UserError: SLURM's commands are not there, or it refuses a job; then none is left.
    """
    if shutil.which("sbatch") is None:
        raise UserError(
            "sbatch is not there. Give this command where SLURM's commands are, on a login node; "
            "--print writes the scripts to the terminal."
        )
    coordinator = _submit(folder, "coordinator")
    try:
        jobs = EngineJobs(coordinator=coordinator, agents=_submit(folder, "agents"))
        folder.keep_jobs(jobs)
    except BaseException:
        _run("scancel", coordinator)
        raise
    return jobs


def in_queue(jobs: EngineJobs) -> bool:
    """Returns whether one of the jobs waits or runs still. SLURM complains of those that it has forgotten."""
    return any(
        _run("squeue", "--noheader", "--jobs", job, "--format=%i").stdout.strip()
        for job in (jobs.coordinator, jobs.agents)
    )


def _submit(folder: LaunchFolder, part: str) -> str:
    done = _run("sbatch", "--parsable", str(folder.script(part)))
    if done.returncode:
        raise UserError(f"SLURM refuses the {part}: {_reason(done.stderr)}. `sinfo` lists the partitions.")
    return done.stdout.strip().partition(";")[0]


class Slurm:
    """The agents of one launch: a job array of SLURM."""

    poll_s = ENGINE_POLL_S

    def __init__(self, folder: LaunchFolder) -> None:
        self._folder = folder

    @property
    def _agents(self) -> str:
        jobs = self._folder.jobs()
        if jobs is None:
            raise EngineError("the agents' job is not submitted yet")
        return jobs.agents

    def tasks(self) -> list[Task]:
        """Returns the tasks of the array that SLURM knows. Raises EngineError: it does not answer."""
        agents = self._agents
        listed = _asked("squeue", "--noheader", "--array", "--states=all", "--jobs", agents, "--format=%K|%T|%r")
        rows = [line.strip().split("|", 2) for line in listed.splitlines() if line.count("|") >= 2]
        return [Task(name=f"{agents}_{number}", state=state_of(state, reason)) for number, state, reason in rows]

    def replace(self, task: Task) -> None:
        """Requeues a lost task, and lets it start soon, as one that was given back. Raises EngineError."""
        if task.state is TaskState.LOST:
            _asked("scontrol", "requeue", task.name)
        elif task.state is TaskState.GIVEN_BACK:
            _asked("scontrol", "release", task.name)
        _asked("scontrol", "update", f"JobId={task.name}", f"StartTime={SOON}")

    def allow(self, num_running: int) -> None:
        """Sets how many tasks of the array may run at a time. Raises EngineError."""
        _asked("scontrol", "update", f"JobId={self._agents}", f"ArrayTaskThrottle={num_running}")

    def come_back(self) -> None:
        """Requeues the coordinator's job, in which this process runs. Raises EngineError."""
        _asked("scontrol", "requeue", os.environ["SLURM_JOB_ID"])

    def end(self) -> None:
        """Cancels the array. Raises EngineError."""
        _asked("scancel", self._agents)


def state_of(state: str, reason: str) -> TaskState:
    """Returns the state of a task that squeue shows in this state, for this reason."""
    if state in _RUNNING:
        return TaskState.RUNNING
    if state in _ENDED_WELL:
        return TaskState.DONE
    if state not in _WAITING:
        return TaskState.LOST
    if reason.replace("_", " ") == _HELD_BY_ITSELF:
        return TaskState.GIVEN_BACK
    if reason == "BeginTime":
        return TaskState.HELD
    return TaskState.SPARE if reason == "JobArrayTaskLimit" else TaskState.WAITING


def _asked(*command: str) -> str:
    done = _run(*command)
    if done.returncode:
        raise EngineError(f"{' '.join(command[:2])} fails: {_reason(done.stderr)}")
    return done.stdout


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ENGINE_COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _reason(stderr: str) -> str:
    """Returns what a command of SLURM's complains of, in one line."""
    lines: Sequence[str] = [line.partition("error: ")[2] or line for line in stderr.strip().splitlines()]
    return "; ".join(line.strip().rstrip(".") for line in lines) or "it does not say why"
