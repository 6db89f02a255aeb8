"""The settings of a coordinator's process, told to it when it is started."""

from __future__ import annotations

import msgspec

from planaria.job.faults import Fault
from planaria.job.history import History
from planaria.job.settings import Job
from planaria.protocol.messages.checkpoint_ref import CheckpointRef
from planaria.protocol.messages.records import Evaluated
from planaria.protocol.planning.failure_rate import Watched


class CoordinatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of a coordinator's process.

    Attributes:
        job: the whole job.
        folder: the run's folder.
        run_id: of this run of the job, for the journal.
        token: that workers and users show.
        resume: the checkpoint that the run begins with.
        evaluated: evaluations of earlier runs of the job up to `resume`.
        saved: steps of the whole checkpoints that there are up to `resume`.
        watched: what earlier runs of the job on these nodes saw of losses.
        spent: dollars that earlier parts of the run cost.
        log: file for what it prints.
        history: of the run's samples and rates, for its checkpoints.
        rate_factors: of a schedule that is a function: what it gives for each step.
        data_hash: of the data, as every node must have them; "": there are none.
        stream: the file that says what the stream is that is trained on; empty: the data are none.
        opening_s: seconds that the data took to be opened, as they do in every worker before it joins.
        faults: on order, of nodes whose workers agents start.
    """

    job: Job
    folder: str
    run_id: str
    token: str
    resume: CheckpointRef | None
    log: str
    history: History = ()
    rate_factors: tuple[float, ...] = ()
    data_hash: str = ""
    stream: bytes = b""
    opening_s: float = 0.0
    faults: tuple[Fault, ...] = ()
    evaluated: tuple[Evaluated, ...] = ()
    saved: tuple[int, ...] = ()
    watched: Watched = Watched()
    spent: float = 0.0
