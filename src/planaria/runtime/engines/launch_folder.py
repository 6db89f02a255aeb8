"""What a launch keeps in `runs/NAME.ENGINE/`, beside the run folder: token, scripts, logs, and what is trained how.

Every node must see it at the same path, as it must see the run folder.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from planaria.job.errors import UserError
from planaria.runtime.coordinator.remote_nodes import write_token
from planaria.runtime.run_folder.recorder import write_atomically
from planaria.runtime.run_folder.run_folder import RunFolder


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What is trained, and on how many nodes.

    Attributes:
        job_file: absolute path of the job file.
        overrides: "section.key=value" of the command line.
        name: of the run.
        runs: absolute path of the folder of run folders.
        nodes: that it starts on.
        most_nodes: that it grows to; 0: as many as it starts on.
        spares: tasks beyond these.
        python: the interpreter.
        directory: in which the command was given.
        tls: folder with the run's certificates; "": connections are plain.
    """

    job_file: str
    overrides: tuple[str, ...]
    name: str
    runs: str
    nodes: int
    spares: int
    python: str
    directory: str
    tls: str = ""
    most_nodes: int = 0

    @property
    def grows(self) -> bool:
        """Whether it may have more nodes than it starts on."""
        return self.most_nodes > self.nodes

    @property
    def tasks(self) -> int:
        """Agents' tasks that there may be at all."""
        return max(self.nodes, self.most_nodes) + self.spares

    @property
    def run(self) -> RunFolder:
        return RunFolder(Path(self.runs) / self.name)

    @property
    def planaria(self) -> list[str]:
        """The command `planaria` of the environment in which the launch was made."""
        return [self.python, "-m", "planaria.ui.cli.main"]

    def train(self, token_options: Sequence[str]) -> list[str]:
        """Returns the command that trains, without --resume."""
        settings = [word for override in self.overrides for word in ("--set", override)]
        return [*self.planaria, "train", self.job_file, "--name", self.name, *token_options, *settings]


class EngineJobs(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's names of the coordinator's job and of the agents'."""

    coordinator: str
    agents: str


@dataclass(frozen=True, slots=True)
class LaunchFolder:
    """The files of a launch."""

    path: Path

    @classmethod
    def of(cls, launch: Launch, engine: str) -> LaunchFolder:
        """Returns the folder of a launch on that engine. Makes nothing."""
        return cls(Path(launch.runs) / f"{launch.name}.{engine}")

    @property
    def token(self) -> Path:
        """The token that coordinator and agents share."""
        return self.path / "token"

    @property
    def logs(self) -> Path:
        """What coordinator and agents print."""
        return self.path / "logs"

    def script(self, part: str) -> Path:
        return self.path / f"{part}.sh"

    def write(self, launch: Launch, scripts: dict[str, str]) -> None:
        """Writes the launch anew, with another token. Raises UserError: the folder cannot be written."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            (self.path / "jobs.json").unlink(missing_ok=True)
            write_atomically(self.path / "launch.json", msgspec.json.format(msgspec.json.encode(launch), indent=1))
            write_token(self.token, secrets.token_hex(16))
            for part, text in scripts.items():
                self.script(part).write_text(text)
        except OSError as error:
            raise UserError(
                f"launch folder {self.path} cannot be written: {error.strerror}. "
                "Set run.folder to a place that every node can write."
            ) from None

    def launch(self) -> Launch:
        """Returns what is trained. Raises UserError: this is no launch folder."""
        try:
            return msgspec.json.decode((self.path / "launch.json").read_bytes(), type=Launch)
        except (OSError, msgspec.MsgspecError):
            raise UserError(f"{self.path} is not a launch folder. `planaria launch` makes it.") from None

    def keep_jobs(self, jobs: EngineJobs) -> None:
        write_atomically(self.path / "jobs.json", msgspec.json.encode(jobs))

    def jobs(self) -> EngineJobs | None:
        """Returns the engine's jobs; None: they are not started yet."""
        try:
            return msgspec.json.decode((self.path / "jobs.json").read_bytes(), type=EngineJobs)
        except FileNotFoundError:
            return None
