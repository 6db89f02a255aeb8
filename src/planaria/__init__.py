"""Planaria: train large models on machines that fail."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planaria.api import Job as Job
    from planaria.api import PlanReport as PlanReport
    from planaria.api import TrainResult as TrainResult
    from planaria.api import UserError as UserError
    from planaria.api import load_job as load_job
    from planaria.api import plan as plan
    from planaria.api import reference as reference
    from planaria.api import train as train

__version__ = "0.1.0"

_FROM_API = ("Job", "PlanReport", "TrainResult", "UserError", "load_job", "plan", "reference", "train")
__all__ = [
    "Job",
    "PlanReport",
    "TrainResult",
    "UserError",
    "__version__",
    "load_job",
    "plan",
    "reference",
    "train",
]


def __getattr__(name: str) -> object:
    """Public names are imported when they are first used: `import planaria` costs nothing."""
    if name not in _FROM_API:
        raise AttributeError(f"module 'planaria' has no attribute {name!r}")
    from planaria import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keeps `planaria.plan` the public function, though a subpackage has the same name.

    Importing a subpackage binds its name in the package: without this, `planaria.plan` would be one or the
    other by the order of imports. `from planaria.plan.x import y` is not concerned.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name == "plan" and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
