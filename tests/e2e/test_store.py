"""Checkpoints in an S3 server that fails now and then: a kill, a resume from there, the reference's bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planaria.job.parse import parse_job
from tests.e2e.commands import DEADLINE_S, Command, summary
from tests.e2e.conftest import Reference
from tests.s3_server import serving

SETTINGS = ["train.lr_schedule=constant", "train.warmup_steps=0"]
"""With these, the first steps are the same of however many."""


@pytest.mark.proof
def test_a_run_goes_on_from_a_bucket(command: Command, text: Path, reference: Reference) -> None:
    command.write_job(text, steps=6)
    job = parse_job((command.folder / "job.toml").read_text(), overrides=SETTINGS, origin="test")
    with serving() as s3:
        place = [
            part for setting in (*SETTINGS, "run.checkpoint_folder=s3://bucket/runs") for part in ("--set", setting)
        ]

        def train(*arguments: str) -> str:
            started = command.incubator.start(
                command.folder, "train", "job.toml", *place, *arguments, environment=s3.environment
            )
            _, said = started.communicate(timeout=DEADLINE_S)
            assert started.returncode == 0, said
            return said

        s3.strike("fail", "PUT", "group-", times=2)
        every, killed = ("--set", "run.checkpoint_every=2"), ("--fail", "kill:node=1,step=2,at=backward")
        said = " ".join(train(*every, *killed, "--set", "train.steps=4").split())
        assert len(s3.struck) == 2
        events = [json.loads(line) for line in (command.folder / "runs/job/events.jsonl").read_text().splitlines()]
        for part in (": cannot write group-", " came through, "):
            (told,) = (event["text"] for event in events if part in event.get("text", ""))
            assert told in said
        train("--resume")
    folder = command.folder / "runs" / "job"
    found = sorted((folder / "checkpoints").glob("step-*/url"))
    assert [path.read_text().strip() for path in found][-1] == "s3://bucket/runs/job/step-00000006"
    losses = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        metrics = json.loads(line)
        losses[metrics["step"]] = metrics["loss"]
    assert losses == reference(job).losses
    assert summary(command)["weights_sha256"] == reference(job).result.weights_sha256
