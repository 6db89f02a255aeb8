"""[cluster]: the nodes, what they compute on, and how they are reached."""

from __future__ import annotations

import enum
import re

from planaria.job.registry import Launcher
from planaria.job.sections.section import Section
from planaria.job.values import at_least, is_host_port, path, positive, refuse
from planaria.plan.schedule_kind import ScheduleKind
from planaria.plan.settings import Objective

LOOPBACK = "127.0.0.1"

MAX_ZONE_LENGTH = 128

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


class Device(enum.StrEnum):
    """What workers compute on. `emulated`: on nothing; layers and messages take the times of `cluster.profile`.
    `stand_in`: on processors, with a GPU's streams and events, which are checked."""

    CPU = "cpu"
    CUDA = "cuda"
    EMULATED = "emulated"
    STAND_IN = "stand-in"


class TransportKind(enum.StrEnum):
    """By which way messages go from worker to worker."""

    AUTO = "auto"
    TCP = "tcp"
    NCCL = "nccl"
    GLOO = "gloo"


class StageDevices(enum.StrEnum):
    """How many devices a stage is on, where the job does not say. `auto`: as many as is best."""

    AUTO = "auto"


class OptimizerState(enum.StrEnum):
    """Who holds the optimizer's state of a stage on several devices: each of them the `whole`, or a part, `spread`."""

    WHOLE = "whole"
    SPREAD = "spread"


class StageParallelism(enum.StrEnum):
    """Ways to use several devices for a stage: they take microbatches in turn (`sharded`), or share each (`tensor`), or
    whichever is quicker (`auto`)."""

    SHARDED = "sharded"
    TENSOR = "tensor"
    AUTO = "auto"


class NodeRange(Section, frozen=True):
    """[cluster.nodes]

    Attributes:
        least: machines that the job starts on.
        most: that it grows to as they come; plans are made for so many.
    """

    least: int
    most: int


RAY_AUTO = "auto"
"""`cluster.ray.address` of the cluster to which this machine belongs."""


class RaySection(Section, frozen=True):
    """[cluster.ray]

    Attributes:
        address: HOST:PORT of the Ray cluster; auto: the one of which this machine is a node, or RAY_ADDRESS.
        spares: nodes beyond those that train, which take over at once.
        cpus: processors that Ray sets aside on each node.
        gpus: GPUs likewise; left out: devices_per_node where device is cuda, else none.
        wait_s: seconds that Ray may take to find the nodes.
    """

    address: str = RAY_AUTO
    spares: int = 0
    cpus: float = 1.0
    gpus: float | None = None
    wait_s: float = 60.0


class ClusterSection(Section, frozen=True):
    """[cluster]

    Attributes:
        nodes: machines that the job starts on. { least = 8, most = 32 }: it starts on 8, grows to 32 as they come, and
            gives back those that bring too little; see docs/howto/hosts.md.
        devices_per_node: worker processes on each.
        devices_per_stage: of a node that each stage is on, a divisor of devices_per_node: every one of them holds the
            stage's layers, and they take its microbatches in turn. Losses and weights are the same for any number.
            auto: the number is chosen when the job begins, and, under resilience.policy = "adaptive" or where there is
            no other plan, after losses.
        stage_parallelism: sharded: the devices of a stage take its microbatches in turn. tensor: they share each of
            them, every one computing as many of the layers' model.virtual_shards, and exchange what these give. Losses
            and weights are the same for both. A stage that has lost a device is sharded. auto: tensor, for the plans of
            which it is clearly quicker.
        optimizer_state: whole: every device of a stage holds the optimizer's state of all of its layers. spread: each
            holds that of some, makes their new parameters, and gives them to the others of the stage.
        device: cpu, cuda, or emulated: processes, messages and recoveries as ever, but nothing is computed; layers
            and messages take the times that `profile` gives, losses and weights are made up, no data is needed.
            stand-in: processors, given work as a GPU is and many times slower; a use of memory that no event orders
            ends the job. For who changes the worker.
        profile: file of a model profile. An emulated device needs it; on a real one the layers are not measured, and
            the run begins with the profile's costs.
        memory_gb: memory of one device in GB (10**9 bytes); 0: as much as it has. The workers of a host's processors
            share its memory: there 0 sets no limit.
        storage_gb_per_s: GB (10**9 bytes) a second that a node is expected to read checkpoints with, until the run has
            measured it at its first restore. Only policies that weigh one ask. An emulated device takes that long.
        schedule: order of forwards and backwards in a pipeline: eager-1f1b, 1f1b, gpipe, zb-h1 or zb-h2. The policies
            adaptive and reroute take zb-h1, adaptive zb-h2 too, for what they plan wherever that is quicker and fits.
        objective: what plans are made for: steptime (the shortest step), or oobleck, for comparison: the templates,
            sets of pipelines and shares of the batch (Eq. 6) of Oobleck's paper. Goes with resilience.policy =
            "templates".
        port: TCP port of the coordinator; 0: any free one.
        launcher: local: nodes are processes of this machine. agents: nodes are hosts on which `planaria agent` runs.
            ray: nodes of a Ray cluster, on which Ray runs the agents; see docs/howto/ray.md.
        ray: with launcher = "ray": where Ray is, and what each agent takes of its node.
        host: IPv4 address, or name, at which the coordinator listens; loopback unless told otherwise. Goes with agents.
            Of a job on Ray that leaves it out, every interface.
        tls: folder with ca.pem, cert.pem and key.pem (planaria certificates makes one): every connection is under TLS,
            and both ends show a certificate that ca.pem has signed. Goes with agents, which name theirs by --tls.
        data_encryption: false: with cluster.tls, tensors between workers travel plain nevertheless.
        transport: auto: over TCP by way of the host's memory, but between GPUs of a host, where the machine lets
            processes read each other's, in their memory. tcp: always over TCP. nccl: between GPUs, one for each worker,
            NCCL carries activations, gradients and state, without encryption and without checksums; it has not run on
            GPUs. gloo: the same between processors, to try it out.
        zones: names of zones, to which nodes that are processes of this machine are dealt out in turn, to try out what
            an outage of one does: each named once, or one for each node; agents say theirs by --zone. Whatever fails as
            one is a zone: the replicas of a layer are spread over zones as far as can be.
        most_workers: processes that may be started as nodes of this machine at a time; 0: 64 for each processor, 256 at
            least, as far as there are 16 MB of memory for each. A job with more is refused.
    """

    nodes: NodeRange | int
    devices_per_node: int = 1
    devices_per_stage: int | StageDevices = 1
    stage_parallelism: StageParallelism = StageParallelism.SHARDED
    optimizer_state: OptimizerState = OptimizerState.WHOLE
    device: Device = Device.CPU
    profile: str | None = None
    memory_gb: float = 0.0
    storage_gb_per_s: float = 1.0
    schedule: ScheduleKind = ScheduleKind.EAGER_ONE_F_ONE_B
    objective: Objective = Objective.STEP_TIME
    port: int = 0
    launcher: Launcher = Launcher.LOCAL
    ray: RaySection | None = None
    host: str = LOOPBACK
    tls: str = ""
    data_encryption: bool = True
    transport: TransportKind = TransportKind.AUTO
    zones: tuple[str, ...] = ()
    most_workers: int = 0

    @property
    def least_nodes(self) -> int:
        """Returns how many nodes the job starts on."""
        return self.nodes.least if isinstance(self.nodes, NodeRange) else self.nodes

    @property
    def most_nodes(self) -> int | None:
        """Returns how many nodes the job grows to; None: it names no range, and takes all that come."""
        return self.nodes.most if isinstance(self.nodes, NodeRange) else None

    def zone_of(self, node: int) -> str:
        """Returns the zone of a node that is a process of this machine; "": it has none."""
        return self.zones[node % len(self.zones)] if self.zones else ""


def check_cluster(cluster: ClusterSection) -> None:
    """Refuses a [cluster] that cannot be. Raises UserError."""
    if isinstance(cluster.nodes, NodeRange):
        at_least("cluster.nodes.least", cluster.nodes.least, 1)
        if cluster.nodes.most < cluster.nodes.least:
            refuse(
                "cluster.nodes.most", cluster.nodes.most, f"is below cluster.nodes.least = {cluster.nodes.least}",
                f"Set it to {cluster.nodes.least} or more.",
            )  # fmt: skip
    else:
        at_least("cluster.nodes", cluster.nodes, 1)
    at_least("cluster.devices_per_node", cluster.devices_per_node, 1)
    if not isinstance(cluster.devices_per_stage, StageDevices):
        at_least("cluster.devices_per_stage", cluster.devices_per_stage, 1)
        if cluster.devices_per_node % cluster.devices_per_stage:
            refuse(
                "cluster.devices_per_stage", cluster.devices_per_stage,
                f"does not divide cluster.devices_per_node = {cluster.devices_per_node}",
                f'Set a divisor of {cluster.devices_per_node}, or "auto".',
            )  # fmt: skip
    few = next((name for name in ("devices_per_node", "devices_per_stage") if getattr(cluster, name) == 1), "")
    if cluster.optimizer_state is OptimizerState.SPREAD and few:
        more = "cluster.devices_per_node = 2 or more, and " if few == "devices_per_node" else ""
        refuse(
            "cluster.optimizer_state", cluster.optimizer_state.value,
            f"goes with stages on several devices, and cluster.{few} is 1",
            f'Leave it out, or set {more}cluster.devices_per_stage = 2 or more, or "auto".',
        )  # fmt: skip
    at_least("cluster.most_workers", cluster.most_workers, 0)
    at_least("cluster.memory_gb", cluster.memory_gb, 0)
    positive("cluster.storage_gb_per_s", cluster.storage_gb_per_s)
    if cluster.device is Device.EMULATED and cluster.profile is None:
        refuse(
            "cluster.device", cluster.device.value, "takes its times from a profile, and cluster.profile is missing",
            "Set cluster.profile to the path of a profile's JSON file.",
        )  # fmt: skip
    if cluster.profile is not None:
        path("cluster.profile", cluster.profile)
    if not 0 <= cluster.port <= 65535:
        refuse("cluster.port", cluster.port, "is not a TCP port", "Set 1 to 65535, or 0 for any free one.")
    _check_host(cluster)
    if cluster.ray is not None:
        _check_ray(cluster.launcher, cluster.ray)
    for zone in cluster.zones:
        check_zone("cluster.zones", zone)
    if cluster.zones and cluster.launcher is not Launcher.LOCAL:
        refuse(
            "cluster.zones", list(cluster.zones), f"goes with nodes of this machine, not with {cluster.launcher.value}",
            "Leave it out, and give each agent its --zone.",
        )  # fmt: skip


def _check_host(cluster: ClusterSection) -> None:
    if not _HOST.fullmatch(cluster.host):
        refuse(
            "cluster.host", cluster.host, "is not an IPv4 address or a host's name",
            'Write for instance "10.0.0.1", or "0.0.0.0" for every interface.',
        )  # fmt: skip
    if cluster.tls and cluster.launcher is Launcher.LOCAL:
        refuse("cluster.tls", cluster.tls, 'goes with cluster.launcher = "agents" only', "Leave it out.")
    if not cluster.data_encryption and not cluster.tls:
        refuse("cluster.data_encryption", False, "goes with cluster.tls only", "Leave it out, or set cluster.tls.")
    needed = {TransportKind.NCCL: Device.CUDA, TransportKind.GLOO: Device.CPU}.get(cluster.transport)
    if needed not in (None, cluster.device):
        refuse(
            "cluster.transport", cluster.transport.value,
            f'goes with cluster.device = "{needed}", not with "{cluster.device}"', "Leave it out.",
        )  # fmt: skip
    if needed is not None and cluster.tls and cluster.data_encryption:
        refuse(
            "cluster.transport", cluster.transport.value, "carries tensors without encryption, and cluster.tls is set",
            "Leave it out, or set cluster.data_encryption = false.",
        )  # fmt: skip
    if cluster.launcher is Launcher.LOCAL and cluster.host != LOOPBACK:
        refuse(
            "cluster.host", cluster.host, 'goes with cluster.launcher = "agents" only',
            "Leave it out: nodes of this machine are reached on loopback.",
        )  # fmt: skip


def _check_ray(launcher: Launcher, ray: RaySection) -> None:
    if launcher is not Launcher.RAY:
        refuse(
            "cluster.launcher", launcher.value, "does not go with [cluster.ray]", 'Set it to "ray", or leave that out.'
        )
    if ray.address != RAY_AUTO and ("://" in ray.address or not is_host_port(ray.address)):
        refuse(
            "cluster.ray.address", ray.address, "is not HOST:PORT",
            "`ray start --head` prints it; its port is 6379.",
        )  # fmt: skip
    for name in ("spares", "cpus", "gpus", "wait_s"):
        at_least(f"cluster.ray.{name}", getattr(ray, name) or 0, 0)


def check_dealing(cluster: ClusterSection) -> None:
    """Checks that nodes can be dealt out to zones in turn. (A drill's zones are its script's, also of nodes to come.)

    A name may be repeated where there is one for each node. Raises UserError.
    """
    zones, nodes = cluster.zones, cluster.least_nodes
    if len(zones) > nodes:
        refuse(
            "cluster.zones", list(zones), f"are {len(zones)} names, and cluster.nodes is {nodes}",
            f"Name {nodes} or fewer, or set cluster.nodes = {len(zones)} or more.",
        )  # fmt: skip
    once = list(dict.fromkeys(zones))
    if len(once) < len(zones) and (len(zones) < nodes or len(once) == 1):
        each = f", or one zone for each of the {nodes} nodes" if len(once) > 1 else ""
        refuse(
            "cluster.zones", list(zones), "name a zone twice; nodes are dealt out to them in turn",
            f"Set {once}, every zone once{each}.",
        )  # fmt: skip


def check_zone(field: str, zone: str) -> None:
    """Raises UserError for what is no name of a zone."""
    _check_printable(field, zone, "is not the name of a zone")


def check_label(field: str, label: str) -> None:
    """Raises UserError for what is no label of a node."""
    _check_printable(field, label, "is not a label")


def _check_printable(field: str, value: str, problem: str) -> None:
    if not (value.strip() and value.isprintable() and len(value) <= MAX_ZONE_LENGTH):
        refuse(field, value, problem, f"Use 1 to {MAX_ZONE_LENGTH} printable characters.")
