"""Traces: what is read is what was written, what contradicts itself is repaired or refused, and rates are kept."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planaria.simulate.traces import generators
from planaria.simulate.traces.formats import TraceFormat, read_trace, write_trace
from planaria.simulate.traces.generators import (
    ConstantRate,
    Diurnal,
    Failures,
    Monotonic,
    Population,
    Weibull,
    generate,
)
from planaria.simulate.traces.trace import (
    HOUR_S,
    Change,
    DeviceChange,
    DeviceEvent,
    Trace,
    TraceError,
    TraceEvent,
    summarise,
)
from planaria.ui.cli.main import cli
from tests.proof import examples

REAL = sorted((Path(__file__).parents[4] / "shared" / "traces").glob("*trace*.csv")) + sorted(
    (Path(__file__).parents[4] / "shared" / "traces").glob("a100*.txt")
)
GENERATORS: tuple[Failures, ...] = (
    ConstantRate(hourly=0.3, mean_bulk=2.5),
    Diurnal(hourly=0.3),
    Weibull(mean_s=3 * HOUR_S, shape=0.7),
    Monotonic(interval_s=900, down_to=3),
)


HEAD = '{"planaria_trace": 1, "name": "x", "horizon_s": 5}\n'


def made(
    failures: Failures, seed: int = 0, *, nodes: int = 16, hours: float = 12, zones: tuple[str, ...] = ("a", "b")
) -> Trace:
    population = Population(nodes=nodes, zones=zones, arrival_s=400.0, notice_s=120.0)
    return generate(failures, population, hours * HOUR_S, seed=seed, name="made")


def add(at_s: float, node: str) -> TraceEvent:
    return TraceEvent(at_s=at_s, change=Change.ADD, node=node)


def remove(at_s: float, node: str) -> TraceEvent:
    return TraceEvent(at_s=at_s, change=Change.REMOVE, node=node)


@given(seed=st.integers(0, 10_000), failures=st.sampled_from(GENERATORS))
@settings(max_examples=examples(60), deadline=None)
def test_our_own_format_keeps_everything(seed: int, failures: Failures) -> None:
    trace = made(failures, seed)
    again = read_trace(write_trace(trace, TraceFormat.EVENTS), "file.jsonl")
    assert again.trace == trace
    assert not again.repairs


@given(seed=st.integers(0, 10_000), failures=st.sampled_from(GENERATORS))
@settings(max_examples=40, deadline=None)
def test_other_formats_keep_what_they_can_say(seed: int, failures: Failures) -> None:
    trace = made(failures, seed)
    bamboo = read_trace(write_trace(trace, TraceFormat.BAMBOO), "b").trace
    assert [(e.change, e.node) for e in bamboo.events] == [(e.change, e.node) for e in trace.events]
    assert all(abs(a.at_s - b.at_s) <= 1e-3 for a, b in zip(bamboo.events, trace.events, strict=True))
    # Whole seconds: what happens within one is one count.
    counted = dict(read_trace(write_trace(trace, TraceFormat.COUNTS), "c").trace.counts())
    for at_s, count in {float(round(at_s)): count for at_s, count in trace.counts()}.items():
        assert counted.get(at_s, count) == count
    sampled = read_trace(write_trace(trace, TraceFormat.AVAILABILITY, gap_s=60.0), "a").trace
    at_begin = dict(trace.counts())[0.0]
    assert dict(sampled.counts())[0.0] == at_begin
    assert abs(summarise(sampled).mean_nodes - summarise(trace).mean_nodes) < 0.5


@pytest.mark.skipif(not REAL, reason="the real traces are not there")
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_real_traces_are_read(path: Path) -> None:
    read = read_trace(path.read_text(), path.name)
    summary = summarise(read.trace)
    assert summary.num_removed > 50
    assert 0 <= summary.fewest_nodes <= summary.mean_nodes <= summary.most_nodes <= 64
    assert all("at once" in repair for repair in read.repairs)


def test_one_seed_gives_one_trace() -> None:
    for failures in GENERATORS:
        assert made(failures, 7) == made(failures, 7)
    assert made(GENERATORS[0], 7) != made(GENERATORS[0], 8)


@pytest.mark.parametrize(
    ("failures", "hourly"),
    [
        (ConstantRate(hourly=0.1), 0.1),
        (ConstantRate(hourly=0.4, mean_bulk=3), 0.4),
        (Diurnal(hourly=0.2), 0.2),
        (Weibull(mean_s=5 * HOUR_S, shape=1.0), 0.2),
    ],
)
def test_rates_of_losses_are_as_asked_for(failures: Failures, hourly: float) -> None:
    """Whole days; bulks that a zone is too small for, and lifetimes that begin with the trace, shift it a little."""
    rates = [summarise(made(failures, seed, nodes=60, hours=48)).hourly_rate for seed in range(12)]
    assert statistics.mean(rates) == pytest.approx(hourly, rel=0.1)


def test_bulks_are_of_one_zone() -> None:
    summary = summarise(made(ConstantRate(hourly=0.5, mean_bulk=4), zones=("a", "b", "c"), nodes=60))
    assert summary.one_zone_share == 1.0
    assert summary.mean_bulk == pytest.approx(4, rel=0.35)
    assert set(summary.zones) == {"a", "b", "c"}


def test_more_go_by_day() -> None:
    trace = made(Diurnal(hourly=0.5, swing=1.0), nodes=60, hours=24)
    gone = [event.at_s / HOUR_S for event in trace.events if event.change is Change.REMOVE]
    assert sum(6 <= hour < 18 for hour in gone) > 2.5 * sum(not 6 <= hour < 18 for hour in gone)


def test_losses_come_at_a_fixed_interval() -> None:
    trace = made(Monotonic(interval_s=600, down_to=4), nodes=7, hours=4)
    assert [(e.at_s, e.change) for e in trace.events[7:]] == [(600.0 * n, Change.REMOVE) for n in (1, 2, 3)]


def test_a_window_begins_with_the_nodes_that_are_there() -> None:
    events = (add(0, "a"), add(10, "b"), remove(20, "a"), add(30, "c"), remove(40, "b"))
    part = Trace(name="t", horizon_s=50, events=events).window(20, 15)
    assert part.events == (add(0, "b"), add(10, "c"))
    assert part.horizon_s == 15
    assert part.compressed(5).events[1].at_s == 2
    with pytest.raises(TraceError, match="not within its 15 s"):
        part.window(10, 6)


@given(st.floats(1, 1e6), st.floats(0, 0.999), st.floats(0, 1))
@example(horizon_s=360800.6460903179, share=0.181640625, at=0.0)
@settings(max_examples=examples(200), deadline=None)
def test_the_rest_of_a_trace_is_a_part_of_it(horizon_s: float, share: float, at: float) -> None:
    """However the end is rounded."""
    trace = Trace(name="t", horizon_s=horizon_s, events=(add(0, "a"), add(at * horizon_s, "b"), add(horizon_s, "c")))
    start_s = share * horizon_s
    rest = trace.window(start_s, horizon_s - start_s)
    assert [event.node for event in rest.events] == ["a", "b", "c"]
    assert rest.events[-1].at_s == pytest.approx(rest.horizon_s)


def test_what_is_said_of_a_trace() -> None:
    events = (add(0, "a"), add(0, "b"), remove(3600, "a"), remove(3600, "b"), add(7200, "a"))
    summary = summarise(Trace(name="t", horizon_s=10800, events=events))
    assert (summary.initial_nodes, summary.fewest_nodes, summary.most_nodes, summary.mean_nodes) == (2, 0, 2, 1.0)
    assert (summary.num_added, summary.num_removed, summary.num_removals, summary.mean_bulk) == (1, 2, 1, 2.0)
    assert summary.hourly_rate == pytest.approx(2 / 3)
    assert summary.lifetime_s == 3600
    assert summary.interval_s is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("\n \n", "empty"),
        ("hello", "line 1: 'hello' begins no trace"),
        ("1,add,a\n2,add", "line 2: '2,add' has 2 columns"),
        ("1,add,a\nx,add,b", "line 2: time 'x'"),
        ("-1,add,a", "line 1: time -1 is negative"),
        ("1,stop,a", "line 1: 'stop' is neither"),
        ("1,add,", "line 1: the node has no name"),
        ("0,remove,a", "no events"),
        ("0,add,a", "ends when it begins"),
        ("2021-01-01, 10:00:00, 3\n2021-01-01, 10:61:00, 3", "line 2: '2021-01-01', '10:61:00'"),
        ("2021-01-01, 10:00:00, -3", "line 1: -3 nodes"),
        ("2021-01-01, 10:00:00, many", "line 1: 'many' is not a number"),
        ('{"metadata": {"gap_seconds": 0}, "data": [1]}', "gap_seconds = 0"),
        ('{"metadata": {"gap_seconds": 5}, "data": [1, -1]}', "data entry 2 is -1"),
        ('{"metadata": {"gap_seconds": 5}, "data": [0, 0]}', "no events"),
        ('{"metadata": 5}', "Expected"),
        ('{"planaria_trace": 9, "name": "x", "horizon_s": 5}', "version 9"),
        ('{"planaria_trace": 1, "name": "x", "horizon_s": 5}\n{"at_s": -1, "change": "add", "node": "a"}', "line 2"),
        ('{"planaria_trace": 1, "name": "x", "horizon_s": 5}\n{"at_s": 1, "change": "go", "node": "a"}', "line 2"),
        (f"0,add,a\n{'9' * 400},remove,a", "line 2: time '999"),
        (f"0,add,a\n{'9' * 20},remove,a", r"line 2: 1e\+17 s after the beginning is later than"),
        ("2021-01-01, 10:00:00, 3\n2021-01-01, 11:00:00+01:00, 3", "line 2: this line or line 1 has a time zone"),
        ("2021-01-01, 10:00:00, 3\n2021-01-01, 11:00:00, 3000000000", "line 2: 3,000,000,000 nodes are more than"),
        ('{"metadata": {"gap_seconds": 5}, "data": [1, 4000000000]}', "data entry 2 is 4,000,000,000, more than"),
        ('{"planaria_trace": 1, "name": "x", "horizon_s": -5}\n', "line 1: horizon_s = -5"),
        (f'{HEAD}{{"at_s": 1, "change": "remove", "node": "a", "notice_s": -3}}', "line 2: notice_s = -3"),
        (f'{HEAD}{{"at_s": 1, "change": "remove", "node": "a", "notice": 3}}', "line 2: .*unknown field `notice`"),
        (f'{HEAD}{{"at_s": 1, "change": "add", "node": ""}}', "line 2: the node has no name"),
        ('{"planaria_trace": 1, "name": "x", "horizon_steps": 5}', "counts steps"),
    ],
)
def test_what_is_no_trace_is_refused(text: str, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        read_trace(text, "bad.csv")


@pytest.mark.parametrize(
    ("text", "says", "kept"),
    [
        ("5000,add,b\n1000,add,a\n", "line 2: it is earlier than line 1", [(1, "a"), (5, "b")]),
        ("0,add,a\n1000,add,a\n2000,add,b", "line 2: a is added, and is there already", [(0, "a"), (2, "b")]),
        ("0,add,a\n1000,remove,b\n2000,add,b", "line 2: b is removed, and is not there", [(0, "a"), (2, "b")]),
        (f'{HEAD}{{"at_s": 7, "change": "add", "node": "a"}}', "line 1: horizon_s = 5 is before line 2", [(7, "a")]),
    ],
)
def test_what_contradicts_itself_is_repaired_and_said(text: str, says: str, kept: list[tuple[float, str]]) -> None:
    read = read_trace(text, "bad.csv")
    assert len(read.repairs) == 1
    assert says in read.repairs[0]
    assert [(event.at_s, event.node) for event in read.trace.events] == kept


DEVICE_EVENTS = (
    DeviceEvent(at_s=1.0, change=DeviceChange.LOST, node="a", device=1),
    DeviceEvent(at_s=2.0, change=DeviceChange.JOINED, node="a", device=1),
    DeviceEvent(at_s=4.0, change=DeviceChange.LOST, node="a", device=0),
)


def test_our_own_format_keeps_the_losses_of_devices() -> None:
    trace = Trace(name="x", horizon_s=5.0, events=(add(0, "a"), add(3, "b")), device_events=DEVICE_EVENTS)
    read = read_trace(write_trace(trace, TraceFormat.EVENTS), "file")
    assert (read.trace, read.repairs) == (trace, ())
    assert summarise(trace).devices_lost == 2
    assert trace.compressed(2.0).device_events[2].at_s == 2.0
    part = trace.window(1.5, 3.0)
    assert [(event.at_s, event.change.value, event.device) for event in part.device_events] == [
        (0.0, "device_lost", 1), (0.5, "device_joined", 1), (2.5, "device_lost", 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"at_s": 1, "change": "device_lost", "node": "b", "device": 0}', "b, and that node is not there"),
        ('{"at_s": 1, "change": "device_joined", "node": "a", "device": 0}', "device 0 of a is there already"),
        ('{"at_s": 4.5, "change": "device_lost", "node": "a", "device": 0}', "device 0 of a is lost already"),
    ],
)
def test_losses_of_devices_that_cannot_be_are_left_out_and_said(line: str, says: str) -> None:
    trace = Trace(name="x", horizon_s=5.0, events=(add(0, "a"),), device_events=DEVICE_EVENTS)
    read = read_trace(write_trace(trace, TraceFormat.EVENTS) + line + "\n", "file")
    assert read.trace == trace
    assert says in read.repairs[0]
    with pytest.raises(TraceError, match=r"a:1 at 2 s\): the device is there"):
        Trace(name="x", horizon_s=5.0, events=(add(0, "a"),), device_events=DEVICE_EVENTS[1:])


def test_counts_that_jump_are_said() -> None:
    read = read_trace("2021-01-01, 10:00:00, 20\n2021-01-01, 10:01:00, 3\n2021-01-01, 10:02:00, 4\n", "c")
    assert read.repairs == ("line 2: from 20 to 3 nodes at once; taken as it stands",)
    assert dict(read.trace.counts()) == {0: 20, 60: 3, 120: 4}
    series = read_trace('{"metadata": {"gap_seconds": 5}, "data": [20, 3]}', "s")
    assert series.repairs == ("data entry 2: from 20 to 3 nodes at once; taken as it stands",)


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    assert read_trace("\ufeff0,add,a\n9,add,b", "c").trace == read_trace("0,add,a\n9,add,b", "c").trace


ROWS = st.lists(st.tuples(st.integers(-9, 99), st.sampled_from(["add", "remove", "x"]), st.sampled_from("abc ")))


@given(st.one_of(st.text(max_size=99), ROWS.map(lambda rows: "\n".join(f"{t},{c},{n}" for t, c, n in rows))))
@settings(max_examples=examples(300), deadline=None)
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    said = ""
    try:
        read_trace(text, "any")
    except TraceError as error:
        said = str(error)
    assert "\n" not in said


def test_a_generator_says_what_it_wants() -> None:
    for wrong in (
        lambda: ConstantRate(hourly=-1),
        lambda: ConstantRate(hourly=float("nan")),
        lambda: ConstantRate(hourly=1, mean_bulk=0.5),
        lambda: Diurnal(hourly=1, swing=2),
        lambda: Weibull(mean_s=0, shape=1),
        lambda: Monotonic(interval_s=0),
        lambda: Population(nodes=0),
        lambda: Population(nodes=1, zones=("a", "a")),
    ):
        with pytest.raises(TraceError, match="expected"):
            wrong()


def test_the_command_makes_shows_and_converts_traces(tmp_path: Path) -> None:
    def planaria(*arguments: object) -> str:
        result = CliRunner().invoke(cli, ["trace", *map(str, arguments)])
        assert result.exit_code == 0, result.output
        return result.output

    trace, picture, csv = tmp_path / "t.jsonl", tmp_path / "t.svg", tmp_path / "t.csv"
    planaria("generate", "constant", trace, "--zone", "a", "--zone", "b", "--bulk", 3, "--arrival", 60, "--notice", 30)
    assert "24.0 h" in planaria("describe", trace)
    assert '"initial_nodes": 32' in planaria("describe", trace, "--json")
    planaria("convert", trace, csv, "--to", "bamboo", "--from", 2, "--hours", 3)
    assert "3.0 h" in planaria("describe", csv) or "2." in planaria("describe", csv)
    planaria("plot", trace, picture)
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("describe", "nowhere.csv"), "cannot be read"),
        (("generate", "constant", "t", "--rate", "-1"), "--rate"),
        (("plot", "good.csv", "t.bmp"), "its ending is none of"),
        (("convert", "good.csv", "t", "--from", "9"), "--from 9"),
    ],
)
def test_mistakes_are_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.csv").write_text("0,add,a\n60000,add,b\n")
    result = CliRunner().invoke(cli, ["trace", *arguments])
    assert result.exit_code == 2
    assert says in result.output
    assert "Traceback" not in result.output


def test_counts_keep_the_time_before_the_first_node() -> None:
    late = Trace(name="late", horizon_s=3600.0, events=(add(480.0, "a"), remove(3000.0, "a")))
    again = read_trace(write_trace(late, TraceFormat.COUNTS), "late").trace
    assert list(again.counts()) == [(480.0, 1), (3000.0, 0)]
    assert again.horizon_s == 3600.0


def test_a_part_without_any_node_is_refused() -> None:
    late = Trace(name="late", horizon_s=3600.0, events=(add(480.0, "a"),))
    with pytest.raises(TraceError, match=r"trace late: no node is there in the 400 s from 0 s on. Take another part"):
        late.window(0.0, 400.0)


def test_traces_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generators, "MOST_EVENTS", 20_000)
    with pytest.raises(TraceError, match="20,000 nodes came or went"):
        generate(ConstantRate(hourly=1e12), Population(nodes=4, arrival_s=0.0), 3600.0, seed=0, name="wild")
    with pytest.raises(TraceError, match=r"shape = 0.001: expected 0.01 or more"):
        Weibull(mean_s=100.0, shape=0.001)


def test_monotonic_takes_no_arrival(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["trace", "generate", "monotonic", str(tmp_path / "t"), "--arrival", "60"])
    assert "--arrival 60: no node comes under monotonic" in str(result.exception) + result.output
    assert result.exit_code
