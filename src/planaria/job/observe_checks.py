"""What makes [observe] impossible, and what of it nobody else may read."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

import msgspec

from planaria.job.errors import UserError
from planaria.job.observe_settings import ObserveSection
from planaria.job.settings import Job
from planaria.job.values import refuse

HIDDEN = "hidden"


def check_observe(observe: ObserveSection) -> None:
    """Refuses an [observe] that cannot be. Raises UserError, which shows no URL."""
    if not 0 <= observe.metrics_port <= 65535:
        refuse("observe.metrics_port", observe.metrics_port, "is not a TCP port", "Set 1 to 65535, or 0 for none.")
    for name in ("wandb", "command"):
        value = getattr(observe, name)
        if "\0" in value or (value and not value.strip()):
            refuse(f"observe.{name}", value, "is empty or has a NUL character", "Give a text, or leave the line out.")
    if observe.webhook and not _is_http(observe.webhook):
        raise UserError(
            "observe.webhook is not a URL of http or https (it is not shown, as it may be secret). "
            'Write for instance "https://hooks.slack.com/services/...".'
        )
    if observe.mlflow and not _is_plain(observe.mlflow):
        raise UserError('observe.mlflow is neither a URL nor a folder. Write for instance "http://127.0.0.1:5000".')


def without_secrets(job: Job) -> Job:
    """Returns the job as others may read it: of secret URLs only scheme and host are left."""
    observe = job.observe
    kept = msgspec.structs.replace(observe, webhook=_only_host(observe.webhook), mlflow=_no_password(observe.mlflow))
    return msgspec.structs.replace(job, observe=kept)


def host_of(url: str) -> str:
    """Returns the host that a URL names, which is all of a secret one that messages show."""
    return urlsplit(url).hostname or ""


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and bool(text.strip())


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return is_whole and parts.scheme in ("http", "https") and _is_plain(url) and " " not in url


def _only_host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{HIDDEN}" if url else ""


def _no_password(url: str) -> str:
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
