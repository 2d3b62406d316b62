"""The floor of the loop: bytes passed on both ways as they come, nothing read in them. PORT URL.

It has one connection to the engine for each of a client's, knows no request and no chunk, counts
and logs nothing: what asyncio and the system's calls alone cost a program in Python.
"""

import asyncio
import socket
import sys
from collections.abc import Callable
from urllib.parse import urlsplit

READ_BYTES = 64 * 1024


def relay(client: socket.socket, engine: socket.socket) -> None:
    """Pass on what either side sends, until one of them has closed."""
    loop = asyncio.get_running_loop()

    def close() -> None:
        for side in (client, engine):
            loop.remove_reader(side.fileno())
            side.close()

    def pump(source: socket.socket, target: socket.socket) -> Callable[[], None]:
        recv, send = source.recv, target.send

        def take() -> None:
            try:
                data = recv(READ_BYTES)
                if data:
                    send(data)  # a bench's clients read at once: nothing is ever left over
                else:
                    close()
            except BlockingIOError:
                return
            except OSError:
                close()

        return take

    for side in (client, engine):
        side.setblocking(False)
        side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    loop.add_reader(client.fileno(), pump(client, engine))
    loop.add_reader(engine.fileno(), pump(engine, client))


async def main(port: int, url: str) -> None:
    """Serve for ever."""
    address = urlsplit(url)
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    listener.setblocking(False)
    loop = asyncio.get_running_loop()
    while True:
        client, _ = await loop.sock_accept(listener)
        relay(client, socket.create_connection((address.hostname, address.port)))


asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
