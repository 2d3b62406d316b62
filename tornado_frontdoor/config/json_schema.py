"""The schemas of the file as one JSON schema, for editors that complete and check TOML by one.

It is written from the marshmallow schemas and knows what they know of one value at a time; what
takes two values, and how a text is formed, only `frontdoor check` can say. What `check` accepts an
editor never marks.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from marshmallow import fields

from tornado_frontdoor.config.address import Address
from tornado_frontdoor.config.fields import JsonSchema, Value
from tornado_frontdoor.config.schemas import File, Named, Table, Tables

DRAFT = "http://json-schema.org/draft-07/schema#"
"""What taplo, and so most editors, read."""


def json_schema() -> JsonSchema:
    """Return the schema of a whole configuration file."""
    head = {"$schema": DRAFT, "title": "frontdoor", "description": "docs/configuration.md"}
    return head | _of_table(File())


def as_text() -> str:
    """Return it as `conf/frontdoor.schema.json` has it."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False)


def _of_table(table: Table) -> JsonSchema:
    required = [name for name, field in table.fields.items() if field.required]
    return {
        "type": "object",
        "properties": {name: _of_field(field) for name, field in table.fields.items()},
        "additionalProperties": False,
        **({"required": required} if required else {}),
        **({"anyOf": [{"required": [name]} for name in table.one_of]} if table.one_of else {}),
    }


def _of_field(field: fields.Field[Any]) -> JsonSchema:
    if isinstance(field, Named) and field.value_field is not None:
        tables = _of_field(field.value_field)
        least = {"minProperties": 1} if field.required else {}
        return {"type": "object", **least, "additionalProperties": tables}
    if isinstance(field, fields.Nested) and isinstance(field.schema, Table):
        return _of_table(field.schema)
    if isinstance(field, Tables):
        return {"type": "array", "minItems": 1, "items": _of_field(field.inner)}
    describe: Callable[[], JsonSchema] | None = getattr(field, "json_schema", None)
    found = describe() if describe is not None else {}
    kind = getattr(field, "kind", Value.kind)
    default = _written(field.load_default)
    if default is None:
        return {"description": kind, **found}
    return {"description": kind, "default": default, **found}


def _written(default: Any) -> Any:
    """Return a default as TOML would have it; None where there is none."""
    value = default() if callable(default) else default
    if isinstance(value, Path | Address):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, bool | int | float | str | list | dict) else None
