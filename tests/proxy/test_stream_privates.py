"""What the streams towards clients lean on inside Tornado is there, and as it is believed to be."""

import asyncio
import socket

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
        theirs.close()
        await over.wait()
        assert stream.closed()

    asyncio.run(scenario())
