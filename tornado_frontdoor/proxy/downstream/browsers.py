"""What browsers send for pages that may be anybody's, told from what programs send. Pure.

A page cannot keep a browser from saying where a request comes from (`Origin`, `Sec-Fetch-Site`),
and cannot add a header or a JSON type to a request to another site without asking that site first.
A page whose name was rebound to our address gives itself away by its `Host`.
"""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address

from tornado_frontdoor.config import Address

Headers = Mapping[str, str]
"""Names in lower case."""

_SIGNS = ("origin", "referer", "sec-fetch-site", "sec-fetch-mode")
_CREDENTIALS = ("authorization", "x-api-key")


def is_browser(headers: Headers) -> bool:
    """Tell whether a browser may have sent this."""
    if any(name in headers for name in _SIGNS):
        return True
    return headers.get("user-agent", "").lower().startswith("mozilla/")


def is_cross_site(headers: Headers) -> bool:
    """Tell whether a browser sent this for a page of another origin than ours."""
    if headers.get("sec-fetch-site", "none").lower() not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    host = headers.get("host", "").lower()
    return origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}")


def can_come_from_any_page(headers: Headers) -> bool:
    """Tell whether any page can have a browser send such a POST without asking us first.

    Text and forms can; a body without a type and multipart can too, but programs send these as
    well: there, a key or the lack of any sign of a browser tells it from a page's.
    """
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media == "application/json" or (media.startswith("application/") and media[-5:] == "+json"):
        return False
    if media not in ("", "multipart/form-data"):
        return True
    return is_browser(headers) and not any(name in headers for name in _CREDENTIALS)


class HostRule:
    """Which names a listener answers to: its own address, and those that the operator has listed.

    A name of this machine that nobody has listed could be one that somebody else's name server made
    up; an address could not.
    """

    def __init__(self, listen: Address, listed: Iterable[str]) -> None:
        self._listen = listen
        self._listed = frozenset(name.lower().strip("[]") for name in listed)

    def allows(self, header: str) -> bool:
        """Tell whether a `Host` header names us."""
        host = _without_port(header.strip().lower())
        if host in self._listed or host == self._listen.host:
            return True
        address = Address(host, 0)
        if self._listen.any_host:
            return address.loopback or _is_address(host)
        return self._listen.loopback and address.loopback


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
