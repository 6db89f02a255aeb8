"""A zone's outage on real processes: all its nodes die at once, and the job goes on from live replicas."""

from __future__ import annotations

import re
from pathlib import Path

from planaria.protocol.messages.records import AnyRecord, StepCommitted
from planaria.ui.cli import live
from tests.e2e.conftest import Reference, Run
from tests.e2e.jobs import make_job


def test_half_of_the_nodes_are_lost_with_their_zone(tmp_path: Path, text: Path, run: Run, reference: Reference) -> None:
    said: list[str] = []

    def ask(record: AnyRecord, time_s: float) -> None:
        if isinstance(record, StepCommitted) and not said:
            said.append(live.status(tmp_path / "run-0", as_json=False))

    job = make_job(text, cluster__nodes=8, cluster__zones=["left", "right"])
    faults = [f"kill:node={node},step=3,at=backward" for node in (0, 2, 4, 6)]
    outcome = run(job, *faults, observers=[ask])
    outcome.assert_same_bits(reference(job))
    zones = re.search(r"zones: (?:left: ([0246, ]+); )?right: 1, 3, 5, 7$", said[0], re.MULTILINE)
    assert zones, "nodes are named by their zones, those that are lost by then aside"
    assert {event["node"] for event in outcome.events("node_lost")} == {0, 2, 4, 6}
    assert not outcome.events("restored")
    zone_of = {event["node"]: event["zone"] for event in outcome.events("node_joined")}
    assert zone_of == {node: "right" if node % 2 else "left" for node in range(8)}
