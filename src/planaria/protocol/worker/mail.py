"""Mail: what reached a worker from its peers, by name, until it is asked for; and what of it may be refused.

A message is named by its `Key`, and whoever wants it asks for that name. So what a plan that is no longer in force left
under way is never taken: it bears another name. Knows no thread and no tensor; the mailbox locks around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from planaria.plan.plan import WorkerId

Payload = TypeVar("Payload")
Arrived = TypeVar("Arrived", covariant=True)
Sent = TypeVar("Sent", contravariant=True)


class Kind:
    """Kinds of data messages."""

    ACTIVATION = "a"
    GRADIENT = "g"
    SUM = "s"
    """One host's part of a slice's sum, for the slice's owner."""
    SHARED_SUM = "m"
    """Says where in the host's memory a worker's counts lie."""
    TOTAL = "r"
    """A slice's total, for another host."""
    SHARED_TOTAL = "n"
    """Says where in the host's memory a slice's total lies."""
    STATE = "t"
    PARAMETERS = "p"
    """Parameters that another device of the stage has made in the optimizer's step."""
    PARTIAL = "x"
    """What shards give at another device of the stage, with which a microbatch is shared."""
    READ = "d"
    """Says that a message, which lies in its sender's memory, was read there; the item is the number of the loan."""
    GROUP = "c"
    """What a member of a process group tells the other one while they find each other; the item is the group's number,
    the layer the member's rank."""

    SUMS: Final = frozenset({SUM, SHARED_SUM, TOTAL, SHARED_TOTAL})
    NAMES: Final = {
        ACTIVATION: "activation",
        GRADIENT: "gradient",
        STATE: "state",
        PARAMETERS: "parameters",
        PARTIAL: "partial sum",
    } | dict.fromkeys(SUMS, "sum")
    """Names of the kinds of messages, for people."""


class Key(NamedTuple):
    """Names one data message between two workers.

    Attributes:
        kind: of `Kind`.
        sender: who sends it.
        step: which it belongs to.
        epoch: a route's birth, a group's sync epoch, or the plan's generation for state and parameters. An older one
            never matches.
        item: microbatch or group.
        layer: boundary layer of an activation or gradient; of a sum, the owner of the slice; of a state, how often it
            was sent before; of a partial sum, which one of the microbatch it is.
    """

    kind: str
    sender: int
    step: int
    epoch: int
    item: int
    layer: int


class MailStore(Protocol[Arrived]):
    """What a worker knows of its mail: a `Mail` that is locked, or waited for."""

    @property
    def came_s(self) -> float:
        """When the state arrived that was taken last."""
        ...

    def poll(self, key: Key) -> Arrived | None:
        """Takes a message if it is there; damage to it is reported."""
        ...

    def news_of_sums(self) -> Sequence[Key]:
        """Returns messages of sums that came, whole or damaged, since it was last asked; they may be gone by now."""
        ...

    def tell_damage_again(self) -> None: ...

    def forget_before(self, step: int, generation: int) -> None: ...

    def forget_older_plans(self, generation: int) -> None: ...


class Ways(Protocol[Sent]):
    """Connections that send to peers without waiting."""

    def set_peers(self, addresses: Mapping[WorkerId, str]) -> None:
        """Sets the peers in the plan. Connections to others are closed; those that stay are not touched."""
        ...

    def send(self, peer: WorkerId, key: Key, payload: Sent, /) -> None: ...


class Mail(Generic[Payload]):
    """Messages that arrived and were not asked for yet.

    Attributes:
        came_s: when the state came that was taken last.
    """

    def __init__(self) -> None:
        self.came_s = 0.0
        self._arrived: dict[Key, tuple[Payload, float]] = {}
        self._damaged: set[Key] = set()
        self._told: set[Key] = set()
        self._news: list[Key] = []
        self._lowest_step = 0
        self._generation = -1

    def put(self, key: Key, payload: Payload, now: float = 0.0) -> bool:
        """Keeps a message and returns True, unless it belongs to a step that is over."""
        # What a newer plan sends may be for an earlier step: the job went back, and the news of it comes later.
        if key.step < self._lowest_step and key.epoch <= self._generation:
            return False
        self._arrived[key] = payload, now
        self._note(key)
        return True

    def _note(self, key: Key) -> None:
        if key.kind in Kind.SUMS:
            self._news.append(key)

    def news_of_sums(self) -> Sequence[Key]:
        """Returns messages of sums that came, whole or damaged, since it was last asked; they may be gone by now."""
        news, self._news = self._news, []
        return news

    def put_damaged(self, key: Key) -> None:
        """Records that a message arrived damaged. That matters only if it is still wanted: what an older plan sent may
        have changed on its way."""
        self._damaged.add(key)
        self._note(key)

    def take(self, key: Key) -> Payload | None:
        """Takes the message if it is there."""
        payload, came_s = self._arrived.pop(key, (None, 0.0))
        if payload is not None and key.kind == Kind.STATE:
            self.came_s = came_s
        return payload

    def look(self, key: Key) -> Payload | None:
        """Returns the message if it is there, and leaves it there."""
        return self._arrived.get(key, (None, 0.0))[0]

    def came_damaged(self, key: Key) -> bool:
        """Returns whether the message arrived damaged. Told once, unless it is to be told again."""
        is_damaged = key in self._damaged
        if is_damaged:
            self._damaged.remove(key)
            self._told.add(key)
        return is_damaged

    def tell_damage_again(self) -> None:
        """Lets all damage be told again: to a new plan or coordinator, which may not have heard of it."""
        self._damaged |= self._told
        for key in self._told:
            self._note(key)
        self._told.clear()

    def forget_before(self, step: int, generation: int) -> None:
        """Drops what arrived, or still arrives, for steps before this one, unless a later plan sent it."""
        self._lowest_step, self._generation = step, generation
        self._drop(lambda key: key.step < step and key.epoch <= generation)

    def forget_older_plans(self, generation: int) -> None:
        """Drops what plans before this generation sent: the job went back to an earlier state.

        What peers send under the new plan may be here already, before this worker has heard of it.
        """
        self._drop(lambda key: key.epoch < generation)

    def _drop(self, unwanted: Callable[[Key], bool]) -> None:
        for key in [key for key in self._arrived if unwanted(key)]:
            del self._arrived[key]
        self._damaged = {key for key in self._damaged if not unwanted(key)}
        self._told = {key for key in self._told if not unwanted(key)}
        self._news = [key for key in self._news if not unwanted(key)]

    def __contains__(self, key: Key) -> bool:
        return key in self._arrived

    def __iter__(self) -> Iterator[Key]:
        return iter(self._arrived)

    def __len__(self) -> int:
        return len(self._arrived)
