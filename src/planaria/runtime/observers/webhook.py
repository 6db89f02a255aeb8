"""Alerts as JSON to a URL, as Slack, Mattermost and many others take them. The URL is secret: nothing of it is told."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from planaria.runtime.observers.alerts import Alert, NotDelivered
from planaria.runtime.observers.secret_urls import host_of
from planaria.runtime.observers.thresholds import ALERT_TRIES_S, ALERT_WITHIN_S


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Takes a redirection for a failure: a message is for whom the user named."""

    def redirect_request(self, *answer: Any) -> None:
        return None


class Webhook:
    """Delivers alerts by POST.

    Args:
        url: of http or https.
    """

    rests_s: tuple[float, ...] = ALERT_TRIES_S

    def __init__(self, url: str) -> None:
        self.name = f"the webhook at {host_of(url)}"
        self._url = url
        self._opener = urllib.request.build_opener(_NoRedirects)

    def __call__(self, alert: Alert) -> None:
        body = json.dumps({"text": _escaped(alert.text)}).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "planaria"}
        request = urllib.request.Request(self._url, body, headers)
        try:
            with self._opener.open(request, timeout=ALERT_WITHIN_S):
                pass
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NotDelivered(_why(error)) from None


def _escaped(text: str) -> str:
    """Escapes what Slack would take for a link or a mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _why(error: Exception) -> str:
    """Describes a failure without the URL, which messages of libraries may have."""
    match error:
        case urllib.error.HTTPError():
            return f"it answered {error.code}"
        case TimeoutError() | urllib.error.URLError(reason=TimeoutError()):
            return f"no answer within {ALERT_WITHIN_S:.0f} s"
        case urllib.error.URLError(reason=OSError() as reason):
            return reason.strerror or type(reason).__name__
        case OSError(strerror=str(text)):
            return text
        case _:
            return type(error).__name__
