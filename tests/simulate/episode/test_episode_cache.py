"""What is remembered of moments: what is asked again when several things may follow one."""

from __future__ import annotations

from dataclasses import replace

from planaria.plan.plan import Plan
from planaria.policy.interface import Candidate, ReplanRequest
from planaria.policy.templates import TemplatesPolicy
from planaria.simulate.episode.episode_cache import EpisodeCache, Moment, Root
from planaria.simulate.episode.subject import Disturbance, RunOutlook
from planaria.simulate.simulation import Simulation
from tests.simulate.test_simulation import NUM_NODES, experiment

KNOWN = RunOutlook(time_to_failure_s=3600.0, steps_left=1000, steps_at_stake=1)
CAME = (0, Disturbance.CAME, NUM_NODES, "")


ASKED: list[str] = []


class Counting(TemplatesPolicy):
    """Notes what it is asked."""

    def reconfigure(self, request: ReplanRequest) -> Candidate:
        ASKED.append("reconfigure")
        return super().reconfigure(request)

    def warm_up(self, plan: Plan, target: Candidate, generation: int, *, in_parts: bool = False) -> Candidate | None:
        ASKED.append("warm up")
        return super().warm_up(plan, target, generation, in_parts=in_parts)


def warming(memory: EpisodeCache) -> tuple[Root, Moment]:
    """A node has come, and gets its state beside a step."""
    rest, _ = memory.start(("",) * NUM_NODES, KNOWN)
    root = memory.root(rest.state, KNOWN)
    assert root.first is not None
    found = memory.after(root, memory.struck(root, root.first, CAME))
    assert found.tally.plans == ["warm up"]
    return root, found


def after_loss(memory: EpisodeCache, root: Root, moment: Moment, node: int) -> list[Moment]:
    """A node is lost, and all that follows."""
    moments = [memory.struck(root, moment, (0, Disturbance.LOST, node, ""))]
    while moments[-1].rest is None:
        moments.append(memory.after(root, moments[-1]))
    return moments


def test_a_placement_is_asked_for_once_whatever_comes_after_it() -> None:
    """Each loss in a step beside which state moves leads another way, which begins with the same answers."""
    about = experiment()
    policy = Counting.of(about.planner)
    ASKED.clear()
    memory = about.simulation("templates", policy).memory
    root, moment = warming(memory)
    asked = ASKED.count("warm up"), len(ASKED)
    assert asked == (1, 2)
    for node in range(NUM_NODES):
        memory.struck(root, moment, (0, Disturbance.LOST, node, ""))
    assert len(ASKED) == asked[1]
    for node in range(NUM_NODES):
        fresh = about.simulation("templates", policy, remembers=False).memory
        expected = after_loss(fresh, *warming(fresh), node)
        found = after_loss(memory, root, moment, node)
        assert [(one.lasts_s, one.tally, one.rest) for one in found] == [
            (one.lasts_s, one.tally, one.rest) for one in expected
        ]


def test_what_follows_from_a_state_counts_as_remembered() -> None:
    """One state, from which many ways lead: they take more room than it does."""
    about = experiment()
    subject = about.simulation("templates", TemplatesPolicy.of(about.planner)).subject
    memory = EpisodeCache(subject, most_workers=8 * NUM_NODES)
    root, moment = warming(memory)
    for node in range(NUM_NODES):
        after_loss(memory, root, moment, node)
    assert memory.num_forgotten == 0
    again = memory.root(root.state, replace(KNOWN, steps_left=10))
    assert memory.num_forgotten == 1
    assert memory.root(root.state, KNOWN) is not root
    assert memory.root(root.state, replace(KNOWN, steps_left=10)) is again


def test_where_runs_begin_is_forgotten_with_the_rest() -> None:
    about = experiment()
    simulation = about.simulation("templates", TemplatesPolicy.of(about.planner))
    small = Simulation(simulation.subject, about.terms, EpisodeCache(simulation.subject, most_workers=1))
    begins = small.start(("",) * NUM_NODES)
    assert begins is not None
    assert small.start(("",) * NUM_NODES) is begins
    small.memory.root(begins[0].state, KNOWN)
    assert small.memory.num_forgotten == 1
    again = small.start(("",) * NUM_NODES)
    assert again is not begins
    assert again == begins
