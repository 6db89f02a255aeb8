"""The page in a real browser: its numbers are the run's, it stays fluid, and its pictures are those of the docs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from planaria.runtime.worker.instruction_trace import Entry
from planaria.ui.report.report import write_report
from tests.ui.dashboard.browser import browser, errors, prefer, resize, why_not
from tests.ui.dashboard.made_up import HOSTILE, happenings, made_up_run

pytestmark = [pytest.mark.page, pytest.mark.timeout(290), pytest.mark.skipif(bool(why_not()), reason=why_not())]

ROOT = Path(__file__).parents[3]
PICTURES = ROOT / "docs" / "pictures"
PLANARIA = [sys.executable, "-m", "planaria.ui.cli.main"]
DEADLINE_S = 200


def until(holds: Callable[[], Any]) -> Any:
    """Waits until it holds, and returns what it found."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)
    return found


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[Path], tuple[str, str]]]:
    """Starts the page of a folder, and returns its address and token."""
    started: list[subprocess.Popen[str]] = []

    def start(folder: Path) -> tuple[str, str]:
        command = [*PLANARIA, "dashboard", str(folder), "--port", "0"]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        assert process.stdout is not None
        return process.stdout.readline().split(": ")[1].strip(), process.stdout.readline().split(": ")[1].strip()

    yield start
    for process in started:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def text(driver: Any, selector: str) -> str:
    return str(driver.execute_script("return document.querySelector(arguments[0])?.innerText || ''", selector))


def log_in(driver: Any, address: str, token: str) -> None:
    driver.get(f"{address}login")
    driver.find_element("name", "token").send_keys(token)
    driver.find_element("css selector", "button").click()


def picture(driver: Any, name: str, scheme: str, height: int) -> None:
    prefer(driver, scheme)
    resize(driver, 1280, height)
    target = PICTURES / name
    driver.save_screenshot(str(target))
    assert target.stat().st_size < 200_000


def test_during_a_demo_with_two_kills_the_numbers_are_the_runs(
    tmp_path: Path, serve: Callable[[Path], tuple[str, str]]
) -> None:
    run = tmp_path / "demo"
    faults = ["--fail", "kill:node=2,step=20,at=backward", "--fail", "kill:node=5,step=40,at=sync"]
    command = [*PLANARIA, "train", "examples/demo.toml", "--name", "demo", "--set", f"run.folder={tmp_path}", *faults]
    command += ["--set", "observe.instructions=true"]
    train = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    until((run / "events.jsonl").exists)
    address, token = serve(run)
    with browser(1280, 900) as driver:
        log_in(driver, address, token)
        until(lambda: text(driver, "#state") == "training")
        driver.execute_script("document.querySelector('[data-action=save]').click()")
        until(lambda: driver.execute_script("return document.querySelector('#dialog').open"))
        driver.execute_script("document.querySelector('#dialog-ok').click()")
        until(lambda: "saved" in text(driver, "#said"))
        until(lambda: text(driver, "#state") == "completed")
        until(lambda: driver.execute_script("return document.body.dataset.step") == "60")
        last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        summary = json.loads((run / "summary.json").read_text())
        assert text(driver, "#fact-loss dd") == f"{last['loss']:.4f}"
        assert text(driver, "#fact-step dd") == "60"
        assert text(driver, "#fact-nodes dd") == str(last["live_nodes"]) == "5"
        assert text(driver, "#fact-last-recovery p").startswith("step 40, node 5")
        shown = driver.execute_script("return [...document.querySelectorAll('.recovery')].map(one => one.dataset.step)")
        assert shown == [str(recovery["step"]) for recovery in reversed(summary["recoveries"])]
        gone = driver.execute_script("return [...document.querySelectorAll('.chip.lost')].map(one => one.innerText)")
        assert gone == ["2", "5"]
        until(lambda: driver.execute_script("return document.body.dataset.schedule") == "60")
        step = 20
        driver.execute_script(
            "const one = document.querySelector('#schedule-step'); one.value = arguments[0];"
            "one.dispatchEvent(new Event('change'))", step
        )  # fmt: skip
        until(lambda: driver.execute_script("return document.body.dataset.schedule") == str(step))
        for kind in ("planned", "measured"):
            names = f"return [...document.querySelectorAll('.steps.{kind} .name')].map(one => one.textContent)"
            assert [name.split()[1] for name in driver.execute_script(names)] == ["0", "1", "2", "3", "4", "5", "6"]
            boxes = f"return new Set([...document.querySelectorAll('.steps.{kind} .box')].map(one => one.classList[1]))"
            assert {"forward", "backward", "sync"} <= set(driver.execute_script(f"return [...(() => {{ {boxes} }})()]"))
        assert text(driver, "#schedule .bad").startswith(f"step {step} committed")
        assert driver.execute_script("return document.querySelector('.measured .name.dead').textContent")[5] == "2"
        prefer(driver, "light")
        driver.find_element("xpath", "//*[@id='schedule']/..").screenshot(str(PICTURES / "dashboard-step.png"))
        resize(driver, 390, 800)
        assert driver.execute_script("return document.documentElement.scrollWidth") == 390
        driver.refresh()  # pictures say nothing of where the run was saved
        until(lambda: text(driver, "#fact-step dd") == "60")
        picture(driver, "dashboard-light.png", "light", 1320)
        picture(driver, "dashboard-dark.png", "dark", 1320)
        assert errors(driver) == []
        write_report(run, tmp_path / "report.html")
        driver.get((tmp_path / "report.html").as_uri())
        lost = driver.find_element("css selector", ".recovery[data-step='40']")
        assert "as measured" in text(driver, ".recovery[data-step='40'] tr.chosen")
        prefer(driver, "light")
        lost.screenshot(str(PICTURES / "report-decisions.png"))
        assert errors(driver) == []
    assert train.wait(60) == 0


def test_nothing_that_a_node_says_is_run_by_the_browser(
    tmp_path: Path, serve: Callable[[Path], tuple[str, str]]
) -> None:
    folder = made_up_run(tmp_path / "runs", "one", happenings(8, 10, 1, HOSTILE))
    entries = [Entry(5, op, 1, 1, 0, 0.0, 1.0) for op in ("forward", HOSTILE)]
    (folder.logs / "trace-0.jsonl").write_bytes(b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries))
    (folder.logs / f"trace-{'<b>'}.jsonl").write_bytes(b"[5,1]\n")
    folder.journal.write_text(HOSTILE)
    write_report(tmp_path / "runs" / "one", tmp_path / "report.html")
    address, token = serve(tmp_path / "runs")
    with browser(1280, 900) as driver:
        log_in(driver, address, token)
        until(lambda: driver.execute_script("return location.pathname") == "/")
        for page in (f"{address}run?name=one", (tmp_path / "report.html").as_uri()):
            driver.get(page)
            until(lambda: "step 5" in text(driver, ".recovery"))
            assert HOSTILE in text(driver, ".recovery")
            assert "2 judged decisions" in text(driver, "#regret")
            if "name=one" in page:
                until(lambda: driver.execute_script("return document.querySelectorAll('.measured .box').length") == 1)
                assert "The plan of step 5 is not in the journal" in text(driver, "#schedule")
            assert driver.execute_script("return document.querySelectorAll('img').length") == 0
            assert errors(driver) == []
        driver.get(address)
        until(lambda: "one" in text(driver, "table.runs"))
        driver.execute_script("document.querySelector('table.runs input').click()")
        until(lambda: driver.execute_script("return document.querySelectorAll('#charts .line').length") == 2)
        assert errors(driver) == []


def test_a_hundred_thousand_steps_of_64_nodes_are_read_and_drawn(
    tmp_path: Path, serve: Callable[[Path], tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    made_up_run(tmp_path, "long", happenings(64, 100_000, 20))
    address, _ = serve(tmp_path / "long")
    with browser(1280, 900) as driver:
        began = time.monotonic()
        driver.get(address)
        until(lambda: text(driver, "#fact-step dd") not in ("", "0"))
        first_s = time.monotonic() - began
        until(lambda: driver.execute_script("return document.body.dataset.read") == "1")
        whole_s = time.monotonic() - began
        assert text(driver, "#fact-step dd") == "100,000"
        assert driver.execute_script("return document.querySelectorAll('#plan .pipeline').length") == 11
        draw_ms = float(driver.execute_script("return Number(document.body.dataset.drawn)"))
        assert errors(driver) == []
    with capsys.disabled():
        print(f"\nshown after {first_s:.2f} s, whole after {whole_s:.2f} s, drawn in {draw_ms:.0f} ms")
