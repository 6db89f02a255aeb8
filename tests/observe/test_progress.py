"""What a user sees: plain lines and the live panel."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from planaria.observe.progress import Progress
from planaria.observe.run_folder import RunFolder
from planaria.observe.wording import counted, duration, picture, rate, recovery_sentence, size
from planaria.protocol.records import AnyRecord, RunEnded, RunStatus
from tests.observe.happenings import JOB, RECOVERY, committed, short_run


def plain(records: list[AnyRecord], clock: object = None) -> list[str]:
    stream = io.StringIO()
    times = iter(range(10**6)) if clock is None else clock
    with Progress(JOB, RunFolder(Path("runs/short")), stream=stream, clock=lambda: float(next(times))) as show:
        for record in records:
            show(record, 0.0)
    return stream.getvalue().splitlines()


def test_plain_lines() -> None:
    assert plain(short_run()) == [
        "plan 1 (start): [0-3|4-7] [0-7], 3+1 microbatches, 120 ms a step expected. Fastest of 3.",
        "step 1/3  loss 0.3000  41.2k tok/s  3 nodes  generation 1",
        "node 1 lost at step 2 (connection closed, 8 ms), 2 nodes live",
        "plan 2 (finish step): [0-3|4-7] [0-7], 3+1 microbatches, 120 ms a step expected. Fastest of 3.",
        "step 2/3  loss 0.3000  41.2k tok/s  2 nodes  generation 1",
        "node 1 lost at step 2 (connection closed, 8 ms): 4 of 24 microbatches run again; step committed 61 ms later",
        "step 3/3  loss 2.5000  41.2k tok/s  2 nodes  generation 1",
        "checkpoint of step 3 saved in 10 ms: runs/short/checkpoints/3",
        "completed: 3 of 3 steps, loss 2.5000, 2 nodes live, 1 recovery, 0 microbatches skipped, 0 counted twice",
        "  node 1 lost at step 2 (connection closed, 8 ms): 4 of 24 microbatches run again; step committed 61 ms later",
        "run folder: runs/short",
    ]


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
    assert plain([ended]) == [
        "exhausted: 1 of 3 steps, 0 recoveries, 0 microbatches skipped, 0 counted twice",
        "  2 nodes are left, 4 are needed.",
        "run folder: runs/short",
    ]


def test_the_live_panel_shows_plan_losses_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "140")
    stream = io.StringIO()
    with Progress(JOB, RunFolder(Path("runs/short")), stream=stream, live=True) as show:
        for record in short_run():
            show(record, 0.0)
    shown = stream.getvalue()
    for part in (
        "[0-3|4-7] [0-7]",
        "step 3/3",
        "4 of 24 microbatches run again",
        "2 of 3 nodes",
        "completed:",
    ):
        assert part in shown


def test_words() -> None:
    assert picture((((0, 0, 1), (1, 1, 8)),)) == "[0|1-7]"
    assert [counted(n, "recovery") for n in (0, 1, 2)] == ["0 recoveries", "1 recovery", "2 recoveries"]
    assert [duration(s) for s in (0.0002, 0.061, 0.9999, 5.123, 12.34, 247, 3723)] == [
        "0.2 ms", "61 ms", "1.00 s", "5.12 s", "12.3 s", "4:07", "1:02:03",
    ]  # fmt: skip
    assert [rate(r) for r in (12.3, 41_234, 2.5e6)] == ["12 tok/s", "41.2k tok/s", "2.5M tok/s"]
    assert [size(b) for b in (12, 1500, 2_500_000, 3 * 10**9)] == ["12 B", "1.5 kB", "2.5 MB", "3.0 GB"]
    assert recovery_sentence(RECOVERY).startswith("node 1 lost at step 2 (connection closed, 8 ms): 4 of 24")
