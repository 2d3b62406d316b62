"""The smallest HTTP server in Tornado, to count what a connection takes there. PORT."""

import asyncio
import sys

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest


def answer(_: HTTPServerRequest) -> None:
    """Say nothing: nobody asks."""


async def main() -> None:
    """Serve until killed."""
    HTTPServer(answer).listen(int(sys.argv[1]), "127.0.0.1", backlog=4096)
    await asyncio.Event().wait()


asyncio.run(main())
