"""[run]: where a run is kept, and its checkpoints."""

from __future__ import annotations

from planaria.job.sections.section import Section
from planaria.job.values import at_least, check_name, etcd_members, function, is_url, path, refuse


class RunSection(Section, frozen=True):
    """[run]

    Attributes:
        folder: where run folders are made.
        name: of the run; default: the job file's name.
        checkpoint_every: steps between checkpoints; 0: only where a run ends, and now and then under a plan with fewer
            than f + 1 replicas of some layer. Where neither this nor checkpoint_every_s is set, the run chooses: so
            seldom that checkpoints take 1% of the time by what they cost as measured, at least every 15 minutes.
        checkpoint_every_s: seconds between checkpoints; 0: as checkpoint_every = 0. With both set, whichever is first.
        keep_checkpoints: how many of the newest stay.
        checkpoint_folder: a URL under which checkpoints are written, in a folder of the run's name: s3://bucket/folder,
            or another that fsspec knows; "": in the run folder. See docs/howto/resume-and-save.md.
        journal: where the coordinator's decisions are kept: "etcd://HOST:PORT,HOST:PORT,...", so that another host may
            go on when the coordinator's dies (nodes are agents), or "etcds://..." for an etcd under TLS, with the
            certificates of cluster.tls; "": in the run folder. See docs/howto/standby.md.
        callbacks: functions, each "module:function" (record, run), that are called with each record of the run; see
            docs/howto/callbacks.md.
    """

    folder: str = "runs"
    name: str | None = None
    checkpoint_every: int | None = None
    checkpoint_every_s: float | None = None
    keep_checkpoints: int = 2
    checkpoint_folder: str = ""
    journal: str = ""
    callbacks: tuple[str, ...] = ()

    @property
    def writes_checkpoints(self) -> bool:
        """Whether some are written on the way, whatever happens."""
        is_automatic = self.checkpoint_every is None and self.checkpoint_every_s is None
        return is_automatic or bool(self.checkpoint_every or self.checkpoint_every_s)

    @property
    def checkpoints_url(self) -> str:
        """Where the run's checkpoints are written; "": in its folder."""
        return f"{self.checkpoint_folder.rstrip('/')}/{self.name}" if self.checkpoint_folder else ""


def check_run(run: RunSection) -> None:
    """Refuses a [run] that cannot be. Raises UserError."""
    path("run.folder", run.folder)
    if run.name is not None:
        check_name("run.name", run.name)
    if run.checkpoint_every is not None:
        at_least("run.checkpoint_every", run.checkpoint_every, 0)
    if run.checkpoint_every_s is not None:
        at_least("run.checkpoint_every_s", run.checkpoint_every_s, 0)
    at_least("run.keep_checkpoints", run.keep_checkpoints, 1)
    if run.checkpoint_folder and not is_url(run.checkpoint_folder):
        refuse(
            "run.checkpoint_folder", run.checkpoint_folder, "is not a URL",
            "Write for instance s3://bucket/folder, or leave it out: then they are in the run folder.",
        )  # fmt: skip
    if run.journal and not etcd_members(run.journal):
        refuse(
            "run.journal", run.journal, "is not etcd://HOST:PORT,HOST:PORT,..., or etcds:// for one under TLS",
            "Name etcd's members, or leave it out: then the journal is in the run folder.",
        )  # fmt: skip
    for callback in run.callbacks:
        function("run.callbacks", callback)
