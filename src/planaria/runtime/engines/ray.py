"""Ray as an engine: an actor with an agent in each bundle of a placement group that is spread over nodes.

Bundles keep room for agents, and tell Ray's autoscaler what is wanted; Ray itself moves the bundle of a dead node to
another one. What a run grows to beyond these takes nodes as Ray has them. Ray's own exceptions end here.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray._private import services
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from planaria.job.errors import UserError
from planaria.job.sections.cluster import RAY_AUTO, Device, RaySection
from planaria.job.settings import Job
from planaria.job.values import TOKEN_VARIABLE, is_host_port
from planaria.protocol.messages.agent import Farewell
from planaria.runtime.engines.attendant import attend_here
from planaria.runtime.engines.engine import EngineError, Task, TaskState
from planaria.runtime.engines.keeper import Keeper
from planaria.runtime.engines.ray_actor import AgentActor, AgentEnd
from planaria.runtime.journal.coordinator_place import FILE
from planaria.runtime.launch.training.result import TrainResult
from planaria.runtime.nodes.agent_settings import EXIT_CODES
from planaria.runtime.run_folder.run_folder import RunFolder
from planaria.runtime.thresholds import ENGINE_GIVE_UP_S, RAY_CONNECT_S, RAY_END_S, RAY_POLL_S


def train_on_ray(
    job: Job,
    run: RunFolder,
    train: Callable[[bool, str], TrainResult],
    say: Callable[[str], None],
    *,
    import_path: Path,
    token: str,
) -> TrainResult:
    """Trains a job in this process, a driver of Ray, on agents that Ray runs; all of them end with it.

    Args:
        job: what to train; its nodes are agents, as `cluster.ray` says.
        run: its folder, by an absolute path.
        train: trains, from the last checkpoint if it is told so, on agents that show this token.
        say: takes lines for people.
        import_path: where agents look for a model given as "module:function". They run where this process does.
        token: that agents show; "": a new one.

    Raises:
        UserError: Ray is not there, or has too few nodes; or as `train`.
    """
    cluster = job.cluster
    settings = cluster.ray or RaySection()
    token = token or secrets.token_hex(16)
    arguments = ["--coordinator", f"{FILE}{run.address}", "--give-up", f"{ENGINE_GIVE_UP_S:g}"]
    if cluster.tls:
        arguments += ["--tls", str(Path(cluster.tls).absolute())]
    arguments += ["--import-path", str(import_path)]
    agent = (arguments, {TOKEN_VARIABLE: token}, os.getcwd())
    gpus = float(cluster.devices_per_node) if cluster.device is Device.CUDA else 0.0
    takes = {"CPU": settings.cpus, "GPU": gpus if settings.gpus is None else settings.gpus}
    with connected(settings.address):
        agents = RayAgents(agent, takes, cluster.least_nodes, cluster.most_nodes or 0, settings.spares)
        try:
            agents.reserve(say, settings.wait_s)
            keeper = Keeper(agents, run, cluster.least_nodes, settings.spares, say)
            return attend_here(agents, keeper, run, lambda resume: train(resume, token), say)
        finally:
            agents.end()


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Connects this process to a cluster, where it is not connected yet, until the context ends.

    Raises:
        UserError: there is no cluster, or it takes no driver of this kind.
    """
    if ray.is_initialized():
        yield
        return
    try:
        found = _found(address)
        ray.init(address=found, log_to_driver=False, logging_level="ERROR")
    except UserError:
        raise
    except (ConnectionError, RuntimeError, ValueError, AssertionError, RayError) as error:
        raise UserError(
            f"cluster.ray.address = {address!r}: no Ray cluster is there: {_first_sentence(str(error))}. Start one by "
            "`ray start --head`, give this command on one of its nodes, or name another, as HOST:PORT."
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _found(address: str) -> str:
    """Returns HOST:PORT of a cluster. Where nobody listens, Ray itself would try for minutes, and end the process.

    Raises:
        UserError: the address is none.
        ConnectionError: nobody listens there.
    """
    asked = os.environ.get("RAY_ADDRESS", RAY_AUTO) if address == RAY_AUTO else address
    if asked != RAY_AUTO and ("://" in asked or not is_host_port(asked)):
        raise UserError(f"RAY_ADDRESS = {asked!r} is not HOST:PORT. `ray start --head` prints it; its port is 6379.")
    found = services.canonicalize_bootstrap_address(address)
    if found is None:
        raise ConnectionError("Ray does not run on this machine")
    host, _, port = found.rpartition(":")
    try:
        socket.create_connection((host, int(port)), RAY_CONNECT_S).close()
    except OSError as error:
        raise ConnectionError(f"{found}: {error.strerror or error}") from error
    return str(found)


@dataclass(slots=True)
class _Place:
    """A place for an agent, and the one that runs there, or ran last.

    Attributes:
        bundle: its number in the placement group; None: it takes a node that has room.
        node: Ray's id of its node; "": it has none for now.
        state: of its task. WAITING: its agent is to start as soon as there is a node.
        is_leaving: the node drains, and the agent was given notice.
    """

    name: str
    bundle: int | None
    node: str = ""
    state: TaskState = TaskState.WAITING
    why: str = ""
    actor: Any = None
    run: Any = None
    is_leaving: bool = False


class RayAgents:
    """The agents of one launch: actors of this driver, which die with it. No two of them are on one node.

    Args:
        agent: arguments of `planaria agent`, its environment beyond the actor's own, and where it runs.
        takes: what each takes of its node, by Ray's name.
        nodes: with which training begins.
        most: to which it grows.
        spares: bundles beyond `nodes`, without an agent until one is needed.
    """

    def __init__(
        self,
        agent: tuple[Sequence[str], Mapping[str, str], str],
        takes: Mapping[str, float],
        nodes: int,
        most: int,
        spares: int,
    ) -> None:
        self._agent = agent
        self._allowed = nodes
        self._grows = most > nodes
        self._takes = {name: amount for name, amount in takes.items() if amount}
        bundles = nodes + spares
        self._places = [
            _Place(f"agent-{number}", number if number < bundles else None)
            for number in range(max(nodes, most) + spares)
        ]
        self._bundles = self._places[:bundles]
        self._group: Any = None
        as_actor = ray.remote(
            max_restarts=0, max_concurrency=2, num_cpus=takes.get("CPU", 0.0), num_gpus=takes.get("GPU", 0.0)
        )
        self._actor = as_actor(AgentActor)

    poll_s = RAY_POLL_S

    def reserve(self, say: Callable[[str], None], wait_s: float) -> None:
        """Has Ray set aside a bundle for each agent at the beginning, and each spare.

        Raises:
            UserError: it has too few nodes, `wait_s` seconds later still.
        """
        self._group = placement_group([dict(self._takes)] * len(self._bundles), strategy="STRICT_SPREAD")
        ready = self._group.ready()
        if ray.wait([ready], timeout=RAY_POLL_S)[0]:
            return
        wanted = f"{len(self._bundles)} nodes with {_resources(self._takes)} free on each"
        say(f"waiting for Ray to have {wanted}; it has {_num_fit(self._takes)} that large")
        if not ray.wait([ready], timeout=wait_s)[0]:
            raise UserError(
                f"Ray has not found {wanted} within {wait_s:g} s: {_num_fit(self._takes)} of its nodes are that large. "
                "Add nodes by `ray start`, end what runs there (`ray status`), or ask for less by --nodes, --spares, "
                "--cpus or --gpus."
            )

    def tasks(self) -> list[Task]:
        """Returns the agents' tasks, after giving notice to those on draining nodes. Raises EngineError."""
        with _asking():
            self._find_nodes()
            leaving = frozenset(ray._private.state.state.get_draining_nodes())
            for place in self._places:
                self._look_at(place, place.node in leaving)
            self._fill(leaving)
        return [Task(name=place.name, state=place.state, why=place.why) for place in self._places]

    def replace(self, task: Task) -> None:
        """Lets an agent start again that is lost or was given back, as soon as its bundle has a node and it is not a
        spare's turn."""
        with _asking():
            (place,) = (place for place in self._places if place.name == task.name)
            ray.kill(place.actor)  # it may live where Ray could not reach it
            place.state = TaskState.WAITING

    def allow(self, num_running: int) -> None:
        """Sets how many agents may run at a time; the other bundles are spares."""
        self._allowed = num_running

    def come_back(self) -> None:
        """Raises EngineError: Ray does not start a driver again."""
        raise EngineError("Ray starts no driver again: give the same command with --resume")

    def end(self) -> None:
        """Ends all agents: those that were dismissed have a moment to go, the others get notice, then an end."""
        with contextlib.suppress(RayError, ValueError):
            for gives_notice in (False, True):
                running = [place for place in self._places if place.state is TaskState.RUNNING]
                if gives_notice:
                    for place in running:
                        place.actor.terminate.remote()
                _, left = (
                    ray.wait([place.run for place in running], num_returns=max(1, len(running)), timeout=RAY_END_S)
                    if running
                    else ([], [])
                )
                if not left:
                    break
        with contextlib.suppress(RayError, ValueError):
            for place in self._places:
                if place.actor is not None:
                    ray.kill(place.actor)
            if self._group is not None:
                remove_placement_group(self._group)

    def _find_nodes(self) -> None:
        """Looks where Ray has each bundle now. An agent that runs stays where it is: there its bundle was."""
        table = placement_group_table(self._group)["bundles_to_node_id"]
        for number, place in enumerate(self._bundles):
            place.node = table[number]

    def _look_at(self, place: _Place, is_leaving: bool) -> None:
        if place.state is TaskState.RUNNING:
            if is_leaving and not place.is_leaving:
                place.is_leaving = True
                place.actor.terminate.remote()
            if ray.wait([place.run], timeout=0)[0]:
                place.state, place.why = _end_of(place.run)
                if place.is_leaving:
                    place.state = TaskState.WAITING
                elif place.state is TaskState.GIVEN_BACK and not self._grows:
                    place.state = TaskState.DONE
        elif place.state is TaskState.SPARE and not place.node:
            place.state = TaskState.WAITING

    def _fill(self, leaving: Collection[str]) -> None:
        """Starts agents where there is a node that does not drain and has none yet, as many as may run."""
        used = {place.node for place in self._places if place.state is TaskState.RUNNING}
        running = sum(place.state is TaskState.RUNNING for place in self._places)
        others = self._others(leaving)
        for place in self._places:
            if place.state not in (TaskState.WAITING, TaskState.SPARE):
                continue
            if place.bundle is None:
                place.node = next((node for node in others if node not in used), "")
            if not place.node or place.node in used or place.node in leaving:
                continue
            if running >= self._allowed:
                place.state = TaskState.SPARE
                continue
            where = (
                NodeAffinitySchedulingStrategy(place.node, soft=False)
                if place.bundle is None
                else PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=place.bundle)
            )
            place.actor = self._actor.options(scheduling_strategy=where).remote(*self._agent, place.name)
            place.run = place.actor.run.remote()
            place.state, place.is_leaving, place.why = TaskState.RUNNING, False, ""
            used.add(place.node)
            running += 1

    def _others(self, leaving: Collection[str]) -> list[str]:
        """Returns the living nodes with room for an agent that have no bundle, where places need such."""
        if len(self._places) == len(self._bundles):
            return []
        free = ray._private.state.available_resources_per_node()
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        bundled = {place.node for place in self._bundles}
        return sorted(
            node
            for node in alive.difference(bundled, leaving)
            if all(free.get(node, {}).get(name, 0.0) >= amount for name, amount in self._takes.items())
        )


def _end_of(run: Any) -> tuple[TaskState, str]:
    """Returns the state of an agent that has ended, and why."""
    try:
        end: AgentEnd = ray.get(run)
    except RayTaskError as error:
        return TaskState.LOST, str(error.cause)
    except RayError as error:
        return TaskState.LOST, _reason(error)
    if end.code == EXIT_CODES[Farewell.DRAINED]:
        return TaskState.GIVEN_BACK, ""
    if end.code == EXIT_CODES[Farewell.OVER]:
        return TaskState.DONE, ""
    return TaskState.LOST, f"exit code {end.code}: {end.said}"


def _first_sentence(text: str) -> str:
    return " ".join(text.split()).partition(". ")[0].rstrip(".")


def _reason(error: RayError) -> str:
    """Returns why Ray says that an actor is gone, in one line."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = next((line for line in lines if line.startswith("The actor") and "unexpectedly" not in line), lines[0])
    return _first_sentence(told)


def _resources(bundle: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in bundle.items())


def _num_fit(bundle: Mapping[str, float]) -> int:
    """Returns how many living nodes have that much, whether it is free or not."""
    return sum(
        node["Alive"] and all(node["Resources"].get(name, 0.0) >= amount for name, amount in bundle.items())
        for node in ray.nodes()
    )


@contextlib.contextmanager
def _asking() -> Iterator[None]:
    try:
        yield
    except (RayError, ConnectionError, RuntimeError) as error:
        raise EngineError(f"Ray does not answer: {' '.join(str(error).split())}") from error
