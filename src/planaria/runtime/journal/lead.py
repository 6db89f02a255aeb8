"""The lead of a run whose journal is in etcd: the right to coordinate it, held by one process at a time.

The leader's key has a lease, which a thread keeps alive. Every append to the journal is a transaction that compares the
revision at which that key was created: whoever had the lead before cannot commit anything, whatever it believes.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Callable

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
from planaria.runtime.thresholds import LEASE_ROUNDS, LEASE_S


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
    """

    host: str
    process: str
    address: str = ""


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


def leader_of(etcd: Etcd, run: str) -> Leader | None:
    """Returns who leads a run. Raises OutOfReach."""
    found = etcd.find(lead_key(run))
    return None if found is None else msgspec.json.decode(found.value, type=Leader)


class Lead:
    """This process's lead of one run. Use it from one thread.

    Args:
        url: of the members, "etcd://..." or "etcds://...".
        run: its name.
        tls: folder with the certificates for "etcds://...".
        when_lost: called once each time the lead is lost, from another thread.

    Attributes:
        revision: at which the leader's key was created; `NEVER`: this process does not lead.
    """

    def __init__(self, url: str, run: str, tls: str = "", when_lost: Callable[[], None] = lambda: None) -> None:
        self.url = url
        self.run = run
        self.when_lost = when_lost
        self.revision = NEVER
        self._etcd = Etcd(url, tls)
        self._keeping = Etcd(url, tls)
        self._leader = Leader(host=socket.gethostname(), process=secrets.token_hex(8))
        self._lease = 0
        self._waiting = 0
        self._waited_at = 0.0
        self._taken_at = NEVER
        self._sure_until = 0.0
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
        leader = self.leader()
        if leader is not None and leader.process != self._leader.process:
            return False
        if leader is not None:  # the lead that this process has lost
            self._etcd.revoke(self._lease)
        self._over.set()
        asked_at = time.monotonic()
        lease = self._lease = self._etcd.grant(LEASE_S)
        value, key, last = msgspec.json.encode(self._leader), lead_key(self.run), last_key(self.run)
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
        self._sure_until = asked_at + LEASE_S
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._keep, args=(lease, asked_at, self._over), name="lease", daemon=True
        )
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
            self._waiting = self._etcd.grant(LEASE_S)
            key = f"{standbys_prefix(self.run)}{self._leader.process}"
            self._etcd.transact([], [Put(key, b"", self._waiting)])
        self._waited_at = now

    def others_wait(self) -> bool:
        """Returns whether other processes stand by. Raises OutOfReach."""
        keys = [found.key for found in self._etcd.find_all(standbys_prefix(self.run))]
        return any(not key.endswith(self._leader.process) for key in keys)

    def leader(self) -> Leader | None:
        """Returns who leads. Raises OutOfReach."""
        return leader_of(self._etcd, self.run)

    def tell(self, address: str) -> None:
        """Tells where the coordinator listens. Raises OutOfReach; LeadTaken: this process leads no more."""
        self._leader = msgspec.structs.replace(self._leader, address=address)
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

    def _keep(self, lease: int, since: float, over: threading.Event) -> None:
        """Keeps the lease alive; it is lost when etcd says so, or has not confirmed it for as long as it lasts."""
        lasts_s = float(LEASE_S)
        while not over.wait(lasts_s / LEASE_ROUNDS):
            asked_at = time.monotonic()
            try:
                granted_s = self._keeping.keep_alive(lease)
            except OutOfReach:
                if time.monotonic() - since < lasts_s:
                    continue
                granted_s = 0
            if over.is_set():
                return
            if not granted_s:
                self.revision = NEVER
                self.when_lost()
                return
            since, lasts_s = asked_at, float(granted_s)
            self._sure_until = since + lasts_s
