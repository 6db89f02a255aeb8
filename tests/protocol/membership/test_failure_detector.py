"""Which nodes are lost: the parts of the judgement together. Each part has its own tests."""

from __future__ import annotations

import pytest

from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.membership.admission import Admission
from planaria.protocol.membership.failure_detector import Judge
from planaria.protocol.membership.liveness import Limits
from planaria.protocol.messages.from_worker import Activity, Pulse
from planaria.protocol.planning.step_times import Expectation
from planaria.protocol.thresholds import DETECTOR_AWAY_S, DETECTOR_TICK_S

LIMITS = Limits(silence_s=1.0, oversubscribed_silence_s=3.0, least_s=1.0, factor=3.0, busy_s=100.0, join_s=20.0)
EXPECTATION = Expectation(instruction_s=0.1, step_s=1.0)


class Court:
    """Three nodes of two workers, the judge, and a clock; each node is lost whole, but who was alone is noted."""

    def __init__(self, patience_s: float = 0.0) -> None:
        self.admission: Admission[int] = Admission(devices_per_node=2)
        self.judge = Judge(self.admission, LIMITS, patience_s, now=0.0)
        self.now = 0.0
        self.alone: list[int] = []
        for worker in range(6):
            self.admission.admit(WorkerId(worker), worker, f"nowhere:{worker}")
            self.judge.liveness.joined(WorkerId(worker), 0.0)

    def pass_time(
        self, for_s: float, *, silent: tuple[int, ...] = (), stuck: tuple[int, ...] = (), runnable: bool = False
    ) -> list[tuple[NodeId, str]]:
        """Everybody else beats and works; returns who was lost."""
        lost, until = [], self.now + for_s
        while self.now < until:
            self.now += DETECTOR_TICK_S
            for worker in range(6):
                if worker not in silent:
                    progress = 0 if worker in stuck else round(self.now / DETECTOR_TICK_S)
                    pulse = Pulse(activity=Activity.COMPUTING, progress=progress)
                    self.judge.liveness.felt(WorkerId(worker), pulse, self.now)
            for verdict in self.judge.verdicts(self.now, lambda node: runnable, lambda: EXPECTATION):
                node = self.admission.node_of(verdict.worker)
                if not self.admission.is_fenced(node):
                    lost.append((node, verdict.cause))
                    self.alone += [verdict.worker] if verdict.is_alone else []
                    self.admission.fence(node)
                for worker_ in self.admission.workers_of(node):
                    self.judge.liveness.forget(worker_, self.now)
        return lost


def test_silence_and_standstill_are_losses() -> None:
    assert Court().pass_time(2.0) == []
    assert Court().pass_time(2.0, silent=(3,)) == [(1, "silent for 1.1 s")]
    ((node, cause),) = Court().pass_time(2.0, stuck=(5,))
    assert node == 2
    assert cause.startswith("hung: one instruction for")


def test_whoever_is_silent_or_hangs_beside_others_of_its_node_is_a_device_alone() -> None:
    court = Court()
    assert [node for node, _ in court.pass_time(4.0, silent=(3,), stuck=(4,))] == [1, 2]
    assert court.alone == [3, 4]
    whole = Court()
    assert [node for node, _ in whole.pass_time(2.0, silent=(2, 3))] == [1]
    assert not whole.alone


def test_a_process_that_can_run_is_borne_for_longer() -> None:
    court = Court()
    assert court.pass_time(2.5, silent=(3,), runnable=True) == []
    assert [node for node, _ in court.pass_time(1.0, silent=(3,), runnable=True)] == [1]


def test_who_was_started_and_does_not_come_is_lost_and_who_came_is_not_expected() -> None:
    court = Court()
    court.judge.expect(NodeId(0), court.now)
    court.judge.expect(NodeId(3), court.now)
    assert [node for node, _ in court.pass_time(LIMITS.join_s + 1.0)] == [3]


def test_a_fenced_node_is_not_expected() -> None:
    court = Court()
    court.admission.fence(NodeId(3))
    court.judge.expect(NodeId(3), court.now)
    assert list(court.judge.liveness.late(LIMITS.join_s + 1.0)) == []


def test_who_was_there_before_comes_back_soon_or_is_lost() -> None:
    court = Court()
    court.judge.expect_back(NodeId(3), court.now)
    assert court.pass_time(2.0) == [(3, "silent for 1.1 s")]


@pytest.mark.parametrize("away_s", [DETECTOR_AWAY_S / 2, 10.0])
def test_a_judge_that_was_away_excuses_everybody(away_s: float) -> None:
    court = Court()
    court.pass_time(0.8, silent=(3,))
    court.now += away_s
    assert bool(court.pass_time(DETECTOR_TICK_S / 2, silent=(3,))) == (away_s < DETECTOR_AWAY_S)


def test_a_judge_that_hears_of_nobody_waits() -> None:
    everybody = tuple(range(6))
    assert Court(patience_s=60.0).pass_time(5.0, silent=everybody) == []
    assert {node for node, _ in Court().pass_time(5.0, silent=everybody)} == {0, 1, 2}


def test_of_two_that_are_cut_off_the_one_that_was_so_before_goes() -> None:
    court = Court()

    def cut_off(worker: WorkerId, peer: WorkerId, address: str = "") -> tuple[NodeId, str] | None:
        return court.judge.cut_off(worker, peer, address or f"nowhere:{peer}")

    assert cut_off(WorkerId(0), WorkerId(9)) is None, "who is not here is waited for"
    assert cut_off(WorkerId(0), WorkerId(2)) == (0, "cut off from worker 2")
    court.admission.fence(NodeId(0))
    assert cut_off(WorkerId(2), WorkerId(1)) is None
    assert cut_off(WorkerId(2), WorkerId(4), "where it was before it came back:4") is None
    assert cut_off(WorkerId(4), WorkerId(3)) == (1, "cut off from worker 4")
