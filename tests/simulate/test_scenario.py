"""Scenario files: what they say, what is refused and how, and what a sweep makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from planaria.job.errors import UserError
from planaria.profile.of_scenario import load_scenario, profile_of, traces_of
from planaria.simulate.scenario import Scenario, experiment, parse_scenario
from planaria.simulate.sweep import RUNS_PER_PIECE, pieces, points

TEXT = """
[model]
preset = "bert-large"
device = "v100"
[cluster]
nodes = 8
zones = ["a", "b"]
[job]
global_batch = 128
policies = ["templates"]
[failures]
hours = 2
runs = 2
"""


def parsed(*overrides: str) -> Scenario:
    return parse_scenario(TEXT, overrides=overrides, origin="s.toml")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("cluster.nodes=0", "cluster.nodes = 0: expected at least 1"),
        ("cluster.nodes=many", "cluster.nodes = 'many' is a text; expected a whole number"),
        ("cluster.node=3", "cluster.node = 3: there is no such field. Did you mean cluster.nodes?"),
        ("model.profile=x.json", "model.preset and model.profile: both are given. Give one of them."),
        ('job.policies=["oobleck"]', "job.policies = 'oobleck': expected policies among templates"),
        ("job.policies=[]", "job.policies = []: expected at least one policy"),
        ("job.policies=[1]", "expected a list, each a text in quotes"),
        ("failures.kind=meteor", 'failures.kind = \'meteor\' is unknown; expected "none" or "constant"'),
        ("failures.hourly=-1", "failures.hourly = -1: expected a share of the nodes from 0 on"),
        ("failures.runs=0", "failures.runs = 0: expected at least 1"),
        ("failures.from_hours=1", "failures.from_hours = 1.0: expected 0 where there is no trace"),
        ("prices.zones.a=-1", "prices.zones.a = -1.0: expected 0 or more dollars an hour"),
        ("prices.zones.c=1", "prices.zones = 'c': expected zones of cluster.zones (a, b)"),
        ("prices.spot=-1", "prices.spot = -1.0: expected 0 or more dollars"),
        ("timings.storage_bytes_per_s=0", "timings.storage_bytes_per_s = 0.0: expected a number above 0"),
        ("timings.detection=1", "Did you mean timings.detection_s?"),
        ('sweep.policies=["x"]', "sweep.policies = 'x'"),
        ('job.policies=["ideal", "morph", "ideal"]', "job.policies = 'ideal': expected each only once"),
        ('sweep.policies=["ideal", "ideal"]', "sweep.policies = 'ideal': expected each only once"),
        ("sweep.nodes=[8, 8]", "sweep.nodes = 8: expected each only once"),
        ("cluster.devices_per_stage=2", "cluster.devices_per_stage = 2: expected a divisor of devices_per_node = 1"),
        ("failures.device_hourly=-1", "failures.device_hourly = -1.0: expected 0 or more"),
        ('cluster.zones=[""]', "cluster.zones = ['']: expected names"),
        ("model.sequence_length=-1", "model.sequence_length = -1: expected 0 or more tokens"),
        ("job.min_nodes_per_pipeline=-1", "job.min_nodes_per_pipeline = -1: expected 0 or more"),
        ("job.nodes_per_pipeline=9", "job.nodes_per_pipeline = 9: expected at most cluster.nodes = 8"),
        ("job.num_pipelines=2", "job.num_pipelines = 2: expected 0 where nodes_per_pipeline is 0"),
        ("job.redundancy=eager", "job.redundancy = 'eager' is unknown; expected \"eager-lazy\" or"),
        ("weather.rain=1", "there is no such section"),
    ],
)
def test_mistakes_are_said_with_field_value_and_remedy(override: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parsed(override)
    assert str(caught.value).startswith("s.toml: ")
    assert said in str(caught.value)


def test_missing_sections_say_which_field() -> None:
    with pytest.raises(UserError, match=r"cluster.nodes is missing \(expected a whole number\)"):
        parse_scenario("[model]\npreset = 'x'\n[job]\nglobal_batch = 1\n", origin="s.toml")


def test_a_batch_that_is_no_whole_number_of_microbatches() -> None:
    scenario = parsed("job.global_batch=130")
    with pytest.raises(UserError, match=r"job.global_batch = 130: .*no whole number of microbatches of 8"):
        experiment(scenario, profile_of(scenario, Path()))


def test_what_a_scenario_says_reaches_the_experiment() -> None:
    scenario = parsed(
        "cluster.memory_gb=12",
        "cluster.network_gbit=10",
        "cluster.network_latency_s=0.5",
        "job.fault_tolerance=2",
        "job.samples=5000",
        "job.checkpoint_every=7",
        "job.mean_time_between_failures_s=99",
        "job.min_nodes_per_pipeline=2",
        "job.nodes_per_pipeline=2",
        "job.num_pipelines=3",
        "job.redundancy=lazy-lazy",
        "model.microbatch=4",
        "model.recompute=true",
        'model.numerics="fast"',
        "timings.detection_s=3",
        "prices.zones.b=0.5",
        "cluster.schedule=1f1b",
    )
    about = experiment(scenario, profile_of(scenario, Path()))
    settings = about.settings
    assert (settings.num_nodes, settings.num_microbatches, settings.fault_tolerance) == (8, 32, 2)
    assert (settings.memory_bytes, settings.min_nodes, settings.schedule.value) == (12_000_000_000, 2, "1f1b")
    assert (about.samples, about.checkpoint_every, about.mean_time_between_failures_s) == (5000, 7, 99)
    assert about.profile.links.between_nodes.bandwidth_bytes_per_s == 10e9 / 8
    assert about.profile.links.between_nodes.latency_s == 0.5
    assert about.timings.detection_s == 3
    assert about.profile.layers[1].gradient_bytes == 2 * about.profile.layers[1].parameter_bytes
    assert (settings.shape, settings.redundancy.value) == ((3, 2), "lazy-lazy")
    assert about.prices.zones == {"b": 0.5}
    plain = experiment(parsed("model.microbatch=4"), profile_of(parsed("model.microbatch=4"), Path())).profile
    assert about.profile.layers[1].activation_bytes < plain.layers[1].activation_bytes


def test_devices_go_alone_as_often_as_a_scenario_says(tmp_path: Path) -> None:
    devices = ("cluster.devices_per_node=4", "cluster.devices_per_stage=auto", "failures.device_hourly=0.5")
    scenario = parsed(*devices, "failures.device_return_s=60", "failures.hourly=0")
    one, other = traces_of(scenario, Path())
    assert one.device_events
    assert one.device_events != other.device_events
    assert experiment(scenario, profile_of(scenario, Path())).settings.devices_per_stage == 0
    lost = '{"at_s": 1, "change": "device_lost", "node": "n", "device": 4}'
    head = '{"planaria_trace": 1, "name": "x", "horizon_s": 5}'
    (tmp_path / "t.jsonl").write_text(f'{head}\n{{"at_s": 0, "change": "add", "node": "n"}}\n{lost}\n')
    of_file = ("failures.trace=t.jsonl", "failures.hours=0")
    with pytest.raises(UserError, match=r"devices_per_node = 4: trace x has a device 4 of a node\. Set 5 or more"):
        traces_of(parsed(*of_file, "cluster.devices_per_node=4"), tmp_path)
    with pytest.raises(UserError, match=r"failures\.device_hourly = 0\.5: trace x has losses of devices of its own"):
        traces_of(parsed(*of_file, "cluster.devices_per_node=5", "failures.device_hourly=0.5"), tmp_path)


@pytest.mark.parametrize("kind", ["none", "constant", "poisson", "diurnal", "weibull", "monotonic"])
def test_every_kind_of_failures_makes_a_trace_of_each_seed(kind: str) -> None:
    made = traces_of(parsed(f"failures.kind={kind}", "failures.hourly=1", "failures.mean_life_hours=1"), Path())
    assert len(made) == 2
    assert all(trace.horizon_s == 7200 and len(trace.initial) == 8 for trace in made)
    assert (made[0].events == made[1].events) is (kind == "none")


def test_traces_are_read_from_the_scenarios_folder(tmp_path: Path) -> None:
    rows = [f"0,add,n{node}" for node in range(8)] + ["3600000,remove,n1", "1800000,remove,n2", "9000000,add,n9"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    told: list[str] = []
    part = ("failures.trace=t.csv", "failures.from_hours=0.75")
    (one, _) = traces_of(parsed(*part, "failures.hours=0"), tmp_path, told.append)
    assert one.horizon_s == 9000 - 2700
    assert len(one.initial) == 7
    assert told == [
        "t.csv, line 10: it is earlier than line 9; the events were sorted by time",
        "failures.runs = 2: t.csv says which nodes go; all runs are the same, and one would do",
    ]
    with pytest.raises(UserError, match=r"failures.hours = 2: trace t.csv has 1.75 hours from there on"):
        traces_of(parsed(*part), tmp_path)
    with pytest.raises(UserError, match=r"from_hours = 50: trace t.csv is 2.50 hours long"):
        traces_of(parsed("failures.trace=t.csv", "failures.from_hours=50"), tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        traces_of(parsed("failures.trace=u.csv"), tmp_path)


def test_prices_are_of_zones_of_the_trace(tmp_path: Path) -> None:
    header = '{"planaria_trace": 1, "name": "t", "horizon_s": 3600}'
    (tmp_path / "t.jsonl").write_text(header + '\n{"at_s": 0, "change": "add", "node": "n", "zone": "east"}\n')
    part = ("failures.trace=t.jsonl", "failures.hours=0", "failures.runs=1")
    assert traces_of(parsed(*part, "prices.zones.east=1"), tmp_path)
    with pytest.raises(UserError, match=r"prices.zones = 'a': expected zones of trace t \(east\)"):
        traces_of(parsed(*part, "prices.zones.a=1"), tmp_path)


@pytest.mark.parametrize(
    ("failures", "said"),
    [
        (("failures.kind=weibull",), "failures.kind = 'weibull' does not depend on it"),
        (("failures.trace=t.csv",), "failures.trace = 't.csv' does not depend on it"),
    ],
)
def test_a_sweep_over_what_changes_nothing_is_refused(failures: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        parsed("sweep.hourly=[0.1, 0.2]", *failures)


def test_where_none_comes_no_arrival_is_taken() -> None:
    with pytest.raises(UserError, match=r"failures.arrival_s = 600.0: expected below 0 where"):
        parsed("failures.kind=monotonic", "failures.arrival_s=600.0")


def test_a_sweep_has_every_combination() -> None:
    scenario = parsed("sweep.hourly=[0.1, 0.2]", "sweep.nodes=[4, 8, 16]", 'sweep.policies=["templates", "ideal"]')
    found = points(scenario, swept=True)
    assert [point.label for point in found][:2] == ["nodes=4_hourly=0.1", "nodes=4_hourly=0.2"]
    assert len(found) == 6
    assert found[-1].scenario.cluster.nodes == 16
    assert found[-1].scenario.failures.hourly == 0.2
    assert [piece.policy for piece in pieces(found[0], wants_timeline=False)] == ["templates", "ideal"]
    (alone,) = points(scenario, swept=False)
    assert alone.scenario.cluster.nodes == 8
    with pytest.raises(UserError, match=r"cluster.nodes = 0"):
        points(parsed("sweep.nodes=[0]"), swept=True)


def test_pieces_are_the_same_for_any_number_of_processes() -> None:
    (point,) = points(parsed(f"failures.runs={2 * RUNS_PER_PIECE + 1}", "failures.seed=5"), swept=False)
    found = list(pieces(point, wants_timeline=True))
    assert [(piece.first_seed, piece.runs) for piece in found] == [(5, 25), (30, 25), (55, 1)]
    assert [piece.wants_timeline for piece in found] == [True, False, False]
    assert len({piece.fingerprint(b"") for piece in found} | {found[0].fingerprint(b"x")}) == 4


def test_the_example_is_a_scenario() -> None:
    scenario = load_scenario(Path(__file__).parents[2] / "examples" / "scenarios" / "spot.toml")
    assert scenario.cluster.nodes == 32
    with pytest.raises(UserError, match="does not exist"):
        load_scenario(Path("missing.toml"))


def test_gigabits_are_the_same_in_scenarios_and_presets() -> None:
    scenario = parsed("cluster.network_gbit=100")
    of_preset = profile_of(scenario, Path()).links.between_nodes
    assert experiment(scenario, profile_of(scenario, Path())).profile.links.between_nodes == of_preset
    assert of_preset.bandwidth_bytes_per_s == 12.5e9
