"""Runs one job under each policy, with the same script of failures, one run after another. It chooses nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from planaria.job.errors import PlanariaError, UserError
from planaria.job.parse import EMULATED_MODEL
from planaria.job.registry import PolicyName
from planaria.job.settings import Job
from planaria.job.values import check_name
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import PlanError
from planaria.runtime.coordinator.executor import Observer
from planaria.runtime.launch.rehearsal.rehearsal import Rehearsed, rehearse, rehearsed_job
from planaria.runtime.launch.rehearsal.replay import Say
from planaria.runtime.nodes.local_nodes import LocalNodes
from planaria.runtime.run_folder.claim import claimed
from planaria.runtime.run_folder.recorder import write_atomically
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.simulate.traces.script_format import write_script
from planaria.simulate.traces.scripts import Script


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one policy in a comparison.

    Attributes:
        policy: the policy's name.
        rehearsed: what came of it; None where the job could not be run under it.
        reason: why the run failed, or ended before the script; "" where it did not.
    """

    policy: PolicyName
    rehearsed: Rehearsed | None
    reason: str

    @property
    def samples_per_s(self) -> float:
        figures = self.rehearsed.tally if self.rehearsed is not None else None
        return figures.samples_per_s if figures is not None else 0.0

    @property
    def is_cut(self) -> bool:
        """Whether the user ended it."""
        return self.rehearsed is not None and self.rehearsed.is_cut


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all policies of a comparison.

    Attributes:
        job: its name.
        script: its name.
        nodes: that the job begins on.
        global_batch: samples in a step.
        rows: in the order in which they ran.
    """

    job: str
    script: str
    nodes: int
    global_batch: int
    rows: tuple[Row, ...]

    @property
    def best(self) -> float:
        """The row with the most samples a second."""
        return max((row.samples_per_s for row in self.rows), default=0.0)


class ComparisonFolder:
    """The folder of a comparison, `runs/NAME/`: a run folder for each policy, the script, the profile, and the result.

    Args:
        root: folder of run folders.
        name: of the comparison.

    Raises:
        UserError: the name is taken or is none, or the folder cannot be made.
    """

    def __init__(self, root: str | Path, name: str) -> None:
        check_name("--name", name)
        self.path = Path(root) / name
        try:
            self.path.mkdir(parents=True)
        except FileExistsError:
            raise UserError(f"{self.path} exists already. Choose another name by --name NAME.") from None
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be made: {error.strerror}. Set run.folder to a writable place."
            ) from None

    @property
    def profile(self) -> Path:
        return self.path / "profile.json"

    @property
    def script(self) -> Path:
        return self.path / "script.jsonl"

    @property
    def result(self) -> Path:
        return self.path / "compare.json"

    @property
    def plots(self) -> tuple[Path, ...]:
        return self.path / "compare.png", self.path / "compare.svg"

    def begin(self, profile: ModelProfile, script: Script) -> None:
        """Writes what is the same for all policies."""
        write_atomically(self.profile, msgspec.json.format(msgspec.json.encode(profile), indent=1))
        self.script.write_text(write_script(script))

    def keep(self, comparison: Comparison) -> None:
        """Writes the result of the comparison."""
        write_atomically(self.result, msgspec.json.format(msgspec.json.encode(comparison), indent=1) + b"\n")


def run_policy(
    job: Job, policy: PolicyName, folder: ComparisonFolder, script: Script, *, observers: Sequence[Observer], say: Say
) -> Row:
    """Runs the job under one policy and returns a row, whatever came of it.

    Args:
        job: of any device; its profile is in the folder.
        policy: that makes the plans.
        folder: the comparison's folder.
        script: the script of what befalls the job.
        observers: functions that get every record.
        say: takes a line for each thing that the script does.
    """
    resilience = msgspec.structs.replace(job.resilience, policy=policy)
    try:
        own = rehearsed_job(msgspec.structs.replace(job, resilience=resilience), folder.profile, script)
        run = RunFolder.create(folder.path, policy.value)
        with claimed(run.claim), LocalNodes(run.logs / "launcher.log", EMULATED_MODEL) as nodes:
            ended = rehearse(own, run, script, nodes, observers=observers, say=say)
    except (PlanariaError, PlanError, UserError) as error:
        return Row(policy=policy, rehearsed=None, reason=" ".join(str(error).split()))
    return Row(
        policy=policy, rehearsed=ended, reason="" if ended.is_played else f"{ended.status.value}: {ended.message}"
    )
