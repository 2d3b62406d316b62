"""One end of a session between a member and its owner: bodies arrive once each, and in order.

Whatever the way between does (loses, repeats, delays, reorders), each body is numbered, kept until
its arrival is acknowledged, and sent again. Each packet carries its sender's clock and echoes the
other's, so that either end knows how old the other's last knowledge of it is, by its own clock.
"""

from math import inf

from tornado_frontdoor.cluster.messages import AnyBody, Packet

EARLY_MAX = 64
"""Packets that are kept for when what was sent before them has come; the rest comes again."""


class Link:
    """Counts what goes out and what comes in. `resend_s`: patience with an acknowledgement."""

    def __init__(self, now: float, resend_s: float) -> None:
        self._resend_s = resend_s
        self._kept: list[AnyBody] = []
        self._first = 1  # the number of the first that is kept
        self._sent = 0  # how many of those kept were sent
        self._taken = 0  # the number of the last body taken
        self._sent_s = now
        self._early: dict[int, tuple[AnyBody, ...]] = {}
        self.heard_s = -inf
        """The latest of our stamps that the other end has echoed: when we were surely known."""
        self.echo_s = -inf
        self.owes = False
        """Whether bodies came in that were not acknowledged yet."""

    @property
    def proved(self) -> bool:
        """Whether the other end has ever echoed a stamp of ours."""
        return self.heard_s > -inf

    def put(self, body: AnyBody) -> None:
        """Send this with the next packet."""
        self._kept.append(body)

    @property
    def has_news(self) -> bool:
        """Whether a body waits to be sent for the first time."""
        return self._sent < len(self._kept)

    def late(self, now: float) -> bool:
        """Tell whether what was sent should have been acknowledged by now."""
        return self._sent > 0 and now - self._sent_s >= self._resend_s

    def pack(self, now: float) -> tuple[int, tuple[AnyBody, ...], int, float, float]:
        """Return what a packet that leaves now carries, from `first` to `echo_s`."""
        if self.late(now):
            self._sent = 0
        first = self._first + self._sent
        bodies = tuple(self._kept[self._sent :])
        if bodies:
            if self._sent == 0:
                self._sent_s = now
            self._sent = len(self._kept)
        self.owes = False
        return first, bodies, self._taken, now, self.echo_s

    def take(self, packet: Packet, now: float) -> list[AnyBody]:
        """Return the bodies that are new, in order; those beyond a gap wait for it to be filled."""
        self.heard_s = max(self.heard_s, packet.echo_s)
        self.echo_s = max(self.echo_s, packet.stamp_s)
        acknowledged = packet.ack - self._first + 1
        if acknowledged > 0:
            del self._kept[:acknowledged]
            self._first += acknowledged
            self._sent = max(0, self._sent - acknowledged)
            self._sent_s = now
        if packet.bodies:
            self.owes = True
        if packet.first > self._taken + 1:
            if len(self._early) < EARLY_MAX:
                self._early[packet.first] = packet.bodies
            return []
        fresh = self._next(packet.first, packet.bodies)
        while (bodies := self._early.pop(self._taken + 1, None)) is not None:
            fresh += self._next(self._taken + 1, bodies)
        if fresh and self._early:
            self._early = {k: v for k, v in self._early.items() if k > self._taken}
        return fresh

    def _next(self, first: int, bodies: tuple[AnyBody, ...]) -> list[AnyBody]:
        fresh = list(bodies[self._taken + 1 - first :])
        self._taken += len(fresh)
        return fresh
