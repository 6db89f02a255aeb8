"""`planaria trace`: look at traces of node availability, convert them, make them up, plot them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from planaria.job.errors import UserError
from planaria.ui.cli.options import given_text, tell_repairs

if TYPE_CHECKING:
    from planaria.simulate.traces.generators import Failures
    from planaria.simulate.traces.trace import Trace

_TRACE = click.Path(path_type=Path, dir_okay=False)
_FORMATS = ("events", "bamboo", "counts", "availability")
"""Names of `planaria.simulate.traces.formats.TraceFormat`, which is not imported for a help page."""
_POSITIVE = click.FloatRange(min=0, min_open=True)
_KINDS = ("constant", "poisson", "diurnal", "weibull", "monotonic")
_HOUR_S = 3600.0


@click.group()
def trace() -> None:
    """Describe, convert, generate and plot traces of node availability.

    \b
    Formats that are read, found out from the file itself:
      milliseconds,add|remove,node      Bamboo's traces of Amazon instances
      date, time, running nodes         Bamboo's traces of Google instances
      {"metadata": {"gap_seconds": s}, "data": [...]}
      what `planaria trace generate` writes
    """


_drawing_seed = click.option(
    "--seed", default=0, show_default=True, help="Draws which nodes go, where the file has only counts."
)


@trace.command()
@click.argument("file", type=_TRACE)
@_drawing_seed
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def describe(file: Path, seed: int, as_json: bool) -> int:
    """Say how long FILE is, how many nodes it has, and how they come and go."""
    import msgspec

    from planaria.simulate.traces.trace import summarise

    summary = summarise(_read(file, seed))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(summary)).decode())
        return 0
    none = "none"
    mean_bulk = none if summary.mean_bulk is None else f"{summary.mean_bulk:.1f}, at most {summary.largest_bulk}"
    rows = [
        ("length", _duration(summary.horizon_s)),
        ("nodes at its beginning", str(summary.initial_nodes)),
        ("nodes", f"{summary.fewest_nodes} to {summary.most_nodes}, {summary.mean_nodes:.1f} on average"),
        ("came later", str(summary.num_added)),
        ("went", f"{summary.num_removed}, at {summary.num_removals} times; {summary.with_notice} with notice"),
        ("together", mean_bulk),
        ("between two losses", none if summary.interval_s is None else _duration(summary.interval_s)),
        ("rate", f"{summary.hourly_rate:.1%} of the nodes an hour"),
        ("lifetime, median", none if summary.lifetime_s is None else _duration(summary.lifetime_s)),
        ("zones", ", ".join(f"{zone} ({count})" for zone, count in summary.zones.items()) or "not known"),
    ]
    if summary.one_zone_share is not None:
        rows.append(("bulks from one zone", f"{summary.one_zone_share:.0%}"))
    if summary.devices_lost:
        rows.append(("devices lost alone", str(summary.devices_lost)))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name:{width}}  {value}")
    return 0


@trace.command()
@click.argument("file", type=_TRACE)
@click.argument("target", type=_TRACE)
@click.option("--to", "form", type=click.Choice(_FORMATS), default="events", show_default=True, help="The format.")
@click.option(
    "--gap",
    "gap_s",
    type=_POSITIVE,
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Of availability: its grid.",
)
@click.option("--from", "start_h", type=click.FloatRange(min=0), metavar="HOURS", help="Begin there.")
@click.option("--hours", "length_h", type=_POSITIVE, metavar="HOURS", help="Take so much of it.")
@_drawing_seed
def convert(
    file: Path, target: Path, form: str, gap_s: float, start_h: float | None, length_h: float | None, seed: int
) -> int:
    """Write FILE, or a part of it, to TARGET in another format.

    Counts and availability do not say which node is which; only our own format keeps zones, notices and losses of
    devices.
    """
    given = _read(file, seed)
    if start_h is not None or length_h is not None:
        start_s = (start_h or 0.0) * _HOUR_S
        if start_s >= given.horizon_s:
            raise UserError(f"--from {start_h:g}: trace {file.name} is {given.horizon_s / _HOUR_S:.2f} hours long.")
        length_s = given.horizon_s - start_s if length_h is None else length_h * _HOUR_S
        given = given.window(start_s, length_s)
    _write(given, target, form, gap_s)
    return 0


@trace.command()
@click.argument("kind", type=click.Choice(_KINDS))
@click.argument("target", type=_TRACE)
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="At the beginning, and wanted all the time.",
)
@click.option("--hours", type=_POSITIVE, default=24.0, show_default=True, help="How long it is.")
@click.option(
    "--rate",
    type=click.FloatRange(min=0),
    default=0.1,
    show_default=True,
    help="constant, diurnal: share of the nodes that goes an hour.",
)
@click.option(
    "--bulk",
    type=click.FloatRange(min=1),
    default=1.0,
    show_default=True,
    help="constant, diurnal: nodes that go together, on average.",
)
@click.option(
    "--swing",
    type=click.FloatRange(0, 1),
    default=0.8,
    show_default=True,
    help="diurnal: the rate goes from 1 - SWING to 1 + SWING.",
)
@click.option("--peak", default=12.0, show_default=True, help="diurnal: hour of the day at which most go.")
@click.option(
    "--mean-life",
    type=_POSITIVE,
    default=10.0,
    show_default=True,
    help="poisson, weibull: mean hours that a node lives.",
)
@click.option(
    "--shape", type=_POSITIVE, default=1.5, show_default=True, help="weibull: below 1 young nodes go soonest."
)
@click.option(
    "--interval", type=_POSITIVE, default=600.0, show_default=True, help="monotonic: seconds between two losses."
)
@click.option("--down-to", type=click.IntRange(min=0), default=1, show_default=True, help="monotonic: nodes that stay.")
@click.option("--zone", "zones", multiple=True, help="A zone's name; may be given several times. Bulks are of one.")
@click.option(
    "--arrival", type=click.FloatRange(min=0), metavar="SECONDS", help="Mean time until a node comes for one that went."
)
@click.option(
    "--notice",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="Nodes are announced to go before.",
)
@click.option("--to", "form", type=click.Choice(_FORMATS), default="events", show_default=True, help="The format.")
@click.option("--seed", default=0, show_default=True, help="One seed gives one trace.")
def generate(
    kind: str, target: Path, nodes: int, hours: float, rate: float, bulk: float, swing: float, peak: float,
    mean_life: float, shape: float, interval: float, down_to: int, zones: tuple[str, ...], arrival: float | None,
    notice: float, form: str, seed: int,
) -> int:  # fmt: skip
    """Make a trace up and write it to TARGET.

    \b
    Kinds:
      constant   the same share of the nodes goes every hour, in bulks from one zone
      poisson    every node lives an exponential time
      diurnal    as constant, more by day than by night
      weibull    every node's lifetime is Weibull-distributed
      monotonic  one node goes after every interval, and none comes
    """
    from planaria.simulate.traces import generators

    failures: Failures
    match kind:
        case "constant":
            failures = generators.ConstantRate(hourly=rate, mean_bulk=bulk)
        case "poisson":
            failures = generators.ConstantRate(hourly=1 / mean_life)
        case "diurnal":
            failures = generators.Diurnal(hourly=rate, swing=swing, peak_s=peak * _HOUR_S, mean_bulk=bulk)
        case "weibull":
            failures = generators.Weibull(mean_s=mean_life * _HOUR_S, shape=shape)
        case _:
            if arrival is not None:
                raise UserError(f"--arrival {arrival:g}: no node comes under monotonic. Take another kind.")
            failures = generators.Monotonic(interval_s=interval, down_to=down_to)
    population = generators.Population(nodes=nodes, zones=zones or ("",), arrival_s=arrival, notice_s=notice)
    made = generators.generate(failures, population, hours * _HOUR_S, seed=seed, name=f"{kind}, seed {seed}")
    _write(made, target, form, 60.0)
    return 0


@trace.command()
@click.argument("file", type=_TRACE)
@click.argument("target", type=_TRACE)
@_drawing_seed
def plot(file: Path, target: Path, seed: int) -> int:
    """Draw FILE's nodes over time into TARGET (PNG, SVG or PDF, by its ending)."""
    from planaria.ui.plots.trace_plot import plot_trace

    plot_trace(_read(file, seed), target)
    click.echo(f"wrote {target}")
    return 0


def _read(file: Path, seed: int) -> Trace:
    from planaria.simulate.traces.formats import read_trace

    read = read_trace(given_text(file, "the path of a trace"), file.name, seed=seed)
    tell_repairs([f"{file.name}, {repair}" for repair in read.repairs])
    return read.trace


def _write(given: Trace, target: Path, form: str, gap_s: float) -> None:
    from planaria.simulate.traces.formats import TraceFormat, write_trace

    try:
        target.write_text(write_trace(given, TraceFormat(form), gap_s=gap_s))
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}. Give another path.") from None
    click.echo(f"wrote {target}: {_duration(given.horizon_s)}, {len(given.events)} events")


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / _HOUR_S:.1f} h"
