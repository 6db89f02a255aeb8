"""What of [observe] is secret: parts of URLs, which nobody but the view that needs them reads."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

import msgspec

from planaria.job.settings import Job

HIDDEN = "hidden"


def without_secrets(job: Job) -> Job:
    """Returns the job as others may read it: of secret URLs only scheme and host are left."""
    observe = job.observe
    kept = msgspec.structs.replace(observe, webhook=_only_host(observe.webhook), mlflow=_no_password(observe.mlflow))
    return msgspec.structs.replace(job, observe=kept)


def host_of(url: str) -> str:
    """Returns the host that a URL names, which is all of a secret one that messages show."""
    return urlsplit(url).hostname or ""


def _only_host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{HIDDEN}" if url else ""


def _no_password(url: str) -> str:
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
