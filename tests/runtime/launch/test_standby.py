"""What a standby needs that does not see the run folder, and who is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import torch

from planaria.data.streams.blocks import open_stream
from planaria.data.streams.preparation import prepare_stream
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


def filled(
    folder: Path, checkpoints: str = "s3://bucket", of_job: Sequence[str] = (), **changes: Any
) -> CoordinatorSettings:
    job = make_job(f"run.checkpoint_folder={checkpoints!r}", *of_job)
    told = CoordinatorSettings(job=job, folder="/far/job", run_id="a", token="", resume=None, log="/far/log", **changes)
    return own_settings(cast("Lead", LeadStandIn()), told, folder)


def test_a_folder_of_its_own_has_what_a_coordinator_begins_with(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "own" / "job")
    settings = filled(folder.path)
    assert (settings.folder, settings.log) == (str(folder.path), str(folder.logs / "coordinator.log"))
    assert job_from_json(folder.job.read_bytes()) == settings.job
    assert folder.profile.read_bytes() == b"{}"
    assert filled(folder.path) == settings, "once more, as where the run is begun anew"


def counted(first: int) -> Iterator[tuple[torch.Tensor, int]]:
    for number in range(first, first + 100):
        yield torch.full((2,), float(number)), number % 2


def test_a_stream_is_begun_where_this_host_gives_the_same_samples(tmp_path: Path) -> None:
    source = f"data.source={__name__}:counted"
    prepared = [
        prepare_stream(make_job(source, f"data.config.first={first}"), tmp_path / str(first), lambda about: None)
        for first in (0, 1)
    ]
    same, other = (msgspec.json.encode(blocks.about) for blocks in prepared)
    for _ in range(2):  # once more, as where the run is begun anew
        folder = RunFolder(tmp_path / "own" / "job")
        filled(folder.path, of_job=(source, "data.config.first=0"), stream=same)
        opened = open_stream(folder.data)
        assert opened is not None
        assert opened.about == prepared[0].about
        assert opened.lying == []
    with pytest.raises(UserError, match=r"run job cannot be led from here: .* gives other samples here") as refused:
        filled(folder.path, of_job=(source, "data.config.first=0"), stream=other)
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match=r"run job cannot be led from here: .*nowhere"):
        filled(folder.path, of_job=("data.source=nowhere:counted",), stream=same)


def test_a_run_that_needs_its_folder_cannot_be_led_without(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"run job cannot be led from here: .*run.checkpoint_folder = ''. Set it to"):
        filled(tmp_path, "")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^--folder: .* cannot be written"):
        filled(tmp_path / "file" / "job")
