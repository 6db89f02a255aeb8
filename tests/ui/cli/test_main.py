"""The command line: help, version, exit codes, one-line errors, and what it asks of the API.

Training itself is replaced by a function that answers at once; tests/launch trains for real.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

import planaria
from planaria.job.errors import UserCodeError
from planaria.plan.plan import PlanError
from planaria.protocol.messages.records import RunStatus
from planaria.runtime.launch.training.request import TrainRequest
from planaria.runtime.launch.training.result import TrainResult
from planaria.runtime.run_folder.claim import claimed
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.ui.cli.main import cli

JOB = """
model = {type = "gpt2"}
cluster = {nodes = 3}
train = {steps = 3, global_batch = 8, microbatch = 2, sequence_length = 16}
"""


class Training:
    """Stands for `planaria.runtime.launch`: keeps the arguments, gives the result it was told."""

    def __init__(self) -> None:
        self.status = RunStatus.COMPLETED
        self.error: Exception | None = None
        self.calls: list[dict[str, Any]] = []

    def __call__(self, job: Any, folder: Any, **arguments: Any) -> TrainResult:
        self.calls.append({"job": job, "folder": folder, **arguments})
        if self.error is not None:
            raise self.error
        return TrainResult(
            status=self.status,
            steps=3,
            final_loss=1.0,
            weights_sha256="ab",
            recoveries=(),
            folder=folder.path,
            message="",
        )


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Training:
    training = Training()

    def train_job(request: TrainRequest) -> TrainResult:
        return training(**{field.name: getattr(request, field.name) for field in dataclasses.fields(request)})

    for module, name, function in (("session", "train_job", train_job), ("reference", "train_reference", training)):
        stand_in = ModuleType(f"planaria.runtime.launch.{module}")
        setattr(stand_in, name, function)
        monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    return training


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with a job file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(JOB)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def refused(result: Result) -> str:
    """The one line of a refusal."""
    assert result.exit_code == 2, result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("planaria: error: ")
    return lines[0]


def test_help_and_version_are_shown() -> None:
    assert run("--version").output == f"planaria {planaria.__version__}\n"
    assert "train" in run("--help").output
    assert run().output == run("--help").output
    for command in ("train", "plan", "export"):
        assert run(command, "--help").exit_code == 0


def test_an_agent_needs_a_token_and_an_address(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLANARIA_TOKEN", raising=False)
    assert "PLANARIA_TOKEN" in refused(run("agent", "--coordinator", "host:1"))
    monkeypatch.setenv("PLANARIA_TOKEN", "too short")
    assert "openssl" in refused(run("agent", "--coordinator", "host:1"))
    monkeypatch.setenv("PLANARIA_TOKEN", "0123456789abcdef")
    assert "HOST:PORT" in refused(run("agent", "--coordinator", "host"))
    (place / "token").write_text("0123456789abcdef")
    (place / "token").chmod(0o644)
    assert "chmod 600" in refused(run("agent", "--coordinator", "host:1", "--token-file", "token"))


def test_a_token_for_training_is_read_from_file_or_environment(
    training: Training, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is stronger than the environment; without either, a new one is made."""
    monkeypatch.delenv("PLANARIA_TOKEN", raising=False)
    assert run("train", "mine.toml").exit_code == 0
    monkeypatch.setenv("PLANARIA_TOKEN", "fedcba9876543210")
    assert run("train", "mine.toml", "--name", "b").exit_code == 0
    (place / "token").write_text("0123456789abcdef\n")
    (place / "token").chmod(0o600)
    assert run("train", "mine.toml", "--name", "c", "--token-file", "token").exit_code == 0
    assert [call["token"] for call in training.calls] == ["", "fedcba9876543210", "0123456789abcdef"]


def imported_by(statements: str) -> set[str]:
    """The modules that a fresh interpreter holds after the statements."""
    script = f"import sys\n{statements}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_nothing_heavy_is_imported_for_help() -> None:
    modules = imported_by("import planaria.ui.cli.main as m\ntry: m.cli(['--help'])\nexcept SystemExit: pass")
    assert not {"torch", "numpy", "msgspec", "rich", "planaria.api"} & modules


@pytest.mark.parametrize(
    "first",
    [
        "planaria.load_job",
        "import planaria.plan.plan",
        "import planaria.plan.validate as validate",
        "from planaria.plan import validate",
        "from planaria import plan",
    ],
)
def test_plan_is_a_function_and_a_package(first: str) -> None:
    imported_by(
        f"import planaria\n{first}\n"
        "import planaria.plan.validate as validate\n"
        "assert planaria.plan.validate is validate\n"
        "assert callable(planaria.plan)\n"
        "try: planaria.plan('no job')\n"
        "except AttributeError: raise\n"
        "except Exception: pass\n"
        "import inspect\n"
        "assert list(inspect.signature(planaria.plan).parameters)[0] == 'job'"
    )


def test_the_public_names_are_lazy() -> None:
    assert "planaria.api" not in imported_by("import planaria")
    modules = imported_by("import planaria\nplanaria.train, planaria.Job, planaria.plan")
    assert "planaria.api" in modules
    assert "torch" not in modules
    assert set(planaria.__all__) <= set(dir(planaria))
    with pytest.raises(AttributeError, match="zzz"):
        planaria.zzz  # noqa: B018


@pytest.mark.parametrize(
    ("status", "code"),
    [("completed", 0), ("stopped", 0), ("failed", 1), ("exhausted", 3), ("interrupted", 130)],
)
def test_each_ending_has_its_exit_code(place: Path, training: Training, status: str, code: int) -> None:
    training.status = RunStatus(status)
    assert run("train", "mine.toml").exit_code == code


def test_train_passes_on_what_it_was_told(place: Path, training: Training) -> None:
    result = run(
        "train", "mine.toml", "--set", "train.steps=9", "--name", "a",
        "--fail", "kill:node=1,step=2,at=vote", "--fail", "kill:node=2,step=2,at=vote",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    (call,) = training.calls
    assert call["job"].train.steps == 9
    assert call["job"].run.name == "a"
    assert call["folder"].path == Path("runs/a")
    assert [fault.node for fault in call["faults"]] == [1, 2]
    assert call["resume"] is False
    assert call["import_path"] == place.resolve()
    assert len(call["observers"]) == 1
    assert json.loads(Path("runs/a/job.json").read_text())["train"]["steps"] == 9


def test_one_process_at_a_time_writes_a_run_folder(
    training: Training, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planaria.runtime.run_folder.claim.READERS_S", 0.0)
    assert run("train", "mine.toml").exit_code == 0
    with claimed(RunFolder(Path("runs/mine")).claim):
        assert "in use by process" in refused(run("train", "mine.toml", "--resume"))
        assert "in use by process" in refused(run("train", "mine.toml"))
    assert run("train", "mine.toml", "--resume").exit_code == 0


def test_a_command_that_does_not_exist_is_refused() -> None:
    assert refused(run("statu")).endswith("there is no command 'statu'. Did you mean status?")
    assert "There are init, doctor, train, agent, standby, certificates, launch, plan, " in refused(run("go"))


def test_resume_opens_the_folder_and_refuses_another_job(place: Path, training: Training) -> None:
    assert "does not exist" in refused(run("train", "mine.toml", "--resume"))
    assert run("train", "mine.toml").exit_code == 0
    assert "exists already" in refused(run("train", "mine.toml"))
    assert run("train", "mine.toml", "--resume", "--set", "cluster.nodes=4").exit_code == 0
    assert training.calls[-1]["resume"] is True
    assert "another train.seed" in refused(run("train", "mine.toml", "--resume", "--set", "train.seed=3"))


def test_reference_has_its_own_folder(place: Path, training: Training) -> None:
    assert run("train", "mine.toml", "--reference").exit_code == 0
    assert training.calls[0]["folder"].path == Path("runs/mine-reference")
    assert run("train", "mine.toml", "--reference").exit_code == 0
    assert training.calls[1]["folder"].path == Path("runs/mine-reference-2")
    assert "faults" not in training.calls[0]
    assert "--resume" in refused(run("train", "mine.toml", "--reference", "--resume"))


def test_a_refused_job_leaves_no_folder(place: Path, training: Training) -> None:
    training.error = UserCodeError("model.type = 'a:b' fails.", 'Traceback\n  File "a.py", line 3, in b\nKeyError\n')
    result = run("train", "mine.toml")
    assert result.exit_code == 2
    assert result.stderr == f"planaria: error: {training.error}\n\n{training.error.trace}"
    training.error = PlanError("8 nodes cannot hold\n3 replicas.")
    assert refused(run("train", "mine.toml")) == "planaria: error: 8 nodes cannot hold 3 replicas."
    assert not Path("runs/mine").exists()
    training.error = None
    assert run("train", "mine.toml").exit_code == 0


def test_other_exceptions_keep_their_traceback(place: Path, training: Training) -> None:
    training.error = ValueError("a bug")
    result = run("train", "mine.toml")
    assert result.exception is training.error
    assert result.exit_code == 1


def test_ctrl_c_before_training_ends_with_130(place: Path, training: Training) -> None:
    training.error = KeyboardInterrupt()  # type: ignore[assignment]
    assert run("train", "mine.toml").exit_code == 130


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["train"], "Missing argument 'JOB'"),
        (["train", "none.toml"], "none.toml does not exist"),
        (["trian", "mine.toml"], "trian"),
        (["train", "mine.toml", "--zzz"], "--zzz"),
        (["train", "mine.toml", "--set", "train.step=3"], "Did you mean train.steps?"),
        (["train", "mine.toml", "--set", "train.global_batch=9"], "8 or 10"),
        (["train", "mine.toml", "--fail", "kill:node=9,step=1,at=vote"], "no node 9"),
        (["train", "mine.toml", "--name", "../x"], "folder's name"),
        (["plan", "mine.toml", "--profile", "none.json"], "none.json cannot be read"),
        (["plan", "mine.toml", "--profile", "mine.toml"], "not a model profile"),
        (["export", "none", "--to", "x"], "none does not exist"),
        (["drain", "none", "1", "--grace", "-5"], "--grace -5 is not a number of seconds"),
        (["drain", "none", "1", "--grace", "nan"], "--grace nan is not a number of seconds"),
    ],
)
def test_mistakes_are_one_line(place: Path, training: Training, arguments: list[str], part: str) -> None:
    assert part in refused(run(*arguments))
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


@pytest.mark.parametrize(
    ("typed", "completed"), [("planaria stat", "status"), ("planaria train --acc", "--accept-changed-data")]
)
def test_shells_are_told_how_a_word_may_go_on(typed: str, completed: str) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_PLANARIA_COMPLETE": "bash_complete"}
    told = CliRunner().invoke(cli, [], prog_name="planaria", env=words)
    assert (told.exit_code, told.output) == (0, f"plain,{completed}\n")
