"""Planaria: train large models on machines that fail.

This module has the public names, imported when they are first used, and makes `planaria.plan` callable. `api` has
what they do. Below: `ui` (command line, pictures), `runtime` (all I/O), `profile`, `checkpoint`, `model`, `data`,
`simulate`, `protocol`, `policy`, `planner`, `estimate`, `plan`, `job`. Each opens with a map.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from planaria.job.version import __version__ as __version__

if TYPE_CHECKING:
    import planaria.protocol.messages.records as records
    from planaria.api import Job as Job
    from planaria.api import LiveRun as LiveRun
    from planaria.api import PlanReport as PlanReport
    from planaria.api import TrainResult as TrainResult
    from planaria.api import UserError as UserError
    from planaria.api import export as export
    from planaria.api import launch_on_ray as launch_on_ray
    from planaria.api import load_job as load_job
    from planaria.api import plan as plan
    from planaria.api import reference as reference
    from planaria.api import train as train

_FROM_API = (
    "Job",
    "LiveRun",
    "PlanReport",
    "TrainResult",
    "UserError",
    "export",
    "launch_on_ray",
    "load_job",
    "plan",
    "reference",
    "train",
)
__all__ = [
    "Job",
    "LiveRun",
    "PlanReport",
    "TrainResult",
    "UserError",
    "__version__",
    "export",
    "launch_on_ray",
    "load_job",
    "plan",
    "records",
    "reference",
    "train",
]


def __getattr__(name: str) -> object:
    """Public names are imported when they are first used: `import planaria` costs nothing."""
    if name == "records":
        return import_module("planaria.protocol.messages.records")
    if name not in _FROM_API:
        raise AttributeError(f"module 'planaria' has no attribute {name!r}")
    if name == "plan":  # a package too, made callable below
        return import_module("planaria.plan")
    from planaria import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted(__all__)


class _CallablePackage(ModuleType):
    """The package `planaria.plan`, which is the public function `planaria.plan` too.

    So both `planaria.plan(job)` and `import planaria.plan.validate` do what they say, in either order.
    """

    @property
    def __wrapped__(self) -> Callable[..., object]:
        """The function, for `inspect.signature`."""
        from planaria import api

        return api.plan

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        return self.__wrapped__(*args, **kwargs)


class _Package(ModuleType):
    """Makes the subpackage `plan` callable when its import binds it here."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "plan" and isinstance(value, ModuleType):
            value.__class__ = _CallablePackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
