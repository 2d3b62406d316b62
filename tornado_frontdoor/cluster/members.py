"""The members of an owner: who has joined, who is heard, and the session with each.

Rule 1: a door is heard when it echoes a stamp of ours; a message that was long on its way is none.
Rule 2: what a door says counts once it has echoed a stamp in this session, so that a late copy of
        an old session is never taken for the door itself.
"""

from collections.abc import Mapping
from typing import Any

from tornado_frontdoor.cluster.actions import Action, Send
from tornado_frontdoor.cluster.link import Link
from tornado_frontdoor.cluster.messages import AnyBody, Join, Packet, State
from tornado_frontdoor.cluster.rules import BEAT


class Peer:
    """The session with one member."""

    def __init__(self, door: str, session: int, now: float, lease_s: float) -> None:
        self.door = door
        self.session = session
        self.link = Link(now, lease_s * BEAT * 2)
        self.since_s = now
        self.backlog: list[AnyBody] | None = []
        """What it said before it has echoed a stamp of ours; None: it has."""
        self.doors_told = 0
        """The least number of doors it was told, so its share without us may be of that."""

    @property
    def heard_s(self) -> float:
        """When it was surely there."""
        return max(self.since_s, self.link.heard_s)


class Members:
    """All sessions of one owner. `out` takes the packets."""

    def __init__(self, me: str, epoch: int, lease_s: float, out: list[Action]) -> None:
        self._me = me
        self._epoch = epoch
        self._lease_s = lease_s
        self._peers: dict[str, Peer] = {}
        self._sessions: dict[str, int] = {}
        self._out = out

    @property
    def joined(self) -> list[str]:
        """Doors that are heard and have said what they have."""
        return [door for door, peer in self._peers.items() if peer.backlog is None]

    def tell(self, door: str, body: AnyBody) -> None:
        """Say something to a member; nobody hears it where it is none.

        Nor before it has said what it has: that was written without knowing what is told now, and
        is answered when it counts.
        """
        peer = self._peers.get(door)
        if peer is not None and peer.backlog is None:
            peer.link.put(body)

    def take(self, packet: Packet, now: float) -> list[AnyBody]:
        """Take a packet; returns what its sender says, once it counts."""
        peer = self._find(packet, now)
        if peer is None:
            return []
        bodies = peer.link.take(packet, now)
        if peer.backlog is None:
            return bodies
        peer.backlog += bodies
        if not peer.link.proved:
            self._send(peer, now)
            return []
        bodies, peer.backlog = peer.backlog, None
        return bodies

    def _find(self, packet: Packet, now: float) -> Peer | None:
        door = packet.sender
        known = self._sessions.get(door, 0)
        before = self._peers.get(door)
        if packet.session == known and before is not None:
            return before
        if packet.session < known:
            return None
        opens = packet.first == 1 and packet.bodies and isinstance(packet.bodies[0], Join)
        if packet.session == known or not opens:
            head = (self._me, door, self._epoch, packet.session, True)
            answer = Packet(*head, 0, (), 0, now, packet.stamp_s, unknown=True)
            self._out.append(Send(answer))
            return None
        self._sessions[door] = packet.session
        peer = self._peers[door] = Peer(door, packet.session, now, self._lease_s)
        if before is not None:
            # Trying to join is no sign that it hears us: it is silent when it would have been.
            peer.since_s = before.heard_s
            peer.doors_told = before.doors_told
        return peer

    def drop_silent(self, now: float) -> list[tuple[str, int]]:
        """Forget the sessions of those not heard for a lease; returns them and what they know."""
        silent = [p for p in self._peers.values() if now - p.heard_s > self._lease_s]
        for peer in silent:
            del self._peers[peer.door]
        return [(peer.door, peer.doors_told) for peer in silent]

    def beat(self, doors: tuple[str, ...], views: Mapping[str, Any], now: float) -> None:
        """Tell every member that we live, who is there and how the gates are."""
        for peer in self._peers.values():
            if peer.backlog is None:
                peer.doors_told = min(peer.doors_told or len(doors), len(doors))
                peer.link.put(State(doors, views))
            self._send(peer, now)

    def flush(self, now: float, *, timer: bool) -> None:
        """Send what there is to be sent."""
        for peer in self._peers.values():
            link = peer.link
            if link.has_news or (timer and (link.owes or link.late(now))):
                self._send(peer, now)

    def _send(self, peer: Peer, now: float) -> None:
        head = (self._me, peer.door, self._epoch, peer.session, True)
        self._out.append(Send(Packet(*head, *peer.link.pack(now))))
