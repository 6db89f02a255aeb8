"""What the journal says of a run, entry after entry, as far as the rules ask. It judges nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.testkit.witness.history import Job, Plain

LIVE = "live"
"""Source of a plan's state that is not loaded, but held."""

PROBATION_STEPS = 10
"""Steps of a node in which all that it computes is audited."""


def stages_of(plan: Plain) -> list[Plain]:
    """Returns the stages that are owned under a plan."""
    return [stage for pipeline in plan["pipelines"] for stage in pipeline["stages"]]


def layers_held(plan: Plain) -> dict[int, set[int]]:
    """Returns the layers that each worker of a plan owns or shadows."""
    held: dict[int, set[int]] = {}
    for stage in [*stages_of(plan), *plan["shadows"]]:
        held.setdefault(stage["worker"], set()).update(range(stage["first_layer"], stage["end_layer"]))
    return held


def record_of(entry: Plain, event: str) -> Plain | None:
    """Returns the entry's record of this kind."""
    return next((record for record in entry.get("records", ()) if record["event"] == event), None)


@dataclass(slots=True)
class Known:
    """What the journal says up to an entry.

    Attributes:
        committed: the last committed step; where the job went back, the one that it went back to.
        plan: the entry of the plan in force.
        joined: nodes that ever did.
        gone: nodes that were lost or let go.
        gone_alone: workers whose devices were lost alone, and did not come back.
        lost: of those, the ones that were lost.
        struck: nodes whose loss struck the job.
        dropped: step -> how many microbatches were left out.
        commits: (generation, step) -> commit.
        saved: steps of whole checkpoints that count.
        wrong_hosts: how many nodes of a host computed wrong.
        probation: nodes that joined on such hosts since, and how many steps of theirs are still audited wholly.
        disputes: steps that are done again because nobody knew who was wrong.
        is_distrusted: a checkpoint counts no more, and who knows which others.
        is_ended: the run is over.
    """

    job: Job
    committed: int = field(init=False)
    plan: Plain | None = None
    joined: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    gone_alone: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    struck: list[int] = field(default_factory=list)
    dropped: dict[int, int] = field(default_factory=dict)
    commits: dict[tuple[int, int], Plain] = field(default_factory=dict)
    saved: list[int] = field(default_factory=list)
    wrong_hosts: Counter[str] = field(default_factory=Counter)
    probation: dict[int, int] = field(default_factory=dict)
    disputes: set[int] = field(default_factory=set)
    is_distrusted: bool = False
    is_ended: bool = False

    def __post_init__(self) -> None:
        self.committed = self.job.done

    @property
    def generation(self) -> int:
        """Generation of the plan in force; -1: there is none."""
        return -1 if self.plan is None else int(self.plan["message"]["plan"]["generation"])

    @property
    def num_dropped(self) -> int:
        """Microbatches that were left out so far."""
        return self.job.dropped + sum(self.dropped.values())

    def node_of(self, worker: int) -> int:
        return worker // self.job.devices_per_node

    def is_gone(self, worker: int) -> bool:
        """Whether a worker's node is gone, or its device."""
        return self.node_of(worker) in self.gone or worker in self.gone_alone

    def take(self, entry: Plain) -> None:
        """Takes an entry."""
        match entry["type"]:
            case "commit":
                commit = entry["commit"]
                self.committed = commit["step"]
                self.commits[commit["generation"], commit["step"]] = commit
                self.dropped[commit["step"]] = len(commit["dropped"])
                self.disputes.discard(commit["step"])
                self._worked()
            case "plan":
                self.plan, message = entry, entry["message"]
                if message["source"] != LIVE:
                    self.committed = message["step"] - 1
                    self.dropped = {step: n for step, n in self.dropped.items() if step < message["step"]}
                    self.saved = [step for step in self.saved if step < message["step"]]
            case "node":
                self._take_node(entry)
            case "checkpoint":
                self.saved.append(entry["checkpoint"]["step"])
            case "distrust":
                self.saved = [step for step in self.saved if step != entry["step"]]
                self.is_distrusted = True
            case "disputes":
                self.disputes = {dispute["step"] for dispute in entry["disputes"]}
            case "end":
                self.is_ended = True
            case "past":
                self._take_past(entry["plan"], entry["rest"])
            case _:
                pass

    def _take_past(self, plan: Plain | None, past: Plain) -> None:
        """Takes all that entries said that are removed."""
        self.plan = plan
        if past["commit"] is not None:
            self.committed = past["commit"]["commit"]["step"]
        elif plan is not None:
            self.committed = plan["message"]["step"] - 1
        self.dropped = {self.committed: past["num_dropped"] - self.job.dropped}
        self.lost, self.gone = set(past["lost"]), {*past["lost"], *past["released"]}
        self.joined = {*past["joined"], *self.gone}
        self.gone_alone = {node * self.job.devices_per_node + device for node, device in past["lost_devices"]}
        self.struck = [loss["node"] for loss in past["losses"] if loss.get("device") is None]
        self.saved = sorted(past["saved"])
        self.wrong_hosts, self.probation = Counter(past["wrong_hosts"]), dict(past["probation"])
        self.disputes = {dispute["step"] for dispute in past["disputes"]}
        self.is_distrusted = True  # which checkpoints counted is not known any more
        self.is_ended = past["end"] is not None

    def _worked(self) -> None:
        """Counts a step for each node on probation that has work under the plan in force."""
        if self.probation and self.plan is not None:
            routes = self.plan["message"]["plan"]["routes"]
            nodes = {self.node_of(hop["worker"]) for route in routes for hop in route["hops"]}
            left = {node: steps - (node in nodes) for node, steps in self.probation.items()}
            self.probation = {node: steps for node, steps in left.items() if steps}

    def _take_node(self, entry: Plain) -> None:
        node, fate = entry["node"], entry["fate"]
        if (device := entry.get("device")) is not None:
            worker = node * self.job.devices_per_node + device
            (self.gone_alone.discard if fate == "joined" else self.gone_alone.add)(worker)
        elif fate == "joined":
            self.joined.add(node)
            if self.wrong_hosts[entry.get("host", "")]:
                self.probation[node] = PROBATION_STEPS
        elif fate in ("lost", "released"):
            self.gone.add(node)
            self.probation.pop(node, None)
        if fate == "lost" and device is None:
            wrong = [record for record in entry.get("records", ()) if record["event"] == "computed_wrong"]
            self.wrong_hosts.update(record["host"] for record in wrong)
            self.lost.add(node)
            if entry.get("strikes"):
                self.struck.append(node)


def auditable(plan: Plain, nodes: Collection[int], devices_per_node: int) -> Iterator[tuple[int, int, int]]:
    """Yields (worker, microbatch, layer) that workers of these nodes compute from the start of a step, and that a
    worker of another node could run again, as it owns the layer and has no part in the microbatch's route."""
    owners: dict[int, set[int]] = {}
    for stage in stages_of(plan):
        for layer in range(stage["first_layer"], stage["end_layer"]):
            owners.setdefault(layer, set()).add(stage["worker"])
    for stage in plan["shadows"] if plan["redundancy"] is not None else ():
        for layer in range(stage["first_layer"], stage["end_layer"]):
            owners.get(layer, set()).discard(stage["worker"])
    for route in plan["routes"]:
        together = plan["devices_per_stage"] if plan["shares_microbatches"] else 1
        passed = {hop["worker"] + other for hop in route["hops"] for other in range(together)}
        for hop in route["hops"] if len(route["counted"]) == plan["num_layers"] else ():
            worker, node = hop["worker"], hop["worker"] // devices_per_node
            for layer in range(hop["first_layer"], hop["end_layer"]) if node in nodes else ():
                able = [w for w in owners.get(layer, ()) if w not in passed and w // devices_per_node != node]
                yield from ((worker, microbatch, layer) for microbatch in route["microbatches"] if able)


def nodes_holding(plan: Plain, devices_per_node: int) -> list[int]:
    """Returns, for each group, how many nodes hold it under a plan; one that has it as a shadow alone, and gets it
    beside the first step, does not yet, unless shadows are there to last."""
    owned, held = layers_held({**plan, "shadows": ()}), layers_held(plan)
    lasts = plan["redundancy"] is not None
    coming = set() if lasts else {(move["group"], move["target"]) for move in plan["transfers"]}
    counts = []
    for number, group in enumerate(plan["groups"]):
        layers = set(group["layers"])
        nodes = {
            worker // devices_per_node
            for worker, has in held.items()
            if has & layers and ((number, worker) not in coming or owned.get(worker, set()) & layers)
        }
        counts.append(len(nodes))
    return counts


def same_commit(one: Plain, other: Plain) -> bool:
    """Returns whether two commits say the same, but for what a worker is to save, and whether it is to hold then."""
    return one == other or _told(one) == _told(other)


def _told(commit: Plain) -> dict[str, Any]:
    # As text: a loss that is not a number is equal to itself here.
    return {name: repr(value) for name, value in commit.items() if name not in ("save", "hold")}
