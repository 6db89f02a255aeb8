"""What the death of the coordinator costs: real SIGKILLs of its process in steps of the demo job.

outage: from the moment at which its supervisor sees it gone until all workers are back and a commit is told of, which
may be one that the dead one had written down; workers compute on meanwhile.
return: from the new coordinator's beginning until every worker has come back.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from figures import SCRATCH, note, report
from sides import planaria_side

from planaria.job.parse import load_job
from planaria.protocol.messages.records import CoordinatorRestarted, NodeLost, Note, StepCommitted
from planaria.runtime.run_folder.recorder import read_events

DEMO = Path(__file__).parents[1] / "examples" / "demo.toml"
POINTS = ("vote", "commit", "tell", "return")
"""Where it dies, in turn; at `return` the successor of one that died at a vote dies too."""
STEPS_BETWEEN = 4


@dataclass(frozen=True, slots=True)
class Outage:
    """One death, or several without a commit in between.

    Attributes:
        to_commit_s: from the first death to the next commit.
        returned_s: from the last coordinator's beginning until all were back.
        step_s: an undisturbed step of the run.
        deaths: of coordinators.
    """

    to_commit_s: float
    returned_s: float
    step_s: float
    deaths: int


def outages_of(events: Path) -> list[Outage]:
    """Those of one run."""
    durations: list[float] = []
    found: list[tuple[float, float, int]] = []
    gone_at: float | None = None
    deaths, returned_s, is_back, has_committed = 0, 0.0, False, False
    for record, time_s in read_events(events):
        match record:
            case Note(text=text) if "the coordinator is gone" in text:
                gone_at, deaths = gone_at or time_s, deaths + 1
                is_back = False
            case CoordinatorRestarted(seconds=seconds):
                returned_s, is_back = seconds, True
            case StepCommitted() if gone_at is not None:
                has_committed = True
            case StepCommitted(duration_s=duration_s):
                durations.append(duration_s)
            case NodeLost(cause=cause):
                raise SystemExit(f"a node was lost ({cause}): not a figure of the coordinator alone")
            case _:
                pass
        if gone_at is not None and is_back and has_committed:
            found.append((time_s - gone_at, returned_s, deaths))
            gone_at, deaths, is_back, has_committed = None, 0, False, False
    step_s = statistics.median(durations)
    return [Outage(to_commit_s, returned_s, step_s, deaths) for to_commit_s, returned_s, deaths in found]


def measure(deaths: int) -> list[Outage]:
    steps = STEPS_BETWEEN * (deaths + 1)
    faults = []
    for number, point in enumerate(islice(cycle(POINTS), deaths)):
        step = STEPS_BETWEEN * (number + 1)
        faults += [f"coordinator:step={step},at=vote"] if point == "return" else []
        faults.append(f"coordinator:step={step},at={point}")
    job = load_job(DEMO, [f"train.steps={steps}", "resilience.policy=templates", f'run.folder="{SCRATCH / "runs"}"'])
    side = planaria_side("restart", job, faults)
    subprocess.run(side.commands[0][0], check=True, timeout=600, stdout=subprocess.DEVNULL)
    found = outages_of(side.log)
    for outage in found:
        note(
            f"{outage.deaths} deaths: all back {outage.returned_s * 1e3:.0f} ms after the beginning, "
            f"next commit after {outage.to_commit_s * 1e3:.0f} ms; a step takes {outage.step_s * 1e3:.0f} ms"
        )
    shutil.rmtree(side.log.parent)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deaths", type=int, default=16, help="of coordinators, at least (default: %(default)s)")
    arguments = parser.parse_args()
    SCRATCH.mkdir(parents=True, exist_ok=True)
    found = measure(arguments.deaths)
    report("restart.deaths", sum(outage.deaths for outage in found), "count")
    report("restart.step", statistics.median(outage.step_s for outage in found) * 1e3, "ms")
    report("restart.return", statistics.median(outage.returned_s for outage in found) * 1e3, "ms")
    report("restart.outage", statistics.median(outage.to_commit_s for outage in found) * 1e3, "ms")
    beyond = max(outage.to_commit_s - outage.step_s for outage in found)
    report("restart.outage-less-a-step.worst", beyond * 1e3, "ms", goal="<= 1000")


if __name__ == "__main__":
    main()
