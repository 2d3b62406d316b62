"""Whole chunks of a stream, read past libcurl, which stays the judge of all else.

libcurl takes two reads of the socket for each chunk, and as long as everything of ours that is done
with it. So while libcurl stands between two chunks of an answer, whole chunks that its socket holds
are taken from the socket here and handed on; libcurl never learns of them. Whatever else there is
stays in the socket for libcurl: the last chunk, one that is not all there, another form of framing,
an end of file, an error, and everything while the receiver wants no more. So it is libcurl that
sees how each answer ends, and that keeps the connection or closes it.

Where libcurl stands is known from what it tells of each of its own reads (CURLINFO_DATA_IN: bytes
as they came, framing and all). It owes what was in them until it has handed that on, and nothing is
read past it before. An answer that libcurl has to read all the same is soon left to it for good.
"""

import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pycurl

from tornado_frontdoor.surfaces.chunked import chunks_in, is_one_chunk, piece_of, whole_chunks

if TYPE_CHECKING:
    from tornado_frontdoor.proxy.curl.transfer import Transfer

LOOK_BYTES = 8 * 1024
"""How much of what a socket holds is looked at; a longer chunk is libcurl's."""
MOST_IN_VAIN = 8
"""How often in a row libcurl may have to read until an answer is left to it: its chunks are long,
or come in parts, and what it tells of each read costs more than is gained."""
_LOOK = socket.MSG_PEEK | socket.MSG_DONTWAIT
_DROP = socket.MSG_TRUNC | socket.MSG_DONTWAIT  # of TCP: taken, and not copied


class ChunkReader:
    """Reads one answer's chunks past libcurl, where it may. Lives on the loop of its client."""

    __slots__ = (
        "_in_vain",
        "_readers",
        "_receive",
        "_socket",
        "_transfer",
        "_unfinished",
        "owed_bytes",
    )

    def __init__(self, transfer: "Transfer", readers: "ChunkReaders") -> None:
        self._transfer = transfer
        self._readers = readers
        self._socket: socket.SocketType | None = None
        self._unfinished: bytes | None = b""
        """What libcurl has read of a chunk that is not all there; empty: it stands between two
        chunks; None: it reads the rest."""
        self._in_vain = 0
        """How often libcurl has read since a chunk was read past it."""
        self.owed_bytes = 0
        """What libcurl has read of the body and not handed on."""

    def attach(self, fd: int) -> None:
        """Read from libcurl's own descriptor, until `detach`, which must come before it closes."""
        # Whatever the family is: nothing here asks for an address.
        self._socket = socket.SocketType(socket.AF_INET, socket.SOCK_STREAM, 0, fd)
        self._receive = self._socket.recv

    def detach(self) -> int:
        """Let go of the descriptor and return it; -1: there is none."""
        attached, self._socket = self._socket, None
        return attached.detach() if attached is not None else -1

    def told(self, raw: bytes) -> None:
        """Take what libcurl has read of the body, as it came."""
        if self._unfinished is None:
            return
        self._in_vain += 1
        raw = self._unfinished + raw
        found = chunks_in(raw)
        if found is None or self._in_vain > MOST_IN_VAIN:
            self._unfinished = None
            return
        chunks, end = found
        self._unfinished = raw[end:]
        self.owed_bytes += sum(len(piece_of(chunk)) for chunk in chunks)

    def take(self, now_s: float) -> bool:
        """Hand on what the socket holds; False: it is libcurl's."""
        transfer = self._transfer
        if self._unfinished != b"" or self.owed_bytes or transfer.paused:
            if self._unfinished is None:
                self._readers.leave(transfer)
            return False
        try:
            raw = self._receive(LOOK_BYTES, _LOOK)
        except OSError:
            return False
        chunks = [raw] if is_one_chunk(raw) else whole_chunks(raw)
        if not chunks:
            return False
        self._in_vain = 0
        transfer.heard_s = now_s
        if not transfer.first_byte:
            transfer.begin_body()
        for chunk in chunks:
            self._receive(len(chunk), _DROP)
            try:  # as `Transfer.take_data`, without a call between
                if not transfer.receiver.on_chunk(chunk):
                    transfer.paused = True
            except Exception:  # noqa: BLE001 - whatever it is, the slot must come back
                transfer.receiver_failed("on_chunk")
            if transfer.paused or self._socket is None:
                break
        return True


class ChunkReaders(dict[int, Callable[[float], bool]]):
    """What is called, by descriptor, before libcurl when there is something to read.

    `wanted` has, by descriptor, what libcurl waits for. Nothing is called from within libcurl.
    """

    def __init__(self, wanted: Mapping[int, int]) -> None:
        super().__init__()
        self._wanted = wanted
        self.sending: dict[int, Transfer] = {}
        """Calls whose request is still on its way, by descriptor."""

    def listen(self, transfer: "Transfer") -> None:
        """Have libcurl tell what it reads, once the request has left: it would tell that, too."""
        if transfer.handle is None:
            return
        fd = transfer.handle.curl.getinfo(pycurl.ACTIVESOCKET)
        if self._wanted.get(fd) == pycurl.POLL_IN:
            transfer.handle.tell(told=True)
        elif fd >= 0:
            self.sending[fd] = transfer

    def attach(self, transfer: "Transfer") -> None:
        """Begin to read past libcurl, if the answer has not ended."""
        reader = transfer.reader
        if reader is None or transfer.handle is None:
            return
        fd = transfer.handle.curl.getinfo(pycurl.ACTIVESOCKET)
        if fd >= 0:
            reader.attach(fd)
            self[fd] = reader.take

    def leave(self, transfer: "Transfer") -> None:
        """Leave the rest of an answer to libcurl."""
        transfer.handle.tell(told=False)
        self.detach(transfer)

    def detach(self, transfer: "Transfer") -> None:
        """End with a call, before its descriptor is closed."""
        if self.sending:
            for fd in [fd for fd, one in self.sending.items() if one is transfer]:
                del self.sending[fd]
        reader, transfer.reader = transfer.reader, None  # which know each other: no more
        if reader is not None:
            fd = reader.detach()
            if self.get(fd) == reader.take:
                del self[fd]
