"""The cache of profiles that `planaria plan` has measured on this machine, so that the next plan takes no time.

A profile is kept under a hash of everything that it depends on. Models whose code or weights may change behind the
job file (functions, datasets, local folders) are measured each time.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from planaria.job.settings import Job
from planaria.job.values import is_dataset, is_function
from planaria.job.version import __version__
from planaria.plan.costs.model_profile import ModelProfile
from planaria.plan.costs.profile_check import decode_profile
from planaria.plan.plan import PlanError
from planaria.runtime.measure.dependencies import dependencies
from planaria.runtime.run_folder.recorder import write_atomically


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Returns the folder of kept profiles: in XDG_CACHE_HOME, or else in ~/.cache."""
    root = environment.get("XDG_CACHE_HOME", "")
    return Path(root if os.path.isabs(root) else Path.home() / ".cache") / "planaria" / "profiles"


class ProfileCache:
    """A folder of profiles."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, job: Job) -> tuple[ModelProfile, float] | None:
        """Returns the job's profile and its age in seconds; None when it was not measured, or may not be kept."""
        path = self._path(job)
        if path is None:
            return None
        try:
            profile = decode_profile(path.read_bytes())
            return profile, max(0.0, time.time() - path.stat().st_mtime)
        except (OSError, PlanError):
            return None  # Absent, damaged, or of another version: measuring again replaces it.

    def keep(self, job: Job, profile: ModelProfile) -> None:
        """Keeps a profile that was measured now.

        Raises:
            OSError: the folder cannot be written.
        """
        path = self._path(job)
        if path is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, msgspec.json.encode(profile))

    def _path(self, job: Job) -> Path | None:
        if is_function(job.model.type) or is_dataset(job.data.source) or job.model.weights is not None:
            return None
        parts = [
            __version__,
            *(_version(package) for package in ("torch", "transformers")),
            platform.node(),
            platform.machine(),
            job.cluster.device.value,
            _stamp(job.data.tokenizer),
            *dependencies(job),
        ]
        return self._folder / f"{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:32]}.json"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _stamp(tokenizer: str) -> str:
    """Returns a tokenizer's name, and for a file its size and time."""
    try:
        status = os.stat(tokenizer)
    except (OSError, ValueError):
        return tokenizer
    return f"{tokenizer}/{status.st_size}/{status.st_mtime_ns}"
