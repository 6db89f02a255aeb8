"""The agent of a node: offers it to a coordinator, starts its workers, and offers it again when they were fenced.

One thread, one selector. It judges nothing that the coordinator can judge. When the coordinator has been out of reach
for as long as it waits itself, the node's processes are killed; until then they keep their state, and since no step
is committed without the coordinator, they can do no harm.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from signal import Signals
from typing import Final

from planaria.data.streams.blocks import POLL_S
from planaria.job.errors import PlanariaError, UserError
from planaria.job.values import TOKEN_VARIABLE
from planaria.plan.plan import NodeId, WorkerId
from planaria.protocol.messages.agent import (
    Available,
    BlockPiece,
    Dismissed,
    Enrol,
    Farewell,
    KillNode,
    NodeEnded,
    OfferRefused,
    Pong,
    ProbeLink,
    StartNode,
    Welcome,
    decode_to_agent,
)
from planaria.protocol.messages.message import PROTOCOL_VERSION
from planaria.runtime.component_settings import node_settings
from planaria.runtime.coordinator.remote_nodes import imported
from planaria.runtime.machine.boot import boot_id
from planaria.runtime.machine.interrupts import Interrupted, interrupts
from planaria.runtime.nodes.agent_settings import LED, AgentSettings
from planaria.runtime.nodes.coordinator_link import CoordinatorLink
from planaria.runtime.nodes.link_prober import LinkProber
from planaria.runtime.nodes.local_nodes import LocalNodes
from planaria.runtime.nodes.own_folder import OwnFolder, check_folder
from planaria.runtime.nodes.own_stream import OwnStream
from planaria.runtime.progress.output import OutputClosed
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.thresholds import (
    AGENT_AWAY_S,
    AGENT_TICK_S,
    FIRST_OFFER_PAUSE_S,
    GOODBYE_S,
    LAST_WORDS_S,
    LONGEST_OFFER_PAUSE_S,
    NOTICE_EVERY_S,
    SHORT_LIFE_S,
)
from planaria.runtime.wire.control_frames import FrameError
from planaria.runtime.wire.tls import security_of

SAID: Final = {
    Farewell.OVER: "the run is over: this agent is not needed any more",
    Farewell.DRAINED: "the node has handed over its work: this agent is not needed any more",
    Farewell.SUSPENDED: "the run is suspended: this agent is not needed until it is resumed",
}


class CoordinatorLost(PlanariaError):
    """The coordinator was out of reach for as long as the agent was told to wait."""


class NodeAgent:
    """The agent of one node, for one run.

    Args:
        settings: whose coordinator, and as whom.
        say: takes lines for people; may raise OutputClosed.
    """

    def __init__(self, settings: AgentSettings, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._tell_people = say
        self._security = security_of(settings.tls)
        self._selector = selectors.DefaultSelector()
        self._link = CoordinatorLink(settings.coordinator, self._security, self._selector, self._say, self._take)
        self._identity = secrets.token_hex(8)
        self._address = ""
        self._welcome: Welcome | None = None
        self._nodes: LocalNodes | None = None
        self._own: OwnFolder | None = None
        self._prober: LinkProber | None = None
        self._standby: subprocess.Popen[bytes] | None = None
        self._node: NodeId | None = None
        self._last = -1
        self._began = 0.0
        self._looked = time.monotonic()
        self._ended_at = 0.0
        self._offer_at: float | None = None
        self._offer_pause_s = FIRST_OFFER_PAUSE_S
        self._over: Farewell | None = None
        self._over_since = 0.0
        self._is_noticed = False
        self._leaving = False
        self._noticed_at = 0.0

    def run(self) -> Farewell:
        """Runs until the run has ended, or the node was drained, be it for a signal. Returns which of them.

        Raises:
            UserError: the node cannot take part.
            CoordinatorLost: it was out of reach for too long.
        """
        try:
            for warning in () if self._security is None else self._security.warnings:
                self._say(warning)
            with interrupts(self._heed):
                while not self._is_done():
                    if not self._link.is_open and self._over is None:
                        self._connect()
                        self._looked = time.monotonic()
                    for key, _ in self._selector.select(AGENT_TICK_S if self._stream is None else POLL_S):
                        key.data()
                    self._look_at_the_clock()
            return self._over or Farewell.DRAINED
        finally:
            self._close()

    @property
    def _stream(self) -> OwnStream | None:
        """The blocks that workers here get from the coordinator."""
        return None if self._own is None else self._own.stream

    def _is_done(self) -> bool:
        if self._is_noticed and not self._leaving:
            self._leave()
        return self._node is None and (self._over is not None or self._leaving) and not self._awaits_answer()

    def _awaits_answer(self) -> bool:
        """Whether the last logs may still be on their way, with the ping after them."""
        is_late = time.monotonic() - self._ended_at > GOODBYE_S
        return self._own is not None and self._link.num_unanswered > 0 and not is_late

    # The coordinator

    def _connect(self) -> None:
        if not self._link.open():
            return
        self._address = self._settings.host or self._link.own_address
        if self._prober is None:
            self._prober = LinkProber(self._address, self._settings.token, self._security)
            self._selector.register(self._prober.fileno(), selectors.EVENT_READ, self._probed)
        self._offer_at = None
        self._link.tell(
            Enrol(
                version=PROTOCOL_VERSION,
                token=self._settings.token,
                identity=self._identity,
                host=self._address,
                boot=boot_id(),
                zone=self._settings.zone,
                probe_port=self._prober.port,
                node=-1 if self._node is None else self._node,
                mark="" if self._welcome is None else self._welcome.mark,
                own_folder=self._settings.folder is not None,
            )
        )

    def _take(self, frame: bytes) -> None:
        try:
            message = decode_to_agent(frame)
        except (ValueError, RecursionError) as error:
            raise FrameError(" ".join(str(error).split())) from error
        match message:
            case Welcome():
                self._be_welcome(message)
            case ProbeLink():
                assert self._prober is not None
                self._prober.begin(message)
            case StartNode(node=node):
                self._start(NodeId(node), message)
            case KillNode(node=node, worker=None):
                self._fenced(NodeId(node))
            case KillNode(node=node, worker=int(worker)):
                if node == self._node and self._nodes is not None:
                    self._nodes.kill_worker(WorkerId(worker))
            case Dismissed(farewell=farewell):
                if self._over is None:
                    self._over, self._over_since = farewell, time.monotonic()
                    self._link.is_needed = False
                    self._say(SAID[farewell])
            case OfferRefused(reason=reason):
                raise UserError(f"the coordinator at {self._link.address} refuses this node: {reason}.")
            case Pong():
                self._link.answered()
            case BlockPiece() if self._stream is not None:
                if (wanted := self._stream.take(message, time.monotonic())) is not None:
                    self._link.tell(wanted)

    def _be_welcome(self, welcome: Welcome) -> None:
        if self._stream is not None:
            self._stream.ask_again()
        if self._link.accepted() or self._welcome is None:
            self._say(f"enrolled at {self._link.address} as {self._address}")
        is_another_run = self._welcome is not None and self._welcome.mark != welcome.mark
        if self._settings.folder is None:
            check_folder(welcome)
        elif self._own is None or is_another_run:
            self._own = OwnFolder(self._settings.folder, welcome, self._own)
        check_address(self._address)
        self._welcome = welcome
        if is_another_run:
            self._last = -1
            if self._node is not None:
                self._fenced(self._node)
        if self._nodes is None:
            log = self._folder.logs / f"agent-{socket.gethostname()}-{os.getpid()}.log"
            self._nodes = LocalNodes(log, imported(welcome.job))
            self._nodes.start()
            self._selector.register(self._nodes.fileno(), selectors.EVENT_READ, self._nodes_told)
        if self._own is not None and not self._own.is_begun:
            self._say(f"the node is prepared in {self._own.folder.path}")
            self._own.prepare()
        if self._node is None:
            self._offer_at = time.monotonic()
        if self._settings.may_lead and (self._standby is None or self._standby.poll() is not None):
            self._stand_by(welcome)

    @property
    def _folder(self) -> RunFolder:
        """The run's folder, as this host sees it."""
        assert self._welcome is not None
        return RunFolder(Path(self._welcome.run_folder)) if self._own is None else self._own.folder

    def _stand_by(self, welcome: Welcome) -> None:
        """Starts a process that leads the run when nobody else does."""
        if not welcome.job.run.journal:
            raise UserError(f"--may-lead: run {welcome.run_folder} has its journal in its folder. Set run.journal.")
        own = self._settings.folder
        given = [welcome.run_folder] if own is None else [self._link.place.text, "--folder", str(own / LED)]
        command = [sys.executable, "-m", "planaria.ui.cli.main", "standby", *given]
        command += ["--tls", self._settings.tls] if self._settings.tls else []
        self._standby = subprocess.Popen(command, env={**os.environ, TOKEN_VARIABLE: self._settings.token})

    def _probed(self) -> None:
        assert self._prober is not None
        self._link.tell(self._prober.result())

    # The node

    def _start(self, node: NodeId, order: StartNode) -> None:
        assert self._welcome is not None
        assert self._nodes is not None
        is_again = order.worker is not None
        if self._leaving or (self._node != node if is_again else self._node is not None):
            return
        if is_again:
            self._say(f"worker {order.worker} of node {node} starts again")
        else:
            self._node, self._began = node, time.monotonic()
            self._say(f"node {node} starts")
        if self._own is not None and not is_again:
            self._own.forget_logs(node)
        for settings in node_settings(
            self._welcome.job if self._own is None else self._own.job,
            self._folder,
            node,
            coordinator=self._link.place.text,
            token=self._settings.token,
            faults=order.faults,
            import_path=self._settings.import_path,
            host=self._address,
            zone=self._settings.zone,
            label=self._settings.label,
            mark=self._welcome.mark,
            tls=self._settings.tls,
        ):
            if order.worker in (None, settings.worker):
                self._nodes.spawn(settings)
        self._nodes_told()

    def _nodes_told(self) -> None:
        assert self._nodes is not None
        for _, cause in self._nodes.lost():
            if self._node is not None and self._nodes.all_ended():
                self._ended(self._node, cause)

    def _ended(self, node: NodeId, cause: str) -> None:
        assert self._nodes is not None
        self._nodes.release()
        self._node, self._last = None, node
        self._say(f"node {node} has ended: {cause}")
        for told in () if self._own is None else self._own.logs(node):
            self._link.tell(told)
        self._link.tell(NodeEnded(node=node, cause=cause))
        self._link.ping()
        now = self._ended_at = time.monotonic()
        if now - self._began > SHORT_LIFE_S:
            self._offer_pause_s = FIRST_OFFER_PAUSE_S
        self._offer_at = now + self._offer_pause_s
        self._offer_pause_s = min(LONGEST_OFFER_PAUSE_S, 2 * self._offer_pause_s)

    def _fenced(self, node: NodeId) -> None:
        if node == self._node and self._nodes is not None:
            self._say(f"node {node} is fenced: its processes are killed")
            self._nodes.kill(node)

    # Time, and the end

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        if now - self._looked > AGENT_AWAY_S:  # it was this process that was away: importing, or stopped
            self._link.was_away(now)
        self._looked = now
        silent_s = now - self._link.heard
        if self._node is not None and self._welcome is not None and silent_s > self._welcome.patience_s:
            self._say(f"nothing was heard from the coordinator for {silent_s:.0f} s")
            self._fenced(self._node)
            self._nodes_told()
        if self._over is not None and self._node is not None and now - self._over_since > GOODBYE_S:
            self._fenced(self._node)
        if self._leaving and self._node is not None and now - self._noticed_at > NOTICE_EVERY_S:
            self._give_notice()
        if silent_s > self._settings.give_up_s and self._over is None:
            raise CoordinatorLost(
                f"nothing was heard from the coordinator at {self._link.address} for {silent_s:.0f} s. "
                "Look whether it runs; --give-up sets how long an agent waits."
            )
        if not self._link.is_open:
            return
        self._link.look_at_the_clock(now)
        while self._own is not None and self._own.notes:
            self._say(self._own.notes.popleft())
        if self._stream is not None and (wanted := self._stream.next(now)) is not None:
            self._link.tell(wanted)
        is_ready = self._own is None or self._own.is_ready()
        if self._offer_at is not None and now >= self._offer_at and not self._leaving and is_ready:
            self._offer_at = None
            self._link.tell(Available(after=self._last))

    def _leave(self) -> None:
        """Gives the first notice: what runs here is to hand over its work."""
        self._leaving = True
        if self._node is None or self._nodes is None:
            return
        self._say(f"node {self._node} hands over its work")
        self._give_notice()

    def _give_notice(self) -> None:
        """Gives notice to all workers, repeatedly: the coordinator hears of none before the whole node has joined."""
        assert self._nodes is not None
        self._noticed_at = time.monotonic()
        for pid in self._nodes.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _heed(self, number: Signals, insists: bool) -> None:
        """Handles a signal: hands over and ends; at a second Ctrl-C, ends at once."""
        self._is_noticed = True
        if insists:
            raise Interrupted(number)

    def _say(self, line: str) -> None:
        """Says something to people; that nobody reads it counts as a notice too."""
        try:
            self._tell_people(line)
        except OutputClosed:
            self._is_noticed = True

    def _close(self) -> None:
        if self._prober is not None:
            self._prober.close()
        if self._nodes is not None:
            self._nodes.close()
        self._link.close()
        if self._own is not None:
            self._own.close()
        self._selector.close()
        if self._standby is not None:
            if self._over is None:
                self._standby.terminate()
            try:
                self._standby.wait(LAST_WORDS_S)
            except subprocess.TimeoutExpired:
                self._standby.kill()


def check_address(host: str) -> None:
    """Checks an address. Raises UserError where workers could not listen at it."""
    try:
        socket.create_server((host, 0)).close()
    except OSError as error:
        raise UserError(
            f"workers cannot listen at {host} ({error.strerror or error}). Give --host an address of this node."
        ) from None
