"""Kubernetes as an engine: it replaces lost pods itself, so all that is done here is to write its objects.

What a user says is checked as far as that goes without a cluster.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from planaria.job.errors import UserError
from planaria.runtime.coordinator.client import write_private
from planaria.runtime.engines.kubernetes_manifests import (
    VOLUME,
    KubernetesRun,
    Manifest,
    jobset,
    plain_jobs,
    secret,
    surroundings,
)
from planaria.runtime.thresholds import ENGINE_COMMAND_S
from planaria.runtime.wire.tls import CA, CERTIFICATE, KEY

ENGINE: Final = "kubernetes"
SECRET, RUN = "secret.yaml", "run.yaml"
MAX_RUN_NAME: Final = 40
"""Characters of a run's name: a pod's has 63, and is the run's with at most 22 more."""

MAX_JOB_BYTES: Final = 1_000_000
"""Most bytes of a job file: a ConfigMap has 1 MiB."""

_RUN_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_CPU: Final = re.compile(r"(?=.*[1-9])\d+(\.\d+)?m?")
_BYTES: Final = re.compile(r"(?=.*[1-9])\d+(\.\d+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)")


def check_cpu(option: str, value: str) -> None:
    """Checks an amount of processors. Raises UserError."""
    if value and not _CPU.fullmatch(value):
        raise UserError(f"{option} {value!r} is no amount of processors. Write as Kubernetes does: 8, 0.5 or 500m.")


def check_bytes(option: str, value: str) -> None:
    """Checks an amount of memory. Raises UserError, also where the unit is missing."""
    if value and not _BYTES.fullmatch(value):
        raise UserError(f"{option} {value!r} is no amount of bytes. Write as Kubernetes does: 64Gi, 512Mi or 100G.")


def check_run_name(value: str) -> None:
    """Checks the name of a run, which its pods bear. Raises UserError."""
    if not (_RUN_NAME.fullmatch(value) and len(value) <= MAX_RUN_NAME):
        raise UserError(
            f"run name {value!r} cannot be that of pods. Give --name NAME of at most {MAX_RUN_NAME} lower-case "
            "letters, digits and hyphens; a letter is first, and no hyphen last."
        )


def check_name(option: str, value: str) -> None:
    """Checks the name of an object. Raises UserError where Kubernetes has none such."""
    if value and not _NAME.fullmatch(value):
        raise UserError(
            f"{option} {value!r} is no name of Kubernetes: these have lower-case letters, digits, hyphens and dots. "
            "Correct it."
        )


def check_folder(run_folder: str) -> None:
    """Checks where run folders lie. Raises UserError: not on the volume."""
    if os.path.isabs(run_folder) and not Path(run_folder).is_relative_to(VOLUME):
        raise UserError(
            f"run.folder = {run_folder!r} is not on the volume, which pods have at {VOLUME}. "
            "Set it to a relative path, or to one below that."
        )


def read_certificates(folder: Path) -> dict[str, str]:
    """Returns the certificates of a folder by name. Raises UserError: one cannot be read."""
    try:
        return {name: (folder / name).read_text() for name in (CA, CERTIFICATE, KEY)}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"the certificates in {folder} cannot be read: {error}. Make new ones by planaria certificates {folder}."
        ) from None


def read_job(path: Path) -> str:
    """Returns the text of a job file. Raises UserError: it is too large for a ConfigMap."""
    text = path.read_text(encoding="utf-8")
    if len(text.encode()) > MAX_JOB_BYTES:
        raise UserError(f"job file {path} has more than {MAX_JOB_BYTES} bytes, which no ConfigMap takes. Shorten it.")
    return text


def kept_token(folder: Path) -> str:
    """Returns the token of an earlier launch into this folder, so that its pods and new ones agree; "": none."""
    try:
        kept = yaml.safe_load((folder / SECRET).read_text())
        return str(kept["stringData"]["token"])
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return ""


def documents(run: KubernetesRun, *, has_jobset: bool) -> dict[str, str]:
    """Returns the files of a launch, by name: all that is secret is in one of them."""
    jobs = [jobset(run)] if has_jobset else plain_jobs(run)
    return {SECRET: text_of([secret(run)]), RUN: text_of([*surroundings(run), *jobs])}


def write(folder: Path, files: dict[str, str]) -> None:
    """Writes the files of a launch. Raises UserError: the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_private(folder / SECRET, files[SECRET].encode())
        (folder / RUN).write_text(files[RUN], encoding="utf-8")
    except OSError as error:
        raise UserError(f"folder {folder} cannot be written: {error.strerror}. Choose another one by -o DIR.") from None


def apply(folder: Path) -> str:
    """Has kubectl make what the files say; returns what it says.

    Raises:
        UserError: kubectl is not there, or the cluster refuses.
    """
    if shutil.which("kubectl") is None:
        raise UserError(f"kubectl is not there. Give this command where it is: kubectl apply -f {folder}")
    command = ["kubectl", "apply", "-f", os.fspath(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ENGINE_COMMAND_S, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"kubectl has not answered for {ENGINE_COMMAND_S:g} s. Try it: {' '.join(command)}") from None
    if done.returncode:
        raise UserError(f"kubectl refuses: {_reason(done.stderr)}.")
    return done.stdout


def _reason(stderr: str) -> str:
    """Returns what kubectl complains of first, and what to do."""
    reason = (stderr.strip().splitlines() or ["it does not say why"])[0].rstrip(".")
    if 'kind "JobSet"' in stderr:
        return f"{reason}. Install JobSet, or give --plain-jobs"
    if "forbidden" in stderr:
        return f"{reason}. kubectl auth can-i --list says what you may do"
    return f"{reason}. kubectl cluster-info says whether the cluster answers"


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes each value where it stands, and texts of several lines as such."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def text_of(manifests: Iterable[Manifest]) -> str:
    """Returns objects as YAML, one document each."""
    return "".join(
        "---\n" + yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=120, default_flow_style=False)
        for manifest in manifests
    )
