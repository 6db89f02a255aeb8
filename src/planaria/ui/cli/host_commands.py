"""`planaria agent` and `certificates`: a job whose nodes are other hosts. Reads arguments only."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from planaria.ui.cli.options import TOKEN_VARIABLE, ZONE_VARIABLE, tls_option, token_of, token_option


@click.command()
@click.option(
    "--coordinator", required=True, metavar="HOST:PORT",
    help="Where `planaria train` listens; it prints this. Or file:RUN/address: the file is read again at each try, as "
    "the coordinator may come back elsewhere.",
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
@tls_option
@click.option(
    "--import-path", type=click.Path(path_type=Path, file_okay=False), default=Path(), metavar="FOLDER",
    help="Where a model given as module:function is looked for.  [default: the current folder]",
)  # fmt: skip
@click.option(
    "--give-up", "give_up_s", type=click.FloatRange(min=0, min_open=True), default=600.0, show_default=True,
    metavar="SECONDS", help="End when nothing was heard from the coordinator for so long.",
)  # fmt: skip
def agent(
    coordinator: str,
    token_file: Path | None,
    host: str,
    zone: str,
    tls: Path | None,
    import_path: Path,
    give_up_s: float,
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
    from planaria.runtime.nodes.agent_settings import EXIT_CODES, AgentSettings
    from planaria.runtime.nodes.node_agent import NodeAgent
    from planaria.runtime.progress.output import Output

    token = token_of(token_file)
    if not token:
        raise click.UsageError(f"An agent needs the job's token. Give --token-file FILE, or set {TOKEN_VARIABLE}.")
    settings = AgentSettings(
        coordinator=coordinator,
        token=token,
        host=host,
        zone=zone,
        import_path=import_path.resolve(),
        give_up_s=give_up_s,
        tls="" if tls is None else str(tls.resolve()),
    )
    return EXIT_CODES[NodeAgent(settings, Output(sys.stderr).say).run()]


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
