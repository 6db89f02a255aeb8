"""The chain's step time is the event simulation's, and no path bound is above it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.estimate.step_time import simulate
from planaria.plan.compiled import Work
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.pipeline_time import Chain, Floats, charged, times_s
from planaria.plan.plan import NodeId, ScheduleKind
from planaria.plan.settings import PlannerSettings
from planaria.planner.instantiation.instantiate import initial_plan
from planaria.planner.templates.split_dp import bounds_s, path_weights
from planaria.planner.templates.templates import make_templates
from tests.plan.profiles import random_profiles
from tests.proof import examples

KINDS = [kind for kind in ScheduleKind if not kind.splits_backward]


@settings(max_examples=examples(60), deadline=None)
@given(profile=random_profiles(), kind=st.sampled_from(KINDS), num=st.integers(1, 9), data=st.data())
def test_a_templates_time_is_that_of_the_event_simulation(
    profile: ModelProfile, kind: ScheduleKind, num: int, data: st.DataObject
) -> None:
    nodes = data.draw(st.integers(1, profile.num_layers))
    planner = PlannerSettings(
        num_microbatches=num, fault_tolerance=0, num_nodes=nodes, devices_per_node=1, min_nodes=nodes, schedule=kind
    )
    (template,) = make_templates(profile, planner)
    plan = initial_plan(profile, [template], planner, [NodeId(n) for n in range(nodes)], 1)
    plan = msgspec.structs.replace(plan, groups=(), sync_epochs=())
    assert template.chain is not None
    assert template.chain.time_s(num) == pytest.approx(simulate(plan, profile).step_time_s, rel=1e-12)
    assert template.step_time_s == template.chain.time_s(num)


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    stages = draw(st.integers(1, 6))
    times = st.floats(0.001, 1.0)
    return Chain(
        forward_s=tuple(draw(times) for _ in range(stages)),
        backward_s=tuple(draw(times) for _ in range(stages)),
        link_s=tuple(draw(st.sampled_from([0.0, 0.01, 0.3])) for _ in range(stages - 1)),
        schedule=draw(st.sampled_from(KINDS)),
        overlap=draw(st.booleans()),
    )


@settings(max_examples=25, deadline=None)
@given(chain=chains(), num=st.integers(1, 12))
def test_many_chains_interpreted_or_compiled_have_the_bits_of_one(chain: Chain, num: int) -> None:
    one = [np.array([row]) for row in (chain.forward_s, chain.backward_s, chain.link_s)]
    rows = charged(*(np.repeat(row, 20, axis=0) for row in one), overlap=chain.overlap)
    for compiled in (False, True):
        times = times_s(*rows, num, chain.schedule, Work(compiled=compiled))
        assert times.tolist() == [chain.time_s(num)] * 20


@settings(max_examples=examples(150), deadline=None)
@given(chain=chains(), num=st.integers(1, 25))
def test_no_path_is_longer_than_the_step(chain: Chain, num: int) -> None:
    forward, backward, link = (
        row[0].tolist()
        for row in charged(
            np.array([chain.forward_s]), np.array([chain.backward_s]), np.array([chain.link_s]), overlap=chain.overlap
        )
    )
    step = chain.time_s(num)
    stages = len(forward)
    for place in range(stages):
        before = sum(forward[:place]) + sum(backward[:place]) + 2 * sum(link[:place])
        after = sum(forward[place + 1 :]) + sum(backward[place + 1 :]) + 2 * sum(link[place:])
        own = [before, after, forward[place], backward[place], link[place] if place + 1 < stages else 0.0]
        for known in ((stages - 1 - place, stages), (stages - 1 - place, None), (None, None)):
            weights = path_weights(chain.schedule, num, *known)
            assert (weights >= 0).all()
            assert (weights @ own).max() <= step * (1 + 1e-9)


def test_a_send_that_occupies_its_sender_lengthens_the_path() -> None:
    """Two stages, two microbatches, forward 1, backward 2, message 0.5: by hand."""
    times = {"forward_s": (1.0, 1.0), "backward_s": (2.0, 2.0), "link_s": (0.5,)}
    # 0: F0 0-1, sends to 1.5, F1 1.5-2.5, sends to 3. 1: F0 1.5-2.5, B0 -4.5, sends to 5, F1 5-6, B1 6-8, sends to
    # 8.5. 0: B1 8.5-10.5.
    assert Chain(**times, overlap=False).time_s(2) == pytest.approx(10.5)
    # 1: F0 1.5-2.5, B0 -4.5, F1 4.5-5.5, B1 -7.5; 0: B1 8-10.
    assert Chain(**times).time_s(2) == pytest.approx(10.0)
    assert Chain(**times).time_s(0) == 0.0


def test_an_even_chain_without_messages_is_the_textbooks() -> None:
    chain = Chain(forward_s=(1.0,) * 4, backward_s=(2.0,) * 4, link_s=(0.0,) * 3)
    assert chain.time_s(9) == pytest.approx((4 - 1 + 9) * 3.0)


@given(many=st.lists(chains(), min_size=1, max_size=5), num=st.integers(1, 12))
def test_bounds_of_many_chains_are_never_above_their_times(many: list[Chain], num: int) -> None:
    for chain in many:
        alike = [one for one in many if (len(one.forward_s), one.schedule) == (len(chain.forward_s), chain.schedule)]
        rows = [
            np.concatenate([charged(*arrays(one), overlap=one.overlap)[part] for one in alike]) for part in range(3)
        ]
        times = times_s(*rows, num, chain.schedule)
        assert (bounds_s(*rows, num, chain.schedule) <= times * (1 + 1e-12)).all()


def arrays(chain: Chain) -> tuple[Floats, Floats, Floats]:
    return np.array([chain.forward_s]), np.array([chain.backward_s]), np.array([chain.link_s])
