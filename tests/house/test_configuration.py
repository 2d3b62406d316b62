"""The page, the schemas and the files in conf/ say the same about every setting."""

import dataclasses
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from marshmallow import fields

from tornado_frontdoor.config import Address, load
from tornado_frontdoor.config.schemas import File, Table
from tornado_frontdoor.core.decisions import Outcome

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
FILES = sorted((ROOT / "conf").glob("*.toml"))
UNLESS = "none; required unless there are replicas"
DEFAULT_OF_ANOTHER_KEY = {
    ("models.NAME", "served_name"): "the name of the table",
    ("upstreams.NAME", "url"): UNLESS,
    ("upstreams.NAME.admission", "slots"): UNLESS,
}


class Setting(NamedTuple):
    """What schema or page say about a key: whether it is required, its default, its kind."""

    default: str | None
    kind: str


def settings_of(table: Table, section: str) -> Iterator[tuple[tuple[str, str], Setting]]:
    for name, field in table.fields.items():
        inner = field.value_field if isinstance(field, fields.Dict) else field
        if isinstance(inner, fields.Nested):
            assert isinstance(inner.schema, Table)
            path = name if inner is field else f"{name}.NAME"
            yield from settings_of(inner.schema, f"{section}.{path}".lstrip("."))
            continue
        default = None if field.required else written(field.load_default)
        kind: str = field.kind  # type: ignore[attr-defined]  # every plain field of ours has one
        yield (section, name), Setting(DEFAULT_OF_ANOTHER_KEY.get((section, name), default), kind)


def written(default: Any) -> str:
    """Write a default as the page does."""
    match default() if callable(default) else default:
        case None:
            return "none"
        case bool() as flag:
            return f"`{str(flag).lower()}`"
        case str() | Path() | Address() as text:
            return f'`"{text}"`'
        case () | {}:
            return "`[]`" if default == () else "`{}`"
        case number:
            return f"`{number}`"


def entries_of(page: str) -> Iterator[tuple[tuple[str, str], str]]:
    for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        section, *entries = re.split(r"^### ", part, flags=re.MULTILINE)
        heading = re.match(r"`\[(.+)\]`\n", section)
        assert heading, section
        for entry in entries:
            name = re.match(r"`(\w+) = <[^>]+>`\n", entry)
            assert name, entry
            yield (heading[1], name[1]), entry.replace("\n", " ")


def meta_of(entry: str) -> Setting:
    line = re.search(r" \*(Required|Default: (?:`.*?`|[^.`]+))\. ([^*]+)\.\* ", f"{entry} ")
    assert line, f"no line in italics that says default and kind: {entry}"
    default = None if line[1] == "Required" else line[1].removeprefix("Default: ")
    return Setting(default, line[2][0].lower() + line[2][1:])


SCHEMA = dict(settings_of(File(), ""))
ENTRIES = dict(entries_of(PAGE))


def test_every_setting_has_one_entry_and_every_entry_is_a_setting() -> None:
    assert len(ENTRIES) == len(list(entries_of(PAGE)))
    assert set(ENTRIES) == set(SCHEMA)


def test_entries_stand_in_the_order_of_the_schema_within_their_section() -> None:
    for section in {section for section, _ in SCHEMA}:
        on_page = [name for where, name in ENTRIES if where == section]
        assert on_page == [name for where, name in SCHEMA if where == section]


@pytest.mark.parametrize("key", SCHEMA, ids=".".join)
def test_entry_says_default_and_kind_of_the_schema(key: tuple[str, str]) -> None:
    assert meta_of(ENTRIES[key]) == SCHEMA[key]


@pytest.mark.parametrize("key", ENTRIES, ids=".".join)
def test_outcomes_of_an_entry_exist_and_have_that_end_code(key: tuple[str, str]) -> None:
    codes = {outcome.label: outcome.code for outcome in Outcome}
    spoken = re.findall(r"`(\w+)`, +end code (\w\w)\b", ENTRIES[key])
    assert ENTRIES[key].count("end code") == len(spoken)
    assert [(label, codes.get(label)) for label, _ in spoken] == spoken


@pytest.mark.parametrize("key", ENTRIES, ids=".".join)
def test_see_also_names_settings_that_exist(key: tuple[str, str]) -> None:
    for name in re.findall(r"`([^`]+)`", ENTRIES[key].partition("See also:")[2]):
        section, _, bare = name.rpartition(" ")
        assert any(bare in (known, f"[{where}]") for where, known in SCHEMA), name
        assert not section or (section.strip("[]"), bare) in SCHEMA, name


def test_tables_have_exactly_the_fields_of_their_settings_class() -> None:
    given_by_the_table_name = {"key", "name", "path"}

    def check(table: Table) -> None:
        names = {field.name for field in dataclasses.fields(table.holds)}
        assert set(table.fields) == names - given_by_the_table_name
        for field in table.fields.values():
            inner = field.value_field if isinstance(field, fields.Dict) else field
            if isinstance(inner, fields.Nested) and isinstance(inner.schema, Table):
                check(inner.schema)

    check(File())


# The files


def test_there_are_files_to_check() -> None:
    assert {"frontdoor.toml", "homelab.toml", "a800.toml"} <= {path.name for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_file_loads(path: Path) -> None:
    assert load(path).catalog().targets


def uncommented(text: str) -> str:
    """Bring back what a file shows as a comment: `# key = value` and `# [table]`."""
    return re.sub(r"^# (?=\w+ = |\[)", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_key_in_a_comment_is_a_setting_too(path: Path) -> None:
    data = tomllib.loads(uncommented(path.read_text(encoding="utf-8")))
    assert {key for key, _ in keys_of(data, "")} <= set(SCHEMA)


def test_commented_lines_of_the_default_file_show_the_defaults() -> None:
    path = ROOT / "conf" / "frontdoor.toml"
    text = path.read_text(encoding="utf-8")
    shown = dict(keys_of(tomllib.loads(uncommented(text)), ""))
    used = dict(keys_of(tomllib.loads(text), ""))
    without_default = {
        ("server", "admin_token_file"),
        ("log", "file"),
        ("models.NAME", "aliases"),
        ("routes", "chat_default"),
        ("models.NAME", "served_name"),
        ("otel", "endpoint"),
    }
    compared = set(shown) - set(used) - without_default
    assert {key: written(shown[key]) for key in compared} == {
        key: SCHEMA[key].default for key in compared
    }
    assert len(compared) > 20


def keys_of(data: dict[str, Any], section: str) -> Iterator[tuple[tuple[str, str], Any]]:
    for name, value in data.items():
        if isinstance(value, dict) and (section, name) not in SCHEMA:
            path = "NAME" if section in ("upstreams", "models") else name
            yield from keys_of(value, f"{section}.{path}".lstrip("."))
        else:
            yield (section, name), value


def test_default_file_is_the_engine_that_the_readme_starts() -> None:
    settings = load(ROOT / "conf" / "frontdoor.toml")
    admission = settings.upstreams["reasoning"].admission
    assert admission is not None
    assert (admission.slots, admission.cap, admission.queue) == (8, 6, 8)
    assert admission.queue_timeout_s == 30
    assert str(settings.server.listen) == "127.0.0.1:8080"
    assert str(settings.server.admin_listen) == "127.0.0.1:8010"
