"""Who leads a run whose journal is in etcd, and who stands by, for those who look at it: nothing is written."""

from __future__ import annotations

import msgspec

from planaria.job.errors import UserError
from planaria.runtime.journal.etcd import Etcd, OutOfReach
from planaria.runtime.journal.lead import Leader, lead_key, settings_key, standbys_prefix


class Leadership(msgspec.Struct, frozen=True, kw_only=True):
    """Who leads a run that may go on.

    Attributes:
        leader: its host; "": nobody leads.
        lease_left_s: whole seconds for which etcd holds the leader's lease, if nothing is heard of it.
        standbys: hosts whose processes stand by, in order.
    """

    leader: str = ""
    lease_left_s: int = 0
    standbys: tuple[str, ...] = ()


def leadership(url: str, run: str, tls: str = "") -> Leadership | None:
    """Returns who leads a run; None: it is over, or etcd cannot be asked from here.

    Args:
        url: of etcd.
        run: its name there.
        tls: folder with the certificates for "etcds://...".
    """
    try:
        etcd = Etcd(url, tls)
        if etcd.find(settings_key(run)) is None:
            return None
        found, waiting = etcd.find(lead_key(run)), etcd.find_all(standbys_prefix(run))
        standbys = sorted(_host(one.value) for one in waiting)
        if found is None:
            return Leadership(standbys=tuple(standbys))
        left_s = etcd.left_s(found.lease)
        return Leadership(leader=_host(found.value), lease_left_s=left_s, standbys=tuple(standbys))
    except (OutOfReach, UserError):  # the latter: this host has no certificates, or no client of etcd
        return None


def _host(value: bytes) -> str:
    return msgspec.json.decode(value, type=Leader).host
