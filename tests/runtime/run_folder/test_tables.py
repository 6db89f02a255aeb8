"""Plans and candidates as small tables of text."""

from __future__ import annotations

from planaria.policy.candidate_record import CandidateRecord
from planaria.runtime.run_folder.tables import MOST_ROWS, candidate_table, listed, plan_table


def test_numbers_that_follow_each_other_are_told_by_their_ends() -> None:
    assert listed([0, 1, 4, 5, 6, 9]) == "0, 1, 4-6, 9"
    assert listed([2, 1, 0]) == "2, 1, 0"
    assert listed([]) == ""


def test_devices_of_a_node_are_told_apart_from_nodes() -> None:
    stages = ((0, 0, 2), (1, 2, 3), (4, 3, 5), (5, 5, 8))
    assert plan_table([stages], [8], 2) == [
        "pipeline  microbatches  nodes  layers",
        "       0             8  0, 2   0-1, 2 | 3-4, 5-7",
    ]


def test_a_long_pipeline_is_folded() -> None:
    stages = tuple((n, n, n + 1) for n in range(16))
    table = plan_table([stages], [8], 1, width=60)
    assert max(map(len, table)) <= 60
    assert " ".join(line[30:].strip() for line in table[1:]) == " | ".join(map(str, range(16)))


def test_many_equal_pipelines_share_a_row() -> None:
    pipelines = [((2 * n, 0, 4), (2 * n + 1, 4, 8)) for n in range(MOST_ROWS)]
    assert len(plan_table(pipelines, [2] * MOST_ROWS, 1)) == MOST_ROWS + 1
    pipelines.append(((2 * MOST_ROWS, 0, 8),))
    assert plan_table(pipelines, [2] * MOST_ROWS + [1], 1) == [
        "pipeline  microbatches  nodes  layers",
        f"     0-{MOST_ROWS - 1}        2 each  0-{2 * MOST_ROWS - 1}   0-3 | 4-7",
        f"       {MOST_ROWS}             1  {2 * MOST_ROWS}     0-7",
    ]


def test_candidates_are_told_with_their_units() -> None:
    record = CandidateRecord(
        name="reroute", step_time_s=0.25, transition_s=0.002, transfer_bytes=2_400_000, memory_bytes=10**8,
        is_degraded=True, risk_s=0.0, samples_per_s=192.04,
    )  # fmt: skip
    heading, row = candidate_table([record])
    assert heading.split() == ["candidate", "samples/s", "a", "step", "transition", "moves", "memory", "risk"]
    assert row == "reroute (degraded)        192  250 ms        2 ms  2.4 MB  100.0 MB"
