"""`planaria launch kubernetes` and `launch here`: a job in pods, or on whatever starts one command on each node."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from planaria.job.values import TOKEN_VARIABLE
from planaria.ui.cli.launch_commands import AGENTS, GIVE_UP, NODES, NodesType, nodes_override
from planaria.ui.cli.options import JOB_FILE, ZONE_VARIABLE, set_option, token_of, token_option

NAME = click.option("--name", metavar="NAME", help="Name of the run, and of its folder.  [default: the job file's]")


@click.command()
@click.argument("job", type=JOB_FILE)
@click.option(
    "--nodes", type=NodesType(),
    help="Nodes that train; 8-32: at least 8, and up to 32 as they come.  [default: what the environment says]",
)  # fmt: skip
@click.option("--no-agent", is_flag=True, help="Run the coordinator alone, whichever node this is.")
@click.option(
    "--host", default="", metavar="ADDRESS",
    help="Address of this node for other nodes.  [default: the one from which it reaches the coordinator]",
)  # fmt: skip
@click.option("--zone", default="", metavar="NAME", envvar=ZONE_VARIABLE, help="Where this node is, as of an agent.")
@GIVE_UP
@NAME
@set_option
@token_option
def here(
    job: Path,
    nodes: tuple[int, int] | None,
    no_agent: bool,
    host: str,
    zone: str,
    give_up_s: float,
    name: str | None,
    overrides: tuple[str, ...],
    token_file: Path | None,
) -> int:
    """Train JOB on nodes that something else starts: the same command on each; see docs/howto/kubernetes.md.

    The environment says which node this is: PET_* of torchrun and Kubeflow Trainer, SKYPILOT_* or SLURM_*. Node 0 runs
    the coordinator and an agent, all others an agent. A coordinator that is started again goes on from the last
    checkpoint. All nodes need the same token.

    \b
    Example:
      srun --ntasks-per-node=1 planaria launch here job.toml --token-file token
    """
    from planaria import api
    from planaria.job.errors import UserError
    from planaria.runtime.engines.attendant import Attendant
    from planaria.runtime.engines.job_environment import DEFAULT_PORT, NAMES, place_of
    from planaria.runtime.engines.launch_folder import Launch
    from planaria.runtime.engines.own_agent import OwnAgent
    from planaria.runtime.progress.output import Output

    if not token_of(token_file):
        raise click.UsageError(f"All nodes need the same token. Give --token-file FILE, or set {TOKEN_VARIABLE}.")
    place = place_of(os.environ)
    if place is None and not no_agent:
        raise UserError(
            f"nothing says which node this is: none of {NAMES} is set. On hosts of your own, "
            "run planaria train on one and planaria agent on each."
        )
    if place is not None and place.rank is None and not no_agent:
        raise UserError("PET_MASTER_ADDR is set, and PET_NODE_RANK is not. Set it to the number of this node, from 0.")
    nodes = nodes or (place.nodes if place else None)
    if nodes is None:
        raise UserError("nothing says how many nodes there are. Give --nodes N.")
    least, most = nodes
    said = [*AGENTS, nodes_override(nodes), f"cluster.port={place.port if place else DEFAULT_PORT}"]
    if place is not None and place.devices:
        said.append(f"cluster.devices_per_node={place.devices}")
    overrides = (*said, *overrides)
    parsed = api.load_job(job, overrides)
    made = Launch(
        job_file=os.path.abspath(job),  # not resolved: of a ConfigMap, that leads to a folder that is replaced
        overrides=overrides,
        name=name or parsed.run.name or job.stem,
        runs=os.path.abspath(parsed.run.folder),
        nodes=least,
        most_nodes=most,
        spares=0,
        python=sys.executable,
        directory=os.getcwd(),
    )
    token = ["--token-file", str(token_file)] if token_file else []
    agent: list[str] = []
    if place is not None and not no_agent:
        agent = [*made.planaria, "agent", "--coordinator", place.address, "--give-up", f"{give_up_s:g}", *token]
        agent += ["--import-path", os.path.dirname(made.job_file), *(["--host", host] if host else [])]
        agent += [*(["--zone", zone] if zone else []), *(["--tls", parsed.cluster.tls] if parsed.cluster.tls else [])]
        if place.rank:
            os.execv(agent[0], agent)
    own = OwnAgent(agent)
    own.start()
    try:
        return Attendant(made, made.train(token), own, Output(sys.stderr).say).run()
    finally:
        own.end()


@click.command()
@click.argument("job", type=JOB_FILE)
@NODES
@click.option(
    "--spares", type=click.IntRange(min=0), default=0, show_default=True,
    help="Nodes beyond these. They train as well; those beyond the most of a range wait.",
)  # fmt: skip
@click.option("--image", required=True, metavar="IMAGE", help="Container image; docker/Dockerfile makes one.")
@click.option("--namespace", default="", metavar="NAME", help="Namespace.  [default: kubectl's]")
@click.option("--queue", default="", metavar="NAME", help="Local queue of Kueue.")
@click.option("--cpu", default="", metavar="QUANTITY", help="Processors of a node, for instance 8.")
@click.option("--memory", default="", metavar="QUANTITY", help="Memory of a node, for instance 64Gi.")
@click.option(
    "--gpus", type=click.IntRange(min=0),
    help="GPUs of a node.  [default: cluster.devices_per_node where cluster.device is cuda]",
)  # fmt: skip
@click.option("--claim", default="", metavar="NAME", help="Volume claim for the run folder that is there already.")
@click.option(
    "--storage", default="100Gi", show_default=True, metavar="QUANTITY", help="Size of the claim that is made."
)
@click.option("--storage-class", default="", metavar="NAME", help="Its class: one that many nodes can mount.")
@click.option(
    "--env-from", "secrets", multiple=True, metavar="SECRET",
    help="A Secret that becomes environment variables of all pods. May be given several times.",
)  # fmt: skip
@click.option("--user", type=click.IntRange(min=1), default=1000, show_default=True, help="User id of the pods.")
@click.option(
    "--grace", "grace_s", type=click.IntRange(min=1), default=120, show_default=True, metavar="SECONDS",
    help="Between a pod's notice and its end.",
)  # fmt: skip
@GIVE_UP
@click.option("--plain-jobs", is_flag=True, help="Two Jobs in place of a JobSet, for clusters without that.")
@NAME
@set_option
@token_option
@click.option(
    "-o", "folder", type=click.Path(path_type=Path, file_okay=False), help="Folder.  [default: NAME.kubernetes]"
)
@click.option("--print", "prints", is_flag=True, help="Print all of it, the Secret too. Nothing is written or applied.")
@click.option("--apply", "applies", is_flag=True, help="Have kubectl apply the folder.")
def kubernetes(
    job: Path,
    nodes: tuple[int, int],
    spares: int,
    image: str,
    namespace: str,
    queue: str,
    cpu: str,
    memory: str,
    gpus: int | None,
    claim: str,
    storage: str,
    storage_class: str,
    secrets: tuple[str, ...],
    user: int,
    grace_s: int,
    give_up_s: float,
    plain_jobs: bool,
    name: str | None,
    overrides: tuple[str, ...],
    token_file: Path | None,
    folder: Path | None,
    prints: bool,
    applies: bool,
) -> int:
    """Write the objects that train JOB on Kubernetes: a JobSet and what it needs; see docs/howto/kubernetes.md.

    A pod that dies is made anew, and joins as a new node. SIGTERM drains a node within its grace period.

    \b
    Example:
      planaria launch kubernetes job.toml --nodes 16 --spares 2 --image me/planaria:1 --memory 64Gi --gpus 8 --apply
    """
    from secrets import token_hex

    from planaria import api
    from planaria.job.sections.cluster import Device
    from planaria.runtime.engines import kubernetes as engine
    from planaria.runtime.engines.kubernetes_manifests import KubernetesRun

    if prints and (applies or folder):
        raise click.UsageError("--print goes with neither -o nor --apply. Drop one of them.")
    if not image.strip() or len(image.split()) != 1:
        raise click.UsageError(f"--image {image!r} is no image. Give for instance registry.example/planaria:1.")
    parsed = api.load_job(job, (*overrides, *AGENTS, nodes_override(nodes)))
    name = name or parsed.run.name or job.stem
    engine.check_run_name(name)
    engine.check_folder(parsed.run.folder)
    named = [("--namespace", namespace), ("--queue", queue), ("--claim", claim)]
    for option, value in (*named, *(("--env-from", each) for each in secrets)):
        engine.check_name(option, value)
    engine.check_cpu("--cpu", cpu)
    engine.check_bytes("--memory", memory)
    engine.check_bytes("--storage", storage)
    if gpus is None:
        gpus = parsed.cluster.devices_per_node if parsed.cluster.device is Device.CUDA else 0
    folder = folder or Path(f"{name}.{engine.ENGINE}")
    run = KubernetesRun(
        name=name,
        namespace=namespace,
        queue=queue,
        image=image,
        nodes=nodes[0],
        most_nodes=nodes[1],
        spares=spares,
        cpu=cpu,
        memory=memory,
        gpus=gpus,
        coordinator_gpus=min(gpus, 0 if parsed.cluster.profile else 1),
        job=engine.read_job(job),
        overrides=overrides,
        token=token_of(token_file) or ("" if prints else engine.kept_token(folder)) or token_hex(16),
        certificates=engine.read_certificates(Path(parsed.cluster.tls)) if parsed.cluster.tls else {},
        claim=claim,
        storage=storage,
        storage_class=storage_class,
        secrets=secrets,
        user=user,
        grace_s=grace_s,
        give_up_s=give_up_s,
    )
    files = engine.documents(run, has_jobset=not plain_jobs)
    if prints:
        click.echo("".join(files.values()), nl=False)
        return 0
    engine.write(folder, files)
    click.echo(f"wrote {folder}/{engine.SECRET} and {engine.RUN}")
    click.echo(engine.apply(folder) if applies else f"kubectl apply -f {folder} begins the run", nl=not applies)
    return 0
