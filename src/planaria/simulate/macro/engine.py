"""The engine: runs of one policy on one kind of cluster."""

from __future__ import annotations

from planaria.simulate.macro.account import RunResult
from planaria.simulate.macro.basis import RunBasis
from planaria.simulate.macro.course import Course
from planaria.simulate.macro.following import Following
from planaria.simulate.trace import Trace


class Simulation(RunBasis):
    """Runs of one policy on one kind of cluster. One trace gives one result, whatever was run before."""

    def run(self, trace: Trace) -> RunResult:
        """Over a trace."""
        return self.follow(Course.of(trace, self.subject.timings.start_s))

    def follow(self, course: Course) -> RunResult:
        """Over a trace, as a run meets it."""
        run = Following(self, course)
        run.begin()
        while not run.is_over:
            run.go_on()
        return run.result()
