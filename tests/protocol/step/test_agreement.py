"""Which owner of a group is wrong, from what all told of it."""

from __future__ import annotations

from collections.abc import Mapping

import hypothesis.strategies as st
import pytest
from hypothesis import given

from planaria.plan.plan import WorkerId
from planaria.protocol.messages.from_worker import NO_SUM, Computed, Digest
from planaria.protocol.messages.journal import JournalDisputes, decode_entry, encode_entry
from planaria.protocol.step.agreement import Claims, Difference, Disputes, Held, claims_of, difference

RIGHT, WRONG, OTHER = 11, 22, 33


def claims(*digests: Digest, group: int = 0) -> dict[int, dict[WorkerId, Digest]]:
    """What workers 0, 1, ... tell of one group."""
    return {group: {WorkerId(worker): digest for worker, digest in enumerate(digests)}}


def kept(state: int = RIGHT, total: int = 0) -> Digest:
    """An owner that holds what it wrote."""
    return Digest(state, total, state)


def found_in(told: Mapping[int, Mapping[WorkerId, Digest]]) -> Difference:
    found = difference(told)
    assert found is not None
    return found


@given(st.integers(1, 6), st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=2))
def test_owners_that_hold_the_same_agree(owners: int, told: list[int]) -> None:
    state, total = told
    assert difference(claims(*[Digest(state, total, state)] * owners)) is None
    assert difference({}) is None


def test_owners_that_got_their_replica_from_a_peer_agree_with_it() -> None:
    assert difference(claims(kept(), Digest(RIGHT), Digest(RIGHT))) is None


@given(st.integers(1, 6), st.integers(0, 5))
def test_who_holds_something_else_than_it_wrote_is_wrong_however_many_owners_there_are(owners: int, at: int) -> None:
    told = [kept()] * owners
    told[at % owners] = Digest(WRONG, 0, RIGHT)
    found = found_in(claims(*told))
    assert (found.held, found.known) == (Held.REPLICA, {at % owners})


@given(st.integers(3, 7), st.integers(0, 6))
def test_of_three_or_more_who_wrote_something_else_than_most_is_wrong(owners: int, at: int) -> None:
    told = [kept()] * owners
    told[at % owners] = kept(WRONG)
    assert found_in(claims(*told)).known == {at % owners}


def test_of_two_that_wrote_different_things_neither_is_known_to_be_wrong() -> None:
    assert not found_in(claims(kept(), kept(WRONG))).known


def test_whoever_copied_what_is_wrong_is_misled() -> None:
    found = found_in(claims(kept(), Digest(WRONG, 0, RIGHT), Digest(WRONG)))
    assert found.known == {1, 2}
    assert found.misled == {2}


def test_two_that_copied_are_no_witnesses_for_what_they_have() -> None:
    assert found_in(claims(kept(), Digest(WRONG), Digest(WRONG))).known == {1, 2}


def test_sums_that_differ_tell_nothing_of_who_is_wrong() -> None:
    found = found_in(claims(kept(total=1), kept(total=1), kept(total=2)))
    assert (found.held, found.groups, found.known) == (Held.SUM, (0,), frozenset())


def test_replicas_count_before_sums() -> None:
    told = claims(kept(total=1), kept(total=1), Digest(WRONG, 2, RIGHT)) | claims(kept(total=1), kept(total=2), group=1)
    assert (found_in(told).held, found_in(told).groups) == (Held.REPLICA, (0,))


def test_groups_of_workers_are_those_in_which_they_are_wrong() -> None:
    told = claims(kept(), Digest(WRONG, 0, RIGHT)) | claims(Digest(WRONG, 0, RIGHT), kept(), group=1)
    found = found_in(told)
    assert found.groups_of([WorkerId(0)]) == (1,)
    assert found.groups_of([WorkerId(1)]) == (0,)
    assert found.groups_of([WorkerId(5)]) == (0, 1), "of nobody known, all that differ"


def begun(disputes: Disputes, told: Mapping[int, Mapping[WorkerId, Digest]], step: int = 5) -> Difference:
    found = found_in(told)
    disputes.begin(step, found, told)
    return found


def test_the_step_done_again_tells_who_was_wrong() -> None:
    disputes = Disputes()
    found = begun(disputes, claims(kept(), kept(WRONG)))
    assert not disputes.settle(4, claims(kept(), kept())), "another step tells nothing"
    assert disputes.settle(5, claims(kept(), kept())) == {WorkerId(1): found}
    assert not disputes.settle(5, claims(kept(), kept())), "it is told once"


def test_the_step_done_again_tells_whose_sum_was_wrong() -> None:
    disputes = Disputes()
    begun(disputes, claims(kept(total=1), kept(total=2), kept(total=1)))
    assert set(disputes.settle(5, claims(*[kept(total=1)] * 3))) == {1}


def test_who_copied_a_wrong_replica_did_not_make_it() -> None:
    disputes = Disputes()
    begun(disputes, claims(kept(), kept(WRONG), Digest(WRONG)))
    # Three owners, of which two wrote: neither is known to be wrong.
    assert set(disputes.settle(5, claims(kept(), kept(), kept()))) == {1}


def test_who_does_not_claim_the_same_twice_is_wrong() -> None:
    disputes = Disputes()
    begun(disputes, claims(kept(), kept(WRONG)))
    again = claims(kept(), kept(OTHER))
    assert disputes.again(5, found_in(again), again) == ({1}, frozenset())


def test_the_first_difference_in_a_step_is_not_the_second() -> None:
    again = claims(kept(), kept(WRONG))
    assert Disputes().again(5, found_in(again), again) == (frozenset(), frozenset())


def test_of_three_that_claim_the_same_twice_the_odd_one_is_wrong() -> None:
    disputes = Disputes()
    told = claims(kept(total=1), kept(total=2), kept(total=1))
    begun(disputes, told)
    assert disputes.again(5, found_in(told), told) == ({1}, frozenset())


def test_of_two_that_claim_the_same_twice_nobody_can_tell() -> None:
    disputes = Disputes()
    told = claims(kept(), kept(WRONG))
    begun(disputes, told)
    assert disputes.again(5, found_in(told), told) == (frozenset(), {0, 1})


def test_nothing_is_held_against_claims_of_a_step_in_which_other_samples_were_left_out() -> None:
    disputes = Disputes()
    begun(disputes, claims(kept(), kept(WRONG)))
    assert not disputes.settle(5, claims(kept(OTHER), kept(OTHER)), num_dropped=2)


def test_what_an_owner_claimed_before_stands_beside_what_others_claim_now() -> None:
    disputes = Disputes()
    begun(disputes, claims(kept(), kept(WRONG)))
    now = {0: {WorkerId(1): kept(WRONG), WorkerId(2): kept(), WorkerId(3): Digest(WRONG)}}
    assert disputes.again(5, found_in(now), now) == ({1}, frozenset()), "and who copied is no witness"


def computed(*made: int, given: int = 7, name: str = "w2") -> Claims:
    """What workers 0, 1, ... tell of one computation on the same inputs."""
    return claims_of({WorkerId(at): (Computed(3, 2, 4, (given, given), {name: told}),) for at, told in enumerate(made)})


def test_of_two_that_computed_different_things_neither_is_known_to_be_wrong() -> None:
    assert difference(computed(RIGHT, RIGHT)) is None
    found = found_in(computed(RIGHT, WRONG))
    assert (found.held, found.known) == (Held.COMPUTATION, frozenset())


def test_of_three_the_one_that_computed_something_else_is_wrong() -> None:
    assert found_in(computed(RIGHT, WRONG, RIGHT)).known == {1}


def test_what_is_computed_on_other_inputs_is_another_computation() -> None:
    one = {WorkerId(0): (Computed(3, 2, 4, (7, 7), {"w2": RIGHT}),)}
    other = {WorkerId(1): (Computed(3, 2, 4, (7, 8), {"w2": WRONG}),)}
    found = found_in(claims_of(one | other))
    assert [group.name for group in found.groups] == ["gradient"], "what one sent to the other"
    assert found.is_on_the_way


def test_what_a_forward_makes_is_compared_whatever_gradients_come() -> None:
    one = {WorkerId(0): (Computed(3, 2, 4, (7, 7), {"a4": RIGHT}),)}
    other = {WorkerId(1): (Computed(3, 2, 4, (7, 8), {"a4": WRONG}),)}
    assert [group.name for group in found_in(claims_of(one | other)).groups] == ["gradient", "a4"]


def together(first: int, second: int, again: int) -> Claims:
    """What workers 2 and 3 tell that each counts of one computation, and worker 0, which runs all of it again."""
    parts = {WorkerId(2 + at): (Computed(3, 2, 4, (7, 7), {"p2": told}),) for at, told in enumerate((first, second))}
    return claims_of({**parts, WorkerId(0): (Computed(3, 2, 4, (7, 7), {"w2": again}),)}, num_sharing=2)


def test_what_devices_count_together_is_one_claim() -> None:
    assert difference(together(RIGHT - 5, 5, RIGHT)) is None
    assert difference(together((1 << 64) - 2, RIGHT + 2, RIGHT)) is None, "digests add up modulo 2^64"
    (group,) = found_in(together(RIGHT, 5, RIGHT)).groups
    assert group.name == "w2"
    assert set(together(RIGHT, 5, RIGHT)[group]) == {0, 2}, "the first of them claims it"
    assert difference(together(NO_SUM, 5, NO_SUM)) is None
    assert difference(together(NO_SUM, 5, RIGHT)) is not None


def test_what_only_some_devices_tell_of_is_no_claim() -> None:
    alone = {WorkerId(2): (Computed(3, 2, 4, (7, 7), {"p2": 5}),)}
    assert "w2" not in {group.name for group in claims_of(alone, num_sharing=2)}


def test_the_computation_done_again_tells_whose_was_wrong() -> None:
    disputes = Disputes()
    begun(disputes, computed(RIGHT, WRONG))
    assert disputes.is_open(5)
    assert set(disputes.settle(5, computed(RIGHT, RIGHT, RIGHT))) == {1}
    assert not disputes.is_open(5)


def test_a_third_settles_what_two_claim_again() -> None:
    disputes = Disputes()
    begun(disputes, computed(RIGHT, WRONG))
    assert found_in(computed(RIGHT, WRONG, RIGHT)).known == {1}


def passed(sent: int, got: int) -> Claims:
    """What workers 0 and 1 tell of an activation that the one sent to the other."""
    return claims_of({WorkerId(at): (Computed(3, 4, 4, (0, 0), {"a4": told}),) for at, told in enumerate((sent, got))})


def test_of_what_was_sent_and_what_came_nobody_knows_which_is_wrong_then_or_later() -> None:
    disputes = Disputes()
    found = begun(disputes, passed(RIGHT, WRONG))
    assert found.is_on_the_way
    assert not found.known
    assert set(disputes.settle(5, passed(RIGHT, RIGHT))) == {0, 1}
    begun(disputes, passed(RIGHT, WRONG))
    assert disputes.again(5, found_in(passed(RIGHT, OTHER)), passed(RIGHT, OTHER)) == (frozenset(), {0, 1})


def test_of_an_auditors_copies_most_are_no_witnesses_against_the_odd_one() -> None:
    told = {WorkerId(at): (Computed(3, 2, 4, (given, 7), {"w2": RIGHT}),) for at, given in enumerate((8, 7, 8))}
    found = found_in(claims_of(told))
    assert found.is_on_the_way
    assert not found.known


def test_who_computed_wrong_is_wrong_alone_whatever_happened_to_a_message() -> None:
    disputes, way = Disputes(), passed(RIGHT, WRONG)
    found = begun(disputes, {**computed(RIGHT, RIGHT, WRONG), **way})
    assert not found.is_on_the_way
    assert set(disputes.settle(5, {**computed(RIGHT, RIGHT, RIGHT), **passed(RIGHT, RIGHT)})) == {2}


def test_replicas_and_sums_count_before_computations() -> None:
    assert found_in({**claims(kept(total=1), kept(total=2)), **computed(RIGHT, WRONG)}).held is Held.SUM


@pytest.mark.parametrize(
    ("first", "then"),
    [(claims(kept(), kept(WRONG)), claims(kept(), kept())), (computed(RIGHT, WRONG), computed(RIGHT, RIGHT)),
     (claims(kept(total=1), Digest(RIGHT, 2)), claims(kept(total=1), kept(total=1)))],
    ids=["replica", "computation", "sum"],
)  # fmt: skip
def test_a_dispute_of_the_journal_is_settled_as_it_would_have_been(first: Claims, then: Claims) -> None:
    disputes, successor = Disputes(), Disputes()
    assert disputes.to_write() is None
    begun(disputes, first)
    written = disputes.to_write()
    assert written is not None
    assert disputes.to_write() is None, "it is written once"
    entry = decode_entry(encode_entry(JournalDisputes(disputes=written)))
    assert isinstance(entry, JournalDisputes)
    successor.recall(entry.disputes)
    assert successor.to_write() is None
    assert successor.is_open(5)
    found, other = successor.settle(5, then), disputes.settle(5, then)
    assert found.keys() == other.keys() != set()
    assert all(found[worker].groups_of([worker]) == other[worker].groups_of([worker]) for worker in found)
    assert successor.to_write() == () == disputes.to_write()
