"""The Anthropic surface: its allow-list and its model list."""

import json
from typing import Any

import pytest
from anthropic.types import ModelInfo
from anthropic_bench import bench
from pydantic import TypeAdapter

from tornado_frontdoor.core.catalog import Target, Traits
from tornado_frontdoor.core.decisions import Reason
from tornado_frontdoor.core.request import UpstreamKey
from tornado_frontdoor.surfaces.base import ListedModel, Refused, Route, RouteKind, SurfaceRequest

surface = bench.surface


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("POST", "/llm/v1/messages", Route(RouteKind.ENGINE, "/llm/v1/messages")),
        (
            "POST",
            "/llm/v1/messages/count_tokens",
            Route(RouteKind.ENGINE, "/llm/v1/messages/count_tokens"),
        ),
        ("GET", "/llm/v1/models", Route(RouteKind.MODELS, "/llm/v1/models")),
        ("GET", "/llm/v1/models/a", Route(RouteKind.MODELS, "/llm/v1/models", "a")),
        ("GET", "/llm/v1/models/a/b", Route(RouteKind.MODELS, "/llm/v1/models", "a/b")),
        ("GET", "/llm/v1/models/a%2Fb", Route(RouteKind.MODELS, "/llm/v1/models", "a/b")),
        ("HEAD", "/llm", Route(RouteKind.PROBE, "/llm")),
        ("GET", "/llm", Route(RouteKind.PROBE, "/llm")),
        ("HEAD", "/llm/", Route(RouteKind.PROBE, "/llm/")),
        ("GET", "/llm/", Route(RouteKind.PROBE, "/llm/")),
    ],
)
def test_allowed_paths(method: str, path: str, route: Route) -> None:
    assert surface.route(method, path) == route


@pytest.mark.parametrize(
    ("method", "path", "reason"),
    [
        ("POST", "/llm/v1/messages/", Reason.NOT_FOUND),
        ("POST", "/llm/v1/Messages", Reason.NOT_FOUND),
        ("POST", "/llm/v1/messages/batches", Reason.NOT_FOUND),
        ("GET", "/llm/v1/files", Reason.NOT_FOUND),
        ("POST", "/llm/v1/complete", Reason.NOT_FOUND),
        ("GET", "/llm/v1/skills", Reason.NOT_FOUND),
        ("GET", "/llm/v1", Reason.NOT_FOUND),
        ("POST", "/llm/v1/chat/completions", Reason.NOT_FOUND),
        ("POST", "/llm/sleep", Reason.NOT_FOUND),
        ("GET", "/llmx", Reason.NOT_FOUND),
        ("GET", "/v1/models", Reason.NOT_FOUND),
        ("GET", "/llm/v1/messages", Reason.METHOD_NOT_ALLOWED),
        ("PUT", "/llm/v1/messages/count_tokens", Reason.METHOD_NOT_ALLOWED),
        ("POST", "/llm/v1/models", Reason.METHOD_NOT_ALLOWED),
        ("DELETE", "/llm/v1/models/a", Reason.METHOD_NOT_ALLOWED),
        ("POST", "/llm", Reason.METHOD_NOT_ALLOWED),
    ],
)
def test_everything_else_is_refused(method: str, path: str, reason: Reason) -> None:
    with pytest.raises(Refused) as caught:
        surface.route(method, path)
    assert caught.value.refusal.reason is reason


def listed(name: str, **traits: Any) -> ListedModel:
    target = Target(
        model=name, served_name=name, upstream=UpstreamKey("u"), traits=Traits(**traits)
    )
    return ListedModel(name, target, "awake", None, 1_760_000_000)


FIVE = [listed(name) for name in ("a", "b", "c", "d", "e")]


def page(query: str = "", listing: list[ListedModel] | None = None) -> dict[str, Any]:
    route = surface.route("GET", "/llm/v1/models")
    document = surface.models(
        SurfaceRequest(route, query, {}, b"", "r1"), FIVE if listing is None else listing
    )
    assert document.status == 200
    assert ("request-id", "req_r1") in list(document.headers)
    body: dict[str, Any] = json.loads(document.body)
    TypeAdapter(list[ModelInfo]).validate_python(body["data"])
    return body


def names(query: str) -> tuple[list[str], bool]:
    body = page(query)
    ids = [model["id"] for model in body["data"]]
    assert body["first_id"] == (ids[0] if ids else None)
    assert body["last_id"] == (ids[-1] if ids else None)
    return ids, body["has_more"]


def test_model_is_listed_in_the_official_form() -> None:
    listing = [listed("claude-local", max_model_len=32768, max_output_tokens=8192)]
    assert page(listing=listing) == {
        "data": [
            {
                "type": "model",
                "id": "claude-local",
                "display_name": "claude-local",
                "created_at": "2025-10-09T08:53:20Z",
                "lifecycle": "active",
                "max_input_tokens": 32768,
                "max_tokens": 8192,
                "capabilities": None,
            }
        ],
        "first_id": "claude-local",
        "last_id": "claude-local",
        "has_more": False,
    }


def test_no_models_are_an_empty_page() -> None:
    assert page(listing=[]) == {"data": [], "first_id": None, "last_id": None, "has_more": False}


@pytest.mark.parametrize(
    ("query", "ids", "more"),
    [
        ("", "abcde", False),
        ("limit=1000", "abcde", False),
        ("limit=2", "ab", True),
        ("limit=2&after_id=b", "cd", True),
        ("limit=2&after_id=d", "e", False),
        ("after_id=e", "", False),
        ("limit=2&before_id=d", "bc", True),
        ("limit=2&before_id=b", "a", False),
        ("before_id=a", "", False),
        ("beta=true", "abcde", False),
        ("lifecycle[]=active", "abcde", False),
        ("lifecycle%5B%5D=retired&lifecycle%5B%5D=active", "abcde", False),
        ("lifecycle[]=retired", "", False),
    ],
)
def test_pages(query: str, ids: str, more: bool) -> None:
    assert names(query) == (list(ids), more)


def test_page_is_twenty_models_long_unless_asked() -> None:
    listing = [listed(f"m{number}") for number in range(30)]
    assert len(page(listing=listing)["data"]) == 20


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=-1", "limit=x", "limit=", "limit=1.5", "limit=" + "9" * 5000,
     "limit=²", "after_id=zz", "before_id=zz", "after_id=a&before_id=b"],
)  # fmt: skip
def test_bad_queries_are_refused(query: str) -> None:
    with pytest.raises(Refused) as caught:
        page(query)
    assert caught.value.refusal.reason is Reason.BAD_REQUEST


def test_one_model_is_found_by_its_name_in_any_case() -> None:
    listing = [listed("Qwen/Qwen3-8B")]
    route = surface.route("GET", "/llm/v1/models/qwen%2Fqwen3-8b")
    document = surface.models(SurfaceRequest(route, "", {}, b"", "r1"), listing)
    assert json.loads(document.body)["id"] == "Qwen/Qwen3-8B"
    with pytest.raises(Refused) as caught:
        surface.models(SurfaceRequest(route, "", {}, b"", "r1"), [])
    assert caught.value.refusal.reason is Reason.MODEL_NOT_FOUND
    assert caught.value.refusal.detail == "model: qwen/qwen3-8b"
