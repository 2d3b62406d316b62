"""The file against its schemas: what is usable of it, and a fault for each value that is not.

marshmallow nests its messages by table, puts those of a named table under a key `value` and tells
unknown keys in no order; here they become flat, and every fault has a place in the file's order.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from marshmallow import ValidationError, fields

from tornado_frontdoor.config.faults import KeyPath, did_you_mean
from tornado_frontdoor.config.schemas import File, Table

Node = Table | fields.Field[Any]
Found = tuple[KeyPath, str]


class Shape(NamedTuple):
    """What the schemas make of a file: the values that are fit, and what is wrong with the rest."""

    data: dict[str, Any]
    found: list[Found]


def read_shape(raw: Mapping[str, Any]) -> Shape:
    """Read a parsed file; `data` has the defaults of what is absent, and lacks what is unfit."""
    table = _file()
    try:
        return Shape(table.load(raw), [])
    except ValidationError as error:
        messages = error.messages_dict
        data = error.valid_data if isinstance(error.valid_data, dict) else {}
        return Shape(data, list(_in_table(messages, table, raw, ())))


@cache
def _file() -> File:
    """Return the schema of the file; to make it takes half as long as to read a file with it."""
    return File()


def position(path: KeyPath, raw: Mapping[str, Any]) -> tuple[int, ...]:
    """Return where a key path stands: keys in the order of the schema, named tables in the file's.

    Unknown keys come last in their table.
    """
    node: Node | None = _file()
    value: Any = raw
    places: list[int] = []
    for part in path:
        if isinstance(part, int):
            places.append(part)
            continue
        names = _names(node, value)
        places.append(names.index(part) if part in names else len(names))
        node = _child(node, part)
        value = value.get(part) if isinstance(value, Mapping) else None
    return tuple(places)


def _names(node: Node | None, value: object) -> list[str]:
    written = list(value) if isinstance(value, Mapping) else []
    table = _table(node)
    if table is None:
        return written
    return [*table.fields, *(name for name in written if name not in table.fields)]


def _child(node: Node | None, name: str) -> Node | None:
    table = _table(node)
    if table is not None:
        return table.fields.get(name)
    return node.value_field if isinstance(node, fields.Dict) else None


def _table(node: Node | None) -> Table | None:
    if isinstance(node, fields.Nested):
        schema = node.schema
        return schema if isinstance(schema, Table) else None
    return node if isinstance(node, Table) else None


def _in_table(messages: Any, table: Table, raw: object, path: KeyPath) -> Iterator[Found]:
    if not isinstance(raw, Mapping):
        yield from ((path, text) for text in messages["_schema"])
        return
    for name in _names(table, raw):
        if name not in messages:
            continue
        field = table.fields.get(name)
        if field is None:
            yield (*path, name), "is unknown" + _meant(name, table)
        else:
            yield from _in_field(messages[name], field, raw.get(name), (*path, name))


def _in_field(messages: Any, field: fields.Field[Any], raw: Any, path: KeyPath) -> Iterator[Found]:
    table = _table(field)
    if isinstance(messages, list):
        yield from ((path, text) for text in messages)
    elif table is not None:
        yield from _in_table(messages, table, raw, path)
    elif isinstance(field, fields.Dict):
        for name in (name for name in raw if name in messages):
            for text in messages[name].get("key", ()):
                yield (*path, name), f"its name {text}"
            value_messages = messages[name].get("value")
            if value_messages is not None and field.value_field is not None:
                yield from _in_field(value_messages, field.value_field, raw[name], (*path, name))
    elif isinstance(field, fields.List):
        for index, item_messages in messages.items():
            yield from _in_field(item_messages, field.inner, raw[index], (*path, index))


def _meant(name: str, table: Table) -> str:
    """Return the key of this table, or of a table inside it, that was probably meant."""
    for inner_name, field in table.fields.items():
        inner = _table(field)
        if inner is not None and name in inner.fields:
            return f'; did you mean "{inner_name}.{name}"?'
    return did_you_mean(name, table.fields)
