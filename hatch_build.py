"""A hook of the build: what is built says at run time what it was built as, without git and without its metadata."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULE = "planaria/job/version.py"


class VersionHook(BuildHookInterface[Any]):
    """Puts the version that hatch-vcs found into the wheel's and the sdist's module; the clone stays as it is."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Replaces the module in what is built; an editable installation reads the clone's."""
        if version == "editable":
            return
        text = (Path(self.root) / "src" / MODULE).read_text(encoding="utf-8")
        folder = Path(tempfile.mkdtemp(prefix="planaria-build-"))
        self.built = folder / "version.py"
        said, count = re.subn(r'(?m)^__version__ = ".*"$', f'__version__ = "{self.metadata.version}"', text)
        assert count == 1, text
        self.built.write_text(said, encoding="utf-8")
        place = MODULE if self.target_name == "wheel" else f"src/{MODULE}"
        build_data["force_include"][str(self.built)] = place

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes what `initialize` wrote."""
        if version != "editable":
            self.built.unlink()
            self.built.parent.rmdir()
