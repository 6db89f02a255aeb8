"""Nodes that compute wrong: how many are found, in which step, and what the comparing costs.

    python benchmarks/corruption.py [--runs 6] [--costs-only] [--audits 0.1 0.5 1] [--trials FILE] [--alarms FILE]

found: runs of a small job on real processes with one `--fail corrupt:...` each, in a random step and node, and one run
without. named: a node was; again: the step was begun anew as sums differed; back: the job went back to a checkpoint.
costs: processor seconds of a step's digests over those of all else that the step computes here, for one worker with a
whole gpt2 of several sizes of step, one thread.
audits: of runs in which a node computes wrong in each step from one on, once a step, with these shares audited: how
many named it, how often it had been wrong by then, and so the share of wrong computations that was found. Those that
were not are in the denominator.
trials: hundreds of injections of each kind, one in each step of a run on real processes, each with a control: the same
step begun anew without it (`corruption_trials.py`). Rows are added to FILE; a second call goes on where the first one
ended.
alarms: false ones, over as many audits as --wanted says (a million, if it says nothing) of runs in which no node
computes wrong, half of them with kills (`corruption_alarms.py`). FILE as with trials.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from corruption_alarms import alarms
from corruption_trials import trials

from planaria.job.parse import job_json, parse_job
from planaria.job.settings import Job
from planaria.model.load import load_model
from planaria.runtime.launch.reference import train_reference
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.worker.compute.device.device import HostDevice
from planaria.runtime.worker.compute.holdings import Holdings

JOB = """
[model]
type = "gpt2"
config = { n_layer = 4, n_embd = 16, n_head = 2, n_positions = 16 }
[train]
steps = 8
global_batch = 8
microbatch = 1
sequence_length = 16
learning_rate = 1e-2
[cluster]
nodes = NODES
[resilience]
policy = "templates"
min_nodes_per_pipeline = 2
[run]
checkpoint_every = 2
"""
NODES = {"two replicas": 5, "three replicas": 7}
POINTS = ("rest", "apply", "sync", "forward", "backward", "send")
AUDITED_STEPS = 40
"""Steps of a run whose computation is audited."""

COST_JOB = """
[model]
type = "gpt2"
config = { n_layer = 4, n_embd = 256, n_head = 4, n_positions = 256 }
[train]
steps = 10
global_batch = BATCH
microbatch = 1
sequence_length = 256
[cluster]
nodes = 1
[resilience]
fault_tolerance = 0
"""
"""11.4 million parameters, held by one worker."""


def run(job: Job, name: str, *faults: str) -> Path:
    """Runs a job in processes of its own; returns the run's folder."""
    job_file = Path(job.run.folder) / "job.json"
    job_file.write_bytes(job_json(job))
    program = Path(__file__).with_name("run_job.py")
    subprocess.run([sys.executable, program, job_file, name, *faults], check=True, stdout=subprocess.DEVNULL)
    return Path(job.run.folder) / name


def events(folder: Path, kind: str) -> list[dict[str, object]]:
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def bits(folder: Path) -> str:
    return str(json.loads((folder / "summary.json").read_text()).get("weights_sha256"))


def job_of(nodes: int, folder: Path, text: Path, *changes: str) -> Job:
    overrides = [f"run.folder={json.dumps(str(folder))}", f"data.source={json.dumps(str(text))}", *changes]
    return parse_job(JOB.replace("NODES", str(nodes)), overrides=overrides, origin="corruption")


def find(runs: int, points: Sequence[str], folder: Path) -> None:
    text = folder / "text.txt"
    text.write_text("".join(random.Random(1).choices("abcdefgh \n", k=20_000)))
    right = bits(train_reference(job_of(5, folder, text), RunFolder.create(folder, "reference")).folder)
    print(f"{'replicas':15} {'at':9} {'runs':>4} {'named':>5} {'again':>5} {'back':>4} {'same bits':>9}  found")
    for replicas, nodes in NODES.items():
        alone = run(job_of(nodes, folder, text), f"alone-{nodes}")
        assert bits(alone) == right
        assert not events(alone, "computed_wrong"), "a false alarm"
        for point in points:
            draw, rows = random.Random(f"{replicas} {point}"), []
            for number in range(runs):
                step = draw.randint(2, 7)
                wanted = f"corrupt:node={draw.randrange(nodes)},step={step},at={point},bits={draw.choice([1, 1, 8])}"
                rows.append((step, run(job_of(nodes, folder, text), f"{nodes}-{point}-{number}", wanted)))
            tell(replicas, point, rows, right)


def tell(replicas: str, point: str, rows: list[tuple[int, Path]], right: str) -> None:
    named = [(step, events(path, "computed_wrong")) for step, path in rows]
    again = sum(any("begun anew" in str(note["text"]) for note in events(r, "note")) for _, r in rows)
    back = sum(bool(events(path, "restored")) for _, path in rows)
    same = sum(bits(path) == right for _, path in rows)
    after = sorted(int(str(found[0]["step"])) - step for step, found in named if found)
    found = f"steps later: {after}" if after else ""
    count = sum(bool(wrong) for _, wrong in named)
    print(f"{replicas:15} {point:9} {len(rows):4} {count:5} {again:5} {back:4} {same:9}  {found}", flush=True)


def audit(shares: Sequence[float], runs: int, folder: Path) -> None:
    text = folder / "audited.txt"
    text.write_text("".join(random.Random(1).choices("abcdefgh \n", k=20_000)))
    print(f"{'share':>6} {'at':9} {'runs':>4} {'named':>5} {'others':>6} {'wrong':>5} {'found':>6}  steps until then")
    for share in shares:
        job = job_of(5, folder, text, f"train.steps={AUDITED_STEPS}", f"resilience.audit={share}")
        for point in ("forward", "backward"):
            waits, others, wrong = [], 0, 0
            for number in range(runs):
                name = f"audit-{share}-{point}-{number}"
                first = 2 + number % 3
                path = run(job, name, f"corrupt:node=0,step={first},at={point},bits=8,times=always")
                named = events(path, "computed_wrong")
                mine = [int(str(event["step"])) for event in named if event["node"] == 0]
                waits += [step - first for step in mine]
                others += len(named) - len(mine)
                wrong += (mine[0] if mine else AUDITED_STEPS) - first + 1
            rate = f"{len(waits) / wrong:.2f}"
            print(
                f"{share:6g} {point:9} {runs:4} {len(waits):5} {others:6} {wrong:5} {rate:>6}  {sorted(waits)}",
                flush=True,
            )


def costs(microbatches: Sequence[int], repeats: int) -> None:
    torch.set_num_threads(1)
    print(f"{'tokens a step':>13} {'step, s':>8} {'digests, s':>10} {'share':>7}")
    for number in microbatches:
        job = parse_job(COST_JOB.replace("BATCH", str(number)), origin="corruption")
        model = load_model(job.model, job.train, vocab_size=32_000)
        holdings = Holdings(model, job.train, HostDevice(), compares=True)
        groups = range(len(model.groups))
        for group in groups:
            replica = holdings.new_replica(group)
            holdings.initialise(replica, group)
            holdings.put(group, replica)
        holdings.own_layers(range(len(model.layer_names)))
        holdings.begin_step([4] * len(model.groups))
        took: dict[str, list[float]] = {"step": [], "digests": []}
        for step in range(1, repeats + 1):
            began = time.thread_time()
            for microbatch in range(number):
                one_microbatch(holdings, job, step, microbatch, len(model.layer_names))
            for group in groups:
                holdings.replicas[group].gradient.copy_(holdings.accumulator(group).total)
            holdings.apply(groups, step, 1.0, 1e-4)
            took["step"].append(time.thread_time() - began)
            began = time.thread_time()
            for group in groups:
                holdings.note_added_up(group, 0, holdings.replicas[group].gradient.numel() // 2)  # of two owners
            holdings.note_written(groups)
            holdings.digests(groups, with_sums=True)
            took["digests"].append(time.thread_time() - began)
            holdings.begin_step([4] * len(model.groups))
        step_s, digests_s = (statistics.median(took[part][1:]) for part in ("step", "digests"))
        print(f"{number * 256:13} {step_s:8.3f} {digests_s:10.4f} {digests_s / step_s:7.2%}", flush=True)


def one_microbatch(holdings: Holdings, job: Job, step: int, microbatch: int, num_layers: int) -> None:
    ids = torch.randint(0, 32_000, (1, job.train.sequence_length))
    batch = {"input_ids": ids, "labels": ids}
    work, value = (microbatch, 0), (ids,)
    for layer in range(num_layers):
        value, _ = holdings.compute.forward(step, work, layer, value, batch, keep=True)
    given: tuple[torch.Tensor, ...] = ()
    for layer in reversed(range(num_layers)):
        given = holdings.compute.backward(step, work, layer, given, counted=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=6, help="of each kind (default: %(default)s)")
    parser.add_argument("--at", nargs="*", default=POINTS, help="kinds (default: all)")
    parser.add_argument("--repeats", type=int, default=5, help="steps whose cost is measured (default: %(default)s)")
    parser.add_argument("--audits", nargs="*", type=float, metavar="SHARE", help="measure these shares, and no more")
    parser.add_argument("--trials", type=Path, metavar="FILE", help="measure injections with controls, and no more")
    parser.add_argument("--shares", nargs="*", type=float, default=(0.0, 1.0, 0.1, 0.01), help="audited in the trials")
    parser.add_argument("--alarms", type=Path, metavar="FILE", help="count audits without injections, and no more")
    parser.add_argument(
        "--wanted", type=int, help="injections of each kind that change bits (default: 500), or audits (a million)"
    )
    parser.add_argument("--minutes", type=float, default=25.0, help="at most, for these two (default: %(default)s)")
    parser.add_argument("--costs-only", action="store_true", help="leave the runs out")
    given = parser.parse_args()
    if given.trials:
        trials(given.trials, given.shares, given.wanted or 500, given.minutes)
        return
    if given.alarms:
        alarms(given.alarms, given.wanted or 1_000_000, given.minutes)
        return
    if given.audits:
        with tempfile.TemporaryDirectory() as folder:
            audit(given.audits, given.runs, Path(folder))
        return
    if not given.costs_only:
        with tempfile.TemporaryDirectory() as folder:
            find(given.runs, given.at, Path(folder))
    costs((1, 4, 16, 32), given.repeats)


if __name__ == "__main__":
    main()
