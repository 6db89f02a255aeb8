"""Salvage: whatever was done and whoever dies, the step ends with every microbatch counted exactly once."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.errors import NoReplica
from planaria.plan.ledger import Ledger, combine
from planaria.plan.plan import NodeId, Plan, PlanError, ScheduleKind, WorkerId, runs_of
from planaria.plan.settings import PlannerSettings
from planaria.plan.validate import validate
from planaria.planner.finish_step.rerun_routes import along_owners
from planaria.planner.finish_step.salvage import finish_step, left_undone, to_halt
from planaria.planner.instantiation.instantiate import initial_plan
from planaria.planner.reroute.routes import Freedom
from planaria.planner.templates.templates import make_templates
from tests.plan.machine import Machine
from tests.plan.profiles import random_jobs, uniform_profile
from tests.proof import examples


def start(profile: ModelProfile, planner: PlannerSettings) -> Plan:
    templates = make_templates(profile, planner)
    return initial_plan(profile, templates, planner, [NodeId(n) for n in range(planner.num_nodes)], 1)


class Step:
    """A step under way, with the coordinator's part of a loss."""

    def __init__(self, profile: ModelProfile, plan: Plan, seed: int) -> None:
        self.profile = profile
        self.machine = Machine(plan, seed)
        self.reports: dict[WorkerId, Ledger] = {}
        self.holders = dict(plan.layers_of)

    def is_beyond_repair(self, lost: set[NodeId]) -> bool:
        """Whether the loss leaves a layer without a holder."""
        left = [w for w in self.machine.workers if self.machine.plan.node_of(w) not in lost]
        held = {layer for worker in left for layer in self.holders[worker]}
        return len(held) < self.machine.plan.num_layers

    def lose(self, nodes: set[NodeId], crossing: tuple[Freedom, float] | None = None) -> None:
        """Nodes die; their pipelines' survivors halt and report; the rest of the step is planned, in the usual way or
        with survivors of broken pipelines."""
        plan, machine = self.machine.plan, self.machine
        machine.kill([worker for worker in machine.workers if plan.node_of(worker) in nodes])
        live = sorted(machine.workers)
        halted = to_halt(plan, live)
        self.reports.update({worker: machine.ledger(worker) for worker in halted})
        reports = [ledger for worker, ledger in self.reports.items() if worker in live]
        counted, twice = combine(reports, plan.num_layers)
        assert twice == 0
        holders = {worker: self.holders[worker] for worker in live}
        asked = plan, live, halted, counted, holders, plan.generation + 1
        new = finish_step(*asked, self.profile)
        if crossing is not None:
            undone = left_undone(*asked)
            freedom, head = crossing
            routes, _ = along_owners(
                undone.pipelines, {}, undone.missing, undone.generation, self.profile,
                freedom=freedom, head=head, speeds={},
            )  # fmt: skip
            usual, new = new, undone.finished_by(routes)
            assert (new.pipelines, new.shadows, new.sync_epochs) == (usual.pipelines, usual.shadows, usual.sync_epochs)
        validate(new, already=counted)
        assert new.workers == tuple(live)
        kept = [route for route in new.routes if route.born <= plan.generation]
        assert all(route in plan.routes for route in kept)
        machine.adopt(new)

    def finish(self) -> None:
        self.machine.run()
        self.machine.check_sums()


@settings(max_examples=examples(150), deadline=None)
@given(job=random_jobs(), seed=st.integers(0, 1000), data=st.data())
def test_every_loss_ends_with_every_microbatch_counted_once(
    job: tuple[ModelProfile, PlannerSettings], seed: int, data: st.DataObject
) -> None:
    schedule = data.draw(st.sampled_from(ScheduleKind), label="schedule")
    step = Step(job[0], msgspec.structs.replace(start(*job), schedule=schedule), seed)
    for _ in range(data.draw(st.integers(1, 3), label="losses")):
        step.machine.run(data.draw(st.integers(0, 150), label="instructions before the loss"))
        nodes = sorted({step.machine.plan.node_of(worker) for worker in step.machine.workers})
        lost = data.draw(st.sets(st.sampled_from(nodes), min_size=1, max_size=2), label="lost")
        if step.is_beyond_repair(lost):
            with pytest.raises(NoReplica):
                step.lose(lost)
            return
        ways = st.none() | st.tuples(st.sampled_from(Freedom), st.sampled_from([0.0, 1.0]))
        step.lose(lost, data.draw(ways, label="crossing"))
        note(str(step.machine.plan.routes))
    step.finish()


PROFILE = uniform_profile(6)
SETTINGS = PlannerSettings(num_microbatches=8, fault_tolerance=1, num_nodes=5, devices_per_node=1, min_nodes=2)


def test_work_that_is_done_elsewhere_is_not_run_again() -> None:
    """When all is computed, a loss costs the lost node's microbatches on its own layers only."""
    plan = start(PROFILE, SETTINGS)
    assert [len(pipeline.stages) for pipeline in plan.pipelines] == [3, 2]
    step = Step(PROFILE, plan, 0)
    step.machine.run()
    step.lose({NodeId(4)})
    added = [route for route in step.machine.plan.routes if route.born == 2]
    assert {route.counted for route in added} == {plan.layers_of[WorkerId(4)]}
    assert {m for route in added for m in route.microbatches} == set(plan.routes[1].microbatches)
    step.finish()


def test_nothing_missing_leaves_the_kept_routes_alone() -> None:
    plan = start(PROFILE, SETTINGS)
    everything = Ledger.from_bits([(1 << 8) - 1 & ~sum(1 << m for m in plan.routes[0].microbatches)] * 6)
    live = [WorkerId(w) for w in range(4)]
    new = finish_step(plan, live, [WorkerId(3)], everything, plan.layers_of, 2, PROFILE)
    assert new.routes == plan.routes[:1]
    lost = plan.groups_of[WorkerId(4)]
    assert [g for g, epoch in enumerate(new.sync_epochs) if epoch == 2] == list(lost)


def test_without_a_whole_pipeline_routes_hop_among_holders() -> None:
    plan = start(PROFILE, SETTINGS)
    step = Step(PROFILE, plan, 1)
    step.machine.run(20)
    step.lose({NodeId(2), NodeId(3)})
    paths = {tuple(hop.worker for hop in r.hops) for r in step.machine.plan.routes}
    assert paths == {(0, 1, 4)}
    step.finish()


def test_where_all_were_halted_whole_pipelines_finish_the_step() -> None:
    """Nobody goes on, as state was on its way to all: routes are those of pipelines all of whose workers live."""
    planner = PlannerSettings(num_microbatches=9, fault_tolerance=1, num_nodes=6, devices_per_node=1, min_nodes=2)
    plan = initial_plan(PROFILE, make_templates(PROFILE, planner)[:1], planner, [NodeId(n) for n in range(6)], 1)
    live = [WorkerId(w) for w in range(5)]
    new = finish_step(plan, live, live, Ledger.empty(6), plan.layers_of, 2, PROFILE)
    assert new.pipelines[:2] == plan.pipelines[:2]
    assert {route.hops for route in new.routes} == {pipeline.stages for pipeline in plan.pipelines[:2]}
    assert sorted(m for route in new.routes for m in route.microbatches) == list(range(9))


def test_no_replica_names_the_group() -> None:
    plan = start(PROFILE, SETTINGS)
    with pytest.raises(NoReplica, match=r"group 0 .*Restore"):
        Step(PROFILE, plan, 0).lose({NodeId(0), NodeId(3)})


def test_a_worker_that_goes_on_beside_a_lost_one_is_refused() -> None:
    plan = start(PROFILE, SETTINGS)
    live = [WorkerId(w) for w in range(1, 5)]
    with pytest.raises(PlanError, match=r"Workers \[1, 2\] share a route"):
        finish_step(plan, live, [], Ledger.empty(6), plan.layers_of, 2, PROFILE)


def test_to_halt_follows_shared_pipelines_and_routes() -> None:
    plan = start(PROFILE, SETTINGS)
    assert to_halt(plan, [WorkerId(w) for w in (1, 2, 3, 4)]) == {1, 2}
    hops = (*plan.routes[0].hops[:2], plan.pipelines[1].stages[1])
    crossing = msgspec.structs.replace(plan.routes[0], hops=hops)
    tangled = msgspec.structs.replace(plan, routes=(crossing, plan.routes[1]))
    assert to_halt(tangled, [WorkerId(w) for w in (1, 2, 3, 4)]) == {1, 2, 3, 4}


def test_survivors_without_work_are_halted_once() -> None:
    """A later loss of the step asks only those that it touches, and survivors through which something passes."""
    planner = PlannerSettings(num_microbatches=9, fault_tolerance=1, num_nodes=9, devices_per_node=1, min_nodes=3)
    templates = make_templates(PROFILE, planner)[:1]
    plan = initial_plan(PROFILE, templates, planner, [NodeId(n) for n in range(9)], 1)
    step = Step(PROFILE, plan, 0)
    step.lose({NodeId(0)})
    assert step.reports.keys() == {1, 2}
    struck = step.machine.plan
    live = [worker for worker in struck.workers if worker != 3]
    assert to_halt(struck, live) == {4, 5}
    hops = (*struck.pipelines[-1].stages[:-1], *runs_of(WorkerId(2), plan.layers_of[WorkerId(2)]))
    passing = msgspec.structs.replace(struck.routes[-1], hops=hops)
    assert to_halt(struck.renewed(routes=(*struck.routes[:-1], passing)), live) == {1, 2, 4, 5, 6, 7, 8}
    step.lose({NodeId(3)})
    step.finish()


def test_missing_work_is_spread_over_the_pipelines_that_are_left() -> None:
    planner = PlannerSettings(num_microbatches=9, fault_tolerance=1, num_nodes=6, devices_per_node=1, min_nodes=2)
    templates = make_templates(PROFILE, planner)[:1]
    plan = initial_plan(PROFILE, templates, planner, [NodeId(n) for n in range(6)], 1)
    assert [len(route.microbatches) for route in plan.routes] == [3, 3, 3]
    step = Step(PROFILE, plan, 0)
    step.lose({NodeId(4), NodeId(5)})
    added = {route.hops[0].worker: len(route.microbatches) for route in step.machine.plan.routes if route.born == 2}
    assert added == {0: 2, 2: 1}
    step.finish()


def test_what_a_plan_knows_of_itself_is_what_one_that_was_read_finds_out() -> None:
    """Plans share what is known of their pipelines, and later ones take over what is known of a placement."""
    profile = uniform_profile(num_layers=8)
    plan = start(profile, PlannerSettings(num_microbatches=12, num_nodes=8, devices_per_node=1, fault_tolerance=1))
    lost = plan.pipelines[0].workers[0]
    live = [worker for worker in plan.workers if worker != lost]
    holders = {worker: plan.layers_of[worker] for worker in live}
    rest = finish_step(plan, live, sorted(to_halt(plan, live)), Ledger.empty(8), holders, 1, profile)
    for known in (plan, rest, rest.renewed(generation=2)):
        read = msgspec.json.decode(msgspec.json.encode(known), type=Plan)
        assert read == known
        assert hash(read) == hash(known)
        names = "workers nodes devices_of layers_of groups_of owners_of num_owners pipeline_of_route"
        for name in names.split():
            assert getattr(known, name) == getattr(read, name), name
        assert known.num_owners == tuple(map(len, known.owners_of))
        assert [known.pipelines[at].stages for at in known.pipeline_of_route] == [route.hops for route in known.routes]
