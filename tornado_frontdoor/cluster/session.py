"""One door as a member of an owner: what it says, and whether it may rely on what it hears."""

from tornado_frontdoor.cluster.actions import Action, Send
from tornado_frontdoor.cluster.link import Link
from tornado_frontdoor.cluster.messages import AnyBody, Packet
from tornado_frontdoor.cluster.rules import BEAT, VALID


class Session:
    """A session with one owner. `out` takes the packets."""

    def __init__(
        self, me: str, answer: tuple[str, int], number: int, now: float, lease_s: float
    ) -> None:
        self.owner, self.epoch = answer
        self.number = number
        self.began_s = now
        self.link = Link(now, lease_s * BEAT * 2)
        self.talked_s = now
        """When anything was last sent."""
        self._me = me
        self._lease_s = lease_s
        self._valid_s = lease_s * VALID

    @property
    def proved(self) -> bool:
        """Whether the owner has answered."""
        return self.link.proved

    @property
    def heard_s(self) -> float:
        """When the owner surely knew of us; before it has answered: when we began."""
        return self.link.heard_s if self.proved else self.began_s

    def is_sure(self, now: float) -> bool:
        """Tell whether no other owner can have let anybody in by now."""
        return self.proved and now - self.link.heard_s < self._valid_s

    def is_of(self, packet: Packet) -> bool:
        """Tell whether a packet belongs to this session."""
        key = (packet.sender, packet.epoch, packet.session)
        return packet.from_owner and key == (self.owner, self.epoch, self.number)

    def tell(self, body: AnyBody) -> None:
        """Say something to the owner."""
        self.link.put(body)

    def flush(self, now: float, out: list[Action], *, timer: bool) -> None:
        """Send what there is to be sent."""
        link = self.link
        if link.has_news or (timer and (link.owes or link.late(now))):
            self.send(now, out)

    def send(self, now: float, out: list[Action]) -> None:
        """Send a packet, but none once this door may go on by itself: the owner must notice."""
        opens = not self.proved and now - self.began_s < self._lease_s
        if self.is_sure(now) or opens:
            self.talked_s = now
            head = (self._me, self.owner, self.epoch, self.number, False)
            out.append(Send(Packet(*head, *self.link.pack(now))))
