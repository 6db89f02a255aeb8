"""State beside steps: what a joiner's state costs the steps beside which it comes, and how fast it comes.

Three replicas of one stage on hosts with links of a given rate (see `wire.py`). Then a fourth host's agent offers its
node, and state moves to it beside steps of the others, by plans to warm up.

slowdown: the mean step beside which state moves, over the median step before.
rate-at-least: state that came in a second of these steps, over what the links it needs had free: the joiner's own, or
    its senders' all together, less the bytes of sums that steps of that length send. Where state is there before its
    step is over, the rate was higher.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from figures import SCRATCH, Figures, note
from hosts import ENVIRONMENT, NoNamespaces, cluster, started
from wire import commit_after, estimated_bytes, plan_of
from wire_cases import JOB, hosts, replicas

from planaria.protocol.messages.records import AnyRecord, PlanTaken, StepCommitted

COUNT = 4
SETTLED = 10
"""Steps after which links and estimates are known."""
USUAL = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """One node's way into the plan.

    Attributes:
        usual_s: median step before.
        beside_s: steps beside which its state moved.
        moved_bytes: its state.
    """

    usual_s: float
    beside_s: Sequence[float]
    moved_bytes: int


def joined(records: Sequence[tuple[AnyRecord, float]]) -> Joining:
    """The first that there was."""
    purpose, usual, beside, moved = "", list[float](), list[float](), 0
    for record, _ in records:
        match record:
            case PlanTaken():
                if beside and record.purpose != "warm up":
                    break
                purpose = record.purpose
                moved += record.transfer_bytes if purpose == "warm up" else 0
            case StepCommitted():
                (beside if purpose == "warm up" else usual).append(record.duration_s)
            case _:
                pass
    return Joining(usual_s=statistics.median(usual[-USUAL:]), beside_s=beside, moved_bytes=moved)


def measure(figures: Figures, gbits: float, numerics: str, microbatches: int, joins: int) -> None:
    job = [*replicas(COUNT, numerics), "resilience.fault_tolerance=1", f"train.global_batch={microbatches * COUNT}"]
    found: list[Joining] = []
    for _ in range(joins):
        with hosts(COUNT, gbits) as made:
            side = cluster(made, "joins", JOB, *job, f"cluster.nodes={COUNT - 1}")
            *first, (host, script, arguments, environment) = side.launches
            side.launches = first
            with started(side):
                side.steps(SETTLED + USUAL)
                made.start(host, SCRATCH, *arguments, script=script, environment={**ENVIRONMENT, **environment})
                commit_after(
                    side, lambda record, _: isinstance(record, PlanTaken) and sum(map(len, record.pipelines)) == COUNT
                )
                found.append(joined(side.records))
                sent = estimated_bytes(plan_of(side), side.profile) / (COUNT - 1)
    name = f"joining.{gbits:g}gbit.{numerics}"
    link = gbits * 1e9 / 8
    for one in found:
        note(
            f"{name}: {one.moved_bytes / 1e6:.1f} MB beside {' '.join(f'{s:.2f}' for s in one.beside_s)} s; "
            f"usual {one.usual_s:.2f} s, of which the wire is busy {sent / link:.2f} s"
        )
    figures.add_samples(f"{name}.steps-beside", [float(len(one.beside_s)) for one in found], "count")
    slower = [statistics.mean(one.beside_s) / one.usual_s for one in found]
    figures.add(f"{name}.slowdown", statistics.median(slower), "ratio", goal="<= 1.1", samples=len(found))
    rates = []
    for one in found:
        took = sum(one.beside_s)
        free = min(took * link, (COUNT - 1) * (took * link - len(one.beside_s) * sent))
        rates.append(one.moved_bytes / free)
    figures.add(f"{name}.rate-at-least", statistics.median(rates), "ratio", samples=len(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gbits", type=float, nargs="*", default=[1.0], help="rates of links (default: 1)")
    parser.add_argument("--numerics", nargs="*", default=["fast"], help="fast, exact (default: fast)")
    parser.add_argument("--microbatches", type=int, default=4, help="of each replica (default: %(default)s)")
    parser.add_argument("--joins", type=int, default=4, help="in each run (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    given = parser.parse_args()
    figures = Figures("joining")
    try:
        for gbits in given.gbits:
            for numerics in given.numerics:
                measure(figures, gbits, numerics, given.microbatches, given.joins)
    except NoNamespaces as reason:
        note(f"network namespaces cannot be made here: {reason}")
        return
    figures.finish(given.json)


if __name__ == "__main__":
    main()
