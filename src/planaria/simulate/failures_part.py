"""The section [failures] of a scenario file: how nodes go, by a trace or by chance."""

from __future__ import annotations

import enum

from planaria.job.errors import UserError
from planaria.job.sections.section import Section
from planaria.simulate.traces.generators import ConstantRate, Diurnal, Failures, Monotonic, Weibull
from planaria.simulate.traces.trace import HOUR_S, Trace

DEFAULT_HOURS = 24.0


class FailureKind(enum.StrEnum):
    """How nodes go; see docs/howto/traces.md. `none`: they stay."""

    NONE = "none"
    CONSTANT = "constant"
    POISSON = "poisson"
    DIURNAL = "diurnal"
    WEIBULL = "weibull"
    MONOTONIC = "monotonic"


OF_RATES = (FailureKind.CONSTANT, FailureKind.DIURNAL)
"""Kinds that have a rate and a mean number of nodes that go together."""


class FailuresPart(Section, frozen=True):
    """[failures]

    Attributes:
        trace: a file in any format that `planaria trace` reads; the other fields but `hours`, `from_hours`, `seed` and
            those of devices are then left out. A file of counts is drawn anew for each seed.
        from_hours: where in the trace the job begins.
        hours: how long it lasts; 0: all of the trace, or 24.
        kind: how nodes go, where there is no trace.
        hourly: constant, diurnal: the share of the nodes that goes in an hour.
        mean_bulk: constant, diurnal: nodes that go together, of one zone, on average.
        swing: diurnal: the rate goes from 1 - swing to 1 + swing.
        peak_hour: diurnal: of the day, at which most go.
        mean_life_hours: poisson, weibull: that a node lives on average.
        shape: weibull: below 1 young nodes go soonest.
        interval_s: monotonic: between two losses.
        down_to: monotonic: nodes that stay.
        arrival_s: mean time until a node comes for one that went; below 0: none comes.
        notice_s: how long before it goes a node is announced to go.
        device_hourly: the share of the devices that goes alone in an hour, while their nodes stay.
        device_return_s: mean time until such a device is started again; below 0: none is.
        seed: of the first run.
        runs: with as many seeds, from `seed` on.
    """

    trace: str = ""
    from_hours: float = 0.0
    hours: float = 0.0
    kind: FailureKind = FailureKind.CONSTANT
    hourly: float = 0.1
    mean_bulk: float = 1.0
    swing: float = 0.8
    peak_hour: float = 12.0
    mean_life_hours: float = 10.0
    shape: float = 1.5
    interval_s: float = 600.0
    down_to: int = 1
    arrival_s: float = -1.0
    notice_s: float = 0.0
    device_hourly: float = 0.0
    device_return_s: float = -1.0
    seed: int = 0
    runs: int = 1


def require(field: str, value: object, holds: bool, wanted: str) -> None:
    """Raises UserError, naming field and value, unless it holds."""
    if not holds:
        raise UserError(f"{field} = {value!r}: expected {wanted}.")


def check_failures(failures: FailuresPart) -> None:
    """Raises UserError: a value is impossible, or does not go with the others."""
    require("failures.hours", failures.hours, failures.hours >= 0, "0 or more hours")
    require("failures.from_hours", failures.from_hours, failures.from_hours >= 0, "0 or more hours")
    require("failures.runs", failures.runs, failures.runs >= 1, "at least 1")
    require("failures.notice_s", failures.notice_s, failures.notice_s >= 0, "0 s or more")
    require("failures.device_hourly", failures.device_hourly, failures.device_hourly >= 0, "0 or more")
    if not failures.trace:
        require("failures.from_hours", failures.from_hours, failures.from_hours == 0, "0 where there is no trace")
        process = process_of(failures)
        if isinstance(process, Monotonic):
            require("failures.arrival_s", failures.arrival_s, failures.arrival_s < 0, "below 0 where kind is monotonic")


def process_of(failures: FailuresPart) -> Failures | None:
    """Returns the process by which nodes go. Raises UserError."""
    try:
        match failures.kind:
            case FailureKind.NONE:
                return None
            case FailureKind.CONSTANT:
                return ConstantRate(hourly=failures.hourly, mean_bulk=failures.mean_bulk)
            case FailureKind.POISSON:
                require("failures.mean_life_hours", failures.mean_life_hours, failures.mean_life_hours > 0, "above 0")
                return ConstantRate(hourly=1 / failures.mean_life_hours)
            case FailureKind.DIURNAL:
                return Diurnal(
                    hourly=failures.hourly,
                    swing=failures.swing,
                    peak_s=failures.peak_hour * HOUR_S,
                    mean_bulk=failures.mean_bulk,
                )
            case FailureKind.WEIBULL:
                return Weibull(mean_s=failures.mean_life_hours * HOUR_S, shape=failures.shape)
            case FailureKind.MONOTONIC:
                return Monotonic(interval_s=failures.interval_s, down_to=failures.down_to)
    except UserError as error:
        text = str(error)
        raise UserError(text if text.startswith("failures.") else f"failures.{text}") from None


def part_of(trace: Trace, failures: FailuresPart) -> Trace:
    """Returns the part of a trace file that the scenario asks for. Raises UserError."""
    start_s = failures.from_hours * HOUR_S
    if start_s >= trace.horizon_s:
        raise UserError(
            f"failures.from_hours = {failures.from_hours:g}: trace {trace.name} is {trace.horizon_s / HOUR_S:.2f} "
            "hours long. Begin earlier."
        )
    length_s = failures.hours * HOUR_S if failures.hours else trace.horizon_s - start_s
    if start_s + length_s > trace.horizon_s:
        raise UserError(
            f"failures.hours = {failures.hours:g}: trace {trace.name} has {(trace.horizon_s - start_s) / HOUR_S:.2f} "
            "hours from there on. Give fewer, or 0 for all."
        )
    if not start_s and length_s == trace.horizon_s:
        return trace
    return trace.window(start_s, length_s)
