"""From what a caller wrote to who serves it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_frontdoor.core.catalog import Catalog, Routes, Target, is_glob
from tornado_frontdoor.core.request import UpstreamKey


def target(model: str, *aliases: str) -> Target:
    return Target(model=model, served_name=model, upstream=UpstreamKey("text"), aliases=aliases)


CATALOG = Catalog(
    [
        target("Qwen3.6-35B", "Qwen", "Claude-*", "gpt-?"),
        target("Haiku", "claude-haiku-*", "claude-haiku-4-5"),
        target("Both-A", "same-*-x"),
        target("Both-B", "same-x-*"),
        target("Exact", "claude-haiku-special"),
    ]
)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Qwen3.6-35B", "Qwen3.6-35B"),
        ("qwen3.6-35b", "Qwen3.6-35B"),
        ("QWEN", "Qwen3.6-35B"),
        ("claude-sonnet-5", "Qwen3.6-35B"),
        ("Claude-Haiku-4-5", "Haiku"),
        ("claude-haiku-3", "Haiku"),
        ("CLAUDE-HAIKU-SPECIAL", "Exact"),
        ("gpt-5", "Qwen3.6-35B"),
        ("same-x-x", "Both-A"),
        ("both-b", "Both-B"),
    ],
)
def test_exact_wins_over_globs_and_longer_globs_over_shorter_ones(name: str, model: str) -> None:
    found = CATALOG.resolve(name)
    assert found is not None
    assert found.model == model


@pytest.mark.parametrize("name", ["", "gpt-55", "qwen ", "my-claude-x", "*", "claude"])
def test_what_nobody_serves_is_nobodys(name: str) -> None:
    assert CATALOG.resolve(name) is None


def test_every_name_that_is_one_is_listed_once_in_the_order_of_the_file() -> None:
    catalog = Catalog([target("B", "b", "x", "X", "y-*"), target("A", "one")])
    assert [name for name, _ in catalog.names()] == ["B", "x", "A", "one"]
    assert [one.model for _, one in catalog.names()] == ["B", "B", "A", "A"]


def test_every_listed_name_resolves_to_its_model() -> None:
    for name, listed in CATALOG.names():
        assert CATALOG.resolve(name) is listed


@given(st.text("aBc-", max_size=6))
def test_case_never_matters(name: str) -> None:
    catalog = Catalog([target("abc"), target("Glob", "A*", "b-*")])
    assert catalog.resolve(name) is catalog.resolve(name.upper()) is catalog.resolve(name.lower())


def test_globs_are_told_from_names() -> None:
    assert [is_glob(alias) for alias in ("a", "a*", "a?", "[ab]", "a.b-c")] == [
        *(False, True, True, True, False)
    ]


def test_without_routes_every_request_must_name_its_model() -> None:
    assert Catalog([]).routes == Routes()
    assert Routes().chat_default is Routes().embeddings is Routes().multipart_chat_default is None
