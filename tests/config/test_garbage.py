"""Whatever a file holds, it gives settings or faults of one line each: nothing else comes out."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_frontdoor.config import ConfigError, load
from tornado_frontdoor.config.describe import describe, describe_json

WORDS = """
server listen admin_listen admin_token_file state_dir max_body_mib drain_timeout_s surfaces openai
anthropic anthropic_overloaded_status upstreams a b url connect_timeout_s admission slots cap queue
queue_timeout_s sleep idle_sleep_s idle_offload_s max_waiting canary canary_path gpu devices
utilization weights_gib memory_gib limit host ram_gib models upstream served_name aliases dialect
effort_map images routes chat_default embeddings value key _schema
""".split()

NAMES = st.sampled_from(WORDS) | st.text(max_size=5)
TEXTS = st.text(max_size=8) | st.sampled_from(
    ["a", "b", "A", "*", "[", "http://h", "http://h:80/", "http://[", "0.0.0.0:1", "[::1]:0", "x:0"]
)
SCALARS = (
    st.integers(-2, 10)
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | TEXTS
    | st.sampled_from([float("inf"), float("nan"), -1, 0, 0.5])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def likely_files(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a file with the right shape at the top and anything below."""
    tables = st.dictionaries(st.sampled_from(WORDS), VALUES, max_size=6)
    file: dict[str, Any] = {}
    for name in ("server", "surfaces", "routes", "gpu", "host"):
        if draw(st.booleans()):
            file[name] = draw(tables)
    for name in ("upstreams", "models"):
        file[name] = draw(st.dictionaries(st.sampled_from("abAB*"), tables, max_size=3))
    return file


def toml(value: Any) -> str:
    """Write a value as TOML; tables are written inline."""
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value)
        case dict():
            pairs = (f"{json.dumps(name)} = {toml(inner)}" for name, inner in value.items())
            return "{ " + ", ".join(pairs) + " }"
        case list():
            return "[" + ", ".join(toml(inner) for inner in value) + "]"
        case _:
            return json.dumps(value)


def file_of(tables: dict[str, Any]) -> str:
    return "\n".join(f"{json.dumps(name)} = {toml(value)}" for name, value in tables.items())


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config") / "garbage.toml"


def check(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        read = load(path)
    except ConfigError as error:
        caught = error
    else:
        assert describe(read)
        assert json.loads(describe_json(read))["upstreams"]
        assert len(read.catalog().targets) == len(read.models)
        return
    assert caught.faults
    assert len(str(caught).splitlines()) == len(caught.faults)
    assert len(set(caught.faults)) == len(caught.faults)


@given(content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes(path: Path, content: bytes) -> None:
    check(path, content)


@given(tables=st.dictionaries(NAMES, VALUES, max_size=5))
def test_any_tree(path: Path, tables: dict[str, Any]) -> None:
    check(path, file_of(tables).encode("utf-8", "replace"))


@given(tables=likely_files())
def test_any_tree_that_looks_like_a_configuration(path: Path, tables: dict[str, Any]) -> None:
    check(path, file_of(tables).encode("utf-8", "replace"))


@given(data=st.data())
def test_good_file_with_a_hole_or_a_splinter(path: Path, good: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, min(len(good), start + 20)))
    splinter = data.draw(TEXTS | st.sampled_from(["\n", '"', "=", "[", "1", "nan", "true"]))
    check(path, (good[:start] + splinter + good[end:]).encode("utf-8", "replace"))
