"""Whole jobs on the stand-in for a GPU, in virtual time: the reference's bits, and every order that is there is needed.

Each wait and each record of an event in the worker is left out, one at a time; each time a job finds a hazard, or ends
in other bits.
"""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest

from planaria.job.sections.cluster import Device
from planaria.protocol.messages.records import RunStatus
from tests.proof import batches, rest_in_proof
from tests.runtime.worker.cluster import Kill, Visit, Weather
from tests.runtime.worker.compute.device.orders import Orders, Site, sites
from tests.runtime.worker.schedules import Schedule, any_policy, comings_and_goings, job_of, schedule
from tests.runtime.worker.test_cluster import Laboratory


def on_stand_in(plain: Schedule) -> Schedule:
    cluster = msgspec.structs.replace(plain.job.cluster, device=Device.STAND_IN)
    return replace(plain, job=msgspec.structs.replace(plain.job, cluster=cluster))


def run(laboratory: Laboratory, plain: Schedule, orders: Orders) -> None:
    """Runs a schedule with devices; raises for a hazard, and for a broken promise."""
    laboratory.reference(plain.job)  # made on processors
    with orders.at_work():
        outcome = laboratory.run(on_stand_in(plain))
    if outcome.finish.status is RunStatus.FAILED:
        raise AssertionError(outcome.finish.message)


@pytest.mark.parametrize("seeds", batches(range(200), size=20, kept=2), ids=str)
def test_random_schedules_keep_every_promise(seeds: range, laboratory: Laboratory) -> None:
    for seed in seeds:
        plain = (schedule, comings_and_goings, any_policy)[seed % 3](seed, str(laboratory.source))
        with Orders().at_work():
            laboratory.reference(plain.job)
            laboratory.run(on_stand_in(plain))


def whole(laboratory: Laboratory) -> list[Schedule]:
    """Schedules in which, together, every order of the worker is needed."""
    source = str(laboratory.source)

    def made(kills: tuple[Kill, ...] = (), visits: tuple[Visit, ...] = (), **job: object) -> Schedule:
        given = job_of(source=source, **job)  # type: ignore[arg-type]
        return Schedule(seed=1, job=given, kills=kills, visits=visits, weather=Weather(), stop_at_s=None)

    two_pipelines = {"nodes": 4, "smallest": 2, "steps": 2}
    shadows = {"nodes": 4, "smallest": 2, "steps": 3, "policy": "redundancy", "fault_tolerance": 1}
    return [
        made(**two_pipelines),
        made(nodes=2, smallest=2, fault_tolerance=0, steps=2, microbatches=2),
        made((Kill(node=1, at="backward", step=2),), nodes=5, smallest=2, steps=3, checkpoint_every=1),
        made((Kill(node=1, at="vote", step=2),), nodes=5, smallest=2, steps=3),
        made(visits=(Visit(node=4, after="StepCommitted"),), nodes=4, smallest=2, steps=4),
        made(redundancy="eager-eager", **shadows),
        made((Kill(node=1, at="backward", step=2),), redundancy="eager-lazy", **shadows),
        made((Kill(node=1, at="sync", step=2),), redundancy="eager-eager", **shadows),
    ]


@pytest.fixture(scope="module")
def passed(laboratory: Laboratory) -> dict[Site, list[Schedule]]:
    """For each site, the schedules that pass it."""
    found: dict[Site, list[Schedule]] = {}
    for plain in whole(laboratory):
        orders = Orders()
        run(laboratory, plain, orders)
        for site in orders.passed:
            found.setdefault(site, []).append(plain)
    return found


SITES = sites()


def test_every_order_is_found() -> None:
    counts = {call: sum(site.call == call for site in SITES) for call in ("record", "wait", "synchronize", "uses")}
    assert all(counts.values()), counts
    assert sum(site.call == "after" for site in SITES) >= 2


@pytest.mark.parametrize("site", rest_in_proof(random.Random(1).sample(SITES, len(SITES)), kept=2), ids=str)
def test_without_any_one_order_a_job_fails(
    site: Site, laboratory: Laboratory, passed: dict[Site, list[Schedule]]
) -> None:
    assert site in passed, "no schedule passes it"
    for plain in passed[site]:
        try:
            run(laboratory, plain, Orders(site))
        except Exception:
            return
    raise AssertionError("every job ends well without it: it is not needed, or a schedule is missing")
