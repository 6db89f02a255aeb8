"""Who may see the page and who may command: by address, token, Host and Origin. It decides, and sends nothing."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from planaria.job.values import is_loopback

COOKIE: Final = "planaria_dashboard"
"""Name of the cookie that whoever has shown the token is given."""

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with "no-referrer" browsers send a form with Origin: null
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer: nothing from elsewhere is loaded, nothing in a page runs but its own files."""


class Access:
    """The rules of one page: seeing needs the token but on loopback; commands need it everywhere."""

    def __init__(self, host: str, token: str) -> None:
        """Makes the rules of a page that is served at an address, with its token."""
        self.is_open = is_loopback(host)
        self._host = host.lower().strip("[]")
        self._token = token
        self._session = secrets.token_urlsafe(32)

    @property
    def session(self) -> str:
        """The cookie's value."""
        return self._session

    def knows_token(self, token: str) -> bool:
        """Returns whether it is the page's token."""
        return hmac.compare_digest(token.encode(), self._token.encode())

    def has_session(self, cookies: Mapping[str, str]) -> bool:
        """Returns whether the token was shown before."""
        return hmac.compare_digest(cookies.get(COOKIE, "").encode(), self._session.encode())

    def allows_host(self, header: str) -> bool:
        """Returns whether a request's Host names this page: no name that somebody else may let point here."""
        try:
            name = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        if self.is_open:
            return is_loopback(name)
        return _is_address(name) or name in (self._host, "localhost", socket.gethostname().lower())

    def allows_origin(self, origin: str | None, host: str) -> bool:
        """Returns whether a request that changes something comes from this page itself."""
        return origin is not None and origin in (f"http://{host}", f"https://{host}")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
