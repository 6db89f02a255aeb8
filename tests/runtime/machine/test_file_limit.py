"""Limits on open files: raised where that may be, refused where they are too low, and named where they are met."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys

import pytest

from planaria.job.errors import UserError
from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import Failed
from planaria.runtime.machine import limits as machine_limits
from planaria.runtime.worker.fatal_errors import last_words
from tests.runtime.run_folder.happenings import JOB


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    script = (
        "import resource\n"
        "from planaria.runtime.machine.limits import raise_file_limit\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512))\n"
        "raise_file_limit()\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "512 512\n"


@pytest.mark.parametrize(("hard", "is_refused"), [(40, True), (51, False), (resource.RLIM_INFINITY, False)])
def test_too_low_a_limit_is_refused_before_anything_starts(
    hard: int, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_limits.resource, "getrlimit", lambda _: (20, hard))
    if not is_refused:
        machine_limits.check_machine_limits(JOB)
        return
    with pytest.raises(UserError, match=r"40 files here \(ulimit -n\).* 3 workers .*ulimit -n 65536"):
        machine_limits.check_machine_limits(JOB)


def test_a_worker_that_meets_the_limit_names_it() -> None:
    told = last_words(WorkerId(3), OSError(errno.EMFILE, "Too many open files"), "in a step")
    assert isinstance(told, Failed)
    assert told.where.startswith("worker 3 may open no more than ")
    assert "Too many open files" in told.text
