"""The engine: runs of one policy on one kind of cluster."""

from __future__ import annotations

from planaria.simulate.results import RunResult
from planaria.simulate.run_model import RunBasis
from planaria.simulate.trace_events import TraceEvents
from planaria.simulate.trace_run import TraceRun
from planaria.simulate.traces.trace import Trace


class Simulation(RunBasis):
    """Runs of one policy on one kind of cluster. One trace gives one result, whatever was run before."""

    def run(self, trace: Trace) -> RunResult:
        """Returns the result of a run over a trace."""
        return self.follow(TraceEvents.of(trace, self.subject.timings.start_s))

    def follow(self, course: TraceEvents) -> RunResult:
        """Returns the result of a run over a trace, given as the events that a run meets."""
        run = TraceRun(self, course)
        run.begin()
        while not run.is_over:
            run.go_on()
        return run.result()
