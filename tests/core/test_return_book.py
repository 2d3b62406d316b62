"""Promises: within what clients obey, an interval apart, remembered for a while, kept in number."""

import sys
from collections.abc import Hashable
from pathlib import Path
from random import Random
from types import ModuleType
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tornado_frontdoor.core import return_book
from tornado_frontdoor.core.clock import ManualClock
from tornado_frontdoor.core.decisions import Outcome, Reason, Refuse
from tornado_frontdoor.core.gate import AdmissionLimits, Gate
from tornado_frontdoor.core.request import CallerFacts, Ticket, TicketState, UpstreamKey
from tornado_frontdoor.core.return_book import (
    BEYOND_S,
    EARLY_S,
    LATE_S,
    LONGEST_S,
    MOST_PROMISES,
    SHORTEST_S,
    ReturnBook,
)


class Dice:
    """A source of randomness that tells how often it was asked."""

    def __init__(self) -> None:
        self.rolls = 0

    def uniform(self, a: float, b: float) -> float:
        self.rolls += 1
        return (a + b) / 2


# Instants


def test_each_gets_an_instant_of_its_own_one_interval_after_the_last() -> None:
    book = ReturnBook(Dice())
    assert [book.promise_s(b"a", 0.0, 1.5, 0) for _ in range(3)] == [1.5, 3.0, 4.5]


def test_nobody_is_called_back_before_the_queue_can_have_drained() -> None:
    assert ReturnBook(Dice()).promise_s(b"a", 100.0, 3.0, 8) == 27.0


def test_nobody_is_called_back_before_it_is_of_use_to_them() -> None:
    assert ReturnBook(Dice()).promise_s(b"a", 100.0, 3.0, 1, earliest_s=20.0) == 20.0


def test_a_promise_of_long_ago_binds_nobody() -> None:
    book = ReturnBook(Dice())
    for _ in range(10):
        book.promise_s(b"a", 0.0, 2.0, 0)
    assert book.promise_s(b"a", 1000.0, 2.0, 0) == 2.0


def test_beyond_what_clients_obey_the_crowd_is_spread_over_the_end_of_it() -> None:
    book = ReturnBook(Random(3))
    times = [book.promise_s(number, 0.0, 30.0, 0) for number in range(200)]
    assert times[0] == 30.0
    assert all(BEYOND_S <= time_s <= LONGEST_S for time_s in times[1:])
    assert len(set(times)) > 190


def test_dice_are_rolled_only_beyond_that() -> None:
    dice = Dice()
    book = ReturnBook(dice)
    for _ in range(2):
        book.promise_s(None, 0.0, 20.0, 0)
    before = dice.rolls
    assert book.promise_s(None, 0.0, 20.0, 0) == (BEYOND_S + LONGEST_S) / 2
    assert (before, dice.rolls) == (0, 1)


def test_a_second_is_a_second_at_any_time_of_day() -> None:
    now = 0.4
    assert (now + 1.0) - now < 1.0
    assert ReturnBook(Dice()).promise_s(b"a", now, 0.001, 0) == 1.0


def test_those_who_come_back_for_a_wake_come_one_after_another() -> None:
    book = ReturnBook(Dice())
    times = [book.wake_return_s(100.0, left_s=38.0) for _ in range(50)]
    assert times[0] == pytest.approx(38.0)
    assert len({round(time_s * 1000) for time_s in times}) == 50
    assert times[-1] == pytest.approx(38.0 + 49 * 0.1)


def test_a_long_wake_is_waited_for_as_long_as_clients_obey() -> None:
    book = ReturnBook(Random(3))
    times = [book.wake_return_s(0.0, left_s=300.0) for _ in range(50)]
    assert all(54.0 <= time_s <= 59.0 for time_s in times)
    assert len(set(times)) == 50


REFUSALS = st.lists(
    st.tuples(st.floats(0, 40), st.floats(0.001, 100), st.integers(0, 200)), max_size=60
)


@given(st.floats(0, 1e7), REFUSALS)
def test_promises_are_within_a_minute_and_an_interval_apart(
    start_s: float, story: list[tuple[float, float, int]]
) -> None:
    """F23: between 1 and 59 seconds, whatever was seen and however late it is."""
    dice = Dice()
    book = ReturnBook(dice)
    now = start_s
    last_s: float | None = None
    for pause_s, interval_s, queued in story:
        now += pause_s
        rolls = dice.rolls
        retry_s = book.promise_s(b"a", now, interval_s, queued)
        assert SHORTEST_S <= retry_s <= LONGEST_S
        if dice.rolls > rolls:
            continue
        if last_s is not None:
            assert now + retry_s - last_s >= interval_s - 1e-6
        last_s = now + retry_s


# Who comes back


@pytest.mark.parametrize(
    ("late_s", "known"),
    [
        (-EARLY_S - 0.01, False),
        (-EARLY_S, True),
        (0.0, True),
        (LATE_S, True),
        (LATE_S + 0.01, False),
    ],
)
def test_a_caller_is_known_about_when_it_was_told_to_come(late_s: float, *, known: bool) -> None:
    book = ReturnBook(Dice())
    told_s = book.promise_s(b"a", 0.0, 4.0, 0)
    assert book.take_up(b"a", told_s + late_s) is known
    assert book.came_back == known


def test_only_who_was_told_is_known_and_only_once() -> None:
    book = ReturnBook(Dice())
    book.promise_s(b"a", 0.0, 4.0, 0)
    assert not book.take_up(b"b", 4.0)
    assert not book.take_up(None, 4.0)
    assert book.take_up(b"a", 4.0)
    assert not book.take_up(b"a", 4.0)


def test_who_came_too_early_is_still_expected() -> None:
    book = ReturnBook(Dice())
    book.promise_s(b"a", 0.0, 4.0, 0)
    assert not book.take_up(b"a", 1.0)
    assert book.take_up(b"a", 4.0)


def test_twins_are_told_an_instant_each_and_none_is_expected() -> None:
    """Forty clients may ask the very same: who comes next is not who was sent away."""
    book = ReturnBook(Dice())
    told = [book.promise_s(b"same", 0.0, 3.0, 0) for _ in range(3)]
    assert told == [3.0, 6.0, 9.0]
    assert len(book) == 0
    assert not any(book.take_up(b"same", time_s) for time_s in told)
    assert (book.came_back, book.stayed_away) == (0, 0)


def test_a_twin_is_known_again_once_the_others_are_over() -> None:
    book = ReturnBook(Dice())
    for _ in range(3):
        last_s = book.promise_s(b"same", 0.0, 3.0, 0)
    over_s = last_s + LATE_S
    assert len(book) == 0
    book.promise_s(b"same", over_s, 3.0, 0)
    assert len(book) == 0
    again_s = over_s + 3.0 + LATE_S + 0.1
    told_s = book.promise_s(b"same", again_s, 3.0, 0)
    assert book.take_up(b"same", again_s + told_s)


def test_twins_are_bounded_too() -> None:
    book = ReturnBook(Dice())
    for number in range(2 * MOST_PROMISES):
        for _ in range(2):
            book.promise_s(number, number / 1000, 0.001, 0)
    assert len(book._twins) <= MOST_PROMISES


# Places


def _with_faith(book: ReturnBook) -> None:
    """Let the book see ten callers come back, in one second."""
    for number in range(10):
        told_s = book.promise_s(b"first", number / 10, 0.0, 0)
        assert book.take_up(b"first", number / 10 + told_s)


def test_no_place_is_kept_before_anybody_was_seen_to_come_back() -> None:
    book = ReturnBook(Dice())
    for number in range(10):
        book.promise_s(number, 0.0, 1.0, 0)
    assert book.kept(5.0, 1.0, 4) == 0


def test_a_place_is_kept_for_each_who_is_due_up_to_the_limit() -> None:
    book = ReturnBook(Dice())
    _with_faith(book)
    for number in range(3):
        book.promise_s(number, 2.0, 10.0, 0)  # due at 12, 22, 32
    kept = [book.kept(now, 1.0, 4) for now in (2.0, 8.0, 12.0, 13.9, 14.1)]
    assert kept == [0, 1, 1, 1, 0]
    assert book.kept(15.0, 10.0, 4) == 2
    assert book.kept(15.0, 10.0, 1) == 1


def test_a_place_that_is_not_taken_is_given_to_others_when_its_time_has_passed() -> None:
    book = ReturnBook(Dice())
    _with_faith(book)
    told_s = book.promise_s(b"a", 2.0, 1.0, 0)
    assert book.kept(2.0 + told_s, 1.0, 4) == 1
    assert book.kept(2.0 + told_s + LATE_S + 0.01, 1.0, 4) == 0
    assert book.stayed_away == 1


def test_before_clients_that_never_come_back_no_place_is_kept_for_long() -> None:
    book = ReturnBook(Dice())
    _with_faith(book)
    now, kept = 2.0, []
    for number in range(100):
        now += 1.0
        book.promise_s(number, now, 1.0, 0)
        kept.append(book.kept(now, 1.0, 4))
    assert max(kept) <= 4
    assert not any(kept[60:])


# Against the book as it is said in words


class Known(NamedTuple):
    """Somebody who is expected."""

    at_s: float
    token: Hashable


class NaiveBook:
    """What is open, as a plain list; taken up or passed, each with its end in order."""

    def __init__(self) -> None:
        self.open: list[Known] = []
        self.ends: list[float] = []
        self.twins: dict[Hashable, float] = {}

    def pass_until(self, now: float) -> None:
        over = sorted(one for one in self.open if one.at_s < now - LATE_S)
        self.open = [one for one in self.open if one.at_s >= now - LATE_S]
        self.ends += [0.0 for _ in over]

    def promised(self, token: Hashable, now: float, at_s: float) -> None:
        if token is None:
            return
        most = return_book.MOST_PROMISES
        self.twins = {one: end_s for one, end_s in self.twins.items() if end_s >= now}
        others = [one for one in self.open if one.token != token]
        if len(others) < len(self.open) or token in self.twins:
            self.open = others
            if len(self.twins) < most or token in self.twins:
                self.twins[token] = at_s + LATE_S
        elif len(self.open) < most:
            self.open.append(Known(at_s, token))

    def take_up(self, token: Hashable, now: float) -> bool:
        self.pass_until(now)
        due = [one for one in self.open if one.token == token and one.at_s <= now + EARLY_S]
        if due:
            self.open.remove(min(due, key=lambda one: one.at_s))
            self.ends.append(1.0)
        return bool(due)

    def kept(self, now: float, interval_s: float, places: int) -> int:
        self.pass_until(now)
        share = 0.0
        for number, end in enumerate(self.ends, start=1):
            share += max(1 / 32, 1 / number) * (end - share)
        due = len([one for one in self.open if one.at_s <= now + EARLY_S + places * interval_s])
        return min(places, int(due * share + 0.5))


CALLERS = (*b"abcdefghijklmnopqrst", None)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("refuse", "come", "on time", "keep")),
        st.sampled_from((0.0, 0.0, 0.25, 1.0, 2.0, 7.0)),
        st.sampled_from(CALLERS),
        st.sampled_from((0.25, 1.0, 4.0, 30.0)),
        st.integers(0, 5),
    ),
    min_size=3,
    max_size=60,
)
Story = list[tuple[str, float, int | None, float, int]]


def _tell(story: Story, kind: type[ReturnBook], most: int = 8) -> None:
    """Hold a book against the naive one, event by event."""
    book, naive = kind(Random(1)), NaiveBook()
    now = 0.0
    for what, pause_s, who, interval_s, places in story:
        now += pause_s
        naive.pass_until(now)
        token: Hashable = who
        if what == "refuse":
            told_s = book.promise_s(who, now, interval_s, places)
            naive.promised(who, now, now + told_s)
        elif what == "keep":
            assert book.kept(now, interval_s, places) == naive.kept(now, interval_s, places)
        else:
            if what == "on time" and naive.open:
                soonest = min(naive.open, key=lambda one: one.at_s)
                now, token = max(now, soonest.at_s), soonest.token
            assert book.take_up(token, now) is naive.take_up(token, now)
            assert len(book) == len(naive.open)
        assert len(book) <= most
        assert (book.came_back, book.stayed_away) >= (0, 0)
    naive.pass_until(now)
    book.kept(now, 1.0, 0)
    assert len(book) == len(naive.open)
    assert book.came_back == naive.ends.count(1.0)
    assert book.stayed_away == naive.ends.count(0.0)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a book be full after eight promises."""
    monkeypatch.setattr(return_book, "MOST_PROMISES", 8)


@settings(max_examples=150)
@given(STEPS)
def test_a_book_does_what_the_words_say(story: Story) -> None:
    _tell(story, ReturnBook, MOST_PROMISES)


@pytest.mark.usefixtures("small")
def test_a_book_is_bounded() -> None:
    rng = Random(5)
    for _ in range(40):
        _tell(_drawn(rng, 60), ReturnBook)


PLANTED = {
    "promises pile up": ("self._last_s + interval_s", "self._last_s"),
    "the queue is not waited for": ("(queued + 1) * interval_s", "interval_s"),
    "a promise outlives its time": ("del due[: len(over)]", "pass"),
    "a promise is taken up twice": ("self._strike(promise)", "pass"),
    "a promise is taken up too early": ("promise.at_s > now + EARLY_S", "False"),
    "twins are told apart": ("if before is not None:", "if False:"),
    "a third is no twin": ("elif self._twins.get(token, -inf) < now:", "else:"),
    "twins are twins for ever": ("self._twins.get(token, -inf) < now", "token not in self._twins"),
    "whoever is late is forgotten at once": (
        "for promise in due if",
        "for promise in due if True or",
    ),
    "a place is kept too long": ("now - LATE_S]", "now - 2 * LATE_S]"),
    "those who stay away are not learned of": ("self._learn(0.0)", "pass"),
    "those who come are not learned of": ("self._learn(1.0)", "pass"),
    "more places are kept than there are": ("min(places, int(", "max(0, int("),
    "the far future is kept for": ("now + EARLY_S + places * interval_s", "inf"),
    "the book grows": ("len(self.due) < MOST_PROMISES", "True"),
    "nobody is struck": ("self.due.remove(promise)", "pass"),
}


def _drawn(rng: Random, length: int) -> Story:
    return [
        (
            rng.choice(("refuse", "refuse", "come", "on time", "keep")),
            rng.choice((0.0, 0.0, 0.25, 1.0, 2.0, 7.0)),
            rng.choice(CALLERS),
            rng.choice((0.25, 1.0, 4.0, 30.0)),
            rng.randint(0, 5),
        )
        for _ in range(length)
    ]


def _planted(old: str, new: str) -> ModuleType:
    source = Path(return_book.__file__).read_text(encoding="utf-8")
    assert source.count(old) == 1, f"not found once: {old}"
    module = ModuleType("planted_return_book")
    sys.modules[module.__name__] = module
    exec(compile(source.replace(old, new), "<planted>", "exec"), module.__dict__)  # noqa: S102
    module.__dict__["MOST_PROMISES"] = 8
    return module


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    book = _planted(*PLANTED[bug]).ReturnBook
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever a bug raises
        _judge(book)


def _judge(kind: type[ReturnBook]) -> None:
    rng = Random(7)
    for _ in range(60):
        _tell(_drawn(rng, 60), kind)
    assert kind(Dice()).promise_s(b"a", 0.0, 1.5, 3) == 6.0
    book = kind(Dice())
    first, second = (book.promise_s(b"a", 0.0, 2.0, 0) for _ in range(2))
    assert second - first >= 2.0


@pytest.mark.usefixtures("small")
def test_no_bug_is_seen_where_none_is() -> None:
    _judge(ReturnBook)


# In a gate


def _gate(return_places: int = 2) -> tuple[Gate, ManualClock]:
    clock = ManualClock()
    limits = AdmissionLimits(cap=1, queue=4, queue_timeout_s=1e6, return_places=return_places)
    return Gate(UpstreamKey("reasoning"), limits, clock, Random(1)), clock


def _ask(gate: Gate, token: Hashable = None) -> tuple[Ticket, float | None]:
    """Bring somebody; returns what they are told when they are refused."""
    ticket = Ticket()
    ticket.caller = CallerFacts(token=token)
    for decision in gate.arrive(ticket):
        if isinstance(decision, Refuse) and decision.ticket is ticket:
            assert decision.refusal.reason is Reason.QUEUE_FULL
            return ticket, decision.refusal.retry_after_s
    return ticket, None


def test_who_comes_back_when_told_finds_a_place_that_a_newcomer_does_not() -> None:
    gate, clock = _gate()
    inside = [_ask(gate)[0] for _ in range(5)]
    told = [_ask(gate, number)[1] for number in range(3)]
    assert all(told_s is not None for told_s in told)
    begun_s = clock.now()

    def until(number: int) -> None:
        clock.advance(begun_s + (told[number] or 0.0) - clock.now())

    until(0)
    for _ in range(3):
        gate.finish(inside.pop(0), Outcome.SERVED)
    assert _ask(gate, 0)[1] is None, "the first comes back and finds a place"
    until(1)
    assert gate.queued == 2
    assert _ask(gate)[1] is not None, "two places are free, and both are kept"
    assert _ask(gate, 1)[1] is None
    assert gate.returns_kept == 1
    until(2)
    assert _ask(gate, 2)[1] is None
    assert gate.queued == 4
    assert (gate.came_back, gate.returns_expected) == (3, 0)


def test_a_free_slot_is_kept_for_nobody() -> None:
    gate, clock = _gate(return_places=4)
    inside = [_ask(gate)[0] for _ in range(5)]
    told = [_ask(gate, number)[1] or 0.0 for number in range(3)]
    gate.finish(inside.pop(), Outcome.SERVED)
    clock.advance(told[0])
    assert _ask(gate, 0)[1] is None
    assert gate.returns_kept > 0
    for ticket in [*inside, *gate.waiting()]:
        gate.finish(ticket, Outcome.SERVED)
    assert gate.returns_kept > 0
    assert _ask(gate)[0].state is TicketState.IN_FLIGHT


def test_a_gate_that_keeps_no_places_knows_no_difference() -> None:
    gate, clock = _gate(return_places=0)
    for _ in range(5):
        _ask(gate)
    told_s = _ask(gate, b"a")[1] or 0.0
    clock.advance(told_s)
    assert _ask(gate, b"a")[1] is not None
    assert gate.returns_kept == 0
