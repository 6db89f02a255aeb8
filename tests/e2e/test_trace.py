"""Half an hour of a real spot trace, much compressed: nodes leave with and without a notice and others join, as the
instances of a cloud did. `scripts/spot.py` replays all of it on many nodes; here are some of the instances."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from scripts.spot import Spot, Window, profile, spot_job, until_step

from planaria.job.settings import Job
from planaria.launch.local import LocalNodes
from planaria.launch.result import RunStatus
from planaria.launch.session import train_job
from planaria.observe.run_folder import RunFolder
from planaria.simulate.trace import Change, Trace, TraceEvent
from planaria.simulate.trace_formats import read_trace
from planaria.worker.trace import read_trace as read_entries
from tests.e2e.conftest import Run
from tests.e2e.jobs import Outcome, make_job

TRACE = Path(__file__).parents[3] / "shared" / "traces" / "p3-trace.csv"
SPEED = 180.0

needs_trace = pytest.mark.skipif(not TRACE.exists(), reason=f"{TRACE} is not there")


@needs_trace
def test_half_an_hour_of_a_spot_trace(tmp_path: Path, run: Run, reference: Callable[[Job], Outcome]) -> None:
    window = Window.busiest(read_trace(TRACE.read_text(), TRACE.name).trace).thinned(4)
    assert len(window.changes) >= 8
    file = tmp_path / "profile.json"
    file.write_bytes(msgspec.json.encode(profile(8, 0.002)))
    job = spot_job(file, len(window.present), 2)
    spot = Spot(tmp_path / "run-0", window, SPEED)
    outcome = run(job, observers=[spot])
    spot.join()
    assert outcome.result.status is RunStatus.INTERRUPTED, outcome.result.message
    expected = reference(until_step(job, outcome.result.steps))
    assert outcome.losses == expected.losses
    assert outcome.result.weights_sha256 == expected.result.weights_sha256
    assert outcome.summary["skipped_microbatches"] == outcome.summary["duplicated_microbatches"] == 0
    replayed = spot.replayed
    assert replayed.added == sum(change.change is Change.ADD for change in window.changes)
    assert len({*replayed.lost, *replayed.released}) == sum(change.change is Change.REMOVE for change in window.changes)


def test_the_busiest_window_of_some_of_the_instances() -> None:
    minute = [
        (0, "add", "a"),
        (0, "add", "b"),
        (2, "remove", "b"),
        (3, "add", "c"),
        (4, "remove", "c"),
        (6, "add", "d"),
    ]
    events = tuple(TraceEvent(at_s=60.0 * at, change=Change(what), node=node) for at, what, node in minute)
    window = Window.busiest(Trace(name="made up", horizon_s=360.0, events=events), 180.0)
    assert (window.began_s, window.present) == (60.0, ("a", "b"))
    assert [(change.at_s, change.node) for change in window.changes] == [(60.0, "b"), (120.0, "c"), (180.0, "c")]
    assert window.thinned(2).present == ("a",)
    assert {change.node for change in window.thinned(2).changes} == {"c"}


def test_every_worker_writes_what_it_did_when(tmp_path: Path, text: Path, nodes: LocalNodes) -> None:
    folder = RunFolder.create(tmp_path, "run")
    train_job(make_job(text), folder, nodes=nodes, traces=True)
    for node in range(7):
        entries = list(read_entries(folder.logs / f"trace-{node}.jsonl"))
        assert {entry.op for entry in entries} >= {"forward", "backward", "vote"}
        assert all(entry.began_s <= entry.ended_s for entry in entries)
        assert {1, 2, 3, 4} <= {entry.step for entry in entries}
