"""The engine of the benchmarks: answers at once, or streams chunks with a pause between them.

Raw asyncio, so that it costs less than whatever is measured in front of it.
Usage: engine.py PORT CHUNKS GAP_MS
"""

import asyncio
import sys

ANSWER = (
    b'{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant",'
)
ANSWER += (
    b'"content":"' + b"hello " * 60 + b'"},"finish_reason":"stop"}],"usage":{"total_tokens":1}}'
)
WHOLE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER)
) + ANSWER
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"reasoning",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)
# By turns: LiteLLM ends a stream that says the same a hundred times.
EVENTS = (EVENT, EVENT.replace(b" word", b" more"))
CHUNKS = [b"%x\r\n%b\r\n" % (len(event), event) for event in EVENTS]
FINISH = EVENT.replace(b'"finish_reason":null', b'"finish_reason":"stop"')
LAST = b"%x\r\n%b\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n" % (len(FINISH), FINISH)


class Connection(asyncio.Protocol):
    """One connection; requests one after another."""

    chunks = 0
    gap_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to answer."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.received = b""
        self.left = 0

    def data_received(self, data: bytes) -> None:
        """Answer each whole request."""
        self.received += data
        while True:
            head_end = self.received.find(b"\r\n\r\n")
            if head_end < 0:
                return
            head = self.received[:head_end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            end = head_end + 4 + length
            if len(self.received) < end:
                return
            body, self.received = self.received[head_end + 4 : end], self.received[end:]
            if b'"stream": true' in body or b'"stream":true' in body:
                self.left = self.chunks
                self.transport.write(HEAD)
                self.send_chunk()
            else:
                self.transport.write(WHOLE)

    def send_chunk(self) -> None:
        """Send the next chunk of a stream, or its end."""
        if self.transport.is_closing():
            return
        if self.left == 0:
            self.transport.write(LAST)
            return
        self.left -= 1
        self.transport.write(CHUNKS[self.left % 2])
        asyncio.get_running_loop().call_later(self.gap_s, self.send_chunk)


async def main() -> None:
    """Serve until killed."""
    port, Connection.chunks, Connection.gap_s = (
        int(sys.argv[1]),
        int(sys.argv[2]),
        float(sys.argv[3]) / 1000,
    )
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


asyncio.run(main())
