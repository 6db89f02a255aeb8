"""The journal in etcd: a key for each entry, appended by the leader alone."""

from __future__ import annotations

import logging
from typing import Final

from planaria.job.errors import UserError
from planaria.protocol.messages.journal import AnyEntry
from planaria.protocol.messages.journal_chain import JournalChain
from planaria.runtime.journal.etcd import NEVER, Created, Delete, Etcd, Found, OutOfReach, Put, after, persistently
from planaria.runtime.journal.journal import next_entry, past_of
from planaria.runtime.journal.lead import entries_prefix, lead_key
from planaria.runtime.thresholds import ENTRIES_KEPT, THINNED_EVERY

log = logging.getLogger(__name__)

_DIGITS: Final = 16


class NotLeader(UserError):
    """Another process leads the run, or etcd was out of reach for as long as workers wait: nothing may be decided."""


class EtcdJournal:
    """Keeps what one run decided, in order; see `planaria.runtime.journal.journal.Journal`.

    Args:
        url: of the members, "etcd://..." or "etcds://...".
        run: its name.
        mark: tells this run from earlier ones of the name, whose entries are removed: what they decided is over.
        lead: revision at which this process's supervisor took the lead.
        patience_s: for which etcd may be out of reach.
        tls: folder with the certificates for "etcds://...".
    """

    def __init__(self, url: str, run: str, mark: str, lead: int, patience_s: float, tls: str = "") -> None:
        self.complaints: list[str] = []
        self._etcd = Etcd(url, tls)
        self._run = run
        self._prefix = entries_prefix(run, mark)
        self._is_led = Created(lead_key(run), lead)
        self._patience_s = patience_s
        self._chain = JournalChain()
        self._next = 0
        self._since_thinned = 0

    def start(self) -> None:
        """Removes the entries of earlier runs.

        Raises:
            NotLeader: another process leads.
        """
        every = entries_prefix(self._run)
        others = [Delete(every, self._prefix), Delete(after(self._prefix), after(every))]
        if not persistently(lambda: self._etcd.transact([self._is_led], others), self._patience_s)[0]:
            raise self._not_leader()
        entries = self._found()
        self._next = int(entries[-1].key.rpartition("/")[2]) + 1 if entries else 0

    def read(self) -> list[AnyEntry]:
        """Returns this run's entries in order.

        Raises:
            UserError: a later version of Planaria wrote one.
        """
        self._chain = JournalChain()
        url = self._etcd.url
        entries = [next_entry(self._chain, one.value, f"{url}: key {one.key}") for one in self._found()]
        self._since_thinned = len(entries)
        return entries

    def write(self, entry: AnyEntry) -> None:
        """Returns when the entry is durable.

        Raises:
            NotLeader: another process leads, or etcd is out of reach for too long. The entry may be there then.
        """
        key, body = self._key(self._next), self._chain.encode(entry)
        try:
            persistently(lambda: self._append(key, body), self._patience_s)
        except OutOfReach as error:
            raise NotLeader(f"the journal cannot be written for {self._patience_s:.0f} s: {error}") from None
        self._next += 1
        self._since_thinned += 1
        if self._since_thinned >= THINNED_EVERY:
            self._thin()

    def close(self) -> None:
        """Does nothing: no connection outlives its question."""

    def _append(self, key: str, body: bytes) -> None:
        """Appends an entry, unless a try before, whose answer was lost, has done it. Raises NotLeader, OutOfReach."""
        is_done, _ = self._etcd.transact([self._is_led, Created(key, NEVER)], [Put(key, body)])
        if is_done:
            return
        found, leads = self._etcd.find(key), self._etcd.find(self._is_led.key)
        if found is None or found.value != body or leads is None or leads.created != self._is_led.revision:
            raise self._not_leader()

    def _thin(self) -> None:
        """Puts one entry in the place of all but the newest; those keep their numbers. Out of reach, that waits for
        another time."""
        try:
            old = self._found()[:-ENTRIES_KEPT]
            past = Put(old[-1].key, past_of(one.value for one in old))
            self._etcd.transact([self._is_led], [past, Delete(self._prefix, past.key)])
        except OutOfReach as error:
            log.warning("old entries stay in the journal for now: %s", error)
        self._since_thinned = 0

    def _found(self) -> list[Found]:
        return persistently(lambda: self._etcd.find_all(self._prefix), self._patience_s)

    def _key(self, number: int) -> str:
        return f"{self._prefix}{number:0{_DIGITS}}"

    def _not_leader(self) -> NotLeader:
        return NotLeader(f"another process leads run {self._run} now: this coordinator decides nothing any more")
