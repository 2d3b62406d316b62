"""The epoll that notices clients who leave, by itself: numbers given out again, nobody watching."""

import asyncio
import socket

import pytest

from tornado_frontdoor.proxy.downstream.disconnects import DisconnectWatcher


async def turns() -> None:
    """Let the loop look at its descriptors a few times; what was closed before shows by then."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("connection", [None, 7])
@pytest.mark.parametrize("watched", [True, False])
def test_a_departure_is_reported_once_whether_or_not_somebody_watches(
    watched: bool, connection: int | None
) -> None:
    async def scenario() -> None:
        departures = DisconnectWatcher()
        told: list[str] = []

        def on_gone() -> None:
            told.append("gone")

        ours, theirs = socket.socketpair()
        with ours, theirs:
            departures.watch(ours.fileno(), on_gone, connection)
            if not watched:
                departures.forget(ours.fileno(), on_gone)
            theirs.shutdown(socket.SHUT_WR)
            await turns()
            assert told == ["gone"] * watched
            assert departures._epoll.poll(0) == []  # or the loop would never sleep again
            # Who is gone already is told of at once.
            departures.watch(ours.fileno(), on_gone, connection)
            await turns()
            assert told == ["gone"] * (1 + watched)
        departures.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("numbers", [(None, None), (7, 8)])
def test_a_number_that_was_given_out_again_is_watched_for_its_new_owner(
    numbers: tuple[int | None, int | None],
) -> None:
    async def scenario() -> None:
        departures = DisconnectWatcher()
        told: list[str] = []

        def first() -> None:
            told.append("first")

        def second() -> None:
            told.append("second")

        old, old_peer = socket.socketpair()
        number = old.fileno()
        departures.watch(number, first, numbers[0])
        old.close()
        new, new_peer = socket.socketpair()
        ours, theirs = (new, new_peer) if new.fileno() == number else (new_peer, new)
        assert ours.fileno() == number
        departures.watch(number, second, numbers[1])
        departures.forget(number, first)  # late, and of somebody else
        old_peer.close()
        await turns()
        assert told == []
        theirs.close()
        await turns()
        assert told == ["second"]
        ours.close()
        departures.close()

    asyncio.run(scenario())


def test_who_leaves_in_a_later_request_of_its_connection_is_told_of() -> None:
    async def scenario() -> None:
        departures = DisconnectWatcher()
        told: list[str] = []

        def on_gone() -> None:
            told.append("gone")

        ours, theirs = socket.socketpair()
        with ours, theirs:
            for _ in range(3):
                departures.watch(ours.fileno(), on_gone, 7)
                await turns()
                departures.forget(ours.fileno(), on_gone)
            departures.watch(ours.fileno(), on_gone, 7)
            theirs.close()
            await turns()
            assert told == ["gone"]
        departures.close()

    asyncio.run(scenario())
