from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner

from planaria.ui.cli.main import cli
from planaria.ui.start.doctor import CHECKS, Verdict, examined


def test_this_machine_is_fit(tmp_path: Path) -> None:
    asked = CliRunner().invoke(cli, ["doctor", str(tmp_path / "runs")])
    assert asked.exit_code == 0, asked.output
    assert len(asked.output.splitlines()) == len(CHECKS)
    assert not (tmp_path / "runs").exists()


def test_what_hinders_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str) -> NoReturn:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "memfd_create", refused)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 64))
    found = {finding.name: finding for finding in examined(Path("/proc/none"))}
    assert found["shared memory"].verdict is Verdict.MEND
    assert found["disk"].verdict is Verdict.MEND
    assert found["files"].text.startswith("a process may open 64 files: raise it")
    assert CliRunner().invoke(cli, ["doctor", "/proc/none"]).exit_code == 1
