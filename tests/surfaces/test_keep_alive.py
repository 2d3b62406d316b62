"""`keep_alive`: read in every form that clients send, and taken out of the body."""

import json
from math import inf

import pytest
from msgspec.structs import replace

from tornado_frontdoor.core.catalog import Catalog, Target
from tornado_frontdoor.core.decisions import Reason
from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.surfaces.anthropic import AnthropicSurface
from tornado_frontdoor.surfaces.base import Refused, Surface, SurfaceRequest
from tornado_frontdoor.surfaces.bodies import read_json
from tornado_frontdoor.surfaces.keep_alive import duration_s, keep_alive_s, without_keep_alive
from tornado_frontdoor.surfaces.openai import OpenAISurface


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (300, 300.0),
        (0, 0.0),
        (0.5, 0.5),
        (-1, inf),
        (-0.1, inf),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("250ms", 0.25),
        ("-1m", inf),
        ("-1", inf),
        ("0", 0.0),
        ("90", 90.0),
        (" 24h ", 86400.0),
        (None, None),
    ],
)
def test_each_form_of_a_client_means_seconds(value: object, seconds: float | None) -> None:
    assert keep_alive_s(value, "keep_alive") == seconds


@pytest.mark.parametrize(
    "value",
    ["", "soon", "5 m", "m5", "5m!", "1e9", "--1", "9" * 13, True, [], {}, float("nan"), inf],
)
def test_what_is_no_time_is_refused_with_the_place(value: object) -> None:
    with pytest.raises(Refused) as refused:
        keep_alive_s(value, "keep_alive")
    assert refused.value.refusal.reason is Reason.BAD_REQUEST
    assert refused.value.refusal.param == "keep_alive"


@pytest.mark.parametrize("value", [inf, 1e12, 10**400, json.loads("1e400")])
def test_a_number_that_is_no_time_is_called_too_large(value: object) -> None:
    with pytest.raises(Refused, match="keep_alive is too large a number of seconds"):
        keep_alive_s(value, "keep_alive")


@pytest.mark.parametrize("value", [-inf, -1e13, -(10**400)])
def test_a_number_far_below_0_is_not_called_large(value: object) -> None:
    with pytest.raises(Refused, match="keep_alive is too far below 0; -1 means for good"):
        keep_alive_s(value, "keep_alive")


def test_what_is_not_a_number_is_called_none() -> None:
    with pytest.raises(Refused, match="keep_alive must be a number of seconds, or a duration"):
        keep_alive_s(json.loads("NaN"), "keep_alive")


def test_a_duration_may_be_negative() -> None:
    assert duration_s("-1h30m") == -5400.0


def test_the_field_goes_and_all_else_stays() -> None:
    body = b'{"model": "m", "keep_alive":  "5m" ,"messages": [{"keep_alive": 1}], "x": 1.50}'
    parsed, said_s = without_keep_alive(read_json(body))
    assert said_s == 300.0
    assert parsed.source == b'{"model": "m", "messages": [{"keep_alive": 1}], "x": 1.50}'
    assert json.loads(parsed.source)["x"] == 1.5


def test_a_body_without_it_is_the_same_object() -> None:
    parsed = read_json(b'{"model": "m"}')
    assert without_keep_alive(parsed) == (parsed, None)
    assert without_keep_alive(parsed)[0] is parsed


@pytest.mark.parametrize("dialect", ["translate", "native", "openai"])
def test_no_engine_sees_the_field_in_any_dialect(dialect: str) -> None:
    surface: Surface = OpenAISurface()
    path = "/v1/chat/completions"
    mode = "native" if dialect == "native" else "translate"
    if dialect != "openai":
        surface, path = AnthropicSurface(529, lambda: "id"), "/llm/v1/messages"
    catalog = Catalog(
        [Target(model="m", served_name="m", upstream=UpstreamKey("u"), anthropic=mode)]
    )
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
        "keep_alive": "10m",
    }
    call = SurfaceRequest(surface.route("POST", path), "", {}, json.dumps(body).encode(), "r1")
    request = surface.decode(call, catalog).request
    assert request.keep_alive_s == 600.0
    assert b"keep_alive" not in request.body
    headers = {"x-frontdoor-keep-alive": "1", "x-frontdoor-wake": "always", "x-mine": "1"}
    call = replace(call, headers=headers)
    names = {name for name, _ in surface.decode(call, catalog).request.headers}
    assert not names & {"x-frontdoor-keep-alive", "x-frontdoor-wake"}
