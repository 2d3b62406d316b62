"""Whose keys the clients bring, where slots are shared by key."""

from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple

from simulator.traffic.distributions import unit
from simulator.traffic.streams import Purpose, Streams


class ClientKey(NamedTuple):
    """One key: how much of the traffic is its, and its share of the slots."""

    name: str
    part: float
    """Of a closed loop: that many of its clients; of a stream: that part of all parts."""
    share: float = 1.0

    def __str__(self) -> str:
        return f"{self.name}={self.part:g}"


def key_of(
    keys: tuple[ClientKey, ...], streams: Streams, index: int, client: int | None
) -> ClientKey:
    """Return whose key a request brings: its client's or, of a stream, one drawn by the parts."""
    if client is not None:
        return key_at(keys, client)
    place = (streams.seed, streams.replication, Purpose.LATE, 3, index)
    return key_at(keys, unit(*place) * sum(key.part for key in keys))


def key_at(keys: tuple[ClientKey, ...], at: float) -> ClientKey:
    """Return whose turn it is at a number from 0 to the sum of all parts."""
    edges = [*accumulate(key.part for key in keys)]
    return keys[min(bisect_right(edges, at), len(keys) - 1)]
