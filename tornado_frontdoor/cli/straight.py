"""HTTP to the one who was named, and to nobody else.

Through no proxy of the environment and after no redirect: what is sent along may be a token or a
key, which is for nobody on the way.
"""

import os
from ssl import SSLContext
from urllib.request import (
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    build_opener,
)

from tornado_frontdoor.config.address import normalised_url


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


STRAIGHT = build_opener(ProxyHandler({}), _NoRedirect)


def base_given(given: str | None, option: str, variable: str, usual: str) -> str:
    """Return the address of an option, else of a variable of the environment, else the usual one.

    As `base_of`.
    """
    if given is not None:
        return base_of(given, option)
    return base_of(os.environ.get(variable) or usual, f"${variable}")


def base_of(url: str, option: str) -> str:
    """Return the address that an option gives, without a slash at its end.

    Raises ValueError with what is wrong with it: some resolvers take a port modulo 65536.
    """
    try:
        return normalised_url(url)
    except ValueError as error:
        raise ValueError(f"{option}: {url or 'empty'}: {error}") from error


def straight_with(context: SSLContext) -> OpenerDirector:
    """Return the same with certificates of its own."""
    return build_opener(ProxyHandler({}), _NoRedirect, HTTPSHandler(context=context))
