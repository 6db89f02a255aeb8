"""The same losses among the real machines, message by message where nothing varies, and in the macro simulator."""

from __future__ import annotations

import pytest

from planaria.job.registry import PolicyName
from planaria.simulate.experiment import Experiment
from planaria.simulate.timings import Timings
from planaria.simulate.traces import tally
from planaria.simulate.traces.trace import Change, Trace, TraceEvent
from tests.proof import rest_in_proof
from tests.simulate.test_exact import MB, MICROBATCHES, NODES, VOTE_S, Listening, setup_of
from tests.testkit.schedules.faults import Fault, FaultKind
from tests.testkit.schedules.schedule import Schedule
from tests.testkit.schedules.weather import Weather

DETECT_S = 1e-3
WINDOW_S = 2.0
"""Four steps or five, of which one is struck."""


def messages(policy: PolicyName, nodes: tuple[int, ...], at_s: float, every: int = 0) -> float:
    """Samples a second from the third commit on."""
    faults = tuple(
        Fault(kind=FaultKind.KILL, nodes=(node,), at="JournalCommit", nth=tally.WARM_UP_STEPS, delay_s=at_s)
        for node in nodes
    )
    weather = Weather(compute_s=0.0, network_s=0.0, control_s=VOTE_S / 2, detect_s=DETECT_S, is_exact=True)
    cluster = Listening(Schedule(seed=1, setup=setup_of(policy, MB, every), weather=weather, faults=faults))
    cluster.run()
    told = list(zip(cluster.told, cluster.times_s, strict=True))
    began_s = tally.begin_of(told)
    assert began_s is not None
    return tally.tally(told, began_s, began_s + WINDOW_S, global_batch=MICROBATCHES, microbatch=1).samples_per_s


def macro(policy: PolicyName, nodes: tuple[int, ...], at_s: float, every: int = 0, unprepared_s: float = 0.0) -> float:
    setup = setup_of(policy, MB, every)
    experiment = Experiment(
        profile=setup.profile,
        settings=setup.planner,
        checkpoint_every=every,
        timings=Timings(
            detection_s=DETECT_S,
            decision_s=0.0,
            unprepared_s=unprepared_s,
            change_s=0.0,
            restart_s=0.0,
            storage_bytes_per_s=1e15,
            checkpoint_copy_bytes_per_s=1e15,
        ),
        num_parts=100,
        by_number=True,
        begins_trained=True,
    )
    first = [TraceEvent(at_s=0.0, change=Change.ADD, node=f"node{node}") for node in range(NODES)]
    later = [TraceEvent(at_s=at_s, change=Change.REMOVE, node=f"node{node}") for node in nodes]
    return (
        experiment.runner(policy.value).run(Trace(name="x", horizon_s=WINDOW_S, events=(*first, *later))).samples_per_s
    )


@pytest.mark.parametrize("at_s", rest_in_proof([0.25, 0.1, 0.35]))
@pytest.mark.parametrize("nodes", [(2,), (2, 3)])
@pytest.mark.parametrize(
    "policy",
    [PolicyName.TEMPLATES, PolicyName.REROUTE, PolicyName.DROP, PolicyName.REDUNDANCY, PolicyName.ADAPTIVE],
)
def test_a_struck_step_takes_as_long(policy: PolicyName, nodes: tuple[int, ...], at_s: float) -> None:
    assert macro(policy, nodes, at_s) == pytest.approx(messages(policy, nodes, at_s), rel=0.08)


@pytest.mark.parametrize("at_s", [0.1, 1.4])
def test_a_checkpoint_that_is_whole_within_a_step_is_gone_back_to_in_that_step(at_s: float) -> None:
    """The third step's and the sixth's are written while the next one begins."""
    found = macro(PolicyName.MORPH, (2,), at_s, tally.WARM_UP_STEPS)
    assert found == pytest.approx(messages(PolicyName.MORPH, (2,), at_s, tally.WARM_UP_STEPS), rel=0.08)


def test_what_could_not_be_prepared_takes_its_own_time_to_decide() -> None:
    """Losses of several nodes at once; those of one are thought through while training runs."""
    one, two = (2,), (2, 3)
    assert macro(PolicyName.ADAPTIVE, one, 0.1, unprepared_s=0.2) == macro(PolicyName.ADAPTIVE, one, 0.1)
    assert macro(PolicyName.ADAPTIVE, two, 0.1, unprepared_s=0.2) < 0.93 * macro(PolicyName.ADAPTIVE, two, 0.1)
