"""Several losses within one step: how long it takes, in steps at full strength. 16 workers, in virtual time.

Workers compute as the profile says and decisions take no time: what the plans alone are worth, the same every time, on
whatever machine. Losses early, in the middle and late in the step, under three seeds of the network's weather: means.
A minute.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from adaptive import EVEN, LINK_MS, MICROBATCHES, NODES, STAGES, GivenSetup, Watched, first_plan
from fidelity import Case, profile_of
from figures import report
from tests.testkit.schedules.faults import Fault, FaultKind
from tests.testkit.schedules.schedule import Schedule
from tests.testkit.schedules.weather import Weather

from planaria.job.registry import PolicyName
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.plan import ScheduleKind

POLICIES = (PolicyName.TEMPLATES, PolicyName.REROUTE, PolicyName.REDUNDANCY, PolicyName.ADAPTIVE)
STEPS, STRUCK = 8, 6
AT_S = (0.05, 0.15, 0.25)
SEEDS = (1, 2, 3)

STORMS = {
    "single": [((0, 1), 0.0)],
    "two-pipelines": [((0, 1), 0.0), ((1, 2), 0.0)],
    "three-pipelines": [((0, 1), 0.0), ((1, 2), 0.0), ((2, 3), 0.0)],
    "four-in-turn": [((0, 1), 0.0), ((1, 2), 0.05), ((2, 3), 0.1), ((3, 0), 0.15)],
    "six-in-turn": [((0, 1), 0.0), ((1, 2), 0.05), ((2, 3), 0.1), ((0, 2), 0.15), ((1, 0), 0.2), ((2, 1), 0.25)],
}
"""Places (pipeline and stage of the first plan), and seconds after the first loss."""


def steps_s(profile: ModelProfile, storm: str, policy: PolicyName, at_s: float, seed: int) -> dict[int, float]:
    """Seconds of each step but the first."""
    plan = first_plan(profile)
    faults = tuple(
        Fault(
            kind=FaultKind.KILL, nodes=(plan.pipelines[pipeline].stages[stage].worker,), at="JournalCommit",
            nth=STRUCK - 1, delay_s=at_s + after_s,
        )
        for (pipeline, stage), after_s in STORMS[storm]
    )  # fmt: skip
    setup = GivenSetup(
        num_layers=profile.num_layers, is_tied=True, is_large=False, num_nodes=NODES, devices_per_node=1,
        fault_tolerance=1, min_nodes=STAGES, num_microbatches=MICROBATCHES, steps=STEPS, checkpoint_every=0,
        order=ScheduleKind.ONE_F_ONE_B, waits=False, policy=policy, given=profile,
    )  # fmt: skip
    weather = Weather(
        compute_s=1e-4, network_s=LINK_MS * 1e-3, control_s=2e-3, detect_s=3e-3, spread=2.0, is_as_profiled=True
    )
    cluster = Watched(Schedule(seed=seed, setup=setup, weather=weather, faults=faults))
    cluster.run()
    at = cluster.committed
    return {step: at[step] - at[step - 1] for step in at if step - 1 in at}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--storm", choices=STORMS, help="one alone")
    arguments = parser.parse_args()
    profile = profile_of(Case(name="adaptive", nodes=NODES, layers=EVEN, link_ms=LINK_MS), 0.006)
    for storm in STORMS if arguments.storm is None else [arguments.storm]:
        for policy in POLICIES:
            found = []
            for at_s in AT_S:
                for seed in SEEDS:
                    took = steps_s(profile, storm, policy, at_s, seed)
                    found.append(took[STRUCK] / statistics.median(took[step] for step in range(3, STRUCK)))
            report(f"storms.{storm}.{policy.value}", statistics.mean(found), "steps")


if __name__ == "__main__":
    sys.exit(main())
