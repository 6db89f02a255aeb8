"""`planaria trace-steps`: what workers did, on one time axis, in the order of the plan's instructions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from planaria.job.parse import job_json
from planaria.plan.program.instructions import Op
from planaria.plan.program.programs import programs
from planaria.runtime.journal.plans import recorded_plans
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.ui.cli.main import cli
from planaria.ui.dashboard.runs import RunReader
from tests.e2e.conftest import Run
from tests.e2e.jobs import make_emulated_job


def trace_steps(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["trace-steps", *arguments])
    return done.output


def slices(file: Path) -> list[dict[str, Any]]:
    return [event for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"]


def test_workers_are_on_one_axis_in_the_plan_s_order(run: Run, slow_layers: Path, tmp_path: Path) -> None:
    """A step before a loss, in the plan's order; and the one with it, which says so."""
    job = make_emulated_job(slow_layers, observe__instructions=True)
    folder = run(job, "kill:node=2,step=3,at=backward").result.folder
    target = tmp_path / "trace.json"
    assert f"workers are in {target}" in trace_steps(str(folder), "--steps", "2:3", "-o", str(target))
    found = slices(target)
    plan = recorded_plans(folder / "journal.sqlite")[0].message.plan
    for worker, program in programs(plan).items():
        mine = [one for one in found if one["pid"] and one["tid"] == worker and one["args"]["step"] == 2]
        ran = [(one["cat"], one["args"]["microbatch"], one["args"]["first layer"]) for one in mine]
        planned = [i for i in program if i.op is not Op.APPLY]  # which follows the commit, outside of the program
        assert ran == [(i.op.value, i.microbatch, i.first_layer) for i in planned]
        ends = [one["ts"] + one["dur"] for one in mine]
        assert all(end <= after["ts"] + 0.01 for end, after in zip(ends, mine[1:], strict=False))
    before, lossy = (one for one in found if one["cat"] == "step")
    assert before["name"] == "step 2"
    assert lossy["name"] == "step 3 (nodes were lost)"
    assert "after the loss of node 2" in lossy["args"]["recoveries"]
    sends: dict[tuple[int, int], dict[str, Any]] = {}
    for one in found:
        if one["cat"] in ("send_activation", "recv_activation") and one["args"]["step"] == 2:
            key = (one["args"]["microbatch"], one["args"]["first layer"])
            sends.setdefault(key, {})[one["cat"]] = one
    assert sends
    for pair in sends.values():  # on one axis, nothing is received before it is sent
        assert pair["send_activation"]["ts"] <= pair["recv_activation"]["ts"] + pair["recv_activation"]["dur"]


def test_the_page_draws_a_step_as_planned_beside_as_it_ran(run: Run, slow_layers: Path) -> None:
    job = make_emulated_job(slow_layers, observe__instructions=True)
    outcome = run(job, "kill:node=2,step=3,at=backward")
    folder = RunFolder(outcome.result.folder)
    schedules = RunReader(folder).schedules
    before = schedules.of_step(2)
    assert (before.step, before.generation, before.steps, before.notes) == (2, 1, (1, 2, 3, 4), ())
    assert before.planned is not None
    assert before.measured is not None
    assert len(before.planned.pipelines) == 3
    for planned, measured in zip(before.planned.pipelines, before.measured.pipelines, strict=True):
        assert (planned.number, planned.microbatches) == (measured.number, measured.microbatches)
        for row, ran in zip(planned.rows, measured.rows, strict=True):
            assert row.name == ran.name
            numbered = [[(kind, number) for kind, number, *_ in found.cells] for found in (row, ran)]
            assert set(numbered[0]) == set(numbered[1])
            assert ("backward", numbered[0][0][1]) in numbered[0]
            for found, step_s in ((row, before.planned.step_s), (ran, before.measured.step_s)):
                assert all(0 <= start <= end <= step_s + 1e-5 for *_, start, end in found.cells)
    lossy = schedules.of_step(3)
    assert lossy.measured is not None
    # Where it is quicker, the step is begun anew on another placement; else it is finished, and one follows.
    placing = ("start", "reconfigure", "restore")
    placed = [plan for plan in outcome.events("plan_taken") if plan["purpose"] in placing and plan["step"] <= 3]
    assert lossy.generation == placed[-1]["generation"]
    at_work = {row.worker for pipeline in lossy.measured.pipelines for row in pipeline.rows if row.cells}
    assert at_work == {0, 1, 3, 4, 5, 6}  # what a killed worker did last is not on disk
    newest = schedules.of_step(None)
    assert newest.step == 4
    for file in folder.logs.glob("trace-*.jsonl"):
        file.unlink()
    unrecorded = RunReader(folder).schedules.of_step(None)
    assert unrecorded.planned == newest.planned
    assert (unrecorded.step, unrecorded.measured) == (None, None)
    assert "Set observe.instructions = true in the job file" in unrecorded.notes[0]


def test_what_is_refused(slow_layers: Path, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_bytes(job_json(make_emulated_job(slow_layers)))
    (tmp_path / "logs").mkdir()

    def refused(*arguments: str) -> str:
        return trace_steps(str(tmp_path), *arguments)

    assert "--steps 3:2 is not FIRST:LAST. Write for instance 20:22." in refused("--steps", "3:2")
    assert "--steps a is not FIRST:LAST" in refused("--steps", "a")
    assert "have not written what they did. Set observe.instructions = true" in refused("--steps", "1:2")
    (tmp_path / "logs" / "trace-0.jsonl").write_text('[1,"vote",-1,-1,-1,0.0,1.0]\n')
    assert "have written nothing of the steps 2 to 2" in refused("--steps", "2")
