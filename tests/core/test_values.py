"""The small values of the core: time, tickets, decisions and their words."""

from collections.abc import Callable

import pytest

from tornado_frontdoor.core.clock import ManualClock
from tornado_frontdoor.core.decisions import OUTCOME_OF, Outcome, Reason, SleepDepth
from tornado_frontdoor.core.request import CanonicalRequest, Ticket, TicketState, UpstreamKey


def test_a_manual_clock_stands_until_it_is_moved() -> None:
    clock = ManualClock(5.0)
    clock.advance(2.5)
    clock.set(7.5)
    assert clock.now() == 7.5


@pytest.mark.parametrize("backwards", [lambda c: c.set(4.9), lambda c: c.advance(-0.1)])
def test_time_does_not_run_backwards(backwards: Callable[[ManualClock], None]) -> None:
    clock = ManualClock(5.0)
    with pytest.raises(ValueError, match="backwards"):
        backwards(clock)
    assert clock.now() == 5.0


@pytest.mark.parametrize("weight", [0, -1])
def test_a_ticket_weighs_at_least_one_slot(weight: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Ticket(weight)


def test_a_ticket_shows_itself() -> None:
    assert repr(Ticket(2)) == "<Ticket 0 weight=2 NEW>"
    assert Ticket().state is TicketState.NEW


def test_a_request_is_a_value() -> None:
    request = CanonicalRequest(
        surface="openai",
        model="Qwen",
        upstream=UpstreamKey("text"),
        path="/v1/completions",
        body=b"{}",
        content_type="application/json",
        stream=False,
    )
    assert (request.weight, request.headers, request.takes_slot) == (1, (), True)
    with pytest.raises(AttributeError, match="immutable"):
        request.weight = 2  # type: ignore[misc]


def test_outcomes_have_the_labels_that_dashboards_rely_on() -> None:
    assert [outcome.label for outcome in Outcome] == [
        *("served", "queue_full", "queue_timeout", "client_deadline"),
        *("model_waking", "model_asleep", "draining"),
        *("client_gone_queued", "client_gone_streaming", "upstream_error", "upstream_timeout"),
        *("bad_request", "model_not_found", "body_too_large", "cluster_outage"),
        *("unauthorized", "buffers_full", "request_timeout"),
    ]


def test_no_two_outcomes_share_an_end_code() -> None:
    codes = [outcome.code for outcome in Outcome]
    assert len(set(codes)) == len(codes)
    assert all(len(code) == 2 for code in codes)


def test_every_reason_is_counted_under_an_outcome() -> None:
    assert set(OUTCOME_OF) == set(Reason)
    same = [reason for reason in Reason if OUTCOME_OF[reason].label != reason.value]
    assert [reason.value for reason in same] == [
        *("upstream_down", "not_found", "method_not_allowed", "unsupported_media_type"),
        *("head_too_large", "invalid_api_key", "model_not_allowed"),
    ]


def test_depths_have_the_names_that_clients_read() -> None:
    names = ["sleeping", "offloaded", "stopped", "restarting"]
    assert [depth.value for depth in SleepDepth] == names
