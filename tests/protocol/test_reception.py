"""What a coordinator does with connections: who is awaited, and who is let in. Real and simulated servers use it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.membership.admission import Admission
from planaria.protocol.membership.failure_detector import Judge
from planaria.protocol.membership.liveness import Limits
from planaria.protocol.messages.events import Command, Restarted
from planaria.protocol.messages.from_worker import Hello, Proof
from planaria.protocol.messages.message import PROTOCOL_VERSION
from planaria.protocol.messages.to_worker import Challenge, Stop
from planaria.protocol.reception import Reception, Unwanted
from planaria.protocol.thresholds import DETECTOR_TICK_S
from tests.protocol.test_coordinator import make_machine

JOIN_S = 5.0


@dataclass(eq=False)
class Line:
    """A connection, and what was said on it."""

    worker: WorkerId | None = None
    is_closed: bool = False
    said: list[Stop | Challenge] = field(default_factory=list)


class Desk(Reception[Line]):
    """A reception whose clock is set by hand."""

    def __init__(self) -> None:
        admission: Admission[Line] = Admission(devices_per_node=1)
        super().__init__(make_machine(), admission, Judge(admission, Limits(join_s=JOIN_S), 0.0, now=0.0))
        self.now = 0.0
        self.killed: list[NodeId] = []

    def _now(self) -> float:
        return self.now

    def _say(self, connection: Line, message: Stop | Challenge) -> None:
        connection.said.append(message)

    def _new_nonce(self) -> str:
        return "nonce"

    def _is_runnable(self, node: NodeId) -> bool:
        return True

    def _execute(self, command: Command) -> None:
        pass

    def _kill(self, node: NodeId) -> None:
        self.killed.append(node)

    def _kill_device(self, worker: WorkerId) -> None:
        pass

    def hang_up(self, connection: Line) -> None:
        connection.is_closed = True

    def hears(self, line: Line, message: Hello | Proof) -> None:
        self._receive(line, message)

    def passes(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += DETECTOR_TICK_S
            self._judge_all(self.now)

    def fence(self, node: NodeId) -> None:
        self._admission.fence(node)

    def release(self, node: NodeId) -> None:
        self._admission.release(node)
        self._machine._run.members.lose(node)

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return self._machine.state.nodes


def hello(worker: int) -> Hello:
    return Hello(version=PROTOCOL_VERSION, token="", worker=WorkerId(worker), pid=1, data_address=f"host:{worker}")


def test_a_node_that_was_started_and_does_not_join_is_given_up() -> None:
    desk = Desk()
    desk.begin([NodeId(2)], Restarted())
    desk.passes(JOIN_S - 1.0)
    assert desk.killed == []
    desk.passes(2.0)
    assert desk.killed == [2]


@pytest.mark.parametrize("is_given_up", [False, True])
def test_who_proves_itself_is_let_in_unless_it_was_given_up_meanwhile(is_given_up: bool) -> None:
    desk, line = Desk(), Line()
    desk.expect_device(WorkerId(0))
    desk.hears(line, hello(0))
    assert line.said == [Challenge(nonce="nonce")]
    assert (desk.nodes, line.worker) == ((), None)
    if not is_given_up:
        desk.hears(line, Proof(nonce="nonce"))
        assert (desk.nodes, line.worker) == ((0,), 0)
        return
    desk.fence(NodeId(0))
    with pytest.raises(Unwanted, match="node 0 was lost and is fenced"):
        desk.hears(line, Proof(nonce="nonce"))
    assert line.said[1:] == [Stop(reason="node 0 was lost and is fenced")]
    assert (desk.nodes, line.worker) == ((), None)


def test_a_process_that_was_let_go_and_falls_silent_is_killed() -> None:
    desk, line = Desk(), Line()
    desk.hears(line, hello(0))
    desk.release(NodeId(0))
    desk.passes(1.0)
    assert (desk.killed, line.is_closed) == ([], False)
    desk.passes(2 * Limits(join_s=JOIN_S).oversubscribed_silence_s)
    assert (desk.killed, line.is_closed) == ([0], True)
