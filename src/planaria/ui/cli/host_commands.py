"""`planaria agent`, `standby` and `certificates`: a job whose nodes are other hosts. Reads arguments only."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import click

from planaria.job.values import TOKEN_VARIABLE, check_name, etcd_members
from planaria.ui.cli.options import LABEL_VARIABLE, ZONE_VARIABLE, exit_code, tls_option, token_of, token_option


@click.command()
@click.option(
    "--coordinator", metavar="HOST:PORT",
    help="Where `planaria train` listens; it prints this. A name is looked up again at each try; of file:RUN/address "
    "and etcd://HOST:PORT,.../RUN (etcds:// under TLS) it is read again, as the coordinator may come back elsewhere.  "
    "[default: node 0, where the environment is torchrun's, SkyPilot's or SLURM's]",
)  # fmt: skip
@token_option
@click.option(
    "--host", default="", metavar="ADDRESS",
    help="Address of this node for other nodes.  [default: the one from which it reaches the coordinator]",
)  # fmt: skip
@click.option(
    "--zone", default="", metavar="NAME", envvar=ZONE_VARIABLE,
    help="Where this node is: whatever fails as one, a cloud's zone or a rack. The replicas of a layer are spread "
    f"over zones. Or set {ZONE_VARIABLE}.",
)  # fmt: skip
@click.option(
    "--label", metavar="NAME", envvar=LABEL_VARIABLE,
    help="What you call this node: status and records have it beside the node's number, which follows arrival. Or set "
    f"{LABEL_VARIABLE}.  [default: SLURM's name of the task, else the host's name]",
)  # fmt: skip
@tls_option
@click.option(
    "--import-path", type=click.Path(path_type=Path, file_okay=False), default=Path(), metavar="FOLDER",
    help="Where a model given as module:function is looked for.  [default: the current folder]",
)  # fmt: skip
@click.option(
    "--give-up", "give_up_s", type=click.FloatRange(min=0, min_open=True), default=600.0, show_default=True,
    metavar="SECONDS", help="End when nothing was heard from the coordinator for so long.",
)  # fmt: skip
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
    help="For a host that does not see the coordinator's run folder: it has one of its own under FOLDER, and prepares "
    "the data itself. Checkpoints go to run.checkpoint_folder.",
)  # fmt: skip
@click.option(
    "--may-lead", is_flag=True,
    help="Run a standby beside the node, which leads the run when its coordinator's host is gone (run.journal).",
)  # fmt: skip
def agent(
    coordinator: str | None,
    token_file: Path | None,
    host: str,
    zone: str,
    label: str | None,
    tls: Path | None,
    import_path: Path,
    give_up_s: float,
    folder: Path | None,
    may_lead: bool,
) -> int:
    """Offer this node to a job whose cluster.launcher is "agents"; see docs/howto/hosts.md.

    Starts the node's workers, and offers the node again under a new number when it was cut off. Ctrl-C, SIGTERM
    and SIGHUP hand over the node's work and end; a second Ctrl-C ends at once.

    \b
    Example:
      planaria agent --coordinator 10.0.0.1:29400 --token-file runs/job/token

    \b
    Exit code:
      0 the run is over    4 the node has handed over its work    75 the run is suspended: come back when it is resumed
      1 the coordinator is gone    2 this node cannot take part    130 a second Ctrl-C
    """
    from planaria.runtime.engines.job_environment import NAMES, label_of, place_of
    from planaria.runtime.nodes.agent_settings import EXIT_CODES, AgentSettings
    from planaria.runtime.nodes.node_agent import NodeAgent
    from planaria.runtime.progress.output import Output

    token = token_of(token_file)
    if not token:
        raise click.UsageError(f"An agent needs the job's token. Give --token-file FILE, or set {TOKEN_VARIABLE}.")
    place = None if coordinator else place_of(os.environ)
    if not coordinator and place is None:
        raise click.UsageError(f"Missing option '--coordinator': none of {NAMES} says where it is.")
    settings = AgentSettings(
        coordinator=coordinator or (place.address if place else ""),
        token=token,
        host=host,
        zone=zone,
        label=label_of(os.environ, socket.gethostname()) if label is None else label,
        import_path=import_path.resolve(),
        give_up_s=give_up_s,
        tls="" if tls is None else str(tls.resolve()),
        may_lead=may_lead,
        folder=None if folder is None else folder.resolve(),
    )
    return EXIT_CODES[NodeAgent(settings, Output(sys.stderr).say).run()]


@click.command()
@click.argument("run")
@token_option
@tls_option
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
    help="With RUN in etcd, for a host that does not see the run folder: of the run, one of its own under FOLDER.",
)  # fmt: skip
def standby(run: str, token_file: Path | None, tls: Path | None, folder: Path | None) -> int:
    """Wait beside RUN, whose journal is in etcd, and lead it when its coordinator's host is gone.

    RUN is the run folder, which this host sees as well; or, with --folder, etcd://HOST:PORT,.../NAME (etcds:// under
    TLS), where all nodes have folders of their own and checkpoints are in a store. Steps that were committed stay
    committed, and nodes keep their state; see docs/howto/standby.md.

    \b
    Examples:
      planaria standby runs/job
      planaria standby etcd://a:2379,b:2379/job --token-file token --folder /scratch

    \b
    Exit code:
      0 the run is over, or led by another standby    1 another process took the lead    2 it cannot be led from here
      otherwise as of `planaria train`, of a run that was led from here
    """
    from planaria.job.parse import job_from_json
    from planaria.protocol.messages.records import AnyRecord
    from planaria.runtime.coordinator.remote_nodes import read_token
    from planaria.runtime.journal.coordinator_place import CoordinatorPlace
    from planaria.runtime.launch.session import stand_by_run
    from planaria.runtime.progress.output import Output
    from planaria.runtime.progress.progress import ProgressDisplay
    from planaria.runtime.run_folder.run_folder import RunFolder

    url, _, name = run.rpartition("/")
    is_alone = bool(etcd_members(url))
    if is_alone != (folder is not None):
        raise click.UsageError(
            "--folder is for a RUN in etcd, etcd://HOST:PORT,.../NAME, and that needs it: this host has no run folder."
        )
    shown = "" if tls is None else str(tls.resolve())
    if folder is not None:
        CoordinatorPlace(run, "RUN", shown)
        check_name("run.name", name)
    own = RunFolder.open(run) if folder is None else RunFolder(folder / name)
    token = token_of(token_file) or ("" if is_alone else read_token(own.token))
    if not token:
        raise click.UsageError(f"A standby needs the job's token. Give --token-file FILE, or set {TOKEN_VARIABLE}.")
    displays: list[ProgressDisplay] = []
    with ExitStack() as leading:

        def show(record: AnyRecord, time_s: float) -> None:
            if not displays:
                job = job_from_json(own.job.read_bytes())
                displays.append(leading.enter_context(ProgressDisplay(job, own)))
            displays[0](record, time_s)

        result = stand_by_run(own, token, Output(sys.stderr).say, show, shown, url if is_alone else "")
    return 0 if result is None else exit_code(result)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--days", type=click.IntRange(min=1, max=36500), default=365, show_default=True, help="For which they are valid."
)
def certificates(folder: Path, days: int) -> int:
    """Make the certificates of a run in FOLDER, for connections under TLS between its hosts.

    ca.pem, cert.pem and key.pem, which you alone can read. Set cluster.tls to the folder, copy it to every host, and
    give agents --tls FOLDER. Whoever has key.pem can take part, if it has the job's token too. The CA's own key is
    thrown away: nobody can sign another certificate.

    \b
    Example:
      planaria certificates tls
    """
    from planaria.runtime.wire.certificates import make_certificates

    make_certificates(folder, days)
    click.echo(f"made {folder}/ca.pem, cert.pem and key.pem, valid for {days} days")
    return 0
