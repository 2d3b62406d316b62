"""The schema for editors: it is the one in conf/, and it marks nothing that `check` accepts."""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from jsonschema import Draft7Validator
from test_garbage import SCALARS, likely_files

from tornado_frontdoor.cli import demo
from tornado_frontdoor.config.json_schema import as_text, json_schema
from tornado_frontdoor.config.parsing import read_shape

ROOT = Path(__file__).parents[2]
SCHEMA = json_schema()
VALIDATOR = Draft7Validator(SCHEMA)
WHOLE_LINE = re.compile(r"^\{\w+\}$", re.MULTILINE)


def in_the_suite() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every text of this repository that is a configuration, with something in its blanks."""
    for path in sorted((ROOT / "conf").glob("*.toml")):
        yield path.name, tomllib.loads(path.read_text(encoding="utf-8"))
    yield "demo", tomllib.loads(re.sub(r"\{\w+\}", "1", demo.CONFIGURATION))
    for room in ("tests", "loadtests", "tryouts", "bench"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for number, text in enumerate(texts_of(path)):
                try:
                    found = tomllib.loads(text)
                except tomllib.TOMLDecodeError:
                    continue
                if not read_shape(found).found:
                    yield f"{path.relative_to(ROOT)} {number}", found


def texts_of(path: Path) -> Iterator[str]:
    source = path.read_text(encoding="utf-8")
    if "[upstreams." not in source or "[models." not in source:
        return  # and need not be parsed
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = WHOLE_LINE.sub("", node.value)
            if "[upstreams." in text and "[models." in text:
                text = text.replace('url = "{', 'url = "http://h:{')
                yield re.sub(r"\{\w+\}", "2", text)


FOUND = dict(in_the_suite())


def test_the_schema_in_conf_is_the_one_that_is_generated():
    path = ROOT / "conf" / "frontdoor.schema.json"
    again = "bin/frontdoor check --schema > conf/frontdoor.schema.json"
    assert json.loads(path.read_text(encoding="utf-8")) == json.loads(as_text()), again


def test_the_schema_is_a_schema_and_every_example_names_it():
    Draft7Validator.check_schema(SCHEMA)
    for path in (ROOT / "conf").glob("*.toml"):
        assert path.read_text(encoding="utf-8").startswith("#:schema ./frontdoor.schema.json\n")


def test_the_suite_has_configurations_to_look_at():
    assert len(FOUND) > 8


@pytest.mark.parametrize("name", FOUND)
def test_no_configuration_of_the_suite_is_marked(name: str):
    assert [error.message for error in VALIDATOR.iter_errors(FOUND[name])] == []


@settings(max_examples=20, deadline=None)
@given(likely_files())
def test_what_check_accepts_an_editor_never_marks(tables: dict[str, Any]):
    if not read_shape(tables).found:
        assert VALIDATOR.is_valid(tables)


def exact(node: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the settings whose every value an editor can judge: numbers, flags and choices."""
    for name, inner in node.get("properties", {}).items():
        if "enum" in inner or inner.get("type") in ("boolean", "integer", "number"):
            yield (name,), inner
        for path, found in exact(inner):
            yield (name, *path), found


@settings(max_examples=20, deadline=None)
@given(SCALARS)
def test_a_number_a_flag_or_a_choice_is_marked_where_check_refuses_it(value: Any):
    if isinstance(value, float) and (isnan(value) or value.is_integer()):
        return  # JSON has one kind of number: 6.0 is an integer there, and NaN is none
    upstream = {"url": "http://h:1"}
    for path, _ in exact({"properties": {"server": SCHEMA["properties"]["server"]}}):
        document: dict[str, Any] = {
            "upstreams": {"u": upstream},
            "models": {"m": {"upstream": "u"}},
        }
        document["server"] = {path[1]: value}
        assert VALIDATOR.is_valid(document) == (not read_shape(document).found), (path, value)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"upstreams": {}, "models": {}},
        {"upstreams": {"u": {}}, "models": {"m": {"upstream": "u"}}},
        {"upstreams": {"u": {"url": "http://h", "cap": 6}}, "models": {"m": {"upstream": "u"}}},
        {"upstreams": {"u": {"url": 8000}}, "models": {"m": {"upstream": "u"}}},
    ],
    ids=["nothing", "no engine", "no url", "a key in the wrong table", "a number for a text"],
)
def test_what_everybody_gets_wrong_is_marked(document: dict[str, Any]):
    assert not VALIDATOR.is_valid(document)
