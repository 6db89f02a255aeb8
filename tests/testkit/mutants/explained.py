"""Changes that no schedule can find, each with the reason: `make mutants` tells them apart from what is missed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.testkit.mutants.sites import Site


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why some changes break no promise.

    Attributes:
        file: below `planaria`.
        function: in it, by its qualified name; "": any.
        text: that the changed line begins with; "": any.
        why: it breaks none.
    """

    file: str
    function: str
    text: str
    why: str


_OTHER_PLANS = "it decides which plan is taken, or when, and no plan changes a bit"
_TIMES = "it is a measured time: estimates and limits come of it, no bits"
_AHEAD = "it decides which answers are found ahead, or when; they are those that would be found later"

EXPLAINED: tuple[Explanation, ...] = (
    Explanation("protocol/planning/step_times.py", "", "", _TIMES),
    Explanation("protocol/planning/straggler_detection.py", "", "", _OTHER_PLANS),
    Explanation("protocol/planning/straggler_policy.py", "", "", _OTHER_PLANS),
    Explanation("protocol/planning/plan_validity.py", "PlanValidity.place", "self.newcomers", _OTHER_PLANS),
    Explanation("protocol/run/run.py", "Run.forecast", "", _OTHER_PLANS),
    Explanation("protocol/run/run.py", "Run._recall", "", _OTHER_PLANS),
    Explanation("protocol/run/returning.py", "ReturningWorkers.plan_validity", "came =", _OTHER_PLANS),
    Explanation("protocol/handlers/adopt_plan.py", "put_in_force", "if purpose in (Purpose.RECONFIGURE", _TIMES),
    Explanation("protocol/handlers/boundary.py", "_hand_over", "stands =", _OTHER_PLANS),
    Explanation("protocol/handlers/joins.py", "node_notice", "run.plan_validity.newcomers", _OTHER_PLANS),
    Explanation("protocol/planning/measured_links.py", "_is_off", "", _OTHER_PLANS),
    Explanation("protocol/planning/plan_selection.py", "PlanSelector.beside", "if was_switched", _OTHER_PLANS),
    Explanation(
        "protocol/membership/liveness.py",
        "Liveness.hung",
        "idle =",
        "what takes exactly so long is judged a beat later",
    ),
    Explanation("protocol/handlers/adopt_plan.py", "_begin_attempt", "run.plan_validity.warm", _OTHER_PLANS),
    Explanation(
        "protocol/handlers/salvage.py", "_anew_s", "if rest_s <", "two times that were computed are never the same"
    ),
    Explanation(
        "protocol/handlers/restart.py",
        "go_on_from",
        "run.counts.dropped",
        "the journal says the same number, unless it lost its end; there the witness asks for none",
    ),
    Explanation("protocol/handlers/step.py", "_tell", "run.checkpoints.cadence.committed", _TIMES),
    Explanation("protocol/planning/plan_selection.py", "", "self.straggler_policy.look_again", _OTHER_PLANS),
    Explanation(
        "protocol/planning/transition_times.py",
        "TransitionTimes.__init__",
        "self._is_restore",
        "it is set before it is read",
    ),
    Explanation(
        "protocol/membership/members.py",
        "Membership.enrol",
        "if per_node",
        "of one device a node the workers' numbers are the nodes', however they are listed",
    ),
    Explanation("protocol/step/ballot.py", "Ballot.tally", "took =", "both lists are of the voters, and as long"),
    *(
        Explanation(
            "protocol/run/run.py",
            "Run.to_write_of_join",
            text,
            "it decides how often measurements are written beside joins; the next plan or commit has them",
        )
        for text in ("if 8 * num_nodes", "self._num_written")
    ),
    *(
        Explanation("protocol/reception.py", "Reception._think", text, _AHEAD)
        for text in (
            "if now < self._rests_until",
            "return min(",
            "rest =",
            "self._machine.handle(Idle",
            "took =",
            "self._machine.handle(PieceTook",
            "self._rests_until",
        )
    ),
    *(
        Explanation("protocol/handlers/precompute.py", function, text, _AHEAD)
        for function, text in (
            ("thinks", "if run.recovery is not None"),
            ("thinks", "if not _look"),
            ("thinks", "return run.precomputed"),
            ("think", "run.precomputed.think"),
            ("took", "run.precomputed.took"),
            ("_look", "live, zones"),
            ("_next_at_once", "if run.plan_validity"),
            ("_next_at_once", "return True"),
            ("_next_at_once", "return None if"),
            ("_holders", "if _next_at_once"),
            ("_gone", "return _absent"),
            ("_absent", "return frozenset"),
        )
    ),
    Explanation("protocol/planning/plan_selection.py", "PlanSelector.recall", "self.policy =", _OTHER_PLANS),
    Explanation(
        "protocol/worker/sums.py",
        "Sums.next_piece",
        "self._open.remove",
        "a sum that stays open is looked at once more, and nothing is found",
    ),
    Explanation("protocol/worker/state_transfers.py", "StateTransfers.settle", "since_s", _TIMES),
    Explanation(
        "protocol/worker/step_work.py",
        "StepWork._shadow_forward",
        "loss =",
        "symbols lie nowhere: neither on a device nor beside it",
    ),
    Explanation(
        "protocol/membership/liveness.py",
        "Liveness.forget",
        "self._awaited",
        "who is late is lost only if its node is not fenced yet",
    ),
    Explanation(
        "protocol/membership/liveness.py",
        "Liveness.hung",
        "for worker in sorted",
        "whoever is looked at in vain is let off by the conditions that follow",
    ),
    Explanation(
        "protocol/membership/members.py",
        "Membership.host_of",
        "",
        "simulated nodes are all on one host; tests/protocol/membership/test_members.py has others",
    ),
)


def explanation_of(site: Site, sources: Path) -> Explanation | None:
    """Returns the explanation of a change; None: there is none."""
    file, function = str(site.path.relative_to(sources)), site.function[0]
    for one in EXPLAINED:
        if one.file == file and one.function in ("", function) and site.text.startswith(one.text):
            return one
    return None
