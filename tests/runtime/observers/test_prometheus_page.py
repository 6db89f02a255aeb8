"""The page for Prometheus, read as Prometheus does; the alert rules and Grafana's dashboard over it."""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import msgspec
import pytest

from planaria.job.errors import UserError
from planaria.protocol.messages.records import AnyRecord, NodeJoined, Note, NoteSubject, Restored, Waiting
from planaria.runtime.launch.training.request import metrics_token
from planaria.runtime.observers.prometheus_page import COUNTERS, GAUGES, PrometheusPage
from planaria.runtime.observers.view import ViewedRun
from planaria.runtime.run_folder.run_folder import RunFolder
from tests.runtime.run_folder.happenings import JOB, short_run

FILES = Path(__file__).parents[3] / "docs" / "files"
RULES = FILES / "prometheus-rules.yml"
DASHBOARD = json.loads((FILES / "grafana-dashboard.json").read_text())
NAMES = GAUGES.keys() | {f"{name}_total" for name in COUNTERS}

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[PrometheusPage]:
    pytest.importorskip("prometheus_client", reason="the extra prometheus is not installed")
    page = PrometheusPage("127.0.0.1", 0)
    page.start(ViewedRun(name='sh"ort\n', job=JOB, folder=RunFolder(tmp_path), step=0))
    yield page
    page.close()


def show(page: PrometheusPage, *records: AnyRecord) -> None:
    page.show([(record, 100.0 + at) for at, record in enumerate(records)])


def scraped(page: PrometheusPage) -> dict[str, float]:
    """Returns what the page has, as Prometheus' own parser for Python reads it."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"http://127.0.0.1:{page.port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {sample.labels["run"] for sample in samples} == {'sh"ort\n'}
    return {sample.name: sample.value for sample in samples}


def test_a_run_as_it_is_now(page: PrometheusPage) -> None:
    show(page, *short_run()[:-1], NodeJoined(node=4, live_nodes=3))
    found = scraped(page)
    expected = {
        "planaria_step": 3.0,
        "planaria_steps": 3.0,
        "planaria_loss": 2.5,
        "planaria_step_seconds": 0.25,
        "planaria_estimated_step_seconds": 0.12,
        "planaria_live_nodes": 3.0,
        "planaria_spare_nodes": 0.0,
        "planaria_pipelines": 2.0,
        "planaria_checkpoint_step": 3.0,
        "planaria_node_losses_total": 1.0,
        "planaria_recoveries_total": 1.0,
        "planaria_degraded": 0.0,
    }
    assert {name: found[name] for name in expected} == expected
    assert found["planaria_last_step_timestamp_seconds"] < found["planaria_last_checkpoint_timestamp_seconds"] < 200.0
    assert found.keys() - NAMES == {f"{name}_created" for name in COUNTERS}
    assert found.keys() >= NAMES
    assert math.isnan(found["planaria_eval_loss"]), "there was no evaluation"


def test_trouble(page: PrometheusPage) -> None:
    degraded = Note(level="warning", text="", subject=NoteSubject.DEGRADED)
    show(page, degraded, Waiting(step=2, live_nodes=1, reason=""))
    show(page, Restored(from_step=5, to_step=2, reason=""))
    found = scraped(page)
    assert (found["planaria_degraded"], found["planaria_waiting"], found["planaria_live_nodes"]) == (1.0, 1.0, 1.0)
    assert (found["planaria_restores_total"], found["planaria_steps_redone_total"]) == (1.0, 3.0)
    show(page, Note(level="info", text="", subject=NoteSubject.REPLICAS), *short_run()[4:5])
    found = scraped(page)
    assert (found["planaria_degraded"], found["planaria_waiting"]) == (0.0, 0.0)


def test_a_port_that_is_taken_is_the_view_s_own_trouble(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="the extra prometheus is not installed")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        page = PrometheusPage("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            page.start(ViewedRun(name="short", job=JOB, folder=RunFolder(tmp_path), step=0))
        page.close()


def test_who_does_not_show_the_token_sees_nothing(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="the extra prometheus is not installed")
    page = PrometheusPage("127.0.0.1", 0, "0123456789abcdef")

    def asked(shown: str) -> str:
        headers = {"Authorization": shown} if shown else {}
        request = urllib.request.Request(f"http://127.0.0.1:{page.port}/metrics", headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.read().decode())

    with closing(page):
        page.start(ViewedRun(name="short", job=JOB, folder=RunFolder(tmp_path), step=0))
        for shown in ("", "Bearer ", "Bearer 0123456789abcdeF", "Basic 0123456789abcdef", "Bearer \xe9"):
            with pytest.raises(HTTPError, match="401") as refused:
                asked(shown)
            assert "planaria_" not in refused.value.read().decode()
        assert "planaria_step" in asked("Bearer 0123456789abcdef")


def test_a_token_is_made_where_others_reach_the_page(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)

    def token(host: str, **observe: object) -> str:
        given = msgspec.structs.replace(JOB.observe, metrics_port=9400, **observe)
        cluster = msgspec.structs.replace(JOB.cluster, host=host)
        return metrics_token(msgspec.structs.replace(JOB, observe=given, cluster=cluster), folder)

    assert token("127.0.0.1") == token("localhost") == ""
    assert not folder.metrics_token.exists()
    made = token("0.0.0.0")
    assert len(made) == 32
    assert folder.metrics_token.stat().st_mode & 0o777 == 0o600
    assert token("10.0.0.7") == made, "it is the run's, also when that goes on"
    own = tmp_path / "own"
    own.write_text("a token of one's own\n")
    with pytest.raises(UserError, match="can be read by others"):
        token("127.0.0.1", metrics_token_file=str(own))
    own.chmod(0o600)
    assert token("127.0.0.1", metrics_token_file=str(own)) == "a token of one's own"


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_the_rules_are_rules() -> None:
    promtool("check", "rules", str(RULES))


@needs_promtool
def test_the_rules_fire_when_they_should(tmp_path: Path) -> None:
    """A run that stands still after ten minutes, degraded, its spares gone, and its checkpoint two hours old; one whose
    steps take long; and one that has no plan yet."""
    series = {
        "planaria_last_step_timestamp_seconds": "0+60x10 600x130",
        "planaria_last_checkpoint_timestamp_seconds": "0x140",
        "planaria_estimated_step_seconds": "1x140",
        "planaria_degraded": "0x10 1x130",
        "planaria_waiting": "0x140",
        "planaria_spare_nodes": "1x20 0x120",
        "planaria_step": "5x140",
        "planaria_checkpoint_step": "0x140",
    }
    stands = series["planaria_last_step_timestamp_seconds"]
    others = {
        'planaria_last_step_timestamp_seconds{run="slow"}': stands,
        'planaria_estimated_step_seconds{run="slow"}': "1000x140",
        'planaria_last_step_timestamp_seconds{run="new"}': stands,
    }
    all_series = {f'{name}{{run="demo"}}': values for name, values in series.items()} | others
    of_demo = ("NotProgressing", "Degraded", "CheckpointTooOld", "SparesGone")
    firing = [*(("demo", name) for name in of_demo), ("new", "NotProgressing")]
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in all_series.items()],
                "promql_expr_test": [
                    {"expr": "count(ALERTS{alertstate='firing'}) or vector(0)", "eval_time": "9m",
                     "exp_samples": [{"labels": "{}", "value": 0}]},
                    {"expr": "count by (run, alertname) (ALERTS{alertstate='firing'})", "eval_time": "2h",
                     "exp_samples": [{"labels": f'{{run="{run}", alertname="Planaria{name}"}}', "value": 1}
                                     for run, name in firing]},
                ],
            }
        ],
    }  # fmt: skip
    file = tmp_path / "test.yml"
    file.write_text(json.dumps(test))  # which is YAML as well
    promtool("test", "rules", str(file))


def expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


@needs_promtool
def test_the_dashboard_asks_what_prometheus_understands(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{at}", "expr": expr} for at, expr in enumerate(expressions())]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", str(file))


def test_the_dashboard_and_the_rules_ask_for_what_there_is() -> None:
    asked = set(re.findall(r"planaria_\w+", " ".join(expressions()) + RULES.read_text()))
    assert asked <= NAMES


def test_the_dashboard_is_what_grafana_takes() -> None:
    """Panels with ids of their own on a grid of 24 columns without overlaps; sources that are variables."""
    variables = {variable["name"]: variable["type"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource": "datasource", "run": "query"}
    assert DASHBOARD["schemaVersion"] >= 36
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", DASHBOARD["uid"])
    assert DASHBOARD.get("id") is None
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["type"] in ("stat", "timeseries")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert taken.isdisjoint(cells)
        taken |= cells
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
