"""Damage: messages between workers that arrived other than they were sent, and what is done about each.

State is sent again, by another holder where there is one. What else is damaged (activations, gradients, sums) is not
kept by its sender, so the step is begun anew. A way on which that happens again and again is no way: its receiver
counts as out of reach. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from planaria.plan.plan import Plan, Transfer, WorkerId
from planaria.protocol.messages.from_worker import Damaged
from planaria.protocol.messages.to_worker import Resend
from planaria.protocol.thresholds import MOST_BLOWS, MOST_SENT, SOON_STEPS


class Damages:
    """Damaged messages of one run."""

    def __init__(self) -> None:
        self._blows: dict[tuple[WorkerId, WorkerId], list[int]] = {}
        self._sent: Counter[WorkerId] = Counter()
        self._tried: dict[tuple[int, WorkerId, int, tuple[int, int] | None], list[WorkerId]] = {}

    def resend(self, plan: Plan, target: WorkerId, told: Damaged, live: Collection[WorkerId]) -> Resend | None:
        """Returns the order to send a piece of state again; None when it was tried often enough.

        Its sender is the holder that tried it least often, then the one that sent least again, then the lowest.
        """
        piece = (plan.generation, target, told.item, told.part)
        tried = self._tried.setdefault(piece, [])
        tried.append(told.source)
        able = sorted(_holders(plan, told.item).intersection(live) - {target})
        if len(tried) >= MOST_SENT or not able:
            return None
        source = min(able, key=lambda worker: (tried.count(worker), self._sent[worker], worker))
        self._sent[source] += 1
        keeps = told.item in plan.kept_of[target]
        transfer = Transfer(group=told.item, source=source, target=target, part=told.part, with_optimizer=keeps)
        return Resend(generation=plan.generation, step=told.step, transfer=transfer, attempt=len(tried))

    def is_too_often(self, target: WorkerId, told: Damaged) -> bool:
        """Returns whether messages on this connection were damaged too often, this one included."""
        blows = self._blows.setdefault((told.source, target), [])
        blows[:] = [step for step in blows if abs(told.step - step) <= SOON_STEPS] + [told.step]
        return len(blows) > MOST_BLOWS


def _holders(plan: Plan, group: int) -> set[WorkerId]:
    """Returns the workers that held the group whole when the plan began: keepers and senders that do not receive it."""
    moves = [move for move in plan.transfers if move.group == group]
    keepers = set(plan.keepers_of[group])
    return {*keepers, *(move.source for move in moves)} - {move.target for move in moves}


def what(plan: Plan, told: Damaged) -> str:
    """Describes the message for people."""
    if told.kind in ("state", "parameters"):
        layers = plan.groups[told.item].layers
        return f"the {told.kind} of layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"
    if told.kind == "sum":
        return f"a part of the gradients' sum of group {told.item}"
    return f"the {told.kind} of microbatch {told.item}"
