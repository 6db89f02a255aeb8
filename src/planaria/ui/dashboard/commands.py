"""What the page asks of a live run: the wishes of the command line, checked before they are sent."""

from __future__ import annotations

import enum
from functools import partial

import msgspec

from planaria.job.errors import UserError
from planaria.job.registry import PolicyName
from planaria.protocol.messages.user import Wish
from planaria.runtime.coordinator.client import Contact, ask
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.ui.dashboard.thresholds import MOST_ADDED, SAVE_TIMEOUT_S


class Action(enum.StrEnum):
    """What can be asked from the page."""

    DRAIN = "drain"
    ADD = "add"
    POLICY = "policy"
    SAVE = "save"
    STOP = "stop"


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command of the page.

    Attributes:
        action: what is to be done.
        node: of a drain.
        count: of nodes to add.
        policy: name of the one that is wanted.
    """

    action: Action
    node: int = -1
    count: int = 1
    policy: str = ""


def decode_command(data: bytes) -> Command:
    """Decodes a command. Raises UserError for anything else."""
    try:
        return msgspec.json.decode(data, type=Command)
    except msgspec.MsgspecError as error:
        raise UserError(f"this is no command: {error}.") from None


def obey(folder: RunFolder, command: Command) -> str:
    """Asks the run, and returns what it answers. Raises UserError: it does not run, or refuses."""
    send = partial(ask, Contact.read(folder.contact), run=str(folder.path))
    match command.action:
        case Action.DRAIN:
            answer = send(Wish.DRAIN, node=command.node)
        case Action.ADD:
            if not 1 <= command.count <= MOST_ADDED:
                raise UserError(f"{command.count} nodes cannot be added. Give 1 to {MOST_ADDED}.")
            answer = send(Wish.ADD, count=command.count)
        case Action.POLICY:
            if command.policy not in policies():
                raise UserError(f"there is no policy {command.policy}. There are {', '.join(policies())}.")
            answer = send(Wish.POLICY, policy=command.policy)
        case Action.SAVE:
            answer = send(Wish.SAVE, timeout_s=SAVE_TIMEOUT_S)
        case Action.STOP:
            answer = send(Wish.STOP)
    if not answer.accepted:
        raise UserError(f"refused: {answer.text}.")
    return answer.text


def policies() -> tuple[str, ...]:
    """Returns the names of the policies."""
    return tuple(name.value for name in PolicyName)
