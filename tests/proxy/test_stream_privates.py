"""What the streams towards clients lean on inside Tornado is there, and as it is believed to be."""

import asyncio
import socket
import struct

import pytest
from tornado.ioloop import IOLoop
from tornado.iostream import BaseIOStream, IOStream, SSLIOStream

from tornado_frontdoor.proxy.downstream.streams import FedStream, FedTlsStream

LEANED_ON = ("_handle_events", "_handle_read", "_read_to_buffer", "_consume", "_add_io_state")


@pytest.mark.parametrize("name", [*LEANED_ON, "reading"])
def test_every_method_that_we_call_or_replace_is_there(name: str) -> None:
    assert name in vars(BaseIOStream)


def test_tls_hands_on_to_our_reading_when_the_handshake_is_done() -> None:
    order = [one.__name__ for one in FedTlsStream.__mro__]
    assert order.index("SSLIOStream") < order.index("FedStream") < order.index("IOStream")
    assert "_handle_read" in vars(SSLIOStream)
    assert "_handle_read" not in vars(IOStream)


def test_a_stream_tells_of_bytes_while_they_are_wanted_and_stays_registered() -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            stream = FedStream(ours)
            told: list[bytes] = []
            came = asyncio.Event()

            def take() -> None:
                assert stream.held_bytes == len(stream.held)
                told.append(stream.take(stream.held_bytes))
                came.set()

            stream.on_bytes = take
            stream.want()
            state = stream._state
            for word in (b"one", b"two"):
                came.clear()
                theirs.send(word)
                await came.wait()
                assert stream._state == state == IOLoop.READ | IOLoop.ERROR
            assert told == [b"one", b"two"]
            stream.close()

    asyncio.run(scenario())


def test_a_stream_reads_once_more_where_nothing_is_wanted_and_then_no_more() -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            stream = FedStream(ours)
            stream.want()
            stream.want_no_more()
            theirs.send(b"x" * 100_000)
            while not stream.held_bytes:  # noqa: ASYNC110 - the loop has to turn
                await asyncio.sleep(0)
            held_bytes = stream.held_bytes
            for _ in range(5):
                await asyncio.sleep(0)
            assert stream.held_bytes == held_bytes <= stream.read_chunk_size
            assert not stream._state & IOLoop.READ, "or the loop would never sleep"
            stream.close()

    asyncio.run(scenario())


def test_a_stream_sees_that_it_is_closed_also_where_nothing_is_wanted() -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        stream = FedStream(ours)
        over = asyncio.Event()
        stream.set_close_callback(over.set)
        assert not stream.closed()
        assert not stream.is_closed
        theirs.close()
        await over.wait()
        assert stream.closed()
        assert stream.is_closed

    asyncio.run(scenario())


def test_what_is_sent_past_the_buffer_never_overtakes_what_waits_in_it() -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            stream = FedStream(ours)
            assert stream.send_now(b"first ") == b""
            sent = b"x" * 4_000_000
            rest = stream.send_now(sent)
            assert 0 < len(rest) < len(sent), "what the kernel did not take comes back"
            written = stream.write(rest)
            assert stream.send_now(b"late") == b"late", "there is more to be sent before it"
            received = bytearray()
            theirs.setblocking(False)
            while len(received) < 6 + len(sent):
                received += await asyncio.get_running_loop().sock_recv(theirs, 1 << 20)
            assert bytes(received) == b"first " + sent
            await written
            assert stream.send_now(b"last") == b""
            assert await asyncio.get_running_loop().sock_recv(theirs, 10) == b"last"
            stream.close()
            assert stream.send_now(b"more") == b"more"

    asyncio.run(scenario())


def test_a_reset_ends_a_stream_without_a_word() -> None:
    async def scenario() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
        ours.setblocking(False)
        stream = FedStream(ours)
        over = asyncio.Event()
        stream.set_close_callback(over.set)
        stream.want()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
        await over.wait()
        assert isinstance(stream.error, ConnectionResetError)
        listener.close()

    asyncio.run(scenario())
