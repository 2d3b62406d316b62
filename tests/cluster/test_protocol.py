"""The cluster protocol by hand: two doors and what passes between them, one message at a time."""

from math import inf

import pytest

from tornado_frontdoor.cluster.actions import (
    Action,
    BeatAnswer,
    CountEngine,
    GateAdopt,
    GateArrive,
    GateFinish,
    GateLost,
    GatesReady,
    Grant,
    OpenGates,
    Release,
    Say,
    Send,
    TurnAway,
)
from tornado_frontdoor.cluster.link import Link
from tornado_frontdoor.cluster.messages import (
    Arrive,
    Finish,
    Join,
    Lost,
    Packet,
    Running,
    State,
    TurnedAway,
    Waiting,
    decode,
    encode,
    terms_of,
    terms_text,
)
from tornado_frontdoor.cluster.node import Node
from tornado_frontdoor.cluster.rules import ClusterRules, GateRules
from tornado_frontdoor.cluster.tickets import Own
from tornado_frontdoor.core.decisions import Admit, Outcome, Reason, Refusal, SleepDepth
from tornado_frontdoor.core.request import Ticket, WakeTerms

ENGINE = "http://engine"
RULES = ClusterRules(gates={ENGINE: GateRules(cap=2, sleeps=False)}, lease_s=1.0)
UNCAPPED = ClusterRules(gates={ENGINE: GateRules(cap=None, sleeps=False)}, lease_s=1.0)


class Pair:
    """Two doors whose packets are carried by hand; `a` holds the lease."""

    def __init__(self, rules: ClusterRules = RULES) -> None:
        self.now = 100.0
        self.nodes = {name: Node(name, rules, self.now) for name in "ab"}
        self.busy = 0
        self.seen: dict[str, list[Action]] = {"a": [], "b": []}
        self.lease("a", 1)

    def lease(self, owner: str, epoch: int, before: str = "", same_run: bool = False) -> None:
        for name in ("a", "b") if owner == "a" else ("b", "a"):
            answer = BeatAnswer(
                owner=owner,
                epoch=epoch,
                left_s=1.0,
                won=name == owner,
                before=before,
                same_run=same_run,
                run="run",
                doors=("a", "b"),
            )
            if name in self.nodes:
                self.nodes[name].beat_answered(self.now, answer, self.now)
        self.carry()

    def carry(self) -> None:
        """Carry everything that is to be done, until nothing is."""
        while any(node.out for node in self.nodes.values()):
            for name, node in self.nodes.items():
                actions, node.out[:] = [*node.out], []
                for action in actions:
                    self.seen[name].append(action)
                    if isinstance(action, Send) and action.packet.to in self.nodes:
                        packet = decode(encode(action.packet))
                        assert packet == action.packet
                        self.nodes[packet.to].packet(packet, self.now)
                    elif isinstance(action, CountEngine):
                        node.sampled(action, self.busy, self.now)

    def spend(self, seconds: float, *names: str) -> None:
        """Let time pass; the lease of the owner is renewed."""
        until_s = self.now + seconds
        while self.now < until_s:
            self.now = min(until_s, self.now + 0.05)
            for name in names or ("a", "b"):
                node = self.nodes.get(name)
                if node is None:
                    continue
                if node.owner is not None:
                    node.owner.sure_s = self.now
                node.tick(self.now)
            self.carry()

    def enter(self, name: str, number: int, weight: int = 1) -> None:
        self.nodes[name].enter(Own(number, ENGINE, weight, self.now), self.now)
        self.carry()

    def admit(self, owner: str, door: str, number: int) -> None:
        self.nodes[owner].decided((door, number), Admit(Ticket(), 0.0, 0.0), self.now)
        self.carry()

    def told(self, name: str, kind: type[Action]) -> list[Action]:
        found = [action for action in self.seen[name] if isinstance(action, kind)]
        self.seen[name] = [action for action in self.seen[name] if not isinstance(action, kind)]
        return found


def served() -> Pair:
    pair = Pair()
    pair.spend(2.0)
    assert pair.told("a", GatesReady)
    return pair


def test_a_first_owner_lets_nobody_in_until_dead_grants_are_past_and_the_engine_was_asked() -> None:
    pair = Pair()
    pair.enter("a", 1)
    pair.enter("b", 1)
    pair.spend(1.4)
    assert not pair.told("a", GateArrive)
    pair.spend(0.6)
    assert [action.key for action in pair.told("a", GateArrive)] == [("a", 1), ("b", 1)]


def test_what_an_engine_runs_for_nobody_takes_slots_until_its_count_falls() -> None:
    pair = Pair()
    pair.busy = 1
    pair.spend(2.0)
    [adopted] = pair.told("a", GateAdopt)
    pair.spend(1.0)
    assert not pair.told("a", GateFinish)
    pair.busy = 0
    pair.spend(0.5)
    assert [action.key for action in pair.told("a", GateFinish)] == [adopted.key]


def test_an_engine_that_tells_no_count_is_waited_for_a_minute() -> None:
    pair = Pair()
    pair.busy = None  # type: ignore[assignment]
    pair.spend(2.0)
    assert len(pair.told("a", GateAdopt)) == 2
    pair.spend(55.0)
    assert not pair.told("a", GateFinish)
    pair.spend(10.0)
    assert len(pair.told("a", GateFinish)) == 2


def test_a_member_asks_the_owner_and_hears_its_decision() -> None:
    pair = served()
    pair.enter("b", 7)
    [arrival] = pair.told("a", GateArrive)
    assert arrival.key == ("b", 7)
    pair.admit("a", "b", 7)
    [grant] = pair.told("b", Grant)
    assert grant.number == 7
    assert pair.nodes["b"].may_start(7, pair.now)
    pair.nodes["b"].finish(7, Outcome.SERVED, pair.now)
    pair.carry()
    assert pair.told("a", GateFinish) == [GateFinish(("b", 7), Outcome.SERVED)]


def test_a_refusal_reaches_the_member_as_it_was_made() -> None:
    pair = served()
    pair.enter("b", 7)
    refusal = Refusal(
        Reason.MODEL_WAKING, "it sleeps", "text", 10.0, SleepDepth.OFFLOADED, 41.0, None
    )
    pair.nodes["a"].decided(("b", 7), refusal, pair.now)
    pair.carry()
    assert pair.told("b", TurnAway) == [TurnAway(7, refusal)]


def test_a_paused_member_starts_nothing_by_a_grant_that_is_too_old() -> None:
    pair = served()
    pair.enter("b", 7)
    pair.admit("a", "b", 7)
    assert pair.told("b", Grant)
    pair.now += 0.8  # it was stopped
    assert not pair.nodes["b"].may_start(7, pair.now)


def test_who_was_paused_for_less_than_a_lease_is_granted_again_when_it_is_sure() -> None:
    pair = served()
    pair.enter("b", 7)
    pair.admit("a", "b", 7)
    assert pair.told("b", Grant)
    pair.nodes["b"].session.link.heard_s = pair.now - 0.75
    assert not pair.nodes["b"].may_start(7, pair.now)
    pair.nodes["b"].session.link.heard_s = pair.now
    pair.spend(0.1)
    assert pair.told("b", Grant)
    assert pair.nodes["b"].may_start(7, pair.now)


def test_a_paused_owner_owns_nothing_any_more() -> None:
    pair = served()
    pair.enter("a", 1)
    pair.admit("a", "a", 1)
    pair.now += 0.8
    assert not pair.nodes["a"].may_start(1, pair.now)
    assert pair.nodes["a"].role == "seeking"


def test_those_who_waited_keep_their_order_over_a_change_of_owner() -> None:
    pair = served()
    for number, door in enumerate("abbab"):
        pair.enter(door, number)
    pair.told("a", GateArrive)
    pair.nodes["a"].leave(pair.now)
    pair.carry()
    assert pair.told("a", Release) == [Release(1)]
    pair.lease("b", 2, before="a", same_run=True)
    pair.enter("b", 9)
    pair.spend(1.0)
    keys = [action.key for action in pair.told("b", GateArrive)]
    assert keys == [("a", 0), ("b", 1), ("b", 2), ("a", 3), ("b", 4), ("b", 9)]
    assert {action.waited_s > 0 for action in pair.seen["b"] if isinstance(action, GateArrive)} <= {
        True
    }


def test_what_runs_is_declared_to_the_next_owner_and_takes_its_slot_there() -> None:
    pair = served()
    pair.enter("b", 7)
    pair.admit("a", "b", 7)
    assert pair.nodes["b"].may_start(7, pair.now)
    pair.busy = 1
    del pair.nodes["a"]  # killed
    pair.lease("b", 2, before="a", same_run=True)
    pair.spend(1.0)
    assert next(action.key for action in pair.told("b", GateAdopt)) == ("b", 7)


def test_a_silent_door_keeps_its_slots_while_the_engine_runs_them() -> None:
    pair = served()
    for number in (1, 2):
        pair.enter("b", number)
        pair.admit("a", "b", number)
        assert pair.nodes["b"].may_start(number, pair.now)
    pair.busy = 2
    pair.spend(3.0, "a")
    assert "door b is silent" in [note.text for note in pair.told("a", Say)]
    freed = [a.key for a in pair.told("a", GateFinish) if a.key[0] == "b"]
    assert not freed
    pair.busy = 1
    pair.spend(0.6, "a")
    assert len([a for a in pair.told("a", GateFinish) if a.key[0] == "b"]) == 1


def test_a_door_alone_takes_no_more_than_its_share_and_looks_at_the_engine_first() -> None:
    pair = Pair()
    door = pair.nodes["b"]
    door.connected(pair.now, is_open=True)
    pair.spend(2.0)
    del pair.nodes["a"]
    pair.spend(2.5)
    assert door.role == "alone"
    assert pair.told("b", OpenGates) == [OpenGates({ENGINE: 1})]
    pair.busy = 1  # room for one more, but the other door may be starting one just now
    pair.enter("b", 1)
    pair.nodes["b"].decided(("b", 1), Admit(Ticket(), 0.0, 0.0), pair.now)
    pair.spend(0.5)
    assert not pair.told("b", Grant)
    pair.busy = 0
    pair.spend(0.5)
    assert pair.told("b", Grant)


def test_a_door_that_will_soon_know_that_it_may_use_its_share_refuses_nobody() -> None:
    """It has said something to an owner less than 1.3 leases ago, when it begins to be alone."""
    pair = served()
    door = pair.nodes["b"]
    door.connected(pair.now, is_open=True)
    pair.spend(0.5)
    del pair.nodes["a"]
    pair.spend(1.5)
    pair.lease("c", 2)  # somebody else owns the gates, and is not heard either
    pair.enter("b", 1)
    while door.role != "alone":
        pair.spend(0.05)
    assert not pair.told("b", OpenGates)
    pair.enter("b", 2)
    pair.spend(0.5)
    assert pair.told("b", OpenGates) == [OpenGates({ENGINE: 1})]
    assert [a.key for a in pair.told("b", GateArrive)] == [("b", 1), ("b", 2)]
    assert not pair.told("b", TurnAway)


@pytest.mark.parametrize("refuses", [False, True])
def test_a_door_whose_lifeline_broke_goes_on_only_where_nothing_listens(refuses: bool) -> None:
    pair = served()
    del pair.nodes["a"]
    door = pair.nodes["b"]
    door.redis_refuses = refuses
    pair.spend(2.5)
    pair.enter("b", 1)
    if refuses:
        assert pair.told("b", GateArrive)
        return
    [turn] = pair.told("b", TurnAway)
    assert turn.refusal.reason is Reason.CLUSTER_OUTAGE


def test_an_uncapped_upstream_is_served_without_any_evidence() -> None:
    pair = Pair(UNCAPPED)
    pair.spend(2.0)
    pair.enter("b", 1)
    assert not pair.told("a", CountEngine)
    assert pair.told("a", GateArrive)


def test_a_lease_that_is_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="lease_s must be above 0"):
        ClusterRules(gates={}, lease_s=0.0)


# Links and what they carry

BODIES = (
    Join((Waiting(1, ENGINE, 2, 0.5, 3),), (Running(2, ENGINE, 1),), ("a", "b")),
    Arrive(1, ENGINE, 1),
    Arrive(1, ENGINE, 1, "aa", terms_text(WakeTerms(wakes=False, keep_alive_s=inf, by="alice"))),
    Finish(1, Outcome.CLIENT_GONE_QUEUED),
    TurnedAway(1, Refusal(Reason.QUEUE_FULL, "full", None, 3.5)),
    State(("a",), {ENGINE: {"state": "awake"}}),
)


def test_terms_are_read_as_they_were_written() -> None:
    for terms in (None, WakeTerms(False, False, inf, "alice", "r1"), WakeTerms(keep_alive_s=0.5)):
        assert terms_of(terms_text(terms)) == terms


def test_every_body_is_read_as_it_was_written() -> None:
    packet = Packet("a", "b", 3, 1, True, 1, BODIES, 0, 12.5, float("-inf"))
    assert decode(encode(packet)) == packet


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'["a","b",1,1,true,1,[[99]],0,0,0]'])
def test_what_is_no_message_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(data)


def packets(link: Link, count: int) -> list[Packet]:
    made = []
    for number in range(count):
        link.put(Arrive(number, ENGINE, 1))
        made.append(Packet("a", "b", 1, 1, False, *link.pack(100.0)))
    return made


def numbers(bodies: object) -> list[int]:
    return [body.number for body in bodies]  # type: ignore[attr-defined]


def test_reordered_and_repeated_packets_are_taken_once_and_in_order() -> None:
    first, second, third = packets(Link(100.0, 0.4), 3)
    end = Link(100.0, 0.4)
    assert numbers(end.take(third, 100.0)) == []
    assert numbers(end.take(first, 100.0)) == [0]
    assert numbers(end.take(first, 100.0)) == []
    assert numbers(end.take(second, 100.0)) == [1, 2]
    assert numbers(end.take(second, 100.0)) == []


def test_what_is_not_acknowledged_is_sent_again() -> None:
    link = Link(100.0, 0.4)
    packets(link, 2)
    assert link.pack(100.1)[1] == ()
    assert numbers(link.pack(100.5)[1]) == [0, 1]
    end = Link(100.0, 0.4)
    end.take(Packet("a", "b", 1, 1, False, *link.pack(101.0)), 101.0)
    link.take(Packet("b", "a", 1, 1, True, *end.pack(101.0)), 101.0)
    assert link.pack(102.0)[1] == ()


def test_the_owner_hears_why_an_engine_could_not_be_reached() -> None:
    pair = served()
    told = Lost(ENGINE, "http://second", "SSL certificate problem")
    assert pair.nodes["b"].tell_owner(told, pair.now)
    pair.nodes["b"].flush(pair.now)
    pair.carry()
    assert pair.told("a", GateLost) == [GateLost(ENGINE, "http://second", told.why)]
