"""The smallest reverse proxy in FastAPI and httpx, on uvicorn. PORT UPSTREAM_URL."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from starlette.background import BackgroundTask

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host"}
client = httpx.AsyncClient(
    timeout=None, limits=httpx.Limits(max_connections=None, max_keepalive_connections=None)
)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Close the client at the end."""
    yield
    await client.aclose()


app = FastAPI(lifespan=lifespan)


@app.post("/{path:path}")
async def relay(request: Request) -> StreamingResponse:
    """Pass one request on, and its answer back."""
    headers = {k: v for k, v in request.headers.items() if k not in HOP_BY_HOP}
    upstream = await client.send(
        client.build_request(
            "POST", sys.argv[2] + request.url.path, content=await request.body(), headers=headers
        ),
        stream=True,
    )
    passed = {k: v for k, v in upstream.headers.items() if k not in HOP_BY_HOP}
    return StreamingResponse(
        upstream.aiter_raw(),
        status_code=upstream.status_code,
        headers=passed,
        background=BackgroundTask(upstream.aclose),
    )


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False)
