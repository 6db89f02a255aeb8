"""Finds weights of the Hugging Face hub by name on this machine, and fetches them if they are not here.

What the hub's cache has is taken as it is, so that every process of a run finds the same; torch is not imported.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from planaria.job.errors import UserError, in_one_line
from planaria.job.values import is_hub_weights

_WANTED = ["*.json", "*.safetensors", "*.jinja"]
_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"


def local_weights(weights: str) -> Path:
    """Returns the folder of what `model.weights` names: a path as it is, a name of the hub as it lies in its cache.

    Raises:
        UserError: weights of the hub are not here, and cannot be fetched.
    """
    if not is_hub_weights(weights):
        return Path(weights)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    parts = urlsplit(weights)
    name = f"{parts.netloc}{parts.path}"
    revision = parse_qs(parts.query).get("revision", [None])[0]
    try:
        here = Path(snapshot_download(name, revision=revision, allow_patterns=_WANTED, local_files_only=True))
        if _is_whole(here):
            return here
    except LocalEntryNotFoundError:
        pass
    try:
        here = Path(snapshot_download(name, revision=revision, allow_patterns=_WANTED))
    except Exception as error:  # the library, and what is under it, have many errors
        raise _not_had(weights, name, in_one_line(error)) from error
    if not _is_whole(here):  # without a network the library returns what was fetched before
        raise _not_had(weights, name, f"there are not all of its safetensors in {here}")
    return here


def _not_had(weights: str, name: str, reason: str) -> UserError:
    return UserError(
        f"model.weights = {weights!r} cannot be had from the hub ({reason}). Check name, revision and network; or "
        f"fetch it where there is one (hf download {name} --local-dir FOLDER), and give the folder."
    )


def is_of(folder: str | None, weights: str) -> bool:
    """Whether a folder is where the hub's cache has these weights, of whatever revision."""
    parts = urlsplit(weights)
    kept = f"models--{parts.netloc}--{parts.path.removeprefix('/')}"
    return folder is not None and kept in Path(folder).parts and _is_whole(Path(folder))


def _is_whole(folder: Path) -> bool:
    """Whether all files of weights are there: a download may have been interrupted."""
    if not (folder / "config.json").exists():
        return False
    try:
        files = set(json.loads((folder / _INDEX).read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        files = {_SINGLE}
    return all((folder / file).exists() for file in files)
