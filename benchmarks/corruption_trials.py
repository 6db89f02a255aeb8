"""Hundreds of flipped bits in one run of real processes, each in a step that is begun anew without them.

Called by `corruption.py --trials FILE`. The run is an ordinary one: its command, coordinator, journal, workers and
sockets are the shipped ones. Two things are other than shipped, in the processes that its forkserver forks:

- bits are flipped once in every step (from the third on), at a drawn node and place;
- when all have voted, the coordinator notes what the shipped comparison (`agreement.difference`) says, and begins the
  step anew, whatever that was. The second attempt has no flipped bits: it is the control. What its votes tell of
  replicas and sums is what is committed; if the first attempt's told something else, the flipped bits would have
  changed the committed bits. Then the shipped rules say who was wrong, which is noted too, and nobody is fenced.

So each step is one injection with its control, and the run ends with the reference's weights, which is checked.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from planaria.protocol.handlers import salvage
from planaria.protocol.handlers.salvage import begin
from planaria.protocol.membership.members import Membership
from planaria.protocol.messages.events import Command
from planaria.protocol.messages.journal import JournalVoid
from planaria.protocol.run.run import Run
from planaria.protocol.step.agreement import Claims, Computation, Difference, claims_of, difference
from planaria.runtime.worker.faults import FaultInjector

SETTINGS = "PLANARIA_TRIALS"
"""Variable with a run's `Settings` as JSON, for the processes that are forked."""

FIRST_STEP = 3
NODES = 4
AUDITED = ("forward", "backward", "send")
COMPARED = ("rest", "apply", "sync")
PLACES = {"forward": 2, "backward": 4, "send": 2, "rest": 8}
"""How many places of a step may be struck at a node, of each kind; of the others one."""

JOB = """
[model]
type = "gpt2"
config = { n_layer = 2, n_embd = 16, n_head = 2, n_positions = 8 }
[train]
steps = STEPS
global_batch = 4
microbatch = 1
sequence_length = 8
learning_rate = 1e-3
[cluster]
nodes = 4
[resilience]
policy = "templates"
min_nodes_per_pipeline = 2
heartbeat_timeout_s = 20.0
audit = SHARE
[run]
checkpoint_every = 0
"""


class Trial(NamedTuple):
    """One injection: `bits` flipped at the node's `place`-th chance of the step to strike `at` such a point."""

    at: str
    node: int
    bits: int
    place: int


def trial_of(settings: dict[str, Any], step: int) -> Trial | None:
    """Returns what is flipped in a step; of `apply`, by the optimizer's step before it."""
    if not FIRST_STEP <= step <= settings["steps"]:
        return None
    draw = Random(f"{settings['seed']} {step}")
    at = draw.choice(settings["points"])
    node = draw.choice([0, 2]) if at == "forward" else draw.randrange(NODES)  # the last stage's forward makes the loss
    bits, place = draw.choice([1, 1, 8]), draw.randrange(PLACES.get(at, 1))
    if at == "send" and settings["share"] == 1.0 and node % 2:
        place = 2 * place + 1  # the last stage sends an auditor what came before it sends on what it made
    return Trial(at, node, bits, place)


# In the processes of workers


class TrialInjector(FaultInjector):
    """Flips bits in the first attempt of each step, and those of memory that stays in use back before the second.

    Between the parameters of an accumulator is padding, which nothing writes: a bit flipped there makes every audit of
    its node differ from then on.
    """

    def __init__(self, faults: Any, announce: Callable[[float], None], give_notice: Callable[[float], None]) -> None:
        super().__init__(faults, announce, give_notice)
        self._settings = json.loads(os.environ[SETTINGS])
        self._tell = announce
        self._node, self._step, self._chances = -1, 0, 0
        self._is_first, self._is_done = True, False
        self._flipped: list[tuple[torch.Tensor, int, int]] = []

    def began(self, interpreter: Any, step: int) -> None:
        """Notes that an attempt at a step begins."""
        self._node = int(interpreter._worker)
        self._is_first = step != self._step
        if self._is_first:
            self._chances, self._is_done = 0, False
        elif self._flipped:
            for words, at, mask in self._flipped:
                words[at] ^= mask
            interpreter._holdings.note_written(interpreter.kept)
            self._flipped = []
        self._step = step

    def corrupt(self, at: str, step: int, tensors: Callable[[], Sequence[torch.Tensor]]) -> None:
        if at == "apply":
            self._strike(trial_of(self._settings, step + 1), at, tensors, stays=True)
        elif self._is_first and not self._is_done:
            self._strike(trial_of(self._settings, step), at, tensors, stays=at in ("rest", "backward"))

    def _strike(
        self, trial: Trial | None, at: str, tensors: Callable[[], Sequence[torch.Tensor]], *, stays: bool
    ) -> None:
        if trial is None or trial.at != at or trial.node != self._node:
            return
        struck = [tensor.data.view(-1).view(torch.uint8) for tensor in tensors() if tensor.numel()]
        if not struck:
            return
        if at != "apply" and self._chances < trial.place:
            self._chances += 1
            return
        self._is_done = at != "apply"
        draw = Random(f"{self._settings['seed']} {trial} {self._step}")
        for _ in range(trial.bits):
            words = draw.choices(struck, [len(each) for each in struck])[0]
            place, mask = draw.randrange(len(words)), 1 << draw.randrange(8)
            words[place] ^= mask
            if stays:
                self._flipped.append((words, place, mask))
        self._tell(time.monotonic())


# In the coordinator's process


class Observed:
    """What a coordinator notes of the attempts at each step."""

    def __init__(self) -> None:
        self._settings = json.loads(os.environ[SETTINGS])
        self._first: dict[int, tuple[Claims, Difference | None, bool]] = {}
        self.is_struck = False

    def disagree(self, run: Run) -> list[Command] | None:
        """In place of the shipped `salvage.disagree`."""
        if len(run.plan.nodes) < NODES:
            return None
        votes = run.attempt.votes
        claims: Claims = {**votes.digests, **claims_of(votes.computed)}
        found = difference(claims)
        if run.step not in self._first:
            self._first[run.step] = claims, found, self.is_struck
            self.is_struck = False
            if found is not None and not found.known:
                run.disputes.begin(run.step, found, claims)
            run.attempt.is_void = True
            return [JournalVoid(), *begin(run)]
        before, found_before, is_struck = self._first.pop(run.step)
        denied = run.disputes.settle(run.step, claims)
        named = found_before.known if found_before is not None and found_before.known else denied
        trial = trial_of(self._settings, run.step)
        row = {
            "share": self._settings["share"],
            "seed": self._settings["seed"],
            "step": run.step,
            "at": trial.at if trial else "",
            "node": trial.node if trial else -1,
            "bits": trial.bits if trial else 0,
            "reached": is_struck,
            "changed": _committed(before) != _committed(claims),
            "found": found_before.held.value if found_before is not None else "",
            "named": sorted({int(run.members.node_of(worker)) for worker in named}),
            "control": found.held.value if found is not None else "",
            "audits": compared(claims),
        }
        with Path(self._settings["results"]).open("a") as results:
            results.write(json.dumps(row) + "\n")
        return None


def _committed(claims: Claims) -> dict[int, set[tuple[int, int]]]:
    """Returns what owners hold of each group and are about to apply."""
    return {
        item: {(digest.state, digest.sum) for digest in told.values()}
        for item, told in claims.items()
        if isinstance(item, int)
    }


def compared(claims: Claims) -> int:
    """Returns how many audits were compared: pieces of microbatches that several ran on the same inputs."""
    several = (item for item, told in claims.items() if isinstance(item, Computation) and len(told) > 1)
    ran = [item for item in several if item.given]
    return len({(item.microbatch, item.first_layer, item.end_layer) for item in ran})


def install() -> None:
    """Puts the trials in place of what is shipped, in this process and those that it forks."""
    from planaria.runtime.worker import loop
    from planaria.runtime.worker.interpreter import Interpreter

    begin_step, note_fault = Interpreter._begin_step, Membership.note_fault
    observed = Observed()

    def begun(self: Any, step: int, *others: Any) -> None:
        begin_step(self, step, *others)
        self._faults.began(self, step)

    def noted(self: Membership, worker: Any, at_s: float) -> None:
        observed.is_struck = True
        note_fault(self, worker, at_s)

    loop.FaultInjector = TrialInjector  # type: ignore[misc]
    Interpreter._begin_step = begun  # type: ignore[method-assign]
    Membership.note_fault = noted  # type: ignore[method-assign]
    salvage.disagree = observed.disagree


# In the process that starts the runs


@contextlib.contextmanager
def forked_by(program: str, variable: str, value: str) -> Iterator[None]:
    """Has the processes of runs forked by a program in place of the shipped forkserver, with a variable set."""
    from planaria.runtime.nodes import local_nodes

    os.environ[variable] = value
    popen = local_nodes.subprocess.Popen
    local_nodes.subprocess = SimpleNamespace(  # type: ignore[assignment]
        Popen=lambda command, **options: popen([command[0], program, *command[3:]], **options),
        DEVNULL=local_nodes.subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        local_nodes.subprocess = sys.modules["subprocess"]
        del os.environ[variable]


def run_trials(results: Path, share: float, points: Sequence[str], seed: int, steps: int, reference: str) -> str:
    """Runs one job with a trial in each step; returns how it ended.

    Args:
        results: file to which each step's row is added.
        share: of computation that is audited.
        points: kinds of injections, of which each step draws one.
        seed: of the draws.
        steps: of the job.
        reference: SHA-256 of the weights of a run without any of this.
    """
    import planaria
    from planaria.job.parse import parse_job

    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "results": str(results.resolve()),
            "share": share,
            "points": list(points),
            "seed": seed,
            "steps": steps,
        }
        with forked_by(__file__, SETTINGS, json.dumps(settings)):
            job = parse_job(job_text(steps, share), overrides=overrides(Path(folder)), origin="trials")
            result = planaria.train(job, name="trials")
        events = [json.loads(line) for line in (result.folder / "events.jsonl").read_text().splitlines()]
        lost = sum(event["event"] == "node_lost" for event in events)
        bits = json.loads((result.folder / "summary.json").read_text()).get("weights_sha256")
        same = "the reference's weights" if bits == reference else "OTHER WEIGHTS THAN THE REFERENCE"
        return f"{result.status.value}, {same}, {lost} nodes lost"


def job_text(steps: int, share: float) -> str:
    return JOB.replace("STEPS", str(steps)).replace("SHARE", str(share))


def overrides(folder: Path) -> list[str]:
    """Returns what of the job depends on the folder, with a text of its own in it."""
    text = folder / "text.txt"
    text.write_text("".join(Random(1).choices("abcdefgh \n", k=20_000)))
    return [f"run.folder={json.dumps(str(folder))}", f"data.source={json.dumps(str(text))}"]


def trials(results: Path, shares: Iterable[float], wanted: int, minutes: float, steps: int = 300) -> None:
    """Runs jobs until there are as many injections of each kind that change the committed bits, then tells.

    Args:
        results: file of rows; those that are there count.
        shares: of computation that is audited, for each of which forward, backward and send are tried; with 0 it is
            rest, apply and sync, as what replicas and sums tell does not depend on it.
        wanted: of each kind.
        minutes: after which no further run begins.
        steps: of a run.
    """
    from planaria.job.parse import parse_job
    from planaria.runtime.launch.reference import train_reference
    from planaria.runtime.run_folder.run_folder import RunFolder

    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        job = parse_job(job_text(steps, 0.0), overrides=overrides(Path(folder)), origin="trials")
        reference = train_reference(job, RunFolder.create(Path(folder), "reference"))
        right = str(json.loads((reference.folder / "summary.json").read_text())["weights_sha256"])
    for share in shares:
        points = AUDITED if share else COMPARED
        while time.monotonic() - began < 60 * minutes:
            rows = read(results)
            lacking = [at for at in points if _number(rows, share, at) < wanted]
            if not lacking:
                break
            seed = 1 + max((row["seed"] for row in rows), default=0)
            print(f"share {share:g}, {', '.join(lacking)}, seed {seed}:", flush=True)
            print("   ", run_trials(results, share, lacking, seed, steps, right), flush=True)
    tell(read(results))


def read(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def _number(rows: Sequence[dict[str, Any]], share: float, at: str) -> int:
    return sum(row["changed"] and row["reached"] for row in rows if (row["share"], row["at"]) == (share, at))


def tell(rows: Sequence[dict[str, Any]]) -> None:
    """Prints a table; wrong steps until found are those of a node that is wrong in every step, once."""
    heads = ("reached", "changed", "found", "rate", "named", "others")
    print(f"{'share':>6} {'at':9} " + " ".join(f"{head:>7}" for head in heads) + "  steps until found")
    kinds = sorted({(row["share"], row["at"]) for row in rows if row["reached"]})
    for share, at in kinds:
        reached = [row for row in rows if (row["share"], row["at"]) == (share, at) and row["reached"]]
        changed = [row for row in reached if row["changed"]]
        found = [row for row in changed if row["found"]]
        named = sum(row["named"] == [row["node"]] for row in found)
        others = sum(any(node != row["node"] for node in row["named"]) for row in reached)
        waits, wait = list[int](), 0
        for row in changed:
            wait += 1
            if row["found"]:
                waits.append(wait)
                wait = 0
        until = f"mean {sum(waits) / len(waits):.2f}, at most {max(waits)}" if waits else ""
        rate = f"{len(found) / len(changed):.2%}" if changed else ""
        told = (len(reached), len(changed), len(found), rate, named, others)
        print(f"{share:6g} {at:9} " + " ".join(f"{each:>7}" for each in told) + f"  {until}")
    alarms = sum(bool(row["control"]) for row in rows)
    print(f"{len(rows)} controls with {sum(row['audits'] for row in rows)} audits: {alarms} false alarms")
    unstruck = [row for row in rows if not row["reached"]]
    print(f"{len(unstruck)} steps that nothing struck: {sum(bool(row['found']) for row in unstruck)} false alarms")


if __name__ == "__main__":
    from planaria.runtime.nodes.forkserver import main

    install()
    main(int(sys.argv[1]), sys.argv[2])
