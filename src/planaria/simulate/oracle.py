"""The oracle: it knows the trace, and takes for each disturbance the policy that is best in the end.

A search over sequences of policies, for small cases: at each disturbance, every run that is kept tries every policy,
and of all that follow the best are kept. So it is no bound, but at least as good as any policy that it chooses from.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from planaria.simulate.baselines import ORACLE
from planaria.simulate.results import RunResult
from planaria.simulate.run_model import Terms
from planaria.simulate.simulation import Simulation
from planaria.simulate.trace_events import Course
from planaria.simulate.trace_run import Following
from planaria.simulate.traces.trace import Trace

KEPT = 32
"""Runs that are kept at each disturbance; of those in one state, the one that trained most by then."""


class Oracle:
    """Over several simulations of the same job.

    Args:
        simulations: one of each policy that it chooses from.
        terms: of the job.
    """

    def __init__(self, simulations: Sequence[Simulation], terms: Terms) -> None:
        self._simulations = simulations
        self._terms = terms

    def run(self, trace: Trace) -> RunResult:
        """Over a trace."""
        course = Course.of(trace, self._simulations[0].subject.timings.start_s)
        alive = [Following(simulation, course) for simulation in self._simulations]
        for run in alive:
            run.begin()
        ended: list[Following] = [run for run in alive if run.is_over]
        alive = _best([run for run in alive if not run.is_over])
        while alive:
            following: list[Following] = []
            for run in alive:
                for simulation in self._simulations:
                    other = run.fork(simulation)
                    other.go_on()
                    (ended if other.is_over else following).append(other)
            alive = _best(following)
        # A single policy's run may have been dropped where another led; it is never worse to have it.
        results = [run.result() for run in ended] + [simulation.follow(course) for simulation in self._simulations]
        best = max(results, key=lambda result: (result.samples_per_s, -result.cost))
        return _named(best)


def _named(result: RunResult) -> RunResult:
    return msgspec.structs.replace(result, policy=ORACLE)


def _best(runs: Sequence[Following]) -> list[Following]:
    """Of runs after the same disturbance: the best of each state, and of those the best."""
    of_state: dict[object, Following] = {}
    for run in runs:
        other = of_state.get(run.state)
        if other is None or run.microbatches > other.microbatches:
            of_state[run.state] = run
    return sorted(of_state.values(), key=lambda run: -run.microbatches)[:KEPT]
