"""What a standby needs that does not see the run folder, and who is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from planaria.job.errors import UserError
from planaria.job.parse import job_from_json
from planaria.runtime.coordinator.settings import CoordinatorSettings
from planaria.runtime.journal.lead import Lead
from planaria.runtime.launch.training.standby import own_settings
from planaria.runtime.run_folder.run_folder import RunFolder
from tests.runtime.coordinator.test_remote_nodes import make_job


class LeadStandIn:
    run = "job"

    def profile(self) -> bytes:
        return b"{}"


def filled(folder: Path, checkpoints: str = "s3://bucket", **changes: Any) -> CoordinatorSettings:
    job = make_job(f"run.checkpoint_folder={checkpoints!r}")
    told = CoordinatorSettings(job=job, folder="/far/job", run_id="a", token="", resume=None, log="/far/log", **changes)
    return own_settings(cast("Lead", LeadStandIn()), told, folder)


def test_a_folder_of_its_own_has_what_a_coordinator_begins_with(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "own" / "job")
    settings = filled(folder.path)
    assert (settings.folder, settings.log) == (str(folder.path), str(folder.logs / "coordinator.log"))
    assert job_from_json(folder.job.read_bytes()) == settings.job
    assert folder.profile.read_bytes() == b"{}"
    assert filled(folder.path) == settings, "once more, as where the run is begun anew"


def test_a_run_that_needs_its_folder_cannot_be_led_without(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"run job cannot be led from here: .*run.checkpoint_folder = ''. Set it to"):
        filled(tmp_path, "")
    with pytest.raises(UserError, match="its stream is read into its run folder"):
        filled(tmp_path, is_stream=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^--folder: .* cannot be written"):
        filled(tmp_path / "file" / "job")
