"""Notices that a cloud gives before it takes a node away: where they come from, and the thread that asks for them.

A source is asked again and again, in a daemon thread of the node's first worker. Whatever a source does, it never ends
a worker: one that cannot be asked is told of in the log, once for each time that it begins to fail.
"""

from __future__ import annotations

import http.client
import json
import math
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from typing import Final, Protocol

from planaria.job.errors import PlanariaError
from planaria.job.sections.resilience import AWS, GOOGLE, NO_PREEMPTION
from planaria.runtime.thresholds import GOOGLE_GRACE_S, METADATA_BYTES, METADATA_TIMEOUT_S

METADATA_URL: Final = "http://169.254.169.254"
"""Address at which both clouds answer to their own instances."""


AWS_TOKEN_LIFE_S: Final = 21_600


class SourceError(PlanariaError):
    """A source that could not be asked, or gave no sensible answer."""


class Source(Protocol):
    """Says when the node that it is asked on goes away.

    Attributes:
        name: for people.
        interval_s: seconds between two questions.
    """

    name: str
    interval_s: float

    def seconds_left(self) -> float | None:
        """Seconds until the node goes away; None when nothing is known of that.

        Raises:
            Exception: the source could not be asked.
        """
        ...


class AwsSource:
    """Reads the interruption notice of an EC2 Spot instance, from its metadata service (IMDSv2).

    `spot/instance-action` is absent (404) until the instance is marked, about two minutes before its end; Amazon asks
    to look every five seconds (EC2 User Guide, "Spot Instance interruption notices").

    Args:
        url: of the metadata service.
        clock: seconds since 1970 (UTC).
    """

    name = "AWS spot interruption notice"
    interval_s = 5.0

    def __init__(self, url: str = METADATA_URL, clock: Callable[[], float] = time.time) -> None:
        self._url = url
        self._clock = clock
        self._token = ""

    def seconds_left(self) -> float | None:
        status, answer = self._ask()
        if status == 401:  # the token is missing or too old
            self._token = self._new_token()
            status, answer = self._ask()
        if status == 404:
            return None
        if status != 200:
            raise SourceError(f"{self._url} answers with status {status}")
        return max(0.0, _moment_of(answer) - self._clock())

    def _ask(self) -> tuple[int, str]:
        if not self._token:
            self._token = self._new_token()
        return _fetch(f"{self._url}/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": self._token})

    def _new_token(self) -> str:
        life = {"X-aws-ec2-metadata-token-ttl-seconds": str(AWS_TOKEN_LIFE_S)}
        status, token = _fetch(f"{self._url}/latest/api/token", life, method="PUT")
        if status != 200 or not token.isprintable() or not token:
            raise SourceError(f"{self._url} gives no IMDSv2 token (status {status})")
        return token


def _moment_of(answer: str) -> float:
    """Returns seconds since 1970 of {"action": "terminate", "time": "2017-09-18T08:22:00Z"}."""
    try:
        moment = datetime.fromisoformat(json.loads(answer)["time"])
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(f"the interruption notice {answer!r:.200} bears no time: {error}") from error
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


class GoogleSource:
    """Reads the preemption notice of a Compute Engine Spot VM, from its metadata server.

    Args:
        url: of the metadata server.
    """

    name = "Google preemption notice"
    interval_s = 1.0

    def __init__(self, url: str = METADATA_URL) -> None:
        self._url = url

    def seconds_left(self) -> float | None:
        status, answer = _fetch(f"{self._url}/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
        if status != 200 or answer.strip() not in ("TRUE", "FALSE"):
            raise SourceError(f"{self._url} answers with status {status} and {answer!r:.80} instead of TRUE or FALSE")
        return GOOGLE_GRACE_S if answer.strip() == "TRUE" else None


class FunctionSource:
    """Asks a function of the user's that returns None or the seconds that are left.

    Args:
        function: "module:function".

    Raises:
        SourceError: there is no such function.
    """

    interval_s = 1.0

    def __init__(self, function: str) -> None:
        self.name = f"notice of {function}"
        module, _, path = function.partition(":")
        said = f"resilience.preemption = {function!r}"
        try:
            found: object = import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
        except Exception as error:  # the user's module may raise anything
            raise SourceError(f"{said} cannot be imported: {type(error).__name__}: {error}") from error
        if not callable(found):
            raise SourceError(f"{said} is a {type(found).__name__}, not a function. Name one that can be called.")
        self._function = found

    def seconds_left(self) -> float | None:
        answer = self._function()
        if answer is None:
            return None
        if isinstance(answer, bool) or not isinstance(answer, int | float) or not math.isfinite(answer):
            raise SourceError(f"it returned {answer!r:.80} instead of None or a number of seconds")
        return max(0.0, float(answer))


def make_source(preemption: str, url: str = "") -> Source | None:
    """Makes the source that the job names in `resilience.preemption`; None for "none".

    Args:
        preemption: "none", "aws", "google" or "module:function".
        url: of the cloud's metadata server; "": where it always is.

    Raises:
        SourceError: the function cannot be had.
    """
    if preemption == NO_PREEMPTION:
        return None
    if preemption == AWS:
        return AwsSource(url or METADATA_URL)
    if preemption == GOOGLE:
        return GoogleSource(url or METADATA_URL)
    return FunctionSource(preemption)


class Watch:
    """Asks a source and passes on what it says.

    Args:
        source: asked from this thread alone.
        give_notice: told (seconds left, cause), at every answer that says so: whoever was not ready for the first
            notice gets another, and the coordinator counts a node's first.
        say: takes lines for the log.
    """

    def __init__(
        self, source: Source, give_notice: Callable[[float, str], None], say: Callable[[str], None] | None = None
    ) -> None:
        self._source = source
        self._give_notice = give_notice
        self._say = _to_log if say is None else say
        self._fails = False
        self._ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="preemption", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def ask(self) -> None:
        """Asks the source once."""
        try:
            left_s = self._source.seconds_left()
        except Exception as error:  # a notice that cannot be had must not end the worker
            if not self._fails:
                self._say(f"{self._source.name}: cannot be asked, and will be asked again: {error}")
            self._fails = True
            return
        self._fails = False
        if left_s is not None:
            self._give_notice(left_s, self._source.name)

    def _run(self) -> None:
        self.ask()
        while not self._ended.wait(self._source.interval_s):
            self.ask()


def _to_log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# Proxies of the environment are for the world outside; the metadata server is beside the machine.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _fetch(url: str, headers: dict[str, str], method: str = "GET") -> tuple[int, str]:
    """Returns status and body of an answer, whatever its status.

    Raises:
        SourceError: there is none.
    """
    request = urllib.request.Request(url, headers=headers, method=method)
    try:
        with _direct.open(request, timeout=METADATA_TIMEOUT_S) as answer:
            return answer.status, answer.read(METADATA_BYTES).decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise SourceError(f"{url}: {error}") from error
