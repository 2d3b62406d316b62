"""Weekly schedules: every line, every clock, and the two nights a year with another length."""

from datetime import UTC, datetime, timedelta
from math import inf
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_frontdoor.config.schedule import TimeZone, parse_rule
from tornado_frontdoor.core.schedule import DAYS, Rule, Wish, wish_at

BERLIN = TimeZone("Europe/Berlin")
OFFICE = parse_rule("awake mon-fri 08:00-18:00")
NIGHT = parse_rule("asleep daily 22:00-06:00")


def at(text: str, zone: str = "Europe/Berlin") -> float:
    """Return an instant by the clocks of a zone; with `Z`, by UTC."""
    shown = datetime.fromisoformat(text)
    return (shown if shown.tzinfo else shown.replace(tzinfo=ZoneInfo(zone))).timestamp()


@pytest.mark.parametrize(
    ("text", "awake", "days"),
    [
        ("awake mon-fri 08:00-18:00", True, {0, 1, 2, 3, 4}),
        ("asleep daily 22:00-06:00", False, set(range(7))),
        ("awake sat,sun 00:00-24:00", True, {5, 6}),
        ("awake fri-mon 09:00-10:00", True, {4, 5, 6, 0}),
        ("asleep wed 12:30-12:30", False, {2}),
    ],
)
def test_a_line_is_read(text, awake, days):
    rule = parse_rule(text)
    assert (rule.awake, rule.days, rule.text) == (awake, days, text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "of the form"),
        ("awake 08:00-18:00", "of the form"),
        ("Awake mon 08:00-18:00", "of the form"),
        ("awake mon 8:00-18:00", "of the form"),
        ("awake monday 08:00-18:00", "monday is none of daily, mon"),
        ("awake mon-holiday 08:00-18:00", "mon-holiday is none of"),
        ("awake mon, 08:00-18:00", " is none of"),
        ("awake mon 08:00-25:00", "25:00 is no time"),
        ("awake mon 08:60-09:00", "08:60 is no time"),
        ("awake mon 24:00-09:00", "24:00 can only be an end"),
    ],
)
def test_what_is_no_line_says_what_is_wrong(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_rule(text)


@pytest.mark.parametrize(
    ("now", "awake", "until"),
    [
        # 2026-11-30 is a Monday.
        ("2026-11-30T07:59:59", None, "2026-11-30T08:00"),
        ("2026-11-30T08:00:00", True, "2026-11-30T18:00"),
        ("2026-11-30T17:59:59", True, "2026-11-30T18:00"),
        ("2026-11-30T18:00:00", None, "2026-11-30T22:00"),
        ("2026-11-30T23:00:00", False, "2026-12-01T06:00"),
        ("2026-12-01T05:59:59", False, "2026-12-01T06:00"),
        ("2026-12-05T12:00:00", None, "2026-12-05T22:00"),  # a Saturday
        ("2026-12-07T03:00:00", False, "2026-12-07T06:00"),  # begun on Sunday
    ],
)
def test_office_hours_and_nights(now, awake, until):
    wish = wish_at([OFFICE, NIGHT], BERLIN, at(now))
    assert (wish.awake, wish.until_s) == (awake, at(until))
    assert wish.rule == {True: OFFICE.text, False: NIGHT.text, None: ""}[awake]


def test_of_two_lines_the_first_one_counts():
    noon = parse_rule("asleep daily 12:00-13:00")
    assert wish_at([noon, OFFICE], BERLIN, at("2026-11-30T12:30")).awake is False
    wish = wish_at([OFFICE, noon], BERLIN, at("2026-11-30T12:30"))
    assert (wish.awake, wish.until_s) == (True, at("2026-11-30T18:00"))


def test_lines_that_follow_one_another_are_one_span():
    more = parse_rule("awake mon 18:00-20:00")
    wish = wish_at([OFFICE, more], BERLIN, at("2026-11-30T09:00"))
    assert wish.until_s == at("2026-11-30T20:00")


def test_always_has_no_end_and_nothing_has_none_either():
    always = parse_rule("awake daily 00:00-24:00")
    assert wish_at([always], BERLIN, at("2026-11-30T09:00")) == Wish(True, inf, always.text)
    assert wish_at([], BERLIN, 0.0) == Wish()


@pytest.mark.parametrize(
    ("rule", "begin", "end"),
    [
        # On 2026-03-29 clocks go from 02:00 to 03:00, on 2026-10-25 from 03:00 back to 02:00.
        ("awake sun 02:30-04:00", "2026-03-29T01:30:00Z", "2026-03-29T02:00:00Z"),
        ("awake sun 01:00-02:30", "2026-03-29T00:00:00Z", "2026-03-29T01:30:00Z"),
        ("awake sat 22:00-06:00", "2026-03-28T21:00:00Z", "2026-03-29T04:00:00Z"),
        ("awake sun 02:30-04:00", "2026-10-25T00:30:00Z", "2026-10-25T03:00:00Z"),
        ("awake sun 01:00-02:30", "2026-10-24T23:00:00Z", "2026-10-25T00:30:00Z"),
        ("awake sat 22:00-06:00", "2026-10-24T20:00:00Z", "2026-10-25T05:00:00Z"),
        ("awake sun 00:00-24:00", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"),
    ],
)
def test_nights_in_which_the_clocks_are_changed(rule, begin, end):
    rules = [parse_rule(rule)]
    for before_s, awake in ((1.0, None), (0.0, True)):
        assert wish_at(rules, BERLIN, at(begin) - before_s).awake is awake
    assert wish_at(rules, BERLIN, at(begin)).until_s == at(end)
    assert wish_at(rules, BERLIN, at(end) - 1.0).awake is True
    assert wish_at(rules, BERLIN, at(end)).awake is None


def test_a_span_that_the_change_leaves_empty_is_none():
    rules = [parse_rule("awake sun 02:30-03:00")]
    wish = wish_at(rules, BERLIN, at("2026-03-29T01:30:00Z"))
    assert wish.awake is None
    assert wish.until_s == at("2026-04-05T02:30")


ZONES = st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"])
MINUTES = st.integers(0, 1439)
RULES = st.lists(
    st.builds(
        lambda awake, days, begin, end: Rule(awake, frozenset(days), begin, end, "a rule"),
        st.booleans(),
        st.sets(st.integers(0, 6), min_size=1),
        MINUTES,
        st.integers(1, 1440),
    ),
    min_size=1,
    max_size=3,
)
INSTANTS = st.integers(int(at("2026-01-01T00:00:00Z")), int(at("2028-01-01T00:00:00Z")))


def naive(rules: list[Rule], zone: str, instant_s: float) -> bool | None:
    """The same by the calendar of the standard library, span by span."""
    here = datetime.fromtimestamp(instant_s, ZoneInfo(zone))
    for rule in rules:
        for back in (0, 1):
            day = (here - timedelta(days=back)).date()
            if day.weekday() not in rule.days:
                continue
            midnight = datetime.combine(day, datetime.min.time())
            ends = rule.end if rule.end > rule.begin else rule.end + 1440
            begin, end = (
                (midnight + timedelta(minutes=minute)).replace(tzinfo=ZoneInfo(zone))
                for minute in (rule.begin, ends)
            )
            if begin.timestamp() <= instant_s < end.timestamp():
                return rule.awake
    return None


@given(RULES, ZONES, INSTANTS)
def test_it_is_what_the_calendar_says_and_stays_so_until_it_says(rules, zone, instant):
    wish = wish_at(rules, TimeZone(zone), float(instant))
    assert wish.awake is naive(rules, zone, instant)
    assert wish.until_s > instant
    if wish.until_s == inf:
        assert naive(rules, zone, instant + 3 * 86400) is wish.awake
        return
    assert naive(rules, zone, wish.until_s) is not wish.awake
    for share in (0.25, 0.5, 0.75):
        between_s = instant + share * (wish.until_s - instant)
        assert naive(rules, zone, between_s) is wish.awake


def test_a_zone_that_the_system_does_not_know_is_refused():
    for name in ("Mars/Olympus", "../etc/passwd", ""):
        with pytest.raises(ValueError, match="is no time zone"):
            TimeZone(name)


def test_days_are_those_of_the_calendar():
    assert DAYS[(BERLIN.day_of(datetime(2026, 11, 30, tzinfo=UTC).timestamp()) - 1) % 7] == "mon"
