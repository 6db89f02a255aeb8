"""Errors that who plans has to tell apart: too few nodes at the start or after losses, and replicas that are gone."""

from __future__ import annotations

from planaria.plan.plan import PlanError


class NeedsMoreNodes(PlanError):
    """Error: pipelines of stages that hold so much take more nodes each than the job asks for, or than there are."""


class TooFewNodes(PlanError):
    """Error: fewer nodes are left than f + 1 replicas of the smallest template take.

    Attributes:
        needed: nodes, (f + 1) n0.
        left: how many nodes live.
    """

    def __init__(self, needed: int, left: int, replicas: int) -> None:
        self.needed = needed
        self.left = left
        each = f"{needed // replicas} node{'s' if needed != replicas else ''}"
        what = f"{replicas} replicas of {each} each need" if replicas != 1 else f"one replica of {each} needs"
        lower = ", or set a lower fault_tolerance" if replicas != 1 else ""
        super().__init__(
            f"{left} node{'s are' if left != 1 else ' is'} left, and {what} {needed}. "
            f"Add {needed - left} node{'s' if needed - left != 1 else ''}{lower}."
        )


class NoReplica(PlanError):
    """No live worker has an up-to-date copy of a parameter group: the job must go back to a checkpoint.

    Attributes:
        group: the first such group.
    """

    def __init__(self, group: int, layers: tuple[int, ...]) -> None:
        self.group = group
        which = f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"
        super().__init__(
            f"No live worker holds parameter group {group} ({which}): all its replicas were lost. "
            "Restore the last checkpoint."
        )
