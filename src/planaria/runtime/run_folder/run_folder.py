"""The files of the run folder `runs/NAME/` and their names, which nothing else in Planaria spells."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

from planaria.job.errors import UserError
from planaria.job.values import check_name
from planaria.runtime.run_folder.claim import claimant, in_use


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one run. Make one with `create` or `open`.

    Attributes:
        path: the path of the folder.
    """

    path: Path

    @classmethod
    def create(cls, root: str | Path, name: str) -> RunFolder:
        """Makes a new, empty run folder.

        Args:
            root: folder of run folders; made when absent.
            name: of the run.

        Raises:
            UserError: the name is taken, is no folder's name, or the folder cannot be made.
        """
        check_name("run.name", name)
        path = Path(root) / name
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                if claimant(cls(path).claim) is not None:
                    raise UserError(in_use(cls(path).claim))
                raise UserError(
                    f"run folder {path} exists already. "
                    "Go on with it by --resume, or choose another name by --name NAME."
                )
            return cls._with_subfolders(path)
        except OSError as error:
            raise _unusable(path, error) from None

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Opens an existing run folder for reading.

        Raises:
            UserError: there is none.
        """
        path = Path(path)
        try:
            if not path.is_dir():
                raise UserError(f"run folder {path} does not exist. Give the folder of a run, for instance runs/NAME.")
            folder = cls(path)
            if not folder.job.is_file():
                raise UserError(f"{path} is not a run folder (it has no job.json). Give the folder of a run.")
            return folder
        except OSError as error:
            raise _unusable(path, error) from None

    @classmethod
    def reopen(cls, path: str | Path) -> RunFolder:
        """Opens an existing run folder for another run. Raises UserError: there is none, or it cannot be written."""
        folder = cls.open(path)
        try:
            return cls._with_subfolders(folder.path)
        except OSError as error:
            raise _unusable(folder.path, error) from None

    @classmethod
    def _with_subfolders(cls, path: Path) -> RunFolder:
        folder = cls(path)
        for subfolder in (folder.checkpoints, folder.data, folder.logs):
            subfolder.mkdir(exist_ok=True)
        return folder

    @property
    def job(self) -> Path:
        """The resolved job, every default filled in."""
        return self.path / "job.json"

    @property
    def events(self) -> Path:
        """The run's records, one JSON object each."""
        return self.path / "events.jsonl"

    @property
    def step_blocks(self) -> Path:
        """Sums over blocks of steps in the run's records, for readers of long runs."""
        return self.path / "step-blocks.jsonl"

    @property
    def metrics(self) -> Path:
        """The run's metrics, one JSON object for each committed step."""
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """How the run ended; absent while it runs."""
        return self.path / "summary.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def data(self) -> Path:
        """The tokens made from the data source."""
        return self.path / "data"

    @property
    def profile(self) -> Path:
        """The measured `ModelProfile`, as JSON."""
        return self.path / "profile.json"

    @property
    def journal(self) -> Path:
        """The coordinator's journal (SQLite)."""
        return self.path / "journal.sqlite"

    @property
    def claim(self) -> Path:
        """The claim that says which process writes this folder, see `planaria.runtime.run_folder.claim`."""
        return self.path / "claim.json"

    @property
    def contact(self) -> Path:
        """How the running job is reached; absent when it is not running."""
        return self.path / "coordinator.json"

    @property
    def address(self) -> Path:
        """Where agents find the coordinator, as "host:port"; that of the last one, when none runs."""
        return self.path / "address"

    @property
    def token(self) -> Path:
        """The token that agents show to the coordinator, readable by the user alone."""
        return self.path / "token"

    @property
    def metrics_token(self) -> Path:
        """The token that Prometheus shows where /metrics is not on loopback, readable by the user alone."""
        return self.path / "metrics-token"

    @property
    def identity(self) -> Path:
        """The mark by which a node knows that the folder it sees is the coordinator's."""
        return self.path / "identity"

    @property
    def script(self) -> Path:
        """The script that a rehearsed run's nodes were to go through."""
        return self.path / "script.jsonl"

    @property
    def drill(self) -> Path:
        """The outcome of a rehearsed run, as JSON."""
        return self.path / "drill.json"

    @property
    def drill_plots(self) -> tuple[Path, ...]:
        """The plots of throughput and nodes over time, as pictures."""
        return self.path / "drill.png", self.path / "drill.svg"

    @property
    def tensorboard(self) -> Path:
        """The folder of TensorBoard's event files."""
        return self.path / "tensorboard"

    def id_at(self, tracker: str) -> Path:
        """Returns the file with the run's id at a tracker ("wandb", "mlflow"), by which it goes on there."""
        return self.path / f"{tracker}-run-id"

    @property
    def logs(self) -> Path:
        """The folder of logs, one file for each process."""
        return self.path / "logs"

    def worker_log(self, worker: int) -> Path:
        """Returns the log of a worker."""
        return self.logs / f"worker-{worker}.log"


def free_name(root: str | Path, name: str) -> str:
    """Returns the name, or the name with the first number from 2 on, that is not taken in the folder of run folders."""
    numbered = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    return next(free for free in numbered if not (Path(root) / free).exists())


def _unusable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"run folder {path} cannot be used: {error.strerror or error}. Set run.folder to a writable place."
    )
