"""When a standby takes the lead of a leader that says nothing."""

from __future__ import annotations

from planaria.runtime.journal.lead import Leader, LeaderWatch, Sighting

LEASE_S = 3.0


def seen(beat: int, lease_s: float = LEASE_S) -> Sighting:
    leader = Leader(host="a", process="1", address="a:1", lease_s=lease_s)
    return Sighting(leader=leader, beat=beat)


def first_over(looks: list[tuple[float, int]], lease_s: float = LEASE_S) -> float | None:
    """When a standby finds that the leader's time is over, of its looks: (time, the beat that it sees)."""
    watch = LeaderWatch()
    return next((at for at, beat in looks if watch.is_over(seen(beat, lease_s), at)), None)


def looks(until: int, beat: int = 1, since: int = 0) -> list[tuple[float, int]]:
    return [(tenth / 10, beat) for tenth in range(since, until)]


def test_a_leader_that_is_silent_for_its_lease_is_followed() -> None:
    assert first_over(looks(50)) == LEASE_S


def test_a_leader_that_beats_is_not_followed() -> None:
    assert first_over([(tenth / 10, tenth // 25) for tenth in range(200)]) is None


def test_the_lease_that_etcd_granted_counts() -> None:
    assert first_over(looks(100), lease_s=8.0) == 8.0


def test_a_leader_of_an_earlier_version_says_no_beats_and_is_left_to_its_lease() -> None:
    assert first_over(looks(200), lease_s=0.0) is None


def test_a_leader_may_say_its_word_first_once_etcd_is_back() -> None:
    """A standby that sees etcd again after a long time waits for a third of a lease before it judges."""
    away = [*looks(10), *looks(200, since=100)]
    assert first_over(away) == 11.0
    assert first_over([*looks(10), *looks(109, since=100), *looks(130, beat=2, since=109)]) is None


def test_an_election_among_the_members_of_etcd_costs_no_more_than_the_lease() -> None:
    """They answer nothing for 1.5 s, after which the leases begin anew."""
    assert first_over([*looks(10), *looks(200, since=25)]) == 3.5
