"""The two batch scripts of a launch on SLURM: the coordinator's, and that of the array of agents."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from planaria.job.errors import UserError
from planaria.runtime.engines.launch_folder import Launch, LaunchFolder
from planaria.runtime.journal.coordinator_place import FILE
from planaria.runtime.thresholds import ENGINE_GIVE_UP_S

_AGENTS = """
# SLURM's notice becomes the agent's: its node hands over its work. Near the time limit (USR1) the task comes back.
why=
notice() { why=$1; kill -TERM "$agent" 2> /dev/null; }
trap 'notice limit' USR1
trap 'notice end' TERM
while :; do
  COMMAND &
  agent=$!
  wait "$agent"
  while kill -0 "$agent" 2> /dev/null; do wait "$agent"; done
  wait "$agent"
  code=$?
  # 75: the run is suspended, and needs this node again when it goes on.
  if [ "$code" != 75 ] || [ -n "$why" ]; then break; fi
done
if [ "$why" = limit ]; then scontrol requeue "$SLURM_JOB_ID" && sleep 60; fi
GIVEN_BACK
# 4: the node has handed over its work.
if [ "$code" = 4 ]; then exit 0; fi
exit "$code"
"""
_GIVEN_BACK = """\
# 4: the run had a node too many, which it may want again.
if [ "$code" = 4 ] && [ -z "$why" ]; then scontrol requeuehold "$SLURM_JOB_ID" && sleep 60; fi
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """How the jobs are submitted.

    Attributes:
        partition: name of the partition; "": the default one.
        time: limit of each job, as sbatch takes it; "": the partition's.
        notice_s: seconds before the time limit at which work is handed over, and the run is saved.
        give_up_s: seconds that an agent waits for the coordinator, longer than that may be in the queue.
        agent_options: more options of sbatch for the agents, for instance --gres=gpu:8.
    """

    partition: str = ""
    time: str = ""
    notice_s: int = 120
    give_up_s: float = ENGINE_GIVE_UP_S
    agent_options: Sequence[str] = ()

    def __post_init__(self) -> None:
        for option in self.agent_options:
            if not option.startswith("-"):
                raise UserError(f"{option!r} is no option of sbatch. Write each as one word, as --gres=gpu:8.")


def coordinator_script(launch: Launch, folder: LaunchFolder, options: SlurmOptions) -> str:
    """Returns the batch script of the coordinator: it trains, and keeps the agents."""
    head = _head(launch, folder, options, "coordinator", "coordinator", ["--ntasks=1"])
    return f"{head}\nexec {shlex.join([*launch.planaria, 'attend', 'slurm', str(folder.path)])}\n"


def agents_script(launch: Launch, folder: LaunchFolder, options: SlurmOptions) -> str:
    """Returns the batch script of the array of agents: a task for each node, and for each spare."""
    array = f"--array=0-{launch.tasks - 1}%{launch.nodes}"
    own = [array, "--nodes=1", "--ntasks=1", "--exclusive", *options.agent_options]
    command = [
        *launch.planaria, "agent",
        "--coordinator", f"{FILE}{launch.run.address}",
        "--token-file", str(folder.token),
        "--give-up", f"{options.give_up_s:g}",
        *(["--tls", launch.tls] if launch.tls else []),
    ]  # fmt: skip
    script = _AGENTS.replace("GIVEN_BACK\n", _GIVEN_BACK if launch.grows else "")
    return _head(launch, folder, options, "agents", "agent-%a", own) + script.replace("COMMAND", shlex.join(command))


def _head(launch: Launch, folder: LaunchFolder, options: SlurmOptions, part: str, log: str, own: Sequence[str]) -> str:
    lines = [
        f"--job-name={launch.name}-{part}",
        *own,
        *([f"--partition={options.partition}"] if options.partition else []),
        *([f"--time={options.time}"] if options.time else []),
        "--requeue",
        f"--signal=B:USR1@{options.notice_s}",
        "--open-mode=append",
        f"--output={str(folder.logs).replace('%', '%%')}/{log}.log",
        f"--chdir={launch.directory}",
    ]
    return "".join(["#!/bin/bash\n", *(f"#SBATCH {_quoted(line)}\n" for line in lines)])


def _quoted(option: str) -> str:
    """Returns an option as sbatch reads it in a script: a value with spaces stands in quotation marks."""
    name, is_set, value = option.partition("=")
    return f'{name}="{value}"' if is_set and " " in value else option
