"""Who may call the admin listener: told by the head alone, before anything is looked up.

Whoever reaches it can put every engine to sleep. So a call must be for an address of ours (`Host`),
must not come from a page of another site, and must bring the token where there is one. A browser
that wants something done must also bring a header that no form can send.
"""

import hmac
import logging
from collections.abc import Callable
from typing import NamedTuple

from tornado_frontdoor.proxy.downstream.browsers import HostRule, is_browser, is_cross_site
from tornado_frontdoor.proxy.downstream.client import Client

LOG = logging.getLogger("frontdoor")

WRONG_TOKEN_DELAY_S = 0.5
"""How long a wrong token waits for its answer; a right one never does."""
WRONG_TOKENS_AT_ONCE = 16
"""Those above it are told to come back later, so that guessing is slow however many guess."""

MARK = "x-frontdoor-admin"
"""Any value of it shows that whoever acts is no form."""


class Denial(NamedTuple):
    """Why a call is not served; `late`: its answer waits for WRONG_TOKEN_DELAY_S."""

    status: int
    error: str
    headers: tuple[tuple[str, str], ...] = ()
    late: bool = False


class Guard:
    """Decides on one call at a time; `count` is told the reason of each denial."""

    def __init__(self, token: str | None, count: Callable[[str], None]) -> None:
        self._token = None if token is None else token.encode()
        self._count = count
        self.hosts: HostRule | None = None
        self.delayed = 0
        """Wrong tokens whose answers wait at this moment."""

    def denial(self, client: Client, *, without_token: bool = False) -> Denial | None:
        """Return why a call is denied; None: it may go on.

        `without_token`: for what holds nothing of ours, the page that then asks for the token.
        """
        headers = client.headers
        known = self._token is not None and self._has_token(headers.get("authorization", ""))
        # A page whose name was rebound to us has no token; who has it may use any name.
        if not known and not (self.hosts and self.hosts.allows(headers.get("host", ""))):
            return self._denied(
                "host", 403, "this listener has no such name; list it in server.admin_hosts"
            )
        if client.method not in ("GET", "HEAD"):
            if is_cross_site(headers):
                return self._denied("origin", 403, "pages of other sites may not act here")
            if is_browser(headers) and MARK not in headers and "authorization" not in headers:
                return self._denied("origin", 403, f"a browser must send {MARK} to act here")
        if self._token is None or known or without_token:
            return None
        LOG.warning("admin: a wrong or missing token from %s", client.address)
        challenge = (("WWW-Authenticate", "Bearer"),)
        if self.delayed >= WRONG_TOKENS_AT_ONCE:
            return self._denied("token", 429, "too many wrong tokens", (("Retry-After", "1"),))
        denial = self._denied("token", 401, "the admin token is missing or wrong", challenge)
        return denial._replace(late=True)

    def _has_token(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        assert self._token is not None
        right = hmac.compare_digest(given.strip().encode(), self._token)
        return right and scheme.lower() == "bearer"

    def _denied(
        self, reason: str, status: int, error: str, headers: tuple[tuple[str, str], ...] = ()
    ) -> Denial:
        self._count(reason)
        return Denial(status, error, headers)
