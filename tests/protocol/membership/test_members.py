"""Who is in the job, kept up to date from one loss to the next."""

from __future__ import annotations

from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.membership.members import Membership
from planaria.protocol.thresholds import PROBATION_STEPS


def joined(num_nodes: int) -> Membership:
    members = Membership(num_nodes, 2)
    for worker in range(2 * num_nodes):
        members.join(WorkerId(worker), f"at {worker}")
    return members


def test_the_lost_are_left_out_and_the_others_stay_in_order() -> None:
    members = joined(5)
    for asked in (True, False):
        if asked:
            assert len(members.workers) == 10
            assert len(members.nodes) == 5
        assert members.lose(NodeId(3 if asked else 0)) == ((6, 7) if asked else (0, 1))
    assert members.nodes == (1, 2, 4)
    assert members.workers == (2, 3, 4, 5, 8, 9) == tuple(members.addresses)


def test_to_lose_a_node_twice_or_one_that_has_not_all_come_changes_nothing_else() -> None:
    members = joined(3)
    members.join(WorkerId(6), "half of node 3")
    assert members.nodes == (0, 1, 2)
    assert members.workers[-1] == 6
    assert members.lose(NodeId(1)) == (2, 3)
    assert members.lose(NodeId(1)) == ()
    assert members.lose(NodeId(3)) == (6,)
    assert members.nodes == (0, 2)
    assert members.workers == (0, 1, 4, 5)
    members.join(WorkerId(3), "again")
    assert members.workers == (0, 1, 3, 4, 5)
    assert members.nodes == (0, 2)


def test_nodes_come_in_any_order_and_count_once_all_of_their_workers_are_there() -> None:
    members = Membership(3, 2)
    seen = []
    for worker in (5, 0, 4, 2, 1, 1, 3):
        members.join(WorkerId(worker), "there")
        seen.append(members.nodes)
    assert seen == [(), (), (2,), (2,), (0, 2), (0, 2), (0, 1, 2)]
    assert members.is_gathered


def test_the_host_of_a_node_is_known_whichever_of_its_devices_are_lost_alone() -> None:
    members = Membership(1, 2)
    members.join(WorkerId(0), "[::1]:7")
    members.join(WorkerId(1), "[::1]:8")
    assert members.host_of(NodeId(0)) == "::1"
    members.lose_device(WorkerId(0))
    assert members.host_of(NodeId(0)) == "::1"
    members.lose(NodeId(0))
    assert members.host_of(NodeId(0)) == ""


def test_a_new_node_on_the_host_of_one_that_was_wrong_is_on_probation_for_some_steps_of_work() -> None:
    members = Membership(2, 2)
    for worker, host in ((0, "a"), (1, "a"), (2, "b"), (3, "b")):
        members.join(WorkerId(worker), f"{host}:1")
    members.wrong_hosts["a"] = 1
    for node in (NodeId(0), NodeId(1)):
        members.try_out(node)
    assert members.on_probation == {0, 1}
    for _ in range(PROBATION_STEPS):
        assert members.on_probation
        members.worked((NodeId(1),))
        assert members.on_probation, "a step without it does not count"
        members.worked((NodeId(0), NodeId(1)))
    assert not members.on_probation
    members.try_out(NodeId(0))
    members.lose(NodeId(0))
    assert not members.on_probation


def test_a_node_goes_on_without_a_device_while_it_has_another() -> None:
    members = Membership(2, 3)
    for worker in range(6):
        assert not members.goes_on_without(WorkerId(worker)), "its node has not joined"
        members.join(WorkerId(worker), "there")
    assert members.goes_on_without(WorkerId(5))
    members.lose_device(WorkerId(5))
    assert members.nodes == (0, 1)
    assert members.live_devices(NodeId(1)) == 2
    members.lose_device(WorkerId(4))
    assert not members.goes_on_without(WorkerId(3)), "the others are lost"
    assert members.goes_on_without(WorkerId(0))
    assert WorkerId(5) not in members.workers
    assert members.join(WorkerId(5), "back")
    assert members.nodes == (0, 1)
    assert members.lost_devices == {4}
    assert members.lose(NodeId(1)) == (3, 5)
    assert not members.lost_devices
