"""What two processes of one front door say to each other: the words of a cluster, a line each.

The socket between them loses nothing, so nothing is numbered or said twice.
"""

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import suppress

from tornado_frontdoor.cluster.messages import AnyBody, plain, read_body
from tornado_frontdoor.proxy.handover.meeting import LINE_BYTES


class Channel:
    """One end of it. What is said before it is open waits, in order."""

    def __init__(self) -> None:
        self.over = False
        """Whether the other end is gone; what is said then is said to nobody."""
        self._unsent: list[bytes] = []
        self._writer: asyncio.StreamWriter | None = None

    def say(self, body: AnyBody) -> None:
        """Say something."""
        line = json.dumps(plain(body), separators=(",", ":")).encode() + b"\n"
        if self._writer is None:
            self._unsent.append(line)
        elif not self.over:
            self._writer.write(line)

    def say_first(self, body: AnyBody) -> None:
        """Say something before all that waits, while it is not open."""
        assert self._writer is None
        waiting, self._unsent = self._unsent, []
        self.say(body)
        self._unsent += waiting

    async def talk(
        self, connection: socket.socket, hear: Callable[[AnyBody], None], rest: bytes = b""
    ) -> None:
        """Speak and hear until the other end is gone; `rest` was read of it before."""
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=LINE_BYTES)
        if rest:
            reader.feed_data(rest)
        writer.writelines(self._unsent)
        self._unsent.clear()
        self._writer = writer
        try:
            # A word that cannot be read: as where it ended.
            with suppress(OSError, ValueError):
                while line := await reader.readline():
                    hear(read_body(json.loads(line)))
        finally:
            self.over = True
            writer.close()
