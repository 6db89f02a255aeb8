"""A spot trace against a job: nodes leave and join as the instances of a cloud did, time compressed; then the bits.

`python scripts/spot.py ../shared/traces/p3-trace.csv` replays the 30 minutes of the trace with the most changes on a
job of emulated devices, sixty times as fast. A line of a trace is `ms,add|remove,instance`. Of the instances that go,
half are told two minutes before, as clouds promise, and half are not. At the end of the window the job is stopped, and
its losses and weights are compared with those of one process alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console

from planaria.cli import live
from planaria.job.errors import UserError
from planaria.job.parse import job_json, parse_job
from planaria.job.settings import Job
from planaria.launch.reference import train_reference
from planaria.launch.result import TrainResult
from planaria.launch.session import train_job
from planaria.observe.run_folder import RunFolder
from planaria.plan.plan import Group
from planaria.plan.profile import DeviceKind, LayerCost, LayerTimes, LinkCost, Links, ModelProfile, StepCosts
from planaria.protocol.records import (
    AnyRecord,
    NodeJoined,
    NodeLost,
    NodeReleased,
    RunEnded,
    RunStatus,
    StepCommitted,
    Waiting,
)
from planaria.simulate.trace import Change, Trace, TraceEvent
from planaria.simulate.trace_formats import read_trace

try:
    from scripts.chaos import losses, workers_of
except ModuleNotFoundError:  # started as a script, from its own folder
    from chaos import losses, workers_of  # type: ignore[import-not-found, no-redef]

WINDOW_S = 1800.0
NOTICE_S = 120.0
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A part of a trace.

    Attributes:
        began_s: in the trace.
        trace: of the part, with times from its beginning.
    """

    began_s: float
    trace: Trace

    @property
    def present(self) -> tuple[str, ...]:
        """Instances at its beginning."""
        return self.trace.initial

    @property
    def changes(self) -> tuple[TraceEvent, ...]:
        """After its beginning."""
        return self.trace.events[len(self.present) :]

    @classmethod
    def busiest(cls, trace: Trace, seconds: float = WINDOW_S) -> Window:
        """The window, beginning at a whole minute, with the most changes of a cluster that is there already."""
        starts = range(0, int(trace.horizon_s - seconds) + 1, 60)
        windows = [cls(began_s=start, trace=trace.window(start, seconds)) for start in starts]
        return max((window for window in windows if window.present), key=lambda window: len(window.changes))

    def thinned(self, share: int) -> Window:
        """Of the instances present, and of those that come later, every so many-th; with all that befalls them."""
        later = [change.node for change in self.changes if change.change is Change.ADD]
        kept = {*self.present[::share], *later[::share]}
        events = tuple(event for event in self.trace.events if event.node in kept)
        return Window(began_s=self.began_s, trace=msgspec.structs.replace(self.trace, events=events))


@dataclass(slots=True)
class Replayed:
    """What was done, and what the run made of it."""

    killed: int = 0
    noticed: int = 0
    added: int = 0
    lost: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    joined: list[int] = field(default_factory=list)
    waited: int = 0
    steps: int = 0


class Spot:
    """Replays a window on a run, then stops it. Register it as the run's observer.

    Args:
        folder: of the run; its nodes stand for the window's present instances, in their order.
        window: of the trace.
        speed: seconds of the trace in a second.
    """

    def __init__(self, folder: Path, window: Window, speed: float) -> None:
        self.replayed = Replayed()
        self.error: BaseException | None = None
        self._folder = folder
        self._trace = window.trace.compressed(speed)
        self._notice_s = NOTICE_S / speed
        self._node_of = {instance: node for node, instance in enumerate(window.present)}
        self._records: queue.Queue[AnyRecord] = queue.Queue()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="spot", daemon=True)

    def __call__(self, record: AnyRecord, time_s: float) -> None:
        self._records.put(record)
        if isinstance(record, StepCommitted) and self._thread.ident is None:
            self._thread.start()

    def join(self) -> None:
        """Wait for the end. Raises what went wrong."""
        self._thread.join(PATIENCE_S)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            began = time.monotonic()
            for at_s, number, change in self._moments():
                self._take_records(began + at_s)
                if self._is_over:
                    return
                self._do(change, number)
            self._take_records(began + self._trace.horizon_s)
            self._see_everybody_come()
            live.stop(self._folder)
            self._drain_records()
        except BaseException as error:
            self.error = error
            with contextlib.suppress(UserError):
                live.stop(self._folder)

    def _moments(self) -> list[tuple[float, int, TraceEvent]]:
        """When each is due: a notice comes before the machine goes. With each the signal, or 0 for who comes."""
        moments: list[tuple[float, int, TraceEvent]] = []
        removals = 0
        for change in self._trace.events[len(self._trace.initial) :]:
            if change.change is Change.ADD:
                moments.append((change.at_s, 0, change))
                continue
            removals += 1
            moments.append((change.at_s, signal.SIGKILL, change))
            if removals % 2 == 0:
                moments.append((max(0.0, change.at_s - self._notice_s), signal.SIGTERM, change))
        return sorted(moments, key=lambda moment: moment[0])

    def _do(self, change: TraceEvent, number: int) -> None:
        if change.change is Change.ADD:
            answer = live.add(self._folder, 1)
            self._node_of[change.node] = int(answer.split()[1])
            self.replayed.added += 1
            return
        node = self._node_of.get(change.node)
        if node is None:
            return  # its notice, before it comes: it comes and goes within two minutes
        for pid in workers_of(self._folder, node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                self.replayed.killed += number == signal.SIGKILL
                self.replayed.noticed += number == signal.SIGTERM

    def _see_everybody_come(self) -> None:
        """A node that was started last may still be on its way."""
        ends = time.monotonic() + PATIENCE_S
        expected = len(self._trace.initial) + self.replayed.added
        while len(self.replayed.joined) + len(self._lost_on_the_way()) < expected and not self._is_over:
            self._note(self._records.get(timeout=max(0.0, ends - time.monotonic())))

    def _lost_on_the_way(self) -> set[int]:
        return set(self.replayed.lost) - set(self.replayed.joined)

    # What the run tells

    def _take_records(self, until: float) -> None:
        while not self._is_over and (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self._note(self._records.get(timeout=left))

    def _drain_records(self) -> None:
        ends = time.monotonic() + PATIENCE_S
        while not self._is_over:
            self._note(self._records.get(timeout=max(0.0, ends - time.monotonic())))

    def _note(self, record: AnyRecord) -> None:
        match record:
            case NodeJoined():
                self.replayed.joined.append(record.node)
            case NodeLost():
                self.replayed.lost.append(record.node)
            case NodeReleased():
                self.replayed.released.append(record.node)
            case Waiting():
                self.replayed.waited += 1
            case StepCommitted():
                self.replayed.steps = record.step
            case RunEnded():
                self._is_over = True
            case _:
                pass


def until_step(job: Job, step: int) -> Job:
    """The job that ends after this step; its learning rate must not depend on how many there are."""
    return msgspec.structs.replace(job, train=msgspec.structs.replace(job.train, steps=step))


def same_bits(trained: TrainResult, alone: TrainResult) -> bool:
    return losses(trained.folder) == losses(alone.folder) and trained.weights_sha256 == alone.weights_sha256


# As a script


def profile(num_layers: int, layer_s: float) -> ModelProfile:
    """Layers of a made-up device."""
    layer = LayerCost(
        name="block",
        times=(LayerTimes(forward_s=layer_s, backward_input_s=layer_s, backward_weight_s=layer_s),),
        parameter_bytes=1_000_000,
        gradient_bytes=2_000_000,
        optimizer_bytes=2_000_000,
        activation_bytes=100_000,
        recompute_activation_bytes=10_000,
        output_bytes=1_000_000,
    )
    link = LinkCost(latency_s=1e-4, bandwidth_bytes_per_s=1e9)
    return ModelProfile(
        layers=(layer,) * num_layers,
        groups=tuple(Group(layers=(number,), size_bytes=1_000_000) for number in range(num_layers)),
        links=Links(within_node=link, between_nodes=link),
        device=DeviceKind(name="made up"),
        step=StepCosts(apply_s_per_byte=1e-10, sum_s_per_byte=1e-10),
    )


def spot_job(profile_file: Path, nodes: int, nodes_per_pipeline: int) -> Job:
    """For so many nodes at first, on emulated devices; it goes on until it is stopped."""
    text = f"""
[train]
steps = 1000000
global_batch = {4 * nodes}
microbatch = 1
sequence_length = 16
learning_rate = 1e-2
lr_schedule = "constant"
[cluster]
nodes = {nodes}
device = "emulated"
profile = {json.dumps(str(profile_file))}
[resilience]
min_nodes_per_pipeline = {nodes_per_pipeline}
when_exhausted = "wait"
[run]
checkpoint_every = 10
"""
    return parse_job(text, origin="spot")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--speed", type=float, default=60.0, help="seconds of the trace in a second (default: 60)")
    parser.add_argument("--share", type=int, default=1, help="replay every so many-th instance (default: all)")
    parser.add_argument("--layer-ms", type=float, default=1.0, help="forward of a layer (default: 1)")
    parser.add_argument("--json", type=Path, help="write the summary here, too")
    given = parser.parse_args()
    window = Window.busiest(read_trace(given.trace.read_text(), given.trace.name).trace).thinned(given.share)
    with tempfile.TemporaryDirectory(prefix="planaria-spot-") as scratch:
        file = Path(scratch) / "profile.json"
        file.write_bytes(msgspec.json.encode(profile(24, given.layer_ms / 1e3)))
        job = spot_job(file, len(window.present), 4 if len(window.present) >= 16 else 2)
        folder = RunFolder.create(Path(scratch), "run")
        folder.job.write_bytes(job_json(job))
        spot = Spot(folder.path, window, given.speed)
        trained = train_job(job, folder, observers=[spot])
        spot.join()
        alone = train_reference(until_step(job, trained.steps), RunFolder.create(Path(scratch), "alone"))
        same = same_bits(trained, alone)
        run = json.loads((trained.folder / "summary.json").read_text())
    replayed = spot.replayed
    summary = {
        "trace": given.trace.name,
        "window_began_minute": window.began_s / 60,
        "changes": len(window.changes),
        "speed": given.speed,
        "nodes_at_first": len(window.present),
        "killed": replayed.killed,
        "noticed": replayed.noticed,
        "added": replayed.added,
        "lost": len(replayed.lost),
        "released": len(replayed.released),
        "waited_for_nodes": replayed.waited,
        "recoveries": len(trained.recoveries),
        "steps": trained.steps,
        "microbatches_skipped": run["skipped_microbatches"],
        "microbatches_counted_twice": run["duplicated_microbatches"],
        "bit_identical": same,
    }
    Console(highlight=False).print_json(json.dumps(summary))
    if given.json is not None:
        given.json.write_text(json.dumps(summary, indent=1) + "\n")
    return 0 if same and trained.status is RunStatus.INTERRUPTED else 1


if __name__ == "__main__":
    sys.exit(main())
