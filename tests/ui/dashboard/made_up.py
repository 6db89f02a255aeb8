"""Run folders made up: as long, as wide and as hostile as a test wants them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from planaria.job.parse import job_json
from planaria.job.settings import Job
from planaria.policy.candidate_record import CandidateRecord
from planaria.protocol.messages.records import (
    AnyRecord,
    NodeJoined,
    NodeLost,
    PlanTaken,
    Recovered,
    Recovery,
    StepCommitted,
)
from planaria.runtime.run_folder.run_folder import RunFolder
from tests.runtime.run_folder.happenings import JOB

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>\"'&"
"""What a node may call its zone, or a cause of its end."""

STAGES = 4


def plan(generation: int, step: int, nodes: list[int], reason: str = "made up") -> PlanTaken:
    """A plan of pipelines of four nodes with eight layers; what is left over has no work."""
    pipelines = tuple(
        tuple((node, 2 * at, 2 * at + 2) for at, node in enumerate(nodes[first : first + STAGES]))
        for first in range(0, len(nodes) - STAGES + 1, STAGES)
    )
    weighed = CandidateRecord(
        name=reason, step_time_s=0.1, transition_s=0.0, transfer_bytes=0, memory_bytes=1, is_degraded=False,
        risk_s=0.0, samples_per_s=10.0,
    )  # fmt: skip
    return PlanTaken(
        generation=generation, step=step, purpose="start" if generation == 1 else "reconfigure", policy="adaptive",
        reason=reason, pipelines=pipelines, microbatches=(8,) * len(pipelines), estimated_step_s=0.1,
        transfer_bytes=0, plan_hash="", candidates=(weighed, msgspec.structs.replace(weighed, name=f"not {reason}")),
    )  # fmt: skip


def committed(step: int, generation: int, live: int) -> StepCommitted:
    return StepCommitted(
        step=step, loss=2 + 3 * math.exp(-step / 2e4) + 0.1 * math.sin(step), grad_norm=1.0, learning_rate=1e-3,
        clip_factor=1.0, generation=generation, live_nodes=live, duration_s=0.11, tokens_per_s=1e4,
    )  # fmt: skip


def happenings(
    num_nodes: int, num_steps: int, losses: int, text: str = "connection closed", *, replaces: bool = False
) -> Iterator[AnyRecord]:
    """Yields the records of a run that loses nodes at even distances; `replaces`: for each another one joins."""
    live = list(range(num_nodes))
    for node in live:
        yield NodeJoined(node=node, live_nodes=node + 1, zone=text if text == HOSTILE else f"zone-{node % 3}")
    yield plan(1, 1, live, text)
    generation = 1
    every = num_steps // (losses + 1)
    for step in range(1, num_steps + 1):
        is_struck = step % every == 0 and step // every <= losses
        if is_struck:
            node = live.pop(1)
            yield NodeLost(node=node, step=step, cause=text, live_nodes=len(live), detect_ms=50.0)
        yield committed(step, generation, len(live))
        if is_struck:
            generation += 1
            yield plan(generation, step + 1, live, text)
            yield Recovered(
                recovery=Recovery(
                    step=step, cause=text, lost_nodes=(node,), policy="adaptive", reason=text, detect_ms=50.0,
                    decide_ms=5.0, transfer_bytes=1000, resume_ms=400.0, microbatches_rerun=3, microbatches_per_step=24,
                )
            )  # fmt: skip
            if replaces:
                live.append(num_nodes + generation)
                yield NodeJoined(node=live[-1], live_nodes=len(live), zone=f"zone-{live[-1] % 3}")


def made_up_run(root: Path, name: str, records: Iterable[AnyRecord], job: Job = JOB) -> RunFolder:
    """Writes a run folder that holds these records, a tenth of a second apart."""
    folder = RunFolder.create(root, name)
    folder.job.write_bytes(job_json(job))
    with folder.events.open("wb") as events:
        for at, record in enumerate(records):
            events.write(b'{"time":%.6f,%b\n' % (1e9 + 0.1 * at, msgspec.json.encode(record)[1:]))
    return folder
