"""Who is let in, and what counts no more once a node is fenced."""

from __future__ import annotations

from typing import Any

import pytest

from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.membership.admission import Admission
from planaria.protocol.messages.from_worker import Hello
from planaria.protocol.messages.message import PROTOCOL_VERSION
from planaria.protocol.thresholds import MAX_NODES

WIRES = [object() for _ in range(6)]
"""Each worker's connection."""


def hello(worker: int, **others: Any) -> Hello:
    fields = {"version": PROTOCOL_VERSION, "token": "", "pid": 1, "data_address": "nowhere:1"}
    return Hello(worker=WorkerId(worker), **(fields | others))


@pytest.fixture
def admission() -> Admission[object]:
    """Nodes 0 to 2 of two workers each are there."""
    made: Admission[object] = Admission(devices_per_node=2)
    for worker in range(6):
        assert made.refusal(hello(worker)) is None
        made.admit(WorkerId(worker), WIRES[worker], "nowhere:1")
    return made


def test_a_fenced_node_is_out_with_all_of_its_workers(admission: Admission[object]) -> None:
    assert admission.fence(NodeId(1)) == [WIRES[2], WIRES[3]]
    assert admission.connection_of(WorkerId(2)) is None
    assert admission.refusal(hello(3)) == "node 1 was lost and is fenced"
    assert not admission.left(WorkerId(2), WIRES[2]), "its end is no second loss"
    assert admission.is_fenced(NodeId(1))
    assert not admission.is_fenced(NodeId(0))
    assert not admission.was_released(NodeId(1))


def test_a_released_node_may_finish_what_it_says(admission: Admission[object]) -> None:
    admission.release(NodeId(1))
    assert admission.connection_of(WorkerId(2)) == WIRES[2]
    assert admission.left(WorkerId(2), WIRES[2])
    assert not admission.is_empty(NodeId(1))
    assert admission.left(WorkerId(3), WIRES[3])
    assert admission.is_empty(NodeId(1))
    assert admission.refusal(hello(2)) == "node 1 was lost and is fenced"


def test_whoever_says_that_he_is_somebody_who_is_here_is_refused(admission: Admission[object]) -> None:
    assert admission.refusal(hello(4)) is not None
    assert not admission.left(WorkerId(4), object())
    assert admission.connection_of(WorkerId(4)) == WIRES[4]


@pytest.mark.parametrize("worker", [-1, 2 * MAX_NODES])
def test_workers_that_no_job_has_are_refused(worker: int, admission: Admission[object]) -> None:
    assert admission.refusal(hello(worker)) == f"the job has no worker {worker}"


def test_another_version_is_refused(admission: Admission[object]) -> None:
    refusal = admission.refusal(hello(9, version=PROTOCOL_VERSION + 1))
    assert refusal is not None
    assert refusal.startswith(f"the worker speaks protocol version {PROTOCOL_VERSION + 1}")
    assert f"the coordinator {PROTOCOL_VERSION}; install the same Planaria" in refusal


def test_no_number_is_given_twice(admission: Admission[object]) -> None:
    assert admission.new_number() == 3
    admission.took_number(NodeId(7))
    admission.took_number(NodeId(5))
    admission.fence(NodeId(7))
    assert [admission.new_number(), admission.new_number()] == [8, 9]


def test_workers_are_missed_that_should_be_here(admission: Admission[object]) -> None:
    """Neither those that are not here nor those that are given up, nor where they were before they came back."""
    assert admission.is_missed(WorkerId(2), "nowhere:1")
    assert not admission.is_missed(WorkerId(9), "nowhere:1")
    admission.fence_device(WorkerId(2))
    assert not admission.is_missed(WorkerId(2), "nowhere:1")
    admission.expect_device(WorkerId(2))
    admission.admit(WorkerId(2), WIRES[2], "nowhere:2")
    assert not admission.is_missed(WorkerId(2), "nowhere:1")
    assert admission.is_missed(WorkerId(2), "nowhere:2")
    admission.release(NodeId(1))
    assert not admission.is_missed(WorkerId(2), "nowhere:2")


def test_who_was_started_for_another_run_has_no_part_in_this_one() -> None:
    admission: Admission[object] = Admission(devices_per_node=2, mark="this run")
    assert admission.refusal(hello(0, mark="this run")) is None
    for mark in ("", "an earlier run"):
        refused = hello(0, mark=mark)
        assert admission.refusal(refused) == "it was started for another run"
        assert admission.is_of_another_run(refused)
