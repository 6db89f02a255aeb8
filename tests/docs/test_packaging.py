"""What is built has all that runs and no tests, says its version, and each package's licence is told."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import planaria

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
REFERENCE = ROOT / "docs" / "reference"


def test_a_build_without_tags_comes_before_the_version_that_a_clone_says() -> None:
    assert PYPROJECT["tool"]["hatch"]["version"]["fallback-version"] == f"{planaria.__version__}.dev0"


def test_the_page_of_licences_has_each_package_that_is_asked_for() -> None:
    extras = {"": PYPROJECT["project"]["dependencies"], **EXTRAS}
    asked = {
        re.split(r"[<>=~! ]", requirement)[0].replace("_", "-")
        for extra, requirements in extras.items()
        if extra not in ("bench", "dev", "docs")
        for requirement in requirements
    }
    listed, _, _ = (REFERENCE / "licences.md").read_text().partition("## Brought along")
    assert set(re.findall(r"^- \*\*([\w-]+)\*\* \d", listed, re.MULTILINE)) == asked


def test_the_page_of_the_installation_has_each_extra() -> None:
    page = (REFERENCE / "installation.md").read_text()
    assert [extra for extra in EXTRAS if f"`{extra}`" not in page] == []


@pytest.mark.proof
def test_wheel_and_sdist_have_all_that_runs_and_the_version_of_their_tag(tmp_path: Path) -> None:
    """Of the files that git knows, in a repository of their own with a tag; the wheel is made from the sdist."""
    clone, built = tmp_path / "clone", tmp_path / "built"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]
    for name in names:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_bytes((ROOT / name).read_bytes())
    who = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    for command in (("init", "-q"), ("add", "-A"), (*who, "commit", "-qm", "all"), ("tag", "v7.8.9")):
        subprocess.run(["git", *command], cwd=clone, check=True, capture_output=True)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", built, clone], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shipped = {name.removeprefix("src/") for name in names if name.startswith("src/")}
    said = b'\n__version__ = "7.8.9"\n'
    with zipfile.ZipFile(built / "planaria-7.8.9-py3-none-any.whl") as wheel:
        inside = [name for name in wheel.namelist() if ".dist-info/" not in name]
        assert sorted(inside) == sorted(shipped)
        assert said in wheel.read("planaria/job/version.py")
    with tarfile.open(built / "planaria-7.8.9.tar.gz") as sdist:
        assert {f"planaria-7.8.9/{name}" for name in names} - {one.name for one in sdist} == set()
        version = sdist.extractfile("planaria-7.8.9/src/planaria/job/version.py")
        assert version is not None
        assert said in version.read()
