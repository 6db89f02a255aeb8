"""What a forgery is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.testkit.witness.history import History
from tests.testkit.witness.rules import Rule

Change = Callable[[History, Random], History | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgery:
    """A change of a history.

    Attributes:
        what: is changed, for people.
        rule: that it breaks; others may break as well.
        change: makes it; None: there is no place for it.
    """

    what: str
    rule: Rule
    change: Change


class Forgeries(list[Forgery]):
    """Forgeries of one kind, each a function that is marked so."""

    def of(self, what: str, rule: Rule) -> Callable[[Change], Change]:
        """Marks a function as a forgery."""

        def add(change: Change) -> Change:
            self.append(Forgery(what=what, rule=rule, change=change))
            return change

        return add
