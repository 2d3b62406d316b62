"""What a request weighs: never less than the engine will run, never more than it could ever get."""

import json

import pytest

from tornado_frontdoor.core.catalog import Catalog, Target
from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.surfaces.anthropic import AnthropicSurface
from tornado_frontdoor.surfaces.base import DecodedRequest, Refused, SurfaceRequest
from tornado_frontdoor.surfaces.openai import OpenAISurface
from tornado_frontdoor.surfaces.steering import STEERING_FIELDS
from tornado_frontdoor.surfaces.weight import CHAT, COMPLETIONS, EMBEDDINGS, RERANK, SCORE

CATALOG = Catalog(
    [
        Target(model="m", served_name="m", upstream=UpstreamKey("u"), max_weight=6),
        Target(model="open", served_name="open", upstream=UpstreamKey("v")),
        Target(model="native", served_name="native", upstream=UpstreamKey("w"), anthropic="native"),
    ]
)


def decode(path: str, body: object, content_type: str = "application/json", **how: str):
    surface = OpenAISurface(**how)  # type: ignore[arg-type]
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": content_type}
    call = SurfaceRequest(surface.route("POST", path), "", headers, raw, "id")
    decoded: DecodedRequest = surface.decode(call, CATALOG)
    return decoded.request


def weight(path: str, model: str = "m", **fields: object) -> int:
    return decode(path, {"model": model, **fields}).weight


@pytest.mark.parametrize(
    ("value", "choices"),
    [
        (7, 7),
        ("7", 7),
        (7.0, 7),
        (" 7 ", 7),
        ("\t7\n", 7),
        ("+7", 7),
        ("7.0", 7),
        ("7e0", 7),
        ("07", 7),
        ("7_0", 70),
        (True, 1),
        (False, 1),
        (None, 1),
        (0, 1),
        (-2, 1),
        ("-2", 1),
        (10**30, 1_000_000),
    ],
)
@pytest.mark.parametrize("name", ["n", "best_of"])
def test_a_number_weighs_what_the_engine_makes_of_it(name, value, choices):
    """F42: a cap on requests alone would let one of them take the whole engine."""
    assert weight(CHAT, **{name: value}) == choices
    assert weight(COMPLETIONS, prompt=["a", "b"], **{name: value}) == min(2 * choices, 1_000_000)


def test_seven_as_json_writes_it():
    for written in (b"7e0", b"70e-1", b"7.000", b'"7"', b'1,"n":7'):
        assert decode(CHAT, b'{"model":"m","n":' + written + b"}").weight == 7


@pytest.mark.parametrize("value", ["x", "", "0x7", 7.5, "7.5", "nan", [7], {"n": 7}, "9" * 5000])
@pytest.mark.parametrize("name", ["n", "best_of"])
def test_what_is_no_number_is_refused_by_its_name(name, value):
    with pytest.raises(Refused) as refused:
        weight(CHAT, **{name: value})
    assert refused.value.refusal.param == name


@pytest.mark.parametrize("written", [b"NaN", b"Infinity", b"1e999"])
def test_a_number_that_is_not_finite_is_refused(written):
    with pytest.raises(Refused):
        decode(CHAT, b'{"model":"m","n":' + written + b"}")


def test_of_two_equal_keys_the_last_one_counts_as_for_engines():
    assert decode(CHAT, b'{"n":1,"model":"m","n":5}').weight == 5


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"prompt": "x"}, 1),
        ({"prompt": ["a", "b", "c"], "n": 2}, 6),
        ({"prompt": [[1, 2], [3]]}, 2),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [1.0, 2.0]}, 1),
        ({"prompt": []}, 1),
        ({"prompt": "x", "best_of": 4, "n": 2}, 4),
        ({"prompt_embeds": "QUJD"}, 1),
        ({"prompt_embeds": ["QUJD"] * 4}, 4),
        ({"prompt": ["a", "b"], "prompt_embeds": ["QUJD"] * 3, "n": 2}, 10),
    ],
)
def test_a_completion_weighs_its_prompts_times_its_choices(fields, expected):
    assert weight(COMPLETIONS, **fields) == expected


@pytest.mark.parametrize("name", ["prompt", "prompt_embeds"])
@pytest.mark.parametrize("value", [5, True, {"a": 1}])
def test_a_prompt_of_an_unknown_shape_is_refused_by_its_name(name, value):
    with pytest.raises(Refused) as refused:
        weight(COMPLETIONS, **{name: value})
    assert refused.value.refusal.param == name


@pytest.mark.parametrize(
    ("path", "fields", "count"),
    [
        (EMBEDDINGS, {"input": "x"}, 1),
        (EMBEDDINGS, {"input": [1, 2, 3, 4]}, 1),
        (EMBEDDINGS, {"input": ["a"] * 4}, 4),
        (EMBEDDINGS, {"input": [[1], [2]]}, 2),
        (EMBEDDINGS, {"input": [{"role": "user", "content": "x"}] * 3}, 1),
        (EMBEDDINGS, {"messages": [{"role": "user", "content": "x"}] * 3}, 1),
        (EMBEDDINGS, {"messages": [[{"role": "user", "content": "x"}]] * 3}, 3),
        (EMBEDDINGS, {"input": ["a"] * 50}, 50),
        (SCORE, {"text_1": "q", "text_2": ["a"] * 4}, 5),
        (SCORE, {"queries": "q", "documents": ["a"] * 99}, 100),
        (SCORE, {"queries": "q", "items": {"content": [{"type": "text", "text": "t"}] * 3}}, 4),
        (RERANK, {"query": "q", "documents": ["a"] * 3}, 4),
        (RERANK, {"query": "q", "documents": ["a"] * 2000}, 2001),
    ],
)
def test_a_list_of_texts_weighs_its_length_but_never_more_than_the_cap(path, fields, count):
    """A longer one is legal, and takes the whole cap."""
    assert weight(path, **fields) == min(count, 6)
    assert weight(path, "open", **fields) == count


@pytest.mark.parametrize("value", [5, True])
def test_an_input_of_an_unknown_shape_is_refused_by_its_name(value):
    with pytest.raises(Refused) as refused:
        weight(EMBEDDINGS, input=value)
    assert refused.value.refusal.param == "input"


def form(*fields: tuple[str, str]) -> bytes:
    parts = [
        f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields
    ]
    return ("".join(parts) + "--b--\r\n").encode()


def test_a_recording_weighs_its_beams():
    body = form(("model", "m"), ("n", "4"), ("use_beam_search", "true"))
    request = decode("/v1/audio/transcriptions", body, "multipart/form-data; boundary=b")
    assert request.weight == 4


# Fields that steer the engine past us


@pytest.mark.parametrize("name", sorted(STEERING_FIELDS))
def test_a_steering_field_is_removed_and_the_rest_goes_on_as_it_came(name):
    body = b'{"temperature":0.70,"%b":{"x":[1]}, "model":"m"}' % name.encode()
    assert decode(CHAT, body).body == b'{"temperature":0.70, "model":"m"}'


def test_steering_fields_hidden_among_extra_arguments_go_with_them():
    body = {"model": "m", "vllm_xargs": {"kv_transfer_params": "x"}}
    assert json.loads(decode(CHAT, body).body) == {"model": "m"}
    harmless = {"model": "m", "vllm_xargs": {"tags": 1}}
    assert json.loads(decode(CHAT, harmless).body) == harmless


def test_steering_fields_of_a_form_are_removed():
    body = form(("priority", "-1"), ("model", "m"), ("request_id", "mine"))
    request = decode("/v1/audio/transcriptions", body, "multipart/form-data; boundary=b")
    assert request.body == form(("model", "m"))


def test_steering_fields_are_refused_by_name_or_passed_where_the_file_says_so():
    body = {"model": "m", "priority": -1}
    with pytest.raises(Refused) as refused:
        decode(CHAT, body, steering="refuse")
    assert refused.value.refusal.param == "priority"
    boundary = "multipart/form-data; boundary=b"
    parts = form(("model", "m"), ("priority", "-1"))
    with pytest.raises(Refused):
        decode("/v1/audio/transcriptions", parts, boundary, steering="refuse")
    assert json.loads(decode(CHAT, body, steering="pass").body) == body


def test_steering_fields_do_not_reach_an_engine_that_speaks_anthropic_itself():
    surface = AnthropicSurface(529, lambda: "x")
    route = surface.route("POST", "/llm/v1/messages")
    body = {"model": "native", "max_tokens": 5, "kv_transfer_params": {}, "messages": []}
    call = SurfaceRequest(route, "", {}, json.dumps(body).encode(), "id")
    sent = json.loads(surface.decode(call, CATALOG).request.body)
    assert sent == {"model": "native", "max_tokens": 5, "messages": []}
