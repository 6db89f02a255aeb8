"""[observe]: what is refused, in a line that shows nothing secret, and what others may read of it."""

from __future__ import annotations

import pytest

from planaria.job.errors import UserError
from planaria.job.parse import job_fingerprint
from planaria.runtime.observers.secret_urls import without_secrets
from tests.job.test_parse import parse


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("observe.metrics_port=70000", "observe.metrics_port = 70000 is not a TCP port"),
        ("observe.dashboard_port=-1", "observe.dashboard_port = -1 is not a TCP port"),
        ("observe.wandb=' '", "observe.wandb = ' ' is empty"),
        ("observe.mlflow='a\tb'", "observe.mlflow is neither a URL nor a folder"),
        ("observe.tensorbord=true", "Did you mean observe.tensorboard?"),
    ],
)
def test_what_is_refused(override: str, told: str) -> None:
    with pytest.raises(UserError) as refused:
        parse(override)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    "url", ["ftp://host/S3CRET", "https://:1/S3CRET", "http://a b/S3CRET", "http://a:x/S3CRET", "S3CRET"]
)
def test_a_webhook_that_is_none_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(UserError, match=r"observe.webhook is not a URL of http or https") as refused:
        parse(f"observe.webhook='{url}'")
    assert "S3CRET" not in str(refused.value)


def test_what_others_may_read() -> None:
    job = parse("observe.webhook='https://u:p@host:81/x?y=z'", "observe.mlflow='https://u:p@other:5000/a'")
    kept = without_secrets(job).observe
    assert (kept.webhook, kept.mlflow) == ("https://host:81/hidden", "https://other:5000/a")
    assert without_secrets(parse("observe.mlflow=mlruns")).observe.mlflow == "mlruns"


def test_it_determines_no_number() -> None:
    assert job_fingerprint(parse("observe.tensorboard=true")) == job_fingerprint(parse())
