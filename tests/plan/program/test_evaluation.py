"""Evaluation programs: each microbatch is evaluated once, whatever order workers take, and whoever dies on the way."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.estimate.conditions import AS_PROFILED
from planaria.estimate.evaluation_time import evaluation_time
from planaria.job.sections.eval import EvalSection
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.errors import NoReplica
from planaria.plan.ledger import Ledger
from planaria.plan.plan import NodeId, Plan, PlanError, WorkerId
from planaria.plan.program.evaluation import AHEAD
from planaria.plan.program.instructions import Instruction, Op
from planaria.plan.program.programs import program
from planaria.plan.settings import PlannerSettings
from planaria.plan.validate import validate
from planaria.planner.finish_step.salvage import finish_evaluation, to_halt
from planaria.planner.instantiation.instantiate import initial_plan
from planaria.planner.templates.templates import make_templates
from tests.plan.profiles import random_jobs, uniform_profile
from tests.proof import examples

PROFILE = uniform_profile(6)
SETTINGS = PlannerSettings(num_microbatches=8, fault_tolerance=1, num_nodes=5, devices_per_node=1, min_nodes=2)

Name = tuple[Op, int, int, int, WorkerId, WorkerId]


def evaluating(profile: ModelProfile, planner: PlannerSettings, number: int) -> Plan:
    templates = make_templates(profile, planner)
    nodes = [NodeId(n) for n in range(planner.num_nodes)]
    return initial_plan(profile, templates, planner, nodes, 1).evaluating(number)


class Evaluation:
    """Workers that run a plan's evaluation, in an order of chance."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan = plan
        self.live = set(plan.workers)
        self.scored: dict[WorkerId, set[int]] = {worker: set() for worker in plan.workers}
        self.most_waiting = 0
        self._draw = random.Random(seed)
        self._done: dict[WorkerId, set[Instruction]] = {worker: set() for worker in plan.workers}
        self._sent: set[Name] = set()

    def run(self, most: int | None = None) -> None:
        """Runs instructions until none can be run, or so many were."""
        while most != 0 and (able := [worker for worker in sorted(self.live) if self._next(worker)]):
            self._run(self._draw.choice(able))
            most = None if most is None else most - 1

    def _left(self, worker: WorkerId) -> list[Instruction]:
        return [i for i in program(self.plan, worker) if i not in self._done[worker]]

    def _next(self, worker: WorkerId) -> Instruction | None:
        """The next instruction of a worker, if it can be run now."""
        left = self._left(worker)
        if not left:
            return None
        is_receipt = left[0].op in (Op.RECV_ACTIVATION, Op.RECV_GRADIENT)
        return None if is_receipt and self._name(worker, left[0]) not in self._sent else left[0]

    def _run(self, worker: WorkerId) -> None:
        instruction = self._next(worker)
        assert instruction is not None
        self._done[worker].add(instruction)
        if instruction.op in (Op.SEND_ACTIVATION, Op.SEND_GRADIENT):
            self._sent.add(self._name(worker, instruction))
        if instruction.op is Op.FORWARD and instruction.end_layer == self.plan.num_layers:
            assert instruction.microbatch not in self.scored[worker]
            self.scored[worker].add(instruction.microbatch)
        taken = {self._name(w, i) for w, done in self._done.items() for i in done if i.op is Op.RECV_ACTIVATION}
        waiting = [name for name in self._sent - taken if name[0] is Op.SEND_ACTIVATION]
        self.most_waiting = max(self.most_waiting, len(waiting))

    @staticmethod
    def _name(worker: WorkerId, instruction: Instruction) -> Name:
        assert instruction.peer is not None
        sends = {Op.RECV_ACTIVATION: Op.SEND_ACTIVATION, Op.RECV_GRADIENT: Op.SEND_GRADIENT}
        op = sends.get(instruction.op, instruction.op)
        ends = (worker, instruction.peer) if op is instruction.op else (instruction.peer, worker)
        return op, instruction.microbatch, instruction.born, instruction.first_layer, *ends

    def lose(self, nodes: set[NodeId], profile: ModelProfile) -> None:
        """Nodes die; their pipelines' survivors report, and the rest is planned."""
        plan = self.plan
        self.live = {worker for worker in self.live if plan.node_of(worker) not in nodes}
        halted = to_halt(plan.of_pass, self.live)
        self._halted = getattr(self, "_halted", set()) | set(halted)
        counted = {m for worker in self._halted & self.live for m in self.scored[worker]}
        ledger = Ledger.from_bits([0] * (plan.num_layers - 1) + [sum(1 << m for m in counted)])
        holders = {worker: plan.layers_of[worker] for worker in sorted(self.live)}
        new = finish_evaluation(plan, sorted(self.live), halted, ledger, holders, plan.generation + 1, profile)
        validate(new, already=ledger)
        self.plan = new

    def check(self) -> None:
        assert self.plan.evaluation is not None
        told = [microbatch for worker in self.live for microbatch in self.scored[worker]]
        assert sorted(told) == list(range(self.plan.evaluation.num_microbatches))
        assert all(not self._left(worker) for worker in self.live)


@settings(max_examples=examples(60), deadline=None)
@given(job=random_jobs(), number=st.integers(1, 20), seed=st.integers(0, 1000), data=st.data())
def test_every_microbatch_is_evaluated_once_whoever_dies(
    job: tuple[ModelProfile, PlannerSettings], number: int, seed: int, data: st.DataObject
) -> None:
    plan = evaluating(*job, number)
    validate(plan, fault_tolerance=job[1].fault_tolerance)
    evaluation = Evaluation(plan, seed)
    for _ in range(data.draw(st.integers(0, 2), label="losses")):
        evaluation.run(data.draw(st.integers(0, 60), label="instructions before the loss"))
        nodes = sorted({evaluation.plan.node_of(worker) for worker in evaluation.live})
        lost = data.draw(st.sets(st.sampled_from(nodes), min_size=1, max_size=2), label="lost")
        try:
            evaluation.lose(lost, job[0])
        except NoReplica:
            return
    evaluation.run()
    evaluation.check()


def test_nobody_runs_far_ahead() -> None:
    plan = evaluating(PROFILE, SETTINGS, 60)
    evaluation = Evaluation(plan, 3)
    evaluation.run()
    evaluation.check()
    cuts = sum(len(pipeline.stages) - 1 for pipeline in plan.pipelines)
    assert evaluation.most_waiting <= cuts * AHEAD


def test_an_evaluation_leaves_the_step_as_it_was() -> None:
    plan = evaluating(PROFILE, SETTINGS, 5)
    assert plan.of_step.evaluation is None
    assert (plan.of_step.routes, plan.of_step.num_microbatches) == (plan.routes, 8)
    assert plan.of_pass.num_microbatches == 5
    assert plan.of_pass.of_pass == plan.of_pass
    assert {i.op for worker in plan.workers for i in program(plan, worker)}.isdisjoint({Op.SYNC, Op.APPLY, Op.BACKWARD})


def test_validation_finds_a_microbatch_that_nobody_evaluates() -> None:
    plan = evaluating(PROFILE, SETTINGS, 5)
    assert plan.evaluation is not None
    broken = plan.renewed(evaluation=type(plan.evaluation)(num_microbatches=6, routes=plan.evaluation.routes))
    with pytest.raises(PlanError, match="microbatch 5 is not counted for layer 5"):
        validate(broken)


def test_the_estimate_is_of_forwards_in_a_pipeline() -> None:
    """Of two and three stages of layers of 10 ms: the fill, and then the busiest stage again and again."""
    plan = evaluating(PROFILE, SETTINGS, 40)
    assert plan.evaluation is not None
    took = evaluation_time(plan, PROFILE, AS_PROFILED)
    assert took.longest_s == pytest.approx(0.03)
    busiest_s = max(
        len(route.microbatches) * max(len(hop.layers) for hop in route.hops) * 0.01 for route in plan.evaluation.routes
    )
    assert busiest_s < took.total_s < busiest_s + 0.07


def test_where_cores_are_shared_they_do_all_forwards() -> None:
    plan = evaluating(PROFILE, SETTINGS, 40)
    alone = evaluation_time(plan, PROFILE, AS_PROFILED)
    shared = evaluation_time(plan, PROFILE, replace(AS_PROFILED, num_cores=1.0))
    assert shared.total_s == pytest.approx(40 * PROFILE.num_layers * 0.01, rel=0.3)
    assert shared.total_s > 2 * alone.total_s


@pytest.mark.parametrize(
    ("every", "steps", "done", "times"), [(0, 9, 0, 0), (3, 9, 0, 3), (3, 10, 0, 4), (3, 10, 6, 2)]
)
def test_an_evaluation_follows_the_last_step_too(every: int, steps: int, done: int, times: int) -> None:
    assert EvalSection(every=every, share=0.1).evaluations_in(steps, done) == times
