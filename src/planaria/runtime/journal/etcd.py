"""The members of an etcd cluster, asked one after the other until one answers.

Over etcd's JSON gateway, by etcd3gw (the extra etcd). One thread at a time may use an object of this module.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from planaria.job.errors import PlanariaError, UserError
from planaria.job.values import ETCD_TLS_URL, etcd_members
from planaria.runtime.journal import etcd_tls
from planaria.runtime.thresholds import ETCD_HURRIES_S, ETCD_PAGE, ETCD_PAUSE_S, ETCD_TIMEOUT_S

Answer = TypeVar("Answer")

NEVER: Final = 0
"""Revision at which a key was created that is not there."""


class OutOfReach(PlanariaError):
    """No member answers, or none can: more than half of them are gone."""

    remedy = "Start its members, or correct the addresses"


class Distrusted(OutOfReach):
    """Members and this process do not trust each other's certificates."""

    remedy = etcd_tls.REMEDY


@dataclass(frozen=True)
class Created:
    """A condition: the key was created at this revision; `NEVER`: it is not there."""

    key: str
    revision: int
    target: ClassVar = "create"

    @property
    def compared(self) -> dict[str, str]:
        return {
            "key": _encoded(self.key),
            "target": self.target.upper(),
            "result": "EQUAL",
            f"{self.target}_revision": str(self.revision),
        }


@dataclass(frozen=True)
class Unchanged(Created):
    """A condition: the key was last set at this revision."""

    target: ClassVar = "mod"


@dataclass(frozen=True, slots=True)
class Put:
    """Sets a key; with a lease, for as long as that lasts."""

    key: str
    value: bytes
    lease: int = 0

    @property
    def request(self) -> dict[str, Any]:
        put = {"key": _encoded(self.key), "value": base64.b64encode(self.value).decode()}
        return {"request_put": {**put, "lease": str(self.lease)} if self.lease else put}


@dataclass(frozen=True, slots=True)
class Delete:
    """Removes the keys from `first` on, up to and without `end`."""

    first: str
    end: str

    @property
    def request(self) -> dict[str, Any]:
        return {"request_delete_range": {"key": _encoded(self.first), "range_end": _encoded(self.end)}}


@dataclass(frozen=True, slots=True)
class Found:
    """A key that is there; `lease`: for as long as that lasts, 0: for ever."""

    key: str
    value: bytes
    created: int
    changed: int
    lease: int = 0


class Etcd:
    """The members of a cluster.

    Args:
        url: "etcd://HOST:PORT,HOST:PORT,...", or "etcds://..." where it is reached under TLS.
        tls: folder with the certificates; "": there is none, and the URL is a plain one.

    Attributes:
        url: likewise.

    Raises:
        UserError: etcd3gw is not installed, or certificates cannot be used.
    """

    def __init__(self, url: str, tls: str = "") -> None:
        try:
            from etcd3gw.client import Etcd3Client
        except ImportError:
            raise UserError(
                f"run.journal = {url!r} needs etcd3gw, which is not installed. Install it: pip install etcd3gw."
            ) from None
        self.url = url
        self._is_secure = url.startswith(ETCD_TLS_URL)
        options: dict[str, Any] = {}
        if self._is_secure:
            options = {"protocol": "https", "session": etcd_tls.session_of(Path(tls))}
        self._members: list[Any] = [
            Etcd3Client(host, int(port), timeout=ETCD_TIMEOUT_S, api_path="/v3/", **options)
            for host, _, port in (member.rpartition(":") for member in etcd_members(url))
        ]

    def transact(
        self, conditions: Sequence[Created], actions: Sequence[Put | Delete], *, may_repeat: bool = False
    ) -> tuple[bool, int]:
        """Carries the actions out if all conditions hold. Returns whether they do, and the revision afterwards.

        Args:
            conditions: of which each must hold.
            actions: that are carried out together.
            may_repeat: whether it does no harm if they are carried out twice: another member is asked soon then.

        Raises:
            OutOfReach: it is not known whether it was done.
        """
        request = {"compare": [one.compared for one in conditions], "success": [one.request for one in actions]}
        answer = self._ask(lambda member: member.transaction(request), may_repeat)
        return bool(answer.get("succeeded", False)), int(answer["header"]["revision"])

    def find(self, key: str) -> Found | None:
        """Returns what a key is; None: it is not there. Raises OutOfReach."""
        found = self._range({"key": _encoded(key)})
        return found[0] if found else None

    def find_all(self, prefix: str) -> list[Found]:
        """Returns all keys that begin so, in order. Raises OutOfReach."""
        found: list[Found] = []
        first, end = prefix, after(prefix)
        while True:
            page = self._range({"key": _encoded(first), "range_end": _encoded(end), "limit": str(ETCD_PAGE)})
            found += page
            if len(page) < ETCD_PAGE:
                return found
            first = f"{page[-1].key}\0"

    def grant(self, seconds: int) -> tuple[int, int]:
        """Returns a lease of so many seconds, and how many etcd gives: maybe more. Raises OutOfReach."""
        request = {"TTL": str(seconds), "ID": "0"}
        answer = self._ask(lambda member: member.post(member.get_url("/lease/grant"), json=request))
        return int(answer["ID"]), int(answer["TTL"])

    def keep_alive(self, lease: int) -> int:
        """Returns for how many seconds a lease lasts from now on; 0: it is over. A member that is cut off may say so of
        one that the others have ended. Raises OutOfReach."""
        answer = self._ask(lambda member: member.post(member.get_url("/lease/keepalive"), json={"ID": str(lease)}))
        return int(answer.get("result", {}).get("TTL", 0))

    def left_s(self, lease: int) -> int:
        """Returns for how many whole seconds a lease lasts still; 0: it is over. Raises OutOfReach."""
        request = {"ID": str(lease)}
        answer = self._ask(lambda member: member.post(member.get_url("/lease/timetolive"), json=request))
        return max(0, int(answer.get("TTL", 0)))

    def revoke(self, lease: int) -> None:
        """Ends a lease. Raises OutOfReach."""
        self._ask(lambda member: member.post(member.get_url("/lease/revoke"), json={"ID": str(lease)}))

    def _range(self, request: Mapping[str, str]) -> list[Found]:
        answer = self._ask(lambda member: member.post(member.get_url("/kv/range"), json=request))
        return [
            Found(
                key=base64.b64decode(one["key"]).decode(),
                value=base64.b64decode(one.get("value", "")),
                created=int(one["create_revision"]),
                changed=int(one["mod_revision"]),
                lease=int(one.get("lease", 0)),
            )
            for one in answer.get("kvs", ())
        ]

    def _ask(self, question: Callable[[Any], Answer], may_repeat: bool = True) -> Answer:
        """Asks the member that answered last, and then the others; while one is late, all of them once more, with more
        patience."""
        from etcd3gw.exceptions import ConnectionTimeoutError, Etcd3Exception
        from requests import RequestException  # an answer that breaks off, or is none, comes through as it is

        failed, late = OutOfReach, 0
        for patience_s in (*ETCD_HURRIES_S, ETCD_TIMEOUT_S):
            for member in [*self._members]:
                member.timeout = (patience_s, patience_s if may_repeat else ETCD_TIMEOUT_S)
                try:
                    return question(member)
                except (Etcd3Exception, RequestException) as error:
                    said, is_distrust = self._explained(member, error)
                    failed = Distrusted if is_distrust else failed
                    late += isinstance(error, ConnectionTimeoutError)
                    self._members.append(self._members.pop(0))
            if not late:
                break
        raise failed(f"{self.url} is out of reach: {said}")

    def _explained(self, member: Any, error: Exception) -> tuple[str, bool]:
        """Returns why a member gave no answer, in one line, and whether one does not trust the other."""
        text = " ".join(str(part) for part in (error, getattr(error, "detail_text", "")) if part)
        is_distrust = False
        if self._is_secure:
            why, is_distrust = etcd_tls.explained(error, member.session, (member.host, member.port))
            text = why or text
        return f"{member.host}:{member.port}: {text or type(error).__name__}".splitlines()[0], is_distrust


def persistently(work: Callable[[], Answer], seconds: float) -> Answer:
    """Returns what a question gives, asked again while no member answers. Raises OutOfReach: none does for so long."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return work()
        except OutOfReach:
            if time.monotonic() >= deadline:
                raise
            time.sleep(ETCD_PAUSE_S)


def after(prefix: str) -> str:
    """Returns the first key behind all that begin so."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _encoded(key: str) -> str:
    return base64.b64encode(key.encode()).decode()
