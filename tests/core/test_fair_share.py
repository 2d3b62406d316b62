"""Slots shared by key: by what each holds, then by turns; in order within a key; nobody starves."""

import sys
from collections import Counter, OrderedDict
from collections.abc import Callable
from itertools import chain
from math import ceil
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tornado_frontdoor.core import fair_share
from tornado_frontdoor.core.admission import AdmissionController, AdmissionLimits
from tornado_frontdoor.core.decisions import Admit, Reason, Rejected
from tornado_frontdoor.core.fair_share import REMEMBERED_S, FairShare
from tornado_frontdoor.core.request import CallerFacts, Ticket, TicketState

SHARES = {"a": 1.0, "b": 1.0, "c": 2.0, "": 1.0}


def _ticket(key: str, weight: int = 1) -> Ticket:
    ticket = Ticket(weight)
    ticket.caller = CallerFacts(None, key=key, share=SHARES[key])
    return ticket


class Scene:
    """A controller, who is inside, and the laws after each event."""

    def __init__(
        self, cap: int, queue: int, *, fair: bool = True, kind: type[FairShare] = FairShare
    ) -> None:
        self.line = AdmissionController(
            AdmissionLimits(cap=cap, queue=queue, queue_timeout_s=1e6, fair_share=fair)
        )
        if fair:
            self.line._fair = kind()
        self.cap, self.queue, self.fair = cap, queue, fair
        self.now = 0.0
        self.flying: OrderedDict[int, Ticket] = OrderedDict()
        self.came: dict[str, list[int]] = {}
        """Those who wait, by key and in order."""
        self.granted: list[str] = []
        self.refused: Counter[str] = Counter()
        self.passed: dict[int, Counter[str]] = {}
        """How often each key was let in before a head whose key held nothing."""

    def come(self, key: str, weight: int = 1) -> Ticket:
        """Bring somebody."""
        ticket = _ticket(key, weight)
        moves = self.line.arrive(ticket, self.now)
        if ticket.state is TicketState.QUEUED:
            self.came.setdefault(key, []).append(ticket.number)
        self._judge(moves, ticket)
        return ticket

    def end(self, ticket: Ticket) -> None:
        """Let somebody end, wherever it is."""
        if self.flying.pop(ticket.number, None) is None:
            self.came[ticket.key].remove(ticket.number)
        self._judge(self.line.finish(ticket, self.now))

    def end_first(self) -> None:
        """Let the one end who has been in flight for longest."""
        self.end(next(iter(self.flying.values())))

    def held(self, key: str) -> int:
        """Return the slots that a key holds, counted anew."""
        return sum(one.weight for one in self.flying.values() if one.key == key)

    def _judge(self, moves: object, newcomer: Ticket | None = None) -> None:
        for move in moves:  # type: ignore[attr-defined]
            if isinstance(move, Rejected):
                assert move.ticket is newcomer
                assert move.reason in {Reason.QUEUE_FULL, Reason.BAD_REQUEST}
                self.refused[newcomer.key] += 1
                continue
            assert isinstance(move, Admit)
            ticket = move.ticket
            waiting = self.came.get(ticket.key, [])
            if ticket.number in waiting:
                assert waiting[0] == ticket.number, "in order within a key"
                waiting.pop(0)
            self._note_passed(ticket.key)
            self.flying[ticket.number] = ticket
            self.granted.append(ticket.key)
        used = sum(one.weight for one in self.flying.values())
        assert used == self.line.in_flight <= self.cap
        waiting_now = self.line.waiting()
        assert len(waiting_now) <= self.queue
        assert [one.number for one in waiting_now] == sorted(chain(*self.came.values()))
        if waiting_now:
            free = self.cap - used
            lightest = {one.key: one.weight for one in reversed(waiting_now)}
            assert max(lightest.values()) > free, "nobody waits beside slots that fit every head"

    def _note_passed(self, key: str) -> None:
        """Count whom a grant passes, and hold that to what the shares allow."""
        for other, waiting in self.came.items():
            if not waiting or other == key or self.held(other):
                continue
            passed = self.passed.setdefault(waiting[0], Counter())
            passed[key] += 1
            most = 2 * ceil(SHARES[key] * self.cap / SHARES[other]) + 1
            assert passed[key] <= most, f"{key} passes {other} for the {passed[key]}th time"


def test_who_holds_the_fewest_slots_for_its_share_is_next() -> None:
    scene = Scene(cap=6, queue=100)
    for _ in range(30):
        scene.come("a")
    for _ in range(30):
        scene.come("c")  # a share of two
    for _ in range(30):
        scene.end_first()
    assert (scene.held("a"), scene.held("c")) == (2, 4)


def test_one_client_beside_a_hundred_waits_for_one_slot() -> None:
    scene = Scene(cap=6, queue=200)
    for _ in range(100):
        scene.come("a")
    newcomer = scene.come("b")
    assert newcomer.state is TicketState.QUEUED
    scene.end_first()
    assert newcomer.state is TicketState.IN_FLIGHT


@pytest.mark.parametrize(("key", "turns"), [("b", 50), ("c", 67)])
def test_with_one_slot_they_take_turns_by_their_shares(key: str, turns: int) -> None:
    scene = Scene(cap=1, queue=300)
    for _ in range(120):
        scene.come("a")
        scene.come(key)
    before = len(scene.granted)
    for _ in range(100):
        scene.end_first()
    assert abs(scene.granted[before:].count(key) - turns) <= 1


def test_with_one_slot_who_comes_each_time_when_it_is_done_has_every_second_turn() -> None:
    scene = Scene(cap=1, queue=300)
    for _ in range(150):
        scene.come("a")
    for _ in range(100):
        if not scene.came.get("b") and not scene.held("b"):
            scene.come("b")
        scene.end_first()
    assert 45 <= scene.granted.count("b") <= 55


def test_long_answers_of_one_key_do_not_crowd_out_short_ones_of_another() -> None:
    scene = Scene(cap=6, queue=2000)
    for key in ("a", "b") * 3:
        scene.come(key)
    for _ in range(20):
        scene.come("a")
    for _ in range(900):
        scene.come("b")
    for _ in range(500):  # those of `a` never end
        ended = next((one for one in scene.flying.values() if one.key == "b"), None)
        scene.end(ended or next(iter(scene.flying.values())))
    assert (scene.held("a"), scene.held("b")) == (3, 3)


def test_a_key_that_was_away_saves_up_no_turns() -> None:
    scene = Scene(cap=1, queue=500)
    for _ in range(400):
        scene.come("a")
    for _ in range(200):
        scene.end_first()
    before = len(scene.granted)
    for _ in range(50):
        scene.come("b")
    for _ in range(20):
        scene.end_first()
    assert 9 <= scene.granted[before:].count("b") <= 11


def test_each_key_that_asked_lately_has_a_place_of_its_own() -> None:
    scene = Scene(cap=1, queue=4)
    scene.come("b")
    scene.end_first()
    scene.now = 1.0
    for _ in range(8):
        scene.come("a")
    assert scene.line.queued == 3, "the last place is for b"
    assert scene.come("b").state is TicketState.QUEUED
    assert scene.come("b").state is TicketState.GONE
    assert scene.come("c").state is TicketState.GONE, "all four are taken"
    scene.end_first()
    scene.come("a")
    assert scene.line.queued == 3, "and the next to come free is for c"
    scene.now += REMEMBERED_S + 1
    scene.come("a")
    assert scene.line.queued == 4, "but not for ever"


def test_limits_come_in_order_of_arrival_all_the_same() -> None:
    line = AdmissionController(
        AdmissionLimits(cap=1, queue=9, queue_timeout_s=5.0, fair_share=True)
    )
    line.arrive(_ticket("a"), 0.0)
    waiting = [_ticket(key) for key in "aab"]
    for at_s, ticket in enumerate(waiting):
        line.arrive(ticket, float(at_s))
    gone = []
    while (deadline_s := line.next_deadline()) is not None:
        gone += [move.ticket for move in line.expire(deadline_s)]
    assert gone == waiting


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("come", "come", "end", "leave")),
        st.sampled_from(("a", "b", "c", "")),
        st.integers(1, 3),
        st.integers(0, 9),
    ),
    max_size=80,
)
Steps = list[tuple[str, str, int, int]]


def _play(scene: Scene, steps: Steps, *, light: bool = False) -> Scene:
    for what, key, weight, which in steps:
        if what == "come":
            scene.come(key, 1 if light else weight)
        elif what == "end" and scene.flying:
            scene.end([*scene.flying.values()][which % len(scene.flying)])
        elif what == "leave" and scene.line.queued:
            waiting = scene.line.waiting()
            scene.end(waiting[which % len(waiting)])
        scene.now += 0.25
    while scene.flying:
        scene.end_first()
    assert (scene.line.in_flight, scene.line.queued) == (0, 0), "everybody's turn comes"
    if scene.line._fair is not None:
        assert not scene.line._fair._held
        assert not scene.line._fair._holders
    return scene


@settings(max_examples=200)
@given(st.integers(1, 4), st.integers(0, 8), STEPS)
def test_order_within_a_key_work_conservation_and_no_starvation(
    cap: int, queue: int, steps: Steps
) -> None:
    _play(Scene(cap, queue), steps)


@given(st.integers(1, 4), st.integers(0, 8), STEPS)
def test_off_nothing_is_different_whoever_asks(cap: int, queue: int, steps: Steps) -> None:
    def granted(rename: Callable[[str], str]) -> list[int]:
        line = AdmissionController(AdmissionLimits(cap=cap, queue=queue, queue_timeout_s=1e6))
        told: list[int] = []
        inside: list[Ticket] = []
        for what, key, weight, which in steps:
            if what == "come":
                inside.append(_ticket(rename(key), weight))
                moves = line.arrive(inside[-1], 0.0)
            elif inside:
                moves = line.finish(inside.pop(which % len(inside)), 0.0)
            else:
                continue
            told += [move.ticket.number * (1 if isinstance(move, Admit) else -1) for move in moves]
        return told

    assert granted(lambda key: key) == granted(lambda _: "a")


def test_one_key_alone_is_served_in_order_of_arrival_as_without() -> None:
    rng = Random(3)
    for _ in range(50):
        steps: Steps = [
            (
                rng.choice(("come", "come", "end", "leave")),
                "a",
                rng.randint(1, 3),
                rng.randint(0, 9),
            )
            for _ in range(60)
        ]
        fair, plain = Scene(2, 6), Scene(2, 6, fair=False)
        assert _play(fair, steps).refused == _play(plain, steps).refused


PLANTED = {
    "the most slots come first": ("held.get(head.key, 0) / head.share", "-held.get(head.key, 0)"),
    "shares are all alike": ("held.get(head.key, 0) / head.share", "held.get(head.key, 0)"),
    "turns are not counted": ("least + weight / ticket.share", "least"),
    "who was away saves up turns": (
        "turns[key] = max(turns.get(key, 0.0), self._least)",
        "turns.setdefault(key, 0.0)",
    ),
    "the last of a key comes first": (
        "heads.setdefault(waiter.key, waiter)",
        "heads[waiter.key] = waiter",
    ),
    "slots are never given back": ("self._held[key] -= weight", "pass"),
    "no place is kept": ("return len(self._asked_s.keys() - waiting)", "return 0"),
    "a place is kept for ever": ("now - REMEMBERED_S", "-1e9"),
    "its own place is another's": ("if ticket.key not in waiting:", "if False:"),
}


def _planted(old: str, new: str) -> ModuleType:
    source = Path(fair_share.__file__).read_text(encoding="utf-8")
    assert source.count(old) == 1, f"not found once: {old}"
    module = ModuleType("planted_fair_share")
    sys.modules[module.__name__] = module
    exec(compile(source.replace(old, new), "<planted>", "exec"), module.__dict__)  # noqa: S102
    return module


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = _planted(*PLANTED[bug]).FairShare
    monkeypatch.setattr(Scene.__init__, "__kwdefaults__", {"fair": True, "kind": kind})
    with pytest.raises((AssertionError, KeyError)):
        _all_of_the_above()


def _all_of_the_above() -> None:
    test_who_holds_the_fewest_slots_for_its_share_is_next()
    test_with_one_slot_they_take_turns_by_their_shares("c", 67)
    test_a_key_that_was_away_saves_up_no_turns()
    test_each_key_that_asked_lately_has_a_place_of_its_own()
    rng = Random(11)
    for _ in range(60):
        _play(
            Scene(rng.randint(1, 4), rng.randint(0, 8)),
            [
                (
                    rng.choice(("come", "come", "end", "leave")),
                    rng.choice(("a", "b", "c", "")),
                    rng.randint(1, 3),
                    rng.randint(0, 9),
                )
                for _ in range(60)
            ],
        )


def test_no_bug_is_seen_where_none_is() -> None:
    _all_of_the_above()
