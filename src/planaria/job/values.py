"""What single values of a job file must be, whatever their field; how a message shows them.

Each check raises a `UserError` that names the field, its value and the remedy.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from typing import NoReturn

from planaria.job.errors import UserError

_DOTTED = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_FUNCTION = re.compile(rf"{_DOTTED}:{_DOTTED}")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HUB_STREAM = re.compile(r"hf://[^?]*\?(.*&)?stream=true(&.*)?")
_HUB_WEIGHTS = re.compile(r"hf://(?!datasets/|spaces/)[\w.-]+/[\w.-]+(\?revision=[\w./-]+)?")
_MAX_SHOWN = 80

ETCD_URL = "etcd://"
"""With what a journal's place begins that is in etcd."""

ETCD_TLS_URL = "etcds://"
"""With what a journal's place begins that is in etcd and reached under TLS."""

TOKEN_VARIABLE = "PLANARIA_TOKEN"
"""Environment variable with the job's token."""


def shown(value: object) -> str:
    """Returns a value as messages show it: one line, not too long."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits.
        return "a very large number"
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def is_function(model_type: str) -> bool:
    """Whether `model.type` means a Python function ("module:function") and not a Hugging Face model type."""
    return ":" in model_type


def is_reference(text: str) -> bool:
    """Whether a text is of the form "module:function"."""
    return _FUNCTION.fullmatch(text) is not None


def is_dataset(source: str) -> bool:
    """Whether `data.source` names a Python function that returns a dataset, and no file ("./a:b" is one)."""
    return is_reference(source)


def is_host_port(text: str) -> bool:
    """Whether a text is HOST:PORT."""
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdecimal() and 0 < int(port) < 65536


def etcd_members(url: str) -> tuple[str, ...]:
    """Returns the members, as HOST:PORT, that the URL of an etcd names; () where it is no such URL."""
    kind = ETCD_TLS_URL if url.startswith(ETCD_TLS_URL) else ETCD_URL
    members = tuple(url.removeprefix(kind).split(","))
    return members if url.startswith(kind) and all(map(is_host_port, members)) else ()


def is_hub_stream(source: str) -> bool:
    """Whether a source is a dataset of the hub that is read while a run trains ("hf://OWNER/NAME?stream=true")."""
    return _HUB_STREAM.fullmatch(source) is not None


def is_hub_weights(weights: str) -> bool:
    """Whether `model.weights` is a model of the hub by its name ("hf://OWNER/NAME?revision=main"), and no folder."""
    return _HUB_WEIGHTS.fullmatch(weights) is not None


def refuse(field: str, value: object, problem: str, remedy: str) -> NoReturn:
    """Raises a UserError: what is wrong with a value, and the remedy."""
    raise UserError(f"{field} = {shown(value)} {problem}. {remedy}")


def at_least(field: str, value: float, least: float) -> None:
    """Refuses a number below another."""
    if not value >= least:
        refuse(field, value, f"is below {least}", f"Set it to {least} or more.")


def positive(field: str, value: float) -> None:
    """Refuses what is not above 0, or not finite."""
    if not (value > 0 and math.isfinite(value)):
        refuse(field, value, "is not above 0", "Set a finite number above 0.")


def text(field: str, value: str) -> None:
    """Refuses an empty text, and one that no path can be."""
    if not value.strip() or "\0" in value:
        refuse(field, value, "is empty or has a NUL character", "Give a text, or leave the line out.")


def is_loopback(host: str) -> bool:
    """Returns whether a name or address is reached from this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_url(value: str) -> bool:
    """Returns whether a path is a URL."""
    return _URL.match(value) is not None


def path(field: str, value: str) -> None:
    """Refuses a URL: what lies elsewhere is not fetched."""
    text(field, value)
    if is_url(value):
        refuse(
            field, value, "is a URL, and only files of this machine are read and written",
            "Copy it here (hf download, aws s3 sync, gsutil rsync, curl -O), or mount it, and give its path.",
        )  # fmt: skip


def function(field: str, value: str) -> None:
    """Refuses what is not of the form "module:function"."""
    if not is_reference(value):
        refuse(field, value, "is not module:function", 'Write for instance "layers:transformer".')


def check_config(section: str, config: Mapping[str, object], source: str) -> None:
    """Refuses arguments where nobody is called with them, as if somebody were."""
    if config:
        refuse(
            f"{section}.config", dict(config), f"goes with a function, and {section}.source = {shown(source)} is none",
            'Leave it out, or name one, as in "images:train".',
        )  # fmt: skip


def check_name(field: str, name: str) -> None:
    """Checks that a run's name can be the name of its folder.

    Raises:
        UserError: it is none.
    """
    if not name.strip() or name in (".", "..") or any(c in "/\\" or not c.isprintable() for c in name):
        refuse(field, name, "cannot be a folder's name", "Use letters, digits, '-' and '_'.")
    if len(name.encode("utf-8", "surrogatepass")) > 200:
        refuse(field, name, "is too long for a folder's name", "Use at most 200 characters.")
