"""Jobs made in Python: as dicts, checked as files are; and what `import planaria` offers for them."""

from __future__ import annotations

import msgspec
import pytest

import planaria
from planaria import api
from planaria.job.errors import UserError
from planaria.protocol.messages.records import StepCommitted
from tests.plan.profiles import uniform_profile

JOB = {
    "model": {"type": "gpt2"},
    "train": {"steps": 1, "global_batch": 16, "microbatch": 1, "sequence_length": 16},
    "cluster": {"nodes": 8},
}


def test_a_job_of_dicts_is_planned_as_one_of_a_file() -> None:
    profile = uniform_profile(8)
    of_dicts = api.plan(JOB, profile)
    assert of_dicts.plan == api.plan(planaria.Job(**sections()), profile).plan


def sections() -> dict[str, msgspec.Struct]:
    kinds = {field.name: field.type for field in msgspec.structs.fields(planaria.Job)}
    return {name: msgspec.convert(table, kinds[name]) for name, table in JOB.items()}


def test_a_mistake_in_dicts_is_named_as_in_a_file() -> None:
    with pytest.raises(UserError, match=r"train.step = 1: there is no such field. Did you mean train.steps"):
        api.plan({**JOB, "train": {"step": 1}})
    with pytest.raises(UserError, match=r"cluster.nodes = '8' is a text; expected a whole number"):
        api.plan({**JOB, "cluster": {"nodes": "8"}})


def test_records_are_public() -> None:
    assert planaria.records.StepCommitted is StepCommitted
    assert "records" in dir(planaria)
