"""TensorBoard's event files, in the folder tensorboard of the run folder. Needs the extra `tensorboard`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from planaria.runtime.observers.figures import FigureReader, hyperparameters
from planaria.runtime.observers.view import TimedRecord, ViewedRun


class TensorBoardFiles:
    """A view that writes event files: one for each part of a run, all of one curve.

    A part begins with the mark by which TensorBoard leaves out what an earlier one had of the same steps; where steps
    are trained again after a return to a checkpoint, there is such a mark as well.
    """

    name = "TensorBoard"

    def __init__(self) -> None:
        self._records: Any = None
        self._figures = FigureReader()
        self._events: list[str] = []
        self._events_step = 0

    def start(self, run: ViewedRun) -> None:
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._figures = FigureReader(run.step)
        run.folder.tensorboard.mkdir(exist_ok=True)
        named = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter((run.folder.tensorboard / named).open("xb"))
        now = time.time()
        self._write(now, 0, file_version="brain.Event:2")
        self._mark(now, run.step + 1)
        if not run.step:
            values = hyperparameters(run.job)
            self._write(now, 0, summary=hparams_pb(values, trial_id=run.name, start_time_secs=now))
            table = "\n".join(f"    {name} = {msgspec.json.encode(value).decode()}" for name, value in values.items())
            self._write(now, 0, summary=_text("job", table))
        self._records.flush()

    def show(self, records: Sequence[TimedRecord]) -> Sequence[str]:
        for record, time_s in records:
            figures = self._figures.read(record)
            if figures is None:
                continue
            if figures.redone_from is not None:
                self._mark(time_s, figures.redone_from)
            if figures.values:
                self._write(time_s, figures.step, summary=_scalars(figures.values))
            if figures.event is not None:
                self._write_event(time_s, figures.step, figures.event)
        self._records.flush()
        return ()

    def close(self) -> None:
        if self._records is not None:
            self._records.close()

    def _write_event(self, time_s: float, step: int, text: str) -> None:
        """Writes all events of a step so far: of texts of the same step, TensorBoard shows the last."""
        if step != self._events_step:
            self._events, self._events_step = [], step
        self._events.append(f"- {text}")
        self._write(time_s, step, summary=_text("events", "\n".join(self._events)))

    def _mark(self, time_s: float, step: int) -> None:
        """Has readers leave out what they have of this step and later ones."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self._write(time_s, step, session_log=SessionLog(status=SessionLog.START))

    def _write(self, time_s: float, step: int, **what: object) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._records.write(Event(wall_time=time_s, step=step, **what).SerializeToString())


def _scalars(values: Mapping[str, float]) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])


def _text(tag: str, text: str) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.plugins.text.metadata import create_summary_metadata

    tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()])
    metadata = create_summary_metadata(display_name=tag, description="")
    return Summary(value=[Summary.Value(tag=tag, tensor=tensor, metadata=metadata)])
