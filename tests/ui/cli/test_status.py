"""`planaria status` of a run that cannot be asked: it begins, it is over, or its process is gone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from planaria.job.errors import UserError
from planaria.job.parse import job_json
from planaria.job.registry import Launcher
from planaria.runtime.coordinator.client import Contact
from planaria.runtime.journal.leadership import Leadership
from planaria.runtime.run_folder.claim import claimed, say
from planaria.runtime.run_folder.recorder import Recorder
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.ui.cli import live
from planaria.ui.cli.main import cli
from tests.runtime.run_folder.happenings import JOB, short_run


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path, "short")
    folder.job.write_bytes(job_json(JOB))
    return folder


def record(folder: RunFolder, num_records: int) -> None:
    with Recorder(folder, JOB) as recorder:
        for place, happening in enumerate(short_run()[:num_records]):
            recorder(happening, 1e9 + place)


def status(folder: RunFolder) -> tuple[str, dict[str, object]]:
    """As text without the folder, and as JSON."""
    text = live.status(folder.path, as_json=False)
    assert text.startswith(f"{folder.path}: ")
    return text.removeprefix(f"{folder.path}: "), msgspec.json.decode(live.status(folder.path, as_json=True))


def test_a_run_that_begins_says_so(folder: RunFolder) -> None:
    with claimed(folder.claim):
        say(folder.claim, "starting: the data are read")
        text, state = status(folder)
        with pytest.raises(UserError, match=r"cannot be asked now \(starting: the data are read\)"):
            live.stop(folder.path)
    assert text == "starting: the data are read"
    assert state == {"phase": "starting", "doing": "starting: the data are read", "step": 0, "steps": 3}


def test_its_beginning_when_it_goes_on(folder: RunFolder) -> None:
    record(folder, 5)
    with claimed(folder.claim):
        assert status(folder)[0] == "starting, step 1 of 3"


def test_a_run_that_is_over_says_how(folder: RunFolder) -> None:
    record(folder, len(short_run()))
    text, state = status(folder)
    assert text.splitlines()[0].startswith("completed: 3 of 3 steps, loss 2.5000, 2 nodes live, 1 recovery")
    assert "step 2" in text.splitlines()[1]
    assert (state["phase"], state["status"], state["steps"]) == ("ended", "completed", 3)


@pytest.mark.parametrize("has_contact", [False, True])
def test_its_process_is_gone(folder: RunFolder, has_contact: bool) -> None:
    """A kill of the launcher leaves the address of a coordinator that is gone, too."""
    record(folder, 8)
    if has_contact:
        Contact(address="127.0.0.1:1", token="0123456789abcdef").write(folder.contact)
    assert status(folder)[0].startswith("its process is gone, step 2 of 3 was the last. It left no checkpoint: ")
    (folder.checkpoints / "step-00000002").mkdir()
    text, state = status(folder)
    assert text.startswith("its process is gone, step 2 of 3 was the last. planaria train JOB --resume goes on")
    assert state == {"phase": "gone", "step": 2, "steps": 3}


@pytest.mark.parametrize(
    ("lead", "part"),
    [
        (
            Leadership(leader="a", lease_left_s=2, standbys=("b", "c")),
            "a leads it and does not answer, its lease in etcd ends within 2 s; standing by: b, c. Step 2 of 3 was",
        ),
        (Leadership(standbys=("b",)), "nobody leads it now; standing by: b. Step 2 of 3 was the last."),
        (Leadership(leader="a", lease_left_s=1), "nobody stands by: planaria standby RUN does, on another host"),
    ],
)
def test_a_run_that_another_host_will_lead_says_which(
    folder: RunFolder, lead: Leadership, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is in etcd, and the host of the coordinator is gone."""
    cluster = msgspec.structs.replace(JOB.cluster, launcher=Launcher.AGENTS)
    run = msgspec.structs.replace(JOB.run, journal="etcd://127.0.0.1:1")
    folder.job.write_bytes(job_json(msgspec.structs.replace(JOB, cluster=cluster, run=run)))
    record(folder, 8)
    Contact(address="127.0.0.1:1", token="0123456789abcdef").write(folder.contact)
    assert status(folder)[0].startswith("its process is gone"), "etcd cannot be asked"
    monkeypatch.setattr(live, "leadership", lambda url, run, tls: lead)
    text, state = status(folder)
    assert part in text
    led = msgspec.json.decode(msgspec.json.encode(lead))
    assert state == {"phase": "leaderless", "step": 2, "steps": 3, "lead": led}
    found = live.look(folder.path)
    assert isinstance(found, live.NoAnswer)
    assert not found.is_over


def test_a_coordinator_that_does_not_answer_though_its_run_lives(folder: RunFolder) -> None:
    Contact(address="127.0.0.1:1", token="0123456789abcdef").write(folder.contact)
    with claimed(folder.claim), pytest.raises(UserError, match="does not answer"):
        live.status(folder.path, as_json=False)


def test_an_address_needs_the_jobs_token_and_a_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLANARIA_TOKEN", raising=False)
    asked = CliRunner().invoke(cli, ["status", "127.0.0.1:1"])
    assert asked.exit_code == 2
    assert "127.0.0.1:1 is an address: give the job's token by --token-file FILE or in PLANARIA_TOKEN." in asked.output
    asked = CliRunner().invoke(cli, ["status", "127.0.0.1:1"], env={"PLANARIA_TOKEN": "0123456789abcdef"})
    assert asked.exit_code == 2
    assert "run 127.0.0.1:1 does not answer: [Errno 111] Connection refused" in asked.output
