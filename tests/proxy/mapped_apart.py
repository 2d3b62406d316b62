"""Counts what is mapped apart for calls to an engine; run as a program by tests.

usage: python mapped_apart.py CALLS

Prints how many pieces were while so many calls were sent, and how many for as many pieces of
64 KiB right afterwards.
"""

import asyncio
import ctypes
import json
import sys

from tornado_frontdoor.proxy.curl.client import Transfer, TransferEnd, UpstreamCall, UpstreamClient
from tornado_frontdoor.proxy.heap import keep_little_memory


class Heap(ctypes.Structure):
    """What `mallinfo2` tells."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


class Receiver:
    """Takes whatever comes."""

    def on_head(self, status: int, headers: list[tuple[str, str]]) -> None: ...

    def on_data(self, chunk: bytes) -> bool:  # noqa: ARG002 - the protocol's signature
        return True

    def on_end(self, end: TransferEnd, detail: str) -> None: ...


def mapped_apart() -> int:
    """The pieces that are mapped apart, each from the system."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Heap
    return int(mallinfo2().hblks)


async def main(calls: int) -> None:
    """Send the calls to an engine that never answers, one after the other."""
    keep_little_memory()
    asked, gone = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        asked.release()
        await reader.read()
        writer.close()
        gone.release()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = UpstreamClient()
    before = mapped_apart()
    transfers: list[Transfer] = []
    for _ in range(calls):
        call = UpstreamCall(
            url, connect_timeout_s=60, read_timeout_s=60, chunk_timeout_s=60, body=b"{}"
        )
        transfers.append(client.start(call, Receiver()))
        await asked.acquire()
    between = mapped_apart()
    kept = [bytearray(64 * 1024) for _ in transfers]
    after = mapped_apart()
    print(json.dumps([between - before, after - between]), flush=True)
    del kept
    client.close()
    for _ in transfers:
        await gone.acquire()
    server.close()


asyncio.run(main(int(sys.argv[1])))
