"""The lead of a run whose journal is in etcd: the right to coordinate it, held by one process at a time.

The leader's key has a lease, which a thread keeps alive. Every append to the journal is a transaction that compares the
revision at which that key was created: whoever had the lead before cannot commit anything, whatever it believes.

Leases begin anew whenever etcd's members elect another leader. So the thread also writes the key again, a beat, and a
standby that sees no beat for as long as the lease lasts takes the lead, even if etcd still holds the lease.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from planaria.job.errors import PlanariaError
from planaria.runtime.journal.etcd import (
    NEVER,
    Created,
    Delete,
    Etcd,
    OutOfReach,
    Put,
    Unchanged,
    after,
    persistently,
)
from planaria.runtime.thresholds import ETCD_PAUSE_S, LEASE_ROUNDS, LEASE_S, SIGHT


class LeadTaken(PlanariaError):
    """Another process leads the run."""


class HandedOver(PlanariaError):
    """This process has ended its coordinator, so that another one that stands by leads the run."""


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    """Who leads a run.

    Attributes:
        host: its host's name.
        process: tells its process from all others.
        address: where its coordinator listens, "host:port"; "": it does not yet.
        lease_s: seconds for which it leads after its last beat; 0: an earlier version leads, which says no beats.
    """

    host: str
    process: str
    address: str = ""
    lease_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What etcd has of a leader: who it is, and the revision at which it said its last beat."""

    leader: Leader
    beat: int


def lead_key(run: str) -> str:
    """Returns the key of a run's leader."""
    return f"planaria/{run}/leader"


def last_key(run: str) -> str:
    """Returns the key that is set by whoever takes the lead of a run, and outlives the lead."""
    return f"planaria/{run}/last"


def standbys_prefix(run: str) -> str:
    """Returns what the keys of the processes that stand by begin with."""
    return f"planaria/{run}/standbys/"


def settings_key(run: str) -> str:
    """Returns the key of what the run's coordinators are told, which is there for as long as the run can go on."""
    return f"planaria/{run}/settings"


def profile_key(run: str) -> str:
    """Returns the key of the run's profile, compressed: for hosts that do not see the run folder."""
    return f"planaria/{run}/profile"


def entries_prefix(run: str, mark: str = "") -> str:
    """Returns what the keys of a run's entries begin with; with a mark, those of that run alone."""
    return f"planaria/{run}/entries/{mark}/" if mark else f"planaria/{run}/entries/"


def sighted(etcd: Etcd, run: str) -> Sighting | None:
    """Returns what etcd has of a run's leader; None: nobody leads. Raises OutOfReach."""
    found = etcd.find(lead_key(run))
    if found is None:
        return None
    leader = msgspec.json.decode(found.value, type=Leader)
    return Sighting(leader=leader, beat=found.changed)


def leader_of(etcd: Etcd, run: str) -> Leader | None:
    """Returns who leads a run. Raises OutOfReach."""
    seen = sighted(etcd, run)
    return None if seen is None else seen.leader


class LeaderWatch:
    """Judges whether a leader's time is over, from what a standby sees of it. Pure: time comes as an argument."""

    def __init__(self) -> None:
        self._beat = NEVER
        self._since = 0.0
        self._looked = float("-inf")
        self._in_sight_since = 0.0

    def is_over(self, seen: Sighting, now: float) -> bool:
        """Returns whether a leader has said nothing for as long as it leads after a beat.

        Its own time began before the beat, this one's after the answer that told of it. A standby that has seen nothing
        of etcd in between waits a little more: the leader may not have been able to say anything.

        Args:
            seen: what etcd has of it.
            now: monotonic seconds, after etcd's answer.
        """
        lease_s = seen.leader.lease_s
        if now - self._looked > SIGHT * lease_s:
            self._in_sight_since = now
        self._looked = now
        if seen.beat != self._beat:
            self._beat, self._since = seen.beat, now
        is_silent = 0 < lease_s <= now - self._since
        return is_silent and now - self._in_sight_since >= SIGHT * lease_s


class Lead:
    """This process's lead of one run. Use it from one thread.

    Args:
        url: of the members, "etcd://..." or "etcds://...".
        run: its name.
        tls: folder with the certificates for "etcds://...".

    Attributes:
        when_lost: called once each time the lead is lost, from another thread.
        revision: at which the leader's key was created; `NEVER`: this process does not lead.
    """

    def __init__(self, url: str, run: str, tls: str = "") -> None:
        self.url = url
        self.run = run
        self.when_lost: Callable[[], None] = lambda: None
        self.revision = NEVER
        self._etcd = Etcd(url, tls)
        self._keeping = Etcd(url, tls)
        self._leader = Leader(host=socket.gethostname(), process=secrets.token_hex(8))
        self._lease = 0
        self._waiting = 0
        self._waited_at = 0.0
        self._taken_at = NEVER
        self._sure_until = 0.0
        self._watch = LeaderWatch()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self) -> bool:
        """Takes the lead if nobody has it; returns whether this process has it now.

        Raises:
            OutOfReach: no member of etcd answers.
            LeadTaken: this process has led the run before, and another one since.
        """
        if self.revision != NEVER:
            return True
        key, last = lead_key(self.run), last_key(self.run)
        seen = sighted(self._etcd, self.run)
        if seen is not None and seen.leader.process != self._leader.process:
            if not self._watch.is_over(seen, time.monotonic()):
                return False
            if not self._etcd.transact([Unchanged(key, seen.beat)], [Delete(key, f"{key}\0")])[0]:
                return False
        elif seen is not None:  # the lead that this process has lost
            self._etcd.revoke(self._lease)
        self._over.set()
        asked_at = time.monotonic()
        lease, granted_s = self._etcd.grant(LEASE_S)
        self._lease, self._leader = lease, msgspec.structs.replace(self._leader, lease_s=float(granted_s))
        value = msgspec.json.encode(self._leader)
        since = [Unchanged(last, self._taken_at)] if self._taken_at != NEVER else []
        is_taken, revision = self._etcd.transact(
            [Created(key, NEVER), *since], [Put(key, value, lease), Put(last, value)]
        )
        if not is_taken:
            self._etcd.revoke(lease)
            if since and not self._took_it_last() and self.leader() is None:
                raise LeadTaken(f"another process has led run {self.run} meanwhile")
            return False
        self.revision = self._taken_at = revision
        self._sure_until = asked_at + granted_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, args=(asked_at, self._over), name="lease", daemon=True)
        self._thread.start()
        return True

    def _took_it_last(self) -> bool:
        """Returns whether nobody has taken the lead after this process, which need not have had an answer."""
        last = self._etcd.find(last_key(self.run))
        if last is None or msgspec.json.decode(last.value, type=Leader).process != self._leader.process:
            return False
        self._taken_at = last.changed
        return True

    def wait(self) -> None:
        """Says that this process stands by: until a lease after the last call, or until `close`. Raises OutOfReach."""
        now = time.monotonic()
        if now < self._waited_at + LEASE_S / LEASE_ROUNDS:
            return
        if not self._waiting or not self._etcd.keep_alive(self._waiting):
            self._waiting, _ = self._etcd.grant(LEASE_S)
            key = f"{standbys_prefix(self.run)}{self._leader.process}"
            self._etcd.transact([], [Put(key, msgspec.json.encode(self._leader), self._waiting)])
        self._waited_at = now

    def others_wait(self) -> bool:
        """Returns whether other processes stand by. Raises OutOfReach."""
        keys = [found.key for found in self._etcd.find_all(standbys_prefix(self.run))]
        return any(not key.endswith(self._leader.process) for key in keys)

    def leader(self) -> Leader | None:
        """Returns who leads. Raises OutOfReach."""
        return leader_of(self._etcd, self.run)

    def listens_at(self, address: str) -> None:
        """Notes where the coordinator will listen: whoever asks finds it as soon as this process has the lead."""
        self._leader = msgspec.structs.replace(self._leader, address=address)

    def tell(self, address: str) -> None:
        """Tells where the coordinator listens. Raises OutOfReach; LeadTaken: this process leads no more."""
        self.listens_at(address)
        self._put(lead_key(self.run), msgspec.json.encode(self._leader), self._lease)

    def is_sure(self) -> bool:
        """Returns whether nobody else leads now: what this process does to the run folder, nobody else does.

        A process that was stopped may have lost the lead without its having heard of that.
        """
        if self.revision != NEVER and time.monotonic() >= self._sure_until:
            try:
                self.check()
            except OutOfReach:
                self.revision = NEVER
        return self.revision != NEVER

    def check(self) -> None:
        """Looks whether this process leads still. Raises OutOfReach."""
        found = self._etcd.find(lead_key(self.run))
        if found is None or found.created != self.revision:
            self.revision = NEVER

    def begin(self, settings: bytes, profile: bytes = b"") -> None:
        """Keeps what the run's coordinators are told, and its profile. Raises OutOfReach, LeadTaken."""
        self._put(profile_key(self.run), zlib.compress(profile))  # first: settings say that the run has begun
        self._put(settings_key(self.run), settings)

    def settings(self) -> bytes | None:
        """Returns what the run's coordinators are told; None: it is over. Raises OutOfReach."""
        found = self._etcd.find(settings_key(self.run))
        return None if found is None else found.value

    def profile(self) -> bytes:
        """Returns the run's profile. Raises OutOfReach."""
        found = self._etcd.find(profile_key(self.run))
        return b"" if found is None else zlib.decompress(found.value)

    def finish(self) -> None:
        """Says that nobody need lead the run any more, and removes its journal.

        Where etcd is out of reach for as long as a lease lasts, a standby finds in the journal that the run is over.
        """
        keys = (settings_key(self.run), profile_key(self.run), last_key(self.run))
        every = [Delete(key, f"{key}\0") for key in keys]
        entries = entries_prefix(self.run)
        every.append(Delete(entries, after(entries)))
        is_led = [Created(lead_key(self.run), self.revision)]
        with contextlib.suppress(OutOfReach):
            persistently(lambda: self._etcd.transact(is_led, every), LEASE_S)

    def close(self) -> None:
        """Gives the lead back, if this process has it."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        leases = [self._waiting] if self._waiting else []
        if self.revision != NEVER:
            self.revision = NEVER
            leases.append(self._lease)
        for lease in leases:
            with contextlib.suppress(OutOfReach):  # it ends by itself
                self._etcd.revoke(lease)

    def _put(self, key: str, value: bytes, lease: int = 0) -> None:
        is_done, _ = self._etcd.transact([Created(lead_key(self.run), self.revision)], [Put(key, value, lease)])
        if not is_done:
            raise LeadTaken(f"another process leads run {self.run} now")

    def _keep(self, since: float, over: threading.Event) -> None:
        """Beats, and keeps the lease alive. The lead is lost when etcd says so, or has confirmed no beat for as long as
        the lease lasts."""
        lease, revision, lasts_s = self._lease, self.revision, self._leader.lease_s
        pause_s = lasts_s / LEASE_ROUNDS
        while not over.wait(pause_s):
            asked_at = time.monotonic()
            try:
                leads = self._beat(lease, revision)
            except OutOfReach:
                pause_s = ETCD_PAUSE_S
                if time.monotonic() - since < lasts_s:
                    continue
                leads = False
            if over.is_set():
                return
            if not leads:
                self.revision = NEVER
                self.when_lost()
                return
            since, pause_s = asked_at, lasts_s / LEASE_ROUNDS
            self._sure_until = since + lasts_s

    def _beat(self, lease: int, revision: int) -> bool:
        """Returns whether this process leads, and those who stand by can see it. Raises OutOfReach.

        A beat that comes late may bring back an earlier address, until the next one.
        """
        key, value = lead_key(self.run), msgspec.json.encode(self._leader)
        is_done, _ = self._keeping.transact([Created(key, revision)], [Put(key, value, lease)], may_repeat=True)
        return is_done and self._keeping.keep_alive(lease) > 0
