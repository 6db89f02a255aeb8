"""Plans that a run's journal has, for those who look at the run: nothing is written, and no writer waits."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from planaria.job.errors import UserError
from planaria.protocol.messages.journal import JournalPast, JournalPlan
from planaria.protocol.messages.journal_chain import JournalChain
from planaria.runtime.journal.etcd import Etcd, OutOfReach
from planaria.runtime.journal.lead import entries_prefix

_PLANS = (
    "SELECT entry FROM entries "
    "WHERE instr(substr(entry, 1, 16), x'706c616e') OR instr(substr(entry, 1, 16), x'70617374') ORDER BY number"
)
"""Entries whose first bytes have the tag "plan", "plan_update" or "past"."""


def recorded_plans(path: Path, url: str = "", run: str = "", tls: str = "") -> list[JournalPlan]:
    """Returns the plans of a run in order, from the oldest that its journal has whole; those left out that another
    version wrote; none, where it cannot be read.

    Args:
        path: of the journal, where it is a file.
        url: of etcd, where it is kept there.
        run: its name there.
        tls: folder with the certificates for "etcds://...".
    """
    plans: list[JournalPlan] = []
    chain = JournalChain()
    for body in _of_etcd(url, run, tls) if url else _of_file(path):
        with contextlib.suppress(ValueError):
            entry = chain.decode(body)
            if isinstance(entry, JournalPast):
                plans = [] if entry.plan is None else [entry.plan]
            elif isinstance(entry, JournalPlan):
                plans.append(entry)
    return plans


def _of_file(path: Path) -> Sequence[bytes]:
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as journal:
            return [body for (body,) in journal.execute(_PLANS)]
    except sqlite3.Error:
        return ()


def _of_etcd(url: str, run: str, tls: str) -> Sequence[bytes]:
    try:
        return [found.value for found in Etcd(url, tls).find_all(entries_prefix(run))]
    except (OutOfReach, UserError):  # the latter: this host has no certificates, or no client of etcd
        return ()
