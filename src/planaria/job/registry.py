"""The registries: every name that stands for a piece of code in the job file, a line each.

A line names the code as "module:object". It is imported when a job asks for it, so that a name costs nothing.
"""

from __future__ import annotations

import enum
from typing import Any, Self


class Registered(enum.StrEnum):
    """A name in the job file, and the code that it stands for."""

    _value_: str
    place: str

    def __new__(cls, name: str, place: str = "") -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.place = place
        return member

    def load(self) -> Any:
        """Returns the code: imported now, if it was not yet; None where a name stands for no code of its own."""
        from pkgutil import resolve_name

        return resolve_name(self.place) if self.place else None


class PolicyName(Registered):
    """Each stands for a `planaria.policy.interface.Policy`."""

    TEMPLATES = "templates", "planaria.policy.templates:TemplatesPolicy"
    REROUTE = "reroute", "planaria.policy.reroute:ReroutePolicy"
    REDUNDANCY = "redundancy", "planaria.policy.redundancy:RedundancyPolicy"
    MORPH = "morph", "planaria.policy.morph:MorphPolicy"
    DROP = "drop", "planaria.policy.drop:DropPolicy"
    ADAPTIVE = "adaptive", "planaria.policy.adaptive.adaptive:AdaptivePolicy"


class OptimizerName(Registered):
    """Each stands for a `planaria.model.training.optimizer.Optimizer`."""

    ADAMW = "adamw", "planaria.model.training.adamw:OPTIMIZER"
    ADAM = "adam", "planaria.model.training.adam:OPTIMIZER"
    SGD = "sgd", "planaria.model.training.sgd:OPTIMIZER"
    LION = "lion", "planaria.model.training.lion:OPTIMIZER"


class DataSource(Registered):
    """Sources of text that a job names instead of a path. Each stands for a function that returns their files here."""

    PYTHON_STDLIB = "python-stdlib", "planaria.data.reading.python_stdlib:source_files"


class Launcher(Registered):
    """Who starts nodes. `local`: the command itself, on this machine. `agents`: `planaria agent` on each node.

    `ray`: Ray, which runs those agents and replaces lost ones. Any other only starts them: it stands for a
    `planaria.runtime.coordinator.remote_nodes.StartAgents`.
    """

    LOCAL = "local"
    AGENTS = "agents"
    RAY = "ray"
