"""HTTP to the one who was named, and to nobody else.

Through no proxy of the environment and after no redirect: what is sent along may be a token or a
key, which is for nobody on the way.
"""

from ssl import SSLContext
from urllib.request import (
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    build_opener,
)


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


STRAIGHT = build_opener(ProxyHandler({}), _NoRedirect)


def straight_with(context: SSLContext) -> OpenerDirector:
    """Return the same with certificates of its own."""
    return build_opener(ProxyHandler({}), _NoRedirect, HTTPSHandler(context=context))
