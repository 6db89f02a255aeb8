"""What a user sees: plain lines and the live panel."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import msgspec
import pytest

from planaria.job.sections.cluster import Device
from planaria.plan.quantities import count, size
from planaria.protocol.messages.records import (
    AnyRecord,
    CheckpointSaved,
    EstimateCorrected,
    LinkChanged,
    NodeSpeed,
    Recovered,
    Restored,
    RunEnded,
    RunStatus,
)
from planaria.runtime.progress.progress import ProgressDisplay
from planaria.runtime.run_folder.claim import claimed, say
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.run_folder.sentences import (
    age,
    duration,
    oversubscription,
    rate,
    recovery_sentence,
)
from tests.runtime.run_folder.happenings import JOB, RECOVERY, committed, plan_taken, short_run

RECOVERED = (
    "step 2 committed 61 ms after the loss of node 1 (connection closed, seen after 8 ms); "
    "4 of 24 microbatches ran again"
)


def plain(records: list[AnyRecord], clock: object = None) -> list[str]:
    stream = io.StringIO()
    times = iter(range(10**6)) if clock is None else clock
    folder = RunFolder(Path("runs/short"))
    with ProgressDisplay(JOB, folder, stream=stream, clock=lambda: float(next(times)), num_cores=3) as show:
        for record in records:
            show(record, 0.0)
    return stream.getvalue().splitlines()


def test_plain_lines_tell_of_steps_plans_and_losses() -> None:
    assert plain(short_run()) == [
        "plan 1: 120 ms a step expected",
        "  pipeline  microbatches  nodes  layers",
        "         0             3  0, 1   0-3 | 4-7",
        "         1             1  2      0-7",
        "  Fastest of 3.",
        "step 1/3  loss 0.3000  41.2k tok/s  3 nodes  plan 1",
        "step 2: node 1 lost (connection closed, seen after 8 ms), 2 nodes live",
        "plan 2 finishes step 2",
        "  Fastest of 3.",
        "step 2/3  loss 0.3000  41.2k tok/s  2 nodes  plan 2",
        f"recovered: {RECOVERED}",
        "step 3/3  loss 2.5000  41.2k tok/s  2 nodes  plan 2",
        "checkpoint of step 3 saved in 10 ms: runs/short/checkpoints/3",
        "completed: 3 of 3 steps, loss 2.5000, 2 nodes live, 1 recovery, 0 microbatches skipped, 0 counted twice",
        f"  {RECOVERED}",
        "run folder: runs/short",
    ]


def test_steps_that_are_trained_again_are_told_of() -> None:
    recovery = msgspec.structs.replace(RECOVERY, step=3, steps_redone=2)
    restored = Restored(from_step=2, to_step=0, reason="node 1 lost")
    records: list[AnyRecord] = [
        *short_run()[:5],
        committed(2),
        restored,
        plan_taken(2, "restore"),
        committed(1),
        Recovered(recovery=recovery),
        committed(2),
        short_run()[-1],
    ]
    told = (
        "2 steps trained again after the loss of node 1 in step 3 (connection closed, seen after 8 ms); "
        "the first of them committed 61 ms after it"
    )
    lines = plain(records)
    assert "went back from step 2 to step 0: node 1 lost" in lines
    records[records.index(restored)] = msgspec.structs.replace(restored, from_step=0)
    assert "went back to the state after step 0: node 1 lost" in plain(records)
    assert f"recovered: {told}" in lines
    assert "1 recovery, 0 microbatches skipped, 0 counted twice, 2 steps trained again" in lines[-3]
    assert lines[-2] == f"  {told}"


def test_a_reference_has_no_nodes_and_no_plan() -> None:
    step = msgspec.structs.replace(committed(3), generation=0, live_nodes=1)
    assert plain([step, short_run()[-1]]) == [
        "step 3/3  loss 0.3000  41.2k tok/s",
        "completed: 3 of 3 steps, loss 0.3000, 0 microbatches skipped, 0 counted twice",
        "run folder: runs/short",
    ]


def test_dropped_samples_are_told_of() -> None:
    step = msgspec.structs.replace(committed(3), dropped=(1,), num_dropped=7)
    ended = msgspec.structs.replace(short_run()[-1], dropped_microbatches=7)
    assert isinstance(ended, RunEnded)
    first, last, _ = plain([step, ended])
    assert first == "step 3/3  loss 0.3000  41.2k tok/s  2 nodes  plan 2  7 microbatches dropped"
    assert last.endswith("0 counted twice, 7 microbatches dropped (14 samples)")


def test_slow_nodes_are_told_of() -> None:
    records: list[AnyRecord] = [
        NodeSpeed(node=2, step=7, speed=0.5, before=1.0, steps=3),
        NodeSpeed(node=2, step=17, speed=0.8, before=0.5, steps=3),
        NodeSpeed(node=2, step=27, speed=1.0, before=0.8, steps=6),
    ]
    assert plain(records) == [
        "step 7: node 2 is slow: 50% of the others' speed in the last 3 steps",
        "step 17: node 2 is faster, and still slow: 80% of the others' speed in the last 3 steps",
        "step 27: node 2 is as fast as the others again, for 6 steps",
    ]


def test_links_that_are_not_as_probed_are_told_of() -> None:
    corrected = EstimateCorrected(step=9, before_s=0.1, step_s=0.4, stretch=1.0, link_slowdown=5.0, is_reviewed=True)
    records: list[AnyRecord] = [
        corrected,
        msgspec.structs.replace(corrected, is_reviewed=False),
        LinkChanged(step=17, hosts=("a", "b"), bytes_per_s=12.5e6, factor=0.1),
        LinkChanged(step=33, hosts=("a", "b"), bytes_per_s=125e6, factor=10.0),
    ]
    assert plain(records) == [
        "step 9: steps take 400 ms, and 100 ms were estimated: links between hosts count as 5 times slower than "
        "probed, and the plan is reviewed",
        "step 17: the link between a and b is 10 times slower than before: 100 Mbit/s from now on, and the plan is "
        "reviewed",
        "step 33: the link between a and b is 10 times faster than before: 1 Gbit/s from now on, and the plan is "
        "reviewed",
    ]


def test_the_last_recoveries_are_enough() -> None:
    records: list[AnyRecord] = [Recovered(recovery=RECOVERY)] * 12
    lines = plain([*records, short_run()[-1]])[12:]
    assert "12 recoveries" in lines[0]
    assert lines[1] == "  the last 10 recoveries (summary.json has all):"
    assert lines[2:] == [f"  {RECOVERED}"] * 10 + ["run folder: runs/short"]


class Heard(io.StringIO):
    """A stream that says when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.is_written = threading.Event()

    def write(self, text: str) -> int:
        self.is_written.set()
        return super().write(text)


def test_a_long_start_says_what_it_is_about_until_it_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planaria.runtime.progress.progress.START_TOLD_EVERY_S", 0.01)
    folder, stream = RunFolder(tmp_path), Heard()
    with claimed(folder.claim), ProgressDisplay(JOB, folder, stream=stream, num_cores=3) as show:
        assert stream.is_written.wait(10)
        show(committed(1), 0.0)
    assert [line.split()[0] for line in stream.getvalue().splitlines()] == ["starting", "step"]
    panel = io.StringIO()
    with claimed(folder.claim), ProgressDisplay(JOB, folder, stream=panel, live=True):
        say(folder.claim, "starting: the data are read")
    assert "starting: the data are read" in panel.getvalue()


def test_a_resumed_run_says_where_it_goes_on() -> None:
    line, *_ = plain([msgspec.structs.replace(plan_taken(1, "start"), step=7)])
    assert line == "plan 1 goes on with step 7: 120 ms a step expected"


def test_workers_that_share_cores_are_told_of_once() -> None:
    told = "7 workers share the 2 cores of this machine: steps take longer than expected of 7 machines"
    job = msgspec.structs.replace(JOB, cluster=msgspec.structs.replace(JOB.cluster, nodes=7))
    assert oversubscription(job, 2) == told
    stream = io.StringIO()
    with ProgressDisplay(job, RunFolder(Path("runs/short")), stream=stream, num_cores=2) as show:
        for record in short_run():
            show(record, 0.0)
    assert stream.getvalue().splitlines().count(told) == 1
    assert oversubscription(job, 7) is None
    gpus = msgspec.structs.replace(job, cluster=msgspec.structs.replace(job.cluster, device=Device.CUDA))
    assert oversubscription(gpus, 2) is None


def test_plain_steps_come_at_most_once_a_second() -> None:
    steps: list[AnyRecord] = [committed(step) for step in (1, 2, 2, 2, 3)]
    shown = plain(steps, iter(x / 100 for x in range(1000)))
    assert [line.split()[1] for line in shown] == ["1/3", "3/3"]


def test_the_end_says_why() -> None:
    ended = RunEnded(
        status=RunStatus.EXHAUSTED,
        steps=1,
        message="2 nodes are left, 4 are needed.",
        skipped_microbatches=0,
        duplicated_microbatches=0,
    )
    saved = CheckpointSaved(step=1, folder="runs/short/checkpoints/1", seconds=0.01)
    assert plain([saved, ended])[1:-1] == [
        "exhausted: 1 of 3 steps, 0 nodes live, 0 recoveries, 0 microbatches skipped, 0 counted twice",
        "  2 nodes are left, 4 are needed.",
        "  the state after step 1 is saved; --resume goes on from there",
    ]
    assert plain([ended]) == [
        "exhausted: 1 of 3 steps, 0 nodes live, 0 recoveries, 0 microbatches skipped, 0 counted twice",
        "  2 nodes are left, 4 are needed.",
        "run folder: runs/short",
    ]


def test_the_live_panel_shows_plan_losses_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "140")
    stream = io.StringIO()
    with ProgressDisplay(JOB, RunFolder(Path("runs/short")), stream=stream, live=True) as show:
        for record in short_run():
            show(record, 0.0)
    shown = stream.getvalue()
    for part in (
        "pipeline  microbatches  nodes  layers",
        "0             3  0, 1   0-3 | 4-7",
        "step 3/3",
        "4 of 24 microbatches ran again",
        "2 of 3 nodes",
        "completed:",
    ):
        assert part in shown


def test_words() -> None:
    assert [count(n, "recovery") for n in (0, 1, 2)] == ["0 recoveries", "1 recovery", "2 recoveries"]
    assert [duration(s) for s in (0.0002, 0.061, 0.9999, 5.123, 12.34, 247, 3723)] == [
        "0.2 ms", "61 ms", "1.00 s", "5.12 s", "12.3 s", "4:07", "1:02:03",
    ]  # fmt: skip
    assert [age(s) for s in (0.4, 1, 59, 60, 7200, 200_000)] == [
        "0 seconds", "1 second", "59 seconds", "1 minute", "2 hours", "2 days",
    ]  # fmt: skip
    assert [rate(r) for r in (12.3, 41_234, 2.5e6)] == ["12 tok/s", "41.2k tok/s", "2.5M tok/s"]
    assert [size(b) for b in (12, 1500, 2_500_000, 3 * 10**9)] == ["12 bytes", "1.5 kB", "2.5 MB", "3.0 GB"]
    assert recovery_sentence(RECOVERY) == RECOVERED
    unseen = msgspec.structs.replace(RECOVERY, lost_nodes=(1, 2), detect_ms=None, microbatches_rerun=0)
    assert recovery_sentence(unseen) == (
        "step 2 committed 61 ms after the loss of nodes 1, 2 (connection closed); no microbatch had to run again"
    )
    committed_before = msgspec.structs.replace(unseen, resume_ms=0.0)  # by the coordinator before
    assert recovery_sentence(committed_before) == "step 2 goes on without nodes 1, 2 (connection closed)"
