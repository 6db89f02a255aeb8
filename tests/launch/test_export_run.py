"""`planaria export`: where it cannot write, it says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from planaria.job.errors import UserError
from planaria.job.parse import job_json, parse_job
from planaria.launch import export as exporting
from planaria.observe.run_folder import RunFolder

JOB = """
[model]
type = "gpt2"
[data]
source = "python-stdlib"
[train]
steps = 1
global_batch = 4
microbatch = 2
sequence_length = 16
[cluster]
nodes = 2
"""


@pytest.mark.parametrize("target", ["file", "file/below"])
def test_a_target_that_cannot_be_written(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.joinpath("file").write_text("taken")
    folder = RunFolder.create(tmp_path, "run")
    folder.job.write_bytes(job_json(parse_job(JOB, origin="job.toml")))
    monkeypatch.setattr(exporting, "newest", lambda checkpoints: (checkpoints, None, []))
    monkeypatch.setattr(exporting, "read_parameters", lambda checkpoint, manifest: {})
    monkeypatch.setattr(exporting, "export", lambda job, parameters, to: to.mkdir(parents=True, exist_ok=True))
    with pytest.raises(UserError, match="it cannot be written: "):
        exporting.export_run(folder.path, tmp_path / target)
    exporting.export_run(folder.path, tmp_path / "new")
