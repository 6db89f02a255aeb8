"""Changes that no schedule can find, each with the reason: `make mutants` tells them apart from what is missed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.testkit.mutants.sites import Site


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why some changes break no promise.

    Attributes:
        file: below `planaria`.
        function: in it, by its qualified name; "": any.
        text: that the changed line begins with; "": any.
        why: it breaks none.
    """

    file: str
    function: str
    text: str
    why: str


EXPLAINED: tuple[Explanation, ...] = ()


def explanation_of(site: Site, sources: Path) -> Explanation | None:
    """Returns the explanation of a change; None: there is none."""
    file, function = str(site.path.relative_to(sources)), site.function[0]
    for one in EXPLAINED:
        if one.file == file and one.function in ("", function) and site.text.startswith(one.text):
            return one
    return None
