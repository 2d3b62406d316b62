"""The smallest reverse proxy in aiohttp. PORT UPSTREAM_URL."""

import sys

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host"}


async def relay(request: web.Request) -> web.StreamResponse:
    """Pass one request on, and its answer back."""
    session: ClientSession = request.app["session"]
    headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP}
    body = await request.read()
    async with session.post(sys.argv[2] + request.path_qs, data=body, headers=headers) as upstream:
        passed = {k: v for k, v in upstream.headers.items() if k.lower() not in HOP_BY_HOP}
        response = web.StreamResponse(status=upstream.status, headers=passed)
        await response.prepare(request)
        async for chunk in upstream.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
        return response


async def make() -> web.Application:
    """Build the application with a session that has no limits."""
    app = web.Application(client_max_size=1 << 26)
    app["session"] = ClientSession(
        connector=TCPConnector(limit=0), timeout=ClientTimeout(total=None), auto_decompress=False
    )
    app.router.add_post("/{path:.*}", relay)
    return app


web.run_app(make(), host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)
