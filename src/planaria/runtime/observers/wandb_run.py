"""A run of Weights & Biases. Needs the extra `wandb`."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from planaria.protocol.messages.records import RunEnded, RunStatus
from planaria.runtime.observers.figures import FigureReader, nested
from planaria.runtime.observers.thresholds import TRACKER_ENDS_S, TRACKER_STARTS_S
from planaria.runtime.observers.view import TimedRecord, ViewedRun
from planaria.runtime.run_folder.recorder import write_atomically


class WandbRun:
    """A view that logs to Weights & Biases; its id is kept, and a run that goes on is the same one there.

    Nothing of it reads the terminal or prints: where nobody is logged in, it fails.

    Args:
        project: at Weights & Biases.
    """

    name = "Weights & Biases"

    def __init__(self, project: str) -> None:
        self._project = project
        self._figures = FigureReader()
        self._run: Any = None
        self._has_failed = True

    def start(self, run: ViewedRun) -> None:
        import wandb

        kept = run.folder.id_at("wandb")
        if not kept.exists():
            write_atomically(kept, f"{secrets.token_hex(4)}\n".encode())
        settings = wandb.Settings(
            silent=True,
            console="off",
            x_disable_stats=True,
            init_timeout=TRACKER_STARTS_S,
            finish_timeout=TRACKER_ENDS_S,
        )
        wandb.setup(settings)
        self._run = wandb.init(
            project=self._project,
            id=kept.read_text().strip(),
            resume="allow",
            name=run.name,
            dir=str(run.folder.path),
            config=nested(run.job),
            settings=settings,
        )
        self._run.define_metric("*", step_metric="step")
        self._figures = FigureReader(run.step)

    def show(self, records: Sequence[TimedRecord]) -> Sequence[str]:
        for record, _ in records:
            figures = self._figures.read(record)
            if figures is not None and (figures.values or figures.event):
                told = {} if figures.event is None else {"event": figures.event}
                self._run.log({"step": figures.step, **figures.values, **told})
            if isinstance(record, RunEnded):
                self._has_failed = record.status in (RunStatus.FAILED, RunStatus.EXHAUSTED)
        return ()

    def close(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=int(self._has_failed))
