"""Whole jobs in virtual time, hundreds of them: any schedule of deaths ends with the reference's bits, or says why not.

One seed is one history. What once failed is in the corpus, one file a fault, and is tried again each time.
`python -m tests.runtime.worker.dst` tries other seeds.
"""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from planaria.data.tokens.preparation import prepare_tokens
from planaria.data.tokens.token_set import TokenSet
from planaria.job.sections.cluster import StageDevices
from planaria.job.sections.data import DataSection
from planaria.job.sections.train import WhenNotFinite
from planaria.job.settings import Job
from planaria.plan.plan import Plan, Transfer, WorkerId
from planaria.plan.program.instructions import Instruction, Op, Program
from planaria.plan.program.programs import program
from planaria.planner.placement import transfers as moving
from planaria.planner.placement.senders import Holders
from planaria.planner.placement.transfers import transfers
from planaria.protocol.messages.records import (
    CheckpointSaved,
    ComputedWrong,
    CoordinatorRestarted,
    DeviceLost,
    NodeLost,
    NodeReleased,
    Note,
    PlanTaken,
    Recovered,
    Restored,
    RunStatus,
    StepCommitted,
    StepSkipped,
    Waiting,
)
from planaria.protocol.worker import step_work
from planaria.runtime.launch.reference import train_reference
from planaria.runtime.run_folder.run_folder import RunFolder
from tests.proof import batches, rest_in_proof
from tests.runtime.worker.cluster import Cluster, Kill, Outcome, Visit, Weather
from tests.runtime.worker.promises import Reference, check
from tests.runtime.worker.schedules import (
    Case,
    Schedule,
    all_holders_die,
    any_policy,
    comings_and_goings,
    job_of,
    on_devices,
    power_losses,
    restarts,
    schedule,
    switching,
    with_devices_alone,
)

CORPUS = sorted(Path(__file__).with_name("corpus").glob("*.json"))
BATCHES = batches(range(1000, 1016), size=15, kept=1)


class Laboratory:
    """Tokens, references, and a place for checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "tokens.npy"
        np.save(self.source, np.random.default_rng(0).integers(0, 259, 4096).astype(np.uint16))
        self.data = folder / "data"
        self.tokens: TokenSet = prepare_tokens(DataSection(source=str(self.source)), self.data)
        self._references: dict[bytes, Reference] = {}
        self._runs = 0

    def reference(self, job: Job, drops: Mapping[int, tuple[int, ...]] | None = None) -> Reference:
        """One process that trains alone, without what a run dropped."""
        key = msgspec.json.encode((job.model, job.train, sorted((drops or {}).items())))
        if key not in self._references:
            folder = RunFolder.create(self.folder / "references", str(len(self._references)))
            result = train_reference(job, folder, drops=drops)
            lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
            assert result.weights_sha256 is not None
            self._references[key] = Reference(
                losses={line["step"]: line["loss"] for line in lines},
                skipped=frozenset(line["step"] for line in lines if not line.get("applied", True)),
                weights=result.weights_sha256,
            )
        return self._references[key]

    def cluster(self, schedule: Schedule, **others: object) -> Cluster:
        self._runs += 1
        arguments: dict[str, object] = {
            "seed": schedule.seed,
            "kills": schedule.kills,
            "visits": schedule.visits,
            "crashes": schedule.crashes,
            "switches": schedule.switches,
            "shortages": schedule.shortages,
            "weather": schedule.weather,
            "stop_at_s": schedule.stop_at_s,
            "folder": self.folder / f"run-{self._runs}",
        } | others
        return Cluster(schedule.job, data=self.data, vocab_size=self.tokens.vocab_size, **arguments)  # type: ignore[arg-type]

    def holders(self, job: Job) -> list[list[int]]:
        """For each layer, the nodes that hold it under the job's first plan."""
        train = msgspec.structs.replace(job.train, steps=1)
        short = Schedule(
            seed=0, job=msgspec.structs.replace(job, train=train), kills=(), weather=Weather(), stop_at_s=None
        )
        plan = self.cluster(short).run().of(PlanTaken)[0]
        stages = [stage for pipeline in plan.pipelines for stage in pipeline]
        return [[worker for worker, first, end in stages if first <= layer < end] for layer in range(stages[-1][2])]

    def run(self, schedule: Schedule) -> Outcome:
        """Run, check every promise, and take an unfinished run to its end on a whole cluster."""
        outcome = self.cluster(schedule).run()
        reference = self.reference(schedule.job, outcome.drops)
        check(schedule, outcome, reference)
        saved = outcome.checkpoint
        if outcome.finish.status is not RunStatus.COMPLETED and saved is not None:
            if saved.step < schedule.job.train.steps:
                resumed = self.cluster(
                    schedule, kills=(), visits=(), crashes=(), shortages=(), switches=(), stop_at_s=None, resume=saved
                ).run()
                assert resumed.finish.status is RunStatus.COMPLETED
                before = {step: dropped for step, dropped in outcome.drops.items() if step <= saved.step}
                assert resumed.weights == self.reference(schedule.job, before | resumed.drops).weights
        return outcome

    def run_all(self, seeds: Iterable[int], make: Callable[[int, str], Schedule]) -> list[Outcome]:
        """Runs the schedule of each seed; an error tells its seed."""
        outcomes = []
        for seed in seeds:
            try:
                outcomes.append(self.run(make(seed, str(self.source))))
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
        return outcomes


@pytest.fixture(autouse=True)
def no_garbage() -> Iterator[None]:
    """Clusters are cycles, and hold memory files."""
    yield
    gc.collect()


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_random_schedules_keep_every_promise(batch: range, laboratory: Laboratory) -> None:
    laboratory.run_all(batch, schedule)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_comings_and_goings_keep_every_promise(batch: range, laboratory: Laboratory) -> None:
    laboratory.run_all(batch, comings_and_goings)


@pytest.mark.parametrize("batch", batches(range(3000, 3016), size=15, kept=1), ids=str)
def test_restarts_of_the_coordinator_keep_every_promise(batch: range, laboratory: Laboratory) -> None:
    """It dies at any command, among deaths, comings and goings: the reference's bits, and no step twice."""
    outcomes = laboratory.run_all(batch, restarts)
    assert sum(len(outcome.of(CoordinatorRestarted)) for outcome in outcomes) >= len(batch) // 2


@pytest.mark.parametrize("batch", batches(range(3000, 3011), size=10, kept=1), ids=str)
def test_a_journal_that_lags_behind_its_workers_is_made_up_for(batch: range, laboratory: Laboratory) -> None:
    """What any worker was told is made up for; what nobody was told is decided anew, in the same way."""
    outcomes = laboratory.run_all(batch, power_losses)
    assert sum(record.lag for outcome in outcomes for record in outcome.of(CoordinatorRestarted)) >= 1


@pytest.mark.parametrize("batch", batches(range(5000, 5011), size=10, kept=1), ids=str)
def test_stages_on_several_devices_keep_every_promise(batch: range, laboratory: Laboratory) -> None:
    """Under all policies, with deaths at any instruction, comings, goings and restarts: the reference's bits."""
    kinds = (schedule, comings_and_goings, restarts, any_policy, switching)
    laboratory.run_all(batch, lambda seed, source: on_devices(kinds[seed % 5](seed, source), 2 + seed % 2))


@pytest.mark.parametrize("batch", batches(range(6004, 6010), size=5, kept=1), ids=str)
def test_a_change_of_the_number_of_a_stages_devices_costs_no_bit(
    batch: range, laboratory: Laboratory, changing_devices: list[tuple[int, int]]
) -> None:
    """A stage of three devices becomes one of one, or the other way round, after any loss."""
    kinds = (schedule, comings_and_goings, restarts, any_policy, switching)
    for seed in batch:
        which = on_devices(kinds[seed % 5](seed, str(laboratory.source)), 2 + seed % 2, StageDevices.AUTO)
        try:
            laboratory.run(which)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert changing_devices


@pytest.mark.parametrize("batch", batches(range(11), size=10, kept=1), ids=str)
def test_devices_lost_alone_keep_every_promise(batch: range, laboratory: Laboratory) -> None:
    """The bits are those of one process, whichever devices and nodes are lost."""
    kinds = (schedule, comings_and_goings, restarts, any_policy, switching)
    lost = 0
    for seed in batch:
        try:
            plain = kinds[seed % 5](seed, str(laboratory.source))
            devices = 1 + seed % 2 if plain.job.cluster.devices_per_node > 1 else 2 + seed % 3
            plain = on_devices(plain, devices, StageDevices.AUTO if seed % 3 == 2 else None)
            lost += len(laboratory.run(with_devices_alone(plain)).of(DeviceLost))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert lost or len(batch) < 5


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_schedules_that_once_failed_keep_every_promise(path: Path, laboratory: Laboratory) -> None:
    laboratory.run(msgspec.json.decode(path.read_bytes(), type=Case).schedule_with(str(laboratory.source)))


@pytest.mark.parametrize("batch", batches(range(11), size=10, kept=1), ids=str)
def test_with_all_replicas_of_a_layer_lost_the_job_goes_back(batch: range, laboratory: Laboratory) -> None:
    """Back to the checkpoint, or to the start, and on to the same bits; or an end that says why not."""
    outcomes = laboratory.run_all(batch, lambda seed, source: all_holders_die(seed, source, laboratory.holders))
    completed = [outcome for outcome in outcomes if outcome.finish.status is RunStatus.COMPLETED]
    assert sum(bool(outcome.of(Restored)) for outcome in completed) >= len(batch) // 3


def in_parts(plan: Plan, holders: Holders) -> tuple[Transfer, ...]:
    """The plan's transfers, every group cut so that two or three of its holders send a part."""
    moves: list[Transfer] = []
    for move in transfers(plan, holders):
        size = plan.groups[move.group].size_bytes
        sources = [worker for worker in sorted(holders) if move.group in holders[worker]][:3]
        cuts = [size * at // len(sources) for at in range(len(sources) + 1)]
        moves += [
            Transfer(group=move.group, source=source, target=move.target, part=part)
            for source, part in zip(sources, itertools.pairwise(cuts), strict=True)
        ]
    return tuple(moves)


def test_state_that_moves_in_parts_arrives_whole(laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that come from several sources at once, with deaths in between: the reference's bits all the same."""
    taken: list[Plan] = []

    def note(plan: Plan, holders: Holders, sources: object = None) -> tuple[Transfer, ...]:
        taken.append(msgspec.structs.replace(plan, transfers=in_parts(plan, holders)))
        return taken[-1].transfers

    monkeypatch.setattr(moving, "transfers", note)
    job = job_of(nodes=6, depth=4, steps=4, smallest=2, source=str(laboratory.source))
    for node in range(6):
        kills = (Kill(node=node, at="backward", step=1), Kill(node=(node + 2) % 6, at="transfer"))
        outcome = laboratory.run(Schedule(seed=node, job=job, kills=kills, weather=Weather(), stop_at_s=None))
        assert outcome.finish.status is RunStatus.COMPLETED
    parts = [m for plan in taken for m in plan.transfers if m.part != (0, plan.groups[m.group].size_bytes)]
    assert len(parts) >= 10


@pytest.mark.parametrize("first", rest_in_proof(range(6)))
def test_a_node_that_was_left_over_comes_back(first: int, laboratory: Laboratory) -> None:
    """Two layers make pipelines of two nodes only: the fifth of five is idle until the next loss.

    What it holds by then is steps old, and nothing may be computed with it.
    """
    job = job_of(nodes=6, depth=0, steps=5, smallest=2, source=str(laboratory.source))
    came_back = 0
    for second in set(range(6)) - {first}:
        kills = (Kill(node=first, at="backward", step=1), Kill(node=second, at="backward", step=3))
        outcome = laboratory.run(Schedule(seed=second, job=job, kills=kills, weather=Weather(), stop_at_s=None))
        assert outcome.finish.status is RunStatus.COMPLETED
        used = [{worker for stages in plan.pipelines for worker, _, _ in stages} for plan in outcome.of(PlanTaken)]
        came_back += any(last - before for before, last in itertools.pairwise(used))
    assert came_back >= 2


def _split(plan: Plan, worker: WorkerId) -> Program:
    """The program, with backwards cut in two in every second generation: weights as late as their sums allow."""
    whole = program(plan, worker)
    if plan.generation % 2 == 0:
        return whole
    out: list[Instruction] = []
    later: list[Instruction] = []
    for instruction in whole:
        if instruction.op in (Op.SYNC, Op.VOTE):
            out += later
            later.clear()
        if instruction.op is Op.BACKWARD:
            out.append(_half(Op.BACKWARD_INPUT, instruction, ()))
            later.append(_half(Op.BACKWARD_WEIGHT, instruction, instruction.counted))
        else:
            out.append(instruction)
    return tuple(out)


def _half(op: Op, whole: Instruction, counted: tuple[int, ...]) -> Instruction:
    return Instruction(
        op=op,
        microbatch=whole.microbatch,
        born=whole.born,
        first_layer=whole.first_layer,
        end_layer=whole.end_layer,
        counted=counted,
    )


@pytest.mark.parametrize("batch", batches(range(5000, 5006), size=5, kept=1), ids=str)
def test_backwards_in_two_passes_keep_every_promise(
    batch: range, laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under any deaths, and where one plan cuts a backward in two and the next one does not."""
    monkeypatch.setattr(step_work, "program", _split)
    laboratory.run_all(batch, schedule)


@pytest.mark.parametrize("batch", batches(range(7000, 7011), size=10, kept=1), ids=str)
def test_what_is_run_again_for_an_audit_has_the_same_bits_whatever_happens(
    batch: range, laboratory: Laboratory
) -> None:
    for seed in batch:
        plain = (switching if seed % 2 else schedule)(seed, str(laboratory.source))
        resilience = msgspec.structs.replace(plain.job.resilience, audit=1.0)
        outcome = laboratory.run(replace(plain, job=msgspec.structs.replace(plain.job, resilience=resilience)))
        assert not outcome.of(ComputedWrong), f"seed {seed}"
        assert not [note for note in outcome.of(Note) if note.text.startswith("computations")], f"seed {seed}"


def test_one_seed_is_one_history(laboratory: Laboratory) -> None:
    which = schedule(17, str(laboratory.source))
    first, second = (laboratory.cluster(which).run() for _ in range(2))
    assert first.history == second.history
    assert first.weights == second.weights


@pytest.mark.parametrize("seed", range(3))
def test_layers_that_get_no_gradient_in_some_steps(seed: int, laboratory: Laboratory) -> None:
    """Nobody counts anything for them in such a step, and what an earlier step left is not taken for a gradient."""
    job = job_of(depth=3, microbatches=4, skip=0.8, steps=6, seed=seed, source=str(laboratory.source))
    laboratory.run(Schedule(seed=seed, job=job, kills=(), weather=Weather(), stop_at_s=None))


@pytest.mark.parametrize("batch", batches(range(7000, 7007), size=6, kept=1), ids=str)
def test_steps_that_are_not_finite_are_skipped(batch: range, laboratory: Laboratory) -> None:
    """Under any deaths, comings and goings: the reference's bits, and its skipped steps."""

    def with_bad_layers(seed: int, source: str) -> Schedule:
        usual = comings_and_goings(seed, source)
        config = {**usual.job.model.config, "depth": max(1, usual.job.model.config["depth"])}
        bad = 0.7 / (config["depth"] * usual.job.train.num_microbatches)
        job = msgspec.structs.replace(
            usual.job,
            model=msgspec.structs.replace(usual.job.model, config={**config, "bad": bad}),
            train=msgspec.structs.replace(usual.job.train, when_not_finite=WhenNotFinite.SKIP),
        )
        return replace(usual, job=job)

    outcomes = laboratory.run_all(batch, with_bad_layers)
    for kind in (StepSkipped, StepCommitted):
        assert sum(len(outcome.of(kind)) for outcome in outcomes) >= len(batch)


def test_a_step_that_is_not_finite_stops_the_run(laboratory: Laboratory) -> None:
    job = job_of(nodes=3, depth=2, steps=8, bad=0.03, source=str(laboratory.source))
    outcome = laboratory.cluster(Schedule(seed=1, job=job, kills=(), weather=Weather(), stop_at_s=None)).run()
    assert outcome.finish.status is RunStatus.FAILED
    assert "is not applied" in outcome.finish.message
    assert not outcome.of(StepSkipped)
    assert outcome.weights == laboratory.reference(job).weights


def test_a_node_that_comes_trains_soon_and_holds_nobody_up(laboratory: Laboratory) -> None:
    """It gets its state beside one step, and microbatches from the next one on."""
    job = job_of(nodes=2, depth=2, steps=8, microbatches=4, source=str(laboratory.source))
    visits = (Visit(node=2, after="StepCommitted", nth=2),)
    outcome = laboratory.run(Schedule(seed=1, job=job, kills=(), visits=visits, weather=Weather(), stop_at_s=None))
    start, warm, after = outcome.of(PlanTaken)
    assert (start.purpose, warm.purpose, after.purpose) == ("start", "warm up", "reconfigure")
    assert (warm.pipelines, after.step) == (start.pipelines, warm.step + 1)
    assert warm.transfer_bytes > 0 == after.transfer_bytes
    assert {worker for stages in after.pipelines for worker, _, _ in stages} == {0, 1, 2}


def test_a_node_that_gives_notice_hands_over_and_nothing_runs_twice(laboratory: Laboratory) -> None:
    """Even the only one that holds its layers."""
    job = job_of(
        nodes=4, smallest=3, depth=2, steps=8, microbatches=4, fault_tolerance=0, source=str(laboratory.source)
    )
    visits = (Visit(node=1, after="StepCommitted", nth=2, grace_s=60.0),)
    outcome = laboratory.run(Schedule(seed=1, job=job, kills=(), visits=visits, weather=Weather(), stop_at_s=None))
    (released,) = outcome.of(NodeReleased)
    assert released.node == 1
    assert [plan.purpose for plan in outcome.of(PlanTaken)] == ["start", "warm up", "reconfigure"]
    assert not outcome.of(NodeLost)
    assert not outcome.of(Recovered)


def test_with_too_few_nodes_the_job_waits_for_others(laboratory: Laboratory) -> None:
    job = job_of(nodes=2, depth=2, steps=6, microbatches=4, when_exhausted="wait", source=str(laboratory.source))
    kills = (Kill(node=0, at="backward", step=2),)
    visits = (Visit(node=2, after="Waiting", delay_s=5.0),)
    outcome = laboratory.run(Schedule(seed=1, job=job, kills=kills, visits=visits, weather=Weather(), stop_at_s=None))
    (waiting,) = outcome.of(Waiting)
    assert waiting.step == 3, "the step that was struck is finished and saved first"
    assert [saved.step for saved in outcome.of(CheckpointSaved)] == [2, 6]
    assert not outcome.of(Restored), "the survivor kept its state"
    assert outcome.finish.status is RunStatus.COMPLETED


def test_a_node_that_is_killed_after_its_release_holds_no_checkpoint_up(laboratory: Laboratory) -> None:
    """What it was still to write is given up, and later steps are saved."""
    given_up = 0
    for seed in range(4):
        job = job_of(nodes=4, depth=2, steps=9, microbatches=4, checkpoint_every=1, source=str(laboratory.source))
        visits = (Visit(node=1, after="StepCommitted", nth=2, grace_s=60.0),)
        kills = (Kill(node=1, at="after NodeReleased"),)
        schedule = Schedule(seed=seed, job=job, kills=kills, visits=visits, weather=Weather(), stop_at_s=None)
        outcome = laboratory.run(schedule)
        assert outcome.finish.status is RunStatus.COMPLETED
        (released,) = outcome.of(NodeReleased)
        assert any(saved.step >= released.step for saved in outcome.of(CheckpointSaved)[:-1])
        given_up += any("a worker was lost that wrote it" in note.text for note in outcome.of(Note))
    assert given_up >= 1
